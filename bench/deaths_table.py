"""Deaths in the middle of answers, counted against the marks of acceptance M3, and laid out as text."""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from bench.measure import percentile
from bench.table import number

CUT_S = 1.0
HANG_S = 3.0
# Greedy text equal to the uninterrupted one: all of it where every token is known, else what near-ties leave.
SAME = {"simulated": 1.0, "llama.cpp": 0.7}


class Death(NamedTuple):
    """What became of one answer whose engine died.

    Attributes:
        kind: of death.
        mode: in which the answer was to go on.
        hang: the engine fell silent, so that `stall_s` passes before anything can be done.
        whole: the client got an answer with one id, one finish reason, one sentinel and no error.
        error: code of the typed error otherwise.
        wrong_chars: lost or doubled.
        leaked: something of the prompt, or token ids, went to the client.
        replaced: U+FFFD was put where the answer has none.
        gap_s: longest wait between two texts.
        prefill_s: part of it that an engine takes for such a prompt when nothing dies.
        rows: in the journal.
        sums: usage is one, adds up and is that of the row.
        exact_usage: it is the exact number of tokens.
        continued: legs beyond the first.
        same: the text is that of an answer without a death.
        agrees: it is, as far as both go: tokens that are counted by events make a limit late.
        known: what came before the death is the beginning of that answer; a killed engine cannot be heard to the end,
            and says something else when it is asked again where words are nearly as likely.
        stable: the question asked again has the same answer, with nothing dying.
    """

    kind: str
    mode: str
    vocabulary: str
    hang: bool
    whole: bool
    error: str
    wrong_chars: int
    leaked: bool
    replaced: bool
    gap_s: float
    prefill_s: float
    rows: int
    sums: bool
    exact_usage: bool
    continued: int
    same: bool
    agrees: bool
    known: bool = True
    stable: bool = True


class Finding(NamedTuple):
    """One mark: what was measured, and what is asked for."""

    part: str
    label: str
    measured: float
    bound: float
    at_least: bool = False

    @property
    def passed(self) -> bool:
        """Say whether it is reached."""
        return self.measured >= self.bound if self.at_least else self.measured <= self.bound


def counted(part: str, deaths: Sequence[Death]) -> list[Finding]:
    """Count deaths against the marks."""

    def bad(holds: Callable[[Death], bool]) -> int:
        return sum(not holds(death) for death in deaths)

    known = [death for death in deaths if death.known]
    findings = [
        Finding(part, "deaths", len(deaths), 1, at_least=True),
        Finding(part, "answers that ended with an error", bad(lambda d: d.whole), 0),
        Finding(part, "characters lost or doubled", sum(d.wrong_chars for d in deaths), 0),
        Finding(part, "leaks of prompts or ids", bad(lambda d: not d.leaked), 0),
        Finding(part, "U+FFFD at a seam", bad(lambda d: not d.replaced), 0),
        Finding(part, "not one row", bad(lambda d: d.rows == 1), 0),
        Finding(part, "usage that does not add up", bad(lambda d: d.sums), 0),
        Finding(part, "share of equal texts", share(known, lambda d: d.same), SAME[part], at_least=True),
    ]
    if SAME[part] < 1:
        agrees = share(known, lambda d: d.agrees)
        findings += [
            Finding(part, "share of equal texts, as far as both go", agrees, SAME[part], at_least=True),
            Finding(part, "unbroken answer not known", len(deaths) - len(known), len(deaths) / 10),
            Finding(part, "share of equal texts without a death", share(deaths, lambda d: d.stable), 0, at_least=True),
        ]
    exact = [d for d in deaths if d.mode == "exact"]
    if exact:
        findings.append(Finding(part, "usage not exact, by ids", sum(not d.exact_usage for d in exact), 0))
    for label, hang, bound in (("cut", False, CUT_S), ("hang", True, HANG_S)):
        gaps_s = [d.gap_s - d.prefill_s for d in deaths if d.hang == hang and d.whole]
        if gaps_s:
            findings.append(Finding(part, f"gap after a {label} less prefill, max, s", max(gaps_s), bound))
    return findings


def share(deaths: Sequence[Death], holds: Callable[[Death], bool]) -> float:
    """Return the part of deaths for which something holds; 0 without any."""
    return sum(map(holds, deaths)) / len(deaths) if deaths else 0.0


def render(found: Mapping[str, Sequence[Death]], findings: Sequence[Finding]) -> str:
    """Lay out the deaths by kind and by mode, and then the marks."""
    rows: list[tuple[str, ...]] = [
        ("engines", "by", "deaths", "whole", "equal", "usage exact", "legs", "gap p50", "p99", "max, s")
    ]
    for part, deaths in found.items():
        for keys in (sorted({d.kind for d in deaths}), sorted({d.mode for d in deaths})):
            rows += [_row(part, key, [d for d in deaths if key in (d.kind, d.mode)]) for key in keys]
        rows.append(_row(part, "all", deaths))
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.append("")
    for f in findings:
        bound = f"{'>=' if f.at_least else '<='} {f.bound:g}"
        word = "pass" if f.passed else "FAIL"
        lines.append(f"{f.part:10} {f.label:40} {f.measured:10.3g} {bound:8} {word}")
    return "\n".join(lines)


def _row(part: str, key: str, deaths: Sequence[Death]) -> tuple[str, ...]:
    gaps_s = sorted(d.gap_s for d in deaths)
    shares = [f"{share(deaths, holds):.1%}" for holds in (lambda d: d.whole, lambda d: d.same, lambda d: d.exact_usage)]
    legs = f"{max((d.continued for d in deaths), default=0)}"
    gaps = (
        [number(value) for value in (percentile(gaps_s, 0.5), percentile(gaps_s, 0.99), gaps_s[-1])] if gaps_s else []
    )
    return (part, key, str(len(deaths)), *shares, legs, *(gaps or ["-"] * 3))
