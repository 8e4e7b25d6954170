"""From raw runs to verdicts, and from verdicts to a table. Nothing here measures."""

import statistics
from typing import Literal, NamedTuple

from bench.measure import Spread, spread

Kind = Literal["ratio", "floor", "added", "median", "worst", "least"]
AT_LEAST: frozenset[Kind] = frozenset({"floor", "least"})


class Run(NamedTuple):
    """One run of one scenario on one peer: its figures by name."""

    scenario: str
    round: int
    peer: str
    figures: dict[str, float]


class Check(NamedTuple):
    """One bound.

    Attributes:
        scenario: where the figure comes from.
        figure: key in `Run.figures`.
        label: what it is, for the table.
        unit: of the figure.
        kind: ratio, floor (a ratio that must be reached) and added compare the two runs of a round, then take
            the median over rounds; median, worst (largest) and least (smallest, must be reached) look at one side.
        bound: the verdict is "pass" up to and including it, or from it on.
        side: whose figure is judged.
        against: whom it is compared with, in the same round.
    """

    scenario: str
    figure: str
    label: str
    unit: str
    kind: Kind
    bound: float
    side: str = "forebay"
    against: str = "nginx"


class Verdict(NamedTuple):
    """A check with what was measured on the side that is judged, and on the other."""

    check: Check
    ours: Spread
    theirs: Spread
    value: Spread
    measured: float
    errors: int

    @property
    def passed(self) -> bool:
        """Say whether it holds; a run with a failed request does not count as a pass."""
        if self.check.kind in AT_LEAST:
            return self.errors == 0 and self.measured >= self.check.bound
        return self.errors == 0 and self.measured <= self.check.bound


def figures_of(runs: list[Run], scenario: str, figure: str, peer: str) -> dict[int, float]:
    """Return a figure by round."""
    return {r.round: r.figures[figure] for r in runs if r.scenario == scenario and r.peer == peer}


def judge(check: Check, runs: list[Run]) -> Verdict:
    """Compare the runs of one check with its bound.

    Raises:
        ValueError: a round lacks one of the two peers.
    """
    ours = figures_of(runs, check.scenario, check.figure, check.side)
    theirs = figures_of(runs, check.scenario, check.figure, check.against)
    if not ours or set(ours) != set(theirs):
        raise ValueError(
            f"{check.scenario}: rounds of {check.side} {sorted(ours)} and {check.against} {sorted(theirs)} differ"
        )
    if check.kind in ("ratio", "floor"):
        values = [ours[n] / theirs[n] for n in ours]
    elif check.kind == "added":
        values = [ours[n] - theirs[n] for n in ours]
    else:
        values = list(ours.values())
    extreme = {"worst": max, "least": min}.get(check.kind, statistics.median)
    errors = int(sum(r.figures.get("errors", 0) for r in runs if (r.scenario, r.peer) == (check.scenario, check.side)))
    spreads = spread(list(ours.values())), spread(list(theirs.values())), spread(values)
    return Verdict(check, *spreads, measured=extreme(values), errors=errors)


def number(value: float) -> str:
    """Write a figure with three digits that mean something."""
    if abs(value) >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def with_spread(value: Spread) -> str:
    """Write a median with its range."""
    return f"{number(value.median)} ({number(value.low)}..{number(value.high)})"


def compared(verdict: Verdict) -> str:
    """Write what the bound is about."""
    kind, value = verdict.check.kind, verdict.value
    if kind in ("ratio", "floor"):
        return f"x {number(value.median)} ({number(value.low)}..{number(value.high)})"
    if kind == "added":
        return f"{value.median:+.1f} ({value.low:+.1f}..{value.high:+.1f})"
    return f"{kind} {number(verdict.measured)}"


def bound_text(check: Check) -> str:
    """Write the bound in the form of what it bounds."""
    sign = {"ratio": "<= x ", "floor": ">= x ", "added": "<= +", "least": ">= "}.get(check.kind, "<= ")
    return f"{sign}{check.bound:g}"


def render(verdicts: list[Verdict]) -> str:
    """Lay the verdicts out as a table of text: median (lowest..highest) over the rounds.

    The columns of the two sides carry their names when these are the same in all rows; else the row says against whom.
    """
    sides = {v.check.side for v in verdicts}
    others = {v.check.against for v in verdicts}
    head = ("scenario", "figure", *sides, "other" if len(others) > 1 else others.pop(), "compared", "bound", "verdict")
    rows = [head]
    for v in verdicts:
        word = "pass" if v.passed else "FAIL"
        if v.errors:
            word += f": {v.errors} failed requests"
        label = f"{v.check.label}, {v.check.unit}"
        theirs = with_spread(v.theirs) + (f" {v.check.against}" if "other" in head else "")
        rows.append((v.check.scenario, label, with_spread(v.ours), theirs, compared(v)) + (bound_text(v.check), word))
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
