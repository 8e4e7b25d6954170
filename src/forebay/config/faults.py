"""Collects what is wrong with a file, one line per fault, in the order of the lines.

A fault names the place and what to do. It never repeats a value, because any value may be a secret in
the wrong place; a key of a mapping is repeated only if it looks like the name of a setting.
"""

import json
import re
from typing import NamedTuple

from forebay.errors import ConfigError

Loc = tuple[str | int, ...]

MAX_FAULTS = 100
_MAX_NAME = 80
_SETTING = re.compile(r"[A-Za-z][A-Za-z_]{0,39}")
# Under these keys the user's own names stand; everywhere else a key is a setting or a mistake.
_NAMED = frozenset({"pools", "models"})


class _Fault(NamedTuple):
    line: int
    where: str
    text: str


class Faults:
    """The faults of one file.

    Args:
        file: how the file is called in a fault.

    Attributes:
        lines: where each value stands: location to line, counted from 1.
    """

    def __init__(self, file: str) -> None:
        self.lines: dict[Loc, int] = {(): 1}
        self._file = file
        self._found: list[_Fault] = []
        self._locs: set[Loc] = set()

    def has(self, loc: Loc) -> bool:
        """Say whether this very location has a fault already."""
        return loc in self._locs

    def line_of(self, loc: Loc) -> int:
        """Return the line of a location, or of the nearest one around it that is written down."""
        while loc not in self.lines:
            loc = loc[:-1]
        return self.lines[loc]

    def add(self, loc: Loc, text: str, *, line: int | None = None) -> None:
        """Add a fault: `text` says what is wrong, then what to do; `line` when it is not that of `loc`."""
        self._locs.add(loc)
        self._found.append(_Fault(self.line_of(loc) if line is None else line, path_of(loc), text))

    def raise_if_any(self) -> None:
        """Raise all faults together.

        Raises:
            ConfigError: there is a fault.
        """
        if self._found:
            raise self.error()

    def error(self) -> ConfigError:
        """Return all faults together: at most `MAX_FAULTS` lines, and one that counts the rest."""
        found = sorted(dict.fromkeys(self._found))
        lines = [f"{self._file}:{fault.line}: {fault.where}: {fault.text}" for fault in found[:MAX_FAULTS]]
        if len(found) > MAX_FAULTS:
            rest = found[MAX_FAULTS]
            lines.append(f"{self._file}:{rest.line}: file: {len(found) - MAX_FAULTS} more faults; mend these first")
        return ConfigError(lines)


def path_of(loc: Loc) -> str:
    """Write a location as `pools.main.replicas[0].url`; what may be a secret is not repeated."""
    path = ""
    for place, part in enumerate(loc):
        if isinstance(part, int):
            path += f"[{part}]"
        elif _SETTING.fullmatch(part):
            path += f".{part}"
        elif place == 1 and loc[0] in _NAMED:
            path += _named(part)
        else:
            path += ".(a key that is not shown)"
    return path.removeprefix(".") or "file"


def _named(name: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9_-]{1,80}", name):
        return f".{name}"
    return f"[{quoted(name)}]"


def quoted(name: str) -> str:
    """Return a name in quotes, bounded, on one line."""
    short = name if len(name) <= _MAX_NAME else name[:_MAX_NAME] + "…"
    return json.dumps(short, ensure_ascii=not short.isprintable())
