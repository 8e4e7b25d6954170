"""The ladder in the store: what each node reports, and levels that people have set there by hand. Pure.

A node's report and the levels for it stand in one hash, `DEGRADE:{node}:level`; levels for all nodes in
`DEGRADE:*:level`. A level is a field `override:node`, `override:pool NAME` or `override:tenant NAME` with the level and
its end in Unix seconds, such as `2 1796000000`. What has no end, or a far one, is not taken.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

from msgspec import Struct

from forebay.policy import LevelOverride
from forebay.store.contract import Page

LONGEST_S: Final = 604_800.0
"""A week, as for overrides by the API."""
MAX_LEVELS: Final = 100
_PREFIX: Final = "override:"
_VALUE: Final = re.compile(rb"([0-3]) ([0-9]{1,12})")
_OWN: Final = (":epoch", ":seq", ":at")


class Report(Struct, frozen=True):
    """What a node's ladder does.

    Attributes:
        levels: by pool.
        epoch: of the override document that it follows.
        seq: of that document.
        at: RFC 3339.
    """

    levels: Mapping[str, int]
    epoch: int
    seq: int
    at: str


class TimedLevel(Struct, frozen=True):
    """A level and its end in Unix seconds."""

    level: LevelOverride
    ends_s: float


def fields_of_report(report: Report, page: Page) -> dict[str, bytes | None]:
    """Return the fields to set: one for each pool, and three that begin with a colon; pools that have gone go.

    Args:
        report: of this node.
        page: the hash as it is; what people have set there stays.
    """
    gone = [name for name in page.fields if not name.startswith((_PREFIX, ":")) and name not in report.levels]
    values = (b"%d" % report.epoch, b"%d" % report.seq, report.at.encode())
    return {
        **dict.fromkeys(gone),
        **{pool: b"%d" % level for pool, level in report.levels.items()},
        **dict(zip(_OWN, values, strict=True)),
    }


def levels_of(page: Page) -> Iterator[TimedLevel | str]:
    """Yield the levels that people have set and that have not ended, and the names of fields that are no good."""
    now_s = page.now_ms / 1000
    for name in sorted(name for name in page.fields if name.startswith(_PREFIX))[:MAX_LEVELS]:
        found = _VALUE.fullmatch(page.fields[name])
        level = None if found is None else _level(name.removeprefix(_PREFIX), int(found[1]))
        if found is None or level is None or int(found[2]) > now_s + LONGEST_S:
            yield name[:64]
        elif int(found[2]) > now_s:
            yield TimedLevel(level, float(found[2]))


def _level(target: str, level: int) -> LevelOverride | None:
    if target == "node":
        return LevelOverride("node", "", level)
    scope, _, name = target.partition(" ")
    if not name or len(name) > 256:
        return None
    if scope == "pool":
        return LevelOverride("pool", name, level)
    return LevelOverride("tenant", name, level) if scope == "tenant" else None
