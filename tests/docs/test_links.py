"""Links lead somewhere, and the files and make targets that are named exist."""

import re
from pathlib import Path

import pytest

from tests.docs.pages import PAGES, REPO, anchors, links, name_of, quoted, read

# A path is what begins with a folder of the repository; names in capitals and in brackets stand for something.
NAMED_PATH = re.compile(r"^\.?/?(?:src|tests|docs|bench|requirements|\.ci)/[\w./-]*$")
PLACEHOLDER = re.compile(r"[A-Z]{3,}|[<>*…]")
MADE_LATER = {"bench/results/local/"}


def broken_links(page: Path) -> list[str]:
    """The relative links of a page whose file or heading does not exist."""
    faults = []
    for link in links(page):
        if "://" in link or link.startswith("mailto:"):
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            faults.append(link)
    return faults


def missing_paths(page: Path) -> list[str]:
    """The files and folders that a page names and that do not exist."""
    named = {name for name in quoted(page) if NAMED_PATH.match(name) and not PLACEHOLDER.search(name)}
    return sorted(name for name in named - MADE_LATER if not (REPO / name).exists())


def made(page: Path) -> set[str]:
    """The make targets that a page names, in backticks or at the start of a line."""
    return set(re.findall(r"(?:^\s*|`)make ([a-z]+)\b", read(page), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_somewhere(page: Path) -> None:
    assert broken_links(page) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_named_path_exists(page: Path) -> None:
    assert missing_paths(page) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_named_make_target_exists(page: Path) -> None:
    targets = set(re.findall(r"^([a-z]+):", read(REPO / "Makefile"), re.MULTILINE))
    assert made(page) - targets == set()


def test_what_leads_nowhere_is_caught(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text(
        "# One thing\n[a](a.md#one-thing) [b](a.md#two) [c](c.md) [d](https://example.org/x)\n"
        "`docs/none.md` `docs/errors.md` `docs/NAME.md`\n```\n[e](e.md)\n```\n"
    )
    assert broken_links(page) == ["a.md#two", "c.md"]
    assert missing_paths(page) == ["docs/none.md"]
