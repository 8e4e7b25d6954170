"""Faults of Forebay's own, judged by the marks of acceptance M4 and laid out as text. Nothing here measures."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from bench.measure import spread
from bench.own_faults import BASELINE, KILL
from bench.reckoning import LOST_S
from bench.table import with_spread

ADDED_MS = 5.0


class Row(NamedTuple):
    """One fault in one round: what calls noticed, and what the journal has of them.

    Attributes:
        failed: calls without a whole answer, of those that ended before a kill.
        cut: those of them that had begun.
        p50_ms: of short calls due while the fault was there, from the due time to the end; nan without any.
        p99_ms: the same.
        served: whole answers.
        dispatched: requests for work at the engines.
        no_line: those without a line in the journal.
        too_young: those without a line that a kill may take; not in `no_line`.
        twice: calls with two lines of a kind.
        unclosed: answers without a close line.
        unclosed_ms: how long before the kill the first of these ended.
        dropped: lines that the journal says it gave up.
        orphans: calls that were open in the journal at the end, or at the kill.
        orphans_closed: those that the next start has closed.
        unproved: what of the fault was not seen; empty when all was.
    """

    fault: str
    round: int
    sent_per_s: float
    calls: int
    failed: int
    cut: int
    p50_ms: float
    p99_ms: float
    longest_stream_ms: float
    served: int
    dispatched: int
    no_line: int
    too_young: int
    twice: int
    unclosed: int
    unclosed_ms: float
    dropped: float
    orphans: int
    orphans_closed: int
    gateway_cores: float
    busy_cores: float
    unproved: str
    first_faults: list[str]


def missed(rows: Sequence[Row], name: str) -> list[str]:
    """Say which marks a fault has missed, over its rounds; what could not be compared is missed too."""
    mine = [row for row in rows if row.fault == name]
    found = [row.unproved for row in mine if row.unproved]
    for key in ("failed", "no_line", "twice", "dropped"):
        total = sum(getattr(row, key) for row in mine)
        found += [f"{key} {total:g}"] * bool(total)
    # A call that was answered had been dispatched: else the log that is counted by is not whole.
    found += ["engine's log is not whole"] * any(row.dispatched < row.served for row in mine)
    if name == KILL:
        late_ms = max(row.unclosed_ms for row in mine)
        found += [f"closes of {late_ms:.0f} ms lost"] * (late_ms > 1000 * LOST_S)
        found += ["orphans left open"] * any(row.orphans != row.orphans_closed for row in mine)
        found += ["nothing was open"] * any(not row.orphans for row in mine)
        return found
    found += [f"no close line {sum(row.unclosed + row.orphans for row in mine)}"] * any(
        row.unclosed or row.orphans for row in mine
    )
    added = added_ms(rows, name, "p99_ms")
    if any(map(math.isnan, added)):
        return [*found, "p99 not compared"]
    median = spread(added).median
    return found + [f"p99 +{median:.1f} ms"] * (median > ADDED_MS)


def added_ms(rows: Sequence[Row], name: str, figure: str) -> list[float]:
    """Return what a fault adds to a percentile in each round; nan in a round without a baseline."""
    base = {row.round: getattr(row, figure) for row in rows if row.fault == BASELINE}
    return [getattr(row, figure) - base.get(row.round, math.nan) for row in rows if row.fault == name]


def render(rows: Sequence[Row]) -> str:
    """Lay the rows out, one line for each fault: median (lowest..highest) over the rounds."""
    head: tuple[str, ...] = ("fault", "sent/s", "calls", "failed", "cut", "p50 added, ms", "p99, ms", "p99 added, ms")
    head += ("at engines", "no line", "twice", "unclosed, ms", "orphans closed", "gateway cores", "busy", "verdict")
    table = [head, *(_cells(rows, name) for name in dict.fromkeys(row.fault for row in rows))]
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in table)


def _cells(rows: Sequence[Row], name: str) -> tuple[str, ...]:
    mine = [row for row in rows if row.fault == name]

    def over_rounds(values: Sequence[float]) -> str:
        return with_spread(spread(values)) if len(values) > 1 else f"{values[0]:.2f}"

    def total(key: str) -> str:
        return str(sum(getattr(row, key) for row in mine))

    marks = missed(rows, name)
    young = sum(row.too_young for row in mine)
    return (
        name,
        over_rounds([row.sent_per_s for row in mine]),
        *map(total, ("calls", "failed", "cut")),
        "-" if name == KILL else over_rounds(added_ms(rows, name, "p50_ms")),
        over_rounds([row.p99_ms for row in mine]),
        "-" if name == KILL else over_rounds(added_ms(rows, name, "p99_ms")),
        total("dispatched"),
        total("no_line") + (f" (+{young} young)" if young else ""),
        total("twice"),
        f"{max(row.unclosed_ms for row in mine):.0f}",
        f"{total('orphans_closed')} of {total('orphans')}",
        over_rounds([row.gateway_cores for row in mine]),
        over_rounds([row.busy_cores for row in mine]),
        "FAIL: " + ", ".join(marks) if marks else "pass",
    )
