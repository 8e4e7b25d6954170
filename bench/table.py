"""From raw runs to verdicts, and from verdicts to a table. Nothing here measures."""

import statistics
from typing import Literal, NamedTuple

from bench.measure import Spread, spread

Kind = Literal["ratio", "added", "median", "worst"]
Side = Literal["forebay", "nginx"]


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
        kind: ratio and added compare the two runs of a round, then take the median over rounds; median
            and worst look at Forebay alone.
        bound: the verdict is "pass" up to and including it.
    """

    scenario: str
    figure: str
    label: str
    unit: str
    kind: Kind
    bound: float


class Verdict(NamedTuple):
    """A check with what was measured."""

    check: Check
    forebay: Spread
    nginx: Spread
    value: Spread
    measured: float
    errors: int

    @property
    def passed(self) -> bool:
        """Say whether it holds; a run with a failed request does not count as a pass."""
        return self.errors == 0 and self.measured <= self.check.bound


def figures_of(runs: list[Run], scenario: str, figure: str, peer: Side) -> dict[int, float]:
    """Return a figure by round."""
    return {r.round: r.figures[figure] for r in runs if r.scenario == scenario and r.peer == peer}


def judge(check: Check, runs: list[Run]) -> Verdict:
    """Compare the runs of one check with its bound.

    Raises:
        ValueError: a round lacks one of the two peers.
    """
    ours = figures_of(runs, check.scenario, check.figure, "forebay")
    theirs = figures_of(runs, check.scenario, check.figure, "nginx")
    if not ours or set(ours) != set(theirs):
        raise ValueError(f"{check.scenario}: rounds of forebay {sorted(ours)} and nginx {sorted(theirs)} differ")
    if check.kind == "ratio":
        values = [ours[n] / theirs[n] for n in ours]
    elif check.kind == "added":
        values = [ours[n] - theirs[n] for n in ours]
    else:
        values = list(ours.values())
    measured = max(values) if check.kind == "worst" else statistics.median(values)
    errors = int(sum(r.figures.get("errors", 0) for r in runs if r.scenario == check.scenario and r.peer == "forebay"))
    return Verdict(check, spread(list(ours.values())), spread(list(theirs.values())), spread(values), measured, errors)


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
    if kind == "ratio":
        return f"x {number(value.median)} ({number(value.low)}..{number(value.high)})"
    if kind == "added":
        return f"{value.median:+.1f} ({value.low:+.1f}..{value.high:+.1f})"
    return f"{kind} {number(verdict.measured)}"


def bound_text(check: Check) -> str:
    """Write the bound in the form of what it bounds."""
    sign = {"ratio": "<= x ", "added": "<= +"}.get(check.kind, "<= ")
    return f"{sign}{check.bound:g}"


def render(verdicts: list[Verdict]) -> str:
    """Lay the verdicts out as a table of text: median (lowest..highest) over the rounds."""
    head = ("scenario", "figure", "forebay", "nginx", "compared", "bound", "verdict")
    rows = [head]
    for v in verdicts:
        word = "pass" if v.passed else "FAIL"
        if v.errors:
            word += f": {v.errors} failed requests"
        label = f"{v.check.label}, {v.check.unit}"
        rows.append(
            (v.check.scenario, label, with_spread(v.forebay), with_spread(v.nginx), compared(v))
            + (bound_text(v.check), word)
        )
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "-" * len(lines[0]), *lines[1:]])
