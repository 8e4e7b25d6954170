"""docs/cli.md is what the commands say."""

import re
from typing import get_args

import pytest

from forebay.engines.sim.faults import AnyAction
from forebay.engines.sim.faults import read as read_script
from tests.docs.cli_page import commands, render
from tests.docs.pages import PAGES, REPO, blocks, name_of, read

PAGE = REPO / "docs" / "cli.md"
MAKE = "python -m tests.docs.cli_page > docs/cli.md"


def test_the_page_is_up_to_date() -> None:
    assert read(PAGE) == render(), f"make it again: {MAKE}"


def test_every_command_has_a_section_and_every_option_a_row() -> None:
    sections = dict(re.findall(r"^## forebay ([\w ]+)\n(.*?)(?=^## )", read(PAGE), re.MULTILINE | re.DOTALL))
    assert sorted(sections) == sorted(commands())
    for name, command in commands().items():
        options = [option for param in command.params for option in param.opts]
        assert [option for option in options if f"`{option}`" not in sections[name]] == [], name


def test_every_fault_has_a_row() -> None:
    rows = re.findall(r"^\| `(\w+)` \|", read(PAGE).split("| action |")[1], re.MULTILINE)
    assert rows == [action.__struct_config__.tag for action in get_args(AnyAction)]


def test_the_script_on_the_page_is_valid() -> None:
    (block,) = blocks(PAGE, "json")
    assert len(read_script(block.text.encode())) == 4


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_option_that_a_page_shows_exists(page: object) -> None:
    assert isinstance(page, type(REPO))
    known: dict[str, set[str]] = {}
    for name, command in commands().items():
        options = {o for p in command.params for o in p.opts}
        known.setdefault(name.split()[0], {"--help"}).update(options)
    for name, rest in re.findall(r"(?<![-\w.])forebay (\w+)((?: +[\w./:-]+)*)", read(page)):
        shown = {word for word in rest.split() if word.startswith("-")}
        if shown or name in known:
            assert name in known, f"{name_of(page)}: forebay {name}"
            assert shown - known[name] == set(), f"{name_of(page)}: forebay {name}{rest}"
