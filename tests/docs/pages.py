"""The documentation as data: pages, fenced blocks, links, headings, names in backticks."""

import re
from pathlib import Path
from typing import NamedTuple

REPO = Path(__file__).resolve().parents[2]
READMES = (REPO / "README.md", REPO / "README.zh-CN.md")
PAGES = (*READMES, REPO / "CHANGELOG.md", REPO / "CONTRIBUTING.md", *sorted((REPO / "docs").rglob("*.md")))

_FENCE = re.compile(r"^```(?P<language>[\w-]*)[^\n]*\n(?P<text>.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\[[^\]]*\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#{1,6} +(.+?)\s*$", re.MULTILINE)


class Block(NamedTuple):
    """A fenced block.

    Attributes:
        line: of its opening fence, from 1.
    """

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        """Say where it stands."""
        return f"{name_of(self.page)}:{self.line}"


def read(page: Path) -> str:
    """The text of a page."""
    return page.read_text(encoding="utf-8")


def name_of(page: Path) -> str:
    """The path of a page within the repository."""
    return str(page.relative_to(REPO)) if page.is_relative_to(REPO) else page.name


def blocks(page: Path, *languages: str) -> list[Block]:
    """The fenced blocks of a page, in order; of these languages, or all."""
    text = read(page)
    found = [
        Block(page, text.count("\n", 0, match.start()) + 1, match["language"], match["text"])
        for match in _FENCE.finditer(text)
    ]
    return [block for block in found if not languages or block.language in languages]


def prose(page: Path) -> str:
    """A page without its fenced blocks."""
    return _FENCE.sub("", read(page))


def links(page: Path) -> list[str]:
    """The targets of all links."""
    return _LINK.findall(prose(page))


def anchors(page: Path) -> set[str]:
    """What `#...` may name on a page, as GitHub makes it of headings."""
    titles = (re.sub(r"[^\w\- ]", "", title.lower()) for title in _HEADING.findall(prose(page)))
    return {title.replace(" ", "-") for title in titles}


def quoted(page: Path) -> list[str]:
    """Everything in backticks outside of fenced blocks."""
    return re.findall(r"`([^`\n]+)`", prose(page))
