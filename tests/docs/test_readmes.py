"""The two READMEs say the same, as far as a machine can tell."""

import re
from pathlib import Path

from tests.docs.pages import READMES, blocks, links, read

ENGLISH, CHINESE = READMES


def commands(page: Path) -> list[str]:
    """Every command line without its comment."""
    lines = [line for block in blocks(page, "console", "bash", "sh") for line in block.text.splitlines()]
    return [command for line in lines if (command := re.sub(r"(?:^|\s)#.*$", "", line).strip())]


def targets(page: Path) -> list[str]:
    """Every link but those from one README to the other."""
    return [link for link in links(page) if link not in {name.name for name in READMES}]


def test_commands_are_the_same() -> None:
    assert commands(ENGLISH) == commands(CHINESE)
    assert commands(ENGLISH)


def test_configurations_and_programs_are_the_same() -> None:
    languages = ("yaml", "python", "json")
    assert [b.text for b in blocks(ENGLISH, *languages)] == [b.text for b in blocks(CHINESE, *languages)]


def test_links_are_the_same() -> None:
    assert sorted(targets(ENGLISH)) == sorted(targets(CHINESE))


def test_each_leads_to_the_other() -> None:
    assert CHINESE.name in links(ENGLISH)
    assert ENGLISH.name in links(CHINESE)


def test_structure_is_the_same() -> None:
    def shape(page: Path) -> list[int]:
        sections = re.split(r"^## ", read(page), flags=re.MULTILINE)
        return [len(re.findall(r"^- ", section, re.MULTILINE)) for section in sections]

    assert shape(ENGLISH) == shape(CHINESE)


def test_names_in_backticks_are_the_same() -> None:
    def named(page: Path) -> set[str]:
        return set(re.findall(r"`([^`\n]+)`", read(page)))

    assert named(ENGLISH) == named(CHINESE)
