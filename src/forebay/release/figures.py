"""What a proof shows: figures per way, their ratio, its spread, and whether a difference can be told from chance."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from random import Random
from typing import Literal

from msgspec import Struct

from forebay.release.load import Sample
from forebay.release.mix import LANE_TOKENS, Kind
from forebay.release.proof import WAY_NAMES, Arm, Proof, Way

Says = Literal["lower", "higher", "probably lower", "probably higher", "no clear difference", "too few"]

_BLOCKS = 6  # of one arm
_RESAMPLES = 400
_RESAMPLED_VALUES = 800_000  # fewer resamples of very long runs: sorting them is the cost
_FEW = 20
_SURE_PAIRS, _LIKELY_PAIRS = 6, 4  # that must all agree: by chance 3 % and 13 % (sign test, two-sided)
_SWING = 2.0  # between arms of the engine alone, that is worth a word
_SAME_RATIO = 0.03  # a throughput within this is the same
_LATE_S = 0.02

Values = Callable[[Sample], Iterable[float]]


class Row(Struct, frozen=True):
    """One figure, both ways.

    Attributes:
        name: with its unit.
        direct: of all calls to the engine alone; None when there were none.
        forebay: of all calls through Forebay.
        ratio: through Forebay over direct.
        pair_ratios: the same of each pair of arms.
        interval: 95 % interval of the ratio; None where it cannot be told.
        count: calls, or gaps, behind the smaller of the two.
        says: what may be concluded.
    """

    name: str
    direct: float | None
    forebay: float | None
    ratio: float | None
    pair_ratios: list[float]
    interval: tuple[float, float] | None
    count: int
    says: Says


class Ends(Struct, frozen=True):
    """How the calls of one way ended, and the commonest reasons of those that were not answered."""

    asked: int
    answered: int
    failed: int
    lost: int
    reasons: dict[str, int]


class Report(Struct, frozen=True):
    """A proof in figures."""

    rows: list[Row]
    ends: dict[Way, Ends]
    notes: list[str]


class _Block(Struct, frozen=True):
    """The same stretch of the schedule in both arms of a pair."""

    direct: list[float]
    forebay: list[float]


def report(proof: Proof, seed: str) -> Report:
    """Work out all figures.

    Args:
        proof: what was measured.
        seed: of the resampling.
    """
    arms = {(arm.pair, arm.way): arm for arm in proof.arms}
    pairs = [(arms[n, "direct"], arms[n, "forebay"]) for n in range(proof.timing.pairs)]
    rows = [
        _row(f"short TTFT P{percent} ms", pairs, _ttft_ms("short"), percent / 100, proof, seed)
        for percent in (50, 95, 99)
    ]
    rows += [
        _row("long TTFT P99 ms", pairs, _ttft_ms("long"), 0.99, proof, seed),
        _row("ITL P99 ms", pairs, _gaps_ms, 0.99, proof, seed),
        _throughput(pairs),
    ]
    ends = {way: _ends([s for arm in proof.arms if arm.way == way for s in arm.samples]) for way in _WAYS}
    return Report(rows, ends, _notes(proof, ends))


_WAYS: tuple[Way, Way] = ("direct", "forebay")


def percentile(values: Sequence[float], ratio: float) -> float:
    """Return the nearest-rank percentile: the smallest value that at least this part of all do not exceed.

    Args:
        values: sorted, at least one.
        ratio: 0 < ratio <= 1.
    """
    return values[max(0, math.ceil(ratio * len(values)) - 1)]


def _ttft_ms(kind: Kind) -> Values:
    return lambda s: [s.ttft_s * 1e3] if s.kind == kind and s.end == "ok" and s.ttft_s is not None else []


def _gaps_ms(sample: Sample) -> list[float]:
    return [gap_s * 1e3 for gap_s in sample.gaps_s]


def _row(name: str, pairs: Sequence[tuple[Arm, Arm]], values: Values, rank: float, proof: Proof, seed: str) -> Row:
    blocks = [block for direct, forebay in pairs for block in _blocks(direct, forebay, values)]
    direct = sorted(v for block in blocks for v in block.direct)
    forebay = sorted(v for block in blocks for v in block.forebay)
    count = min(len(direct), len(forebay))
    if not count:
        told = percentile(direct, rank) if direct else None, percentile(forebay, rank) if forebay else None
        return Row(name, *told, None, [], None, 0, "too few")
    ratios = [r for arms in pairs if (r := _ratio([_Block(*(_all(arm, values) for arm in arms))], rank)) is not None]
    interval = _interval(blocks, rank, count, seed)
    one, two = percentile(direct, rank), percentile(forebay, rank)
    return Row(name, one, two, two / one if one else None, ratios, interval, count, _says(ratios, interval, count))


def _all(arm: Arm, values: Values) -> list[float]:
    return [v for sample in arm.samples for v in values(sample)]


def _blocks(direct: Arm, forebay: Arm, values: Values) -> list[_Block]:
    """Cut a pair into stretches of as many calls: neighbours in time are not independent, stretches nearly are."""
    size = max(1, math.ceil(max(len(direct.samples), len(forebay.samples)) / _BLOCKS))
    blocks = [_Block([], []) for _ in range(_BLOCKS)]
    for sample in direct.samples:
        blocks[min(sample.number // size, _BLOCKS - 1)].direct.extend(values(sample))
    for sample in forebay.samples:
        blocks[min(sample.number // size, _BLOCKS - 1)].forebay.extend(values(sample))
    return blocks


def _ratio(blocks: Sequence[_Block], rank: float) -> float | None:
    direct = sorted(v for block in blocks for v in block.direct)
    forebay = sorted(v for block in blocks for v in block.forebay)
    if not direct or not forebay:
        return None
    below = percentile(direct, rank)
    return percentile(forebay, rank) / below if below > 0 else None


def _interval(blocks: Sequence[_Block], rank: float, count: int, seed: str) -> tuple[float, float] | None:
    """Resample stretches with replacement (block bootstrap, Künsch 1989), both ways together as they are paired."""
    if count < _FEW:
        return None
    random = Random(f"{seed}/resample")
    times = max(100, min(_RESAMPLES, _RESAMPLED_VALUES // count))
    drawn = (_ratio(random.choices(blocks, k=len(blocks)), rank) for _ in range(times))
    ratios = sorted(r for r in drawn if r is not None)
    return (percentile(ratios, 0.025), percentile(ratios, 0.975)) if ratios else None


def _says(ratios: Sequence[float], interval: tuple[float, float] | None, count: int) -> Says:
    """Conclude: a difference needs every pair and the whole interval on one side.

    Pairs weigh what blocks cannot see: a machine that does other work for a whole arm.
    """
    if interval is None or count < _FEW:
        return "too few"
    if interval[0] <= 1 <= interval[1]:
        return "no clear difference"
    return _agreed(ratios, 0.0)


def _agreed(ratios: Sequence[float], same_ratio: float) -> Says:
    """Conclude from pairs alone; a ratio this near to 1 is on neither side."""
    if len(ratios) < _LIKELY_PAIRS:
        return "too few"
    sure = len(ratios) >= _SURE_PAIRS
    if all(r < 1 - same_ratio for r in ratios):
        return "lower" if sure else "probably lower"
    if all(r > 1 + same_ratio for r in ratios):
        return "higher" if sure else "probably higher"
    return "no clear difference"


def _throughput(pairs: Sequence[tuple[Arm, Arm]]) -> Row:
    """Return prompt and answer tokens of answered calls per second, from the first arrival to the last end."""
    ratios = [_tokens(f) / f.took_s / (_tokens(d) / d.took_s) for d, f in pairs if _tokens(d) and d.took_s and f.took_s]
    sides = [(_tokens_per_s([p[side] for p in pairs])) for side in (0, 1)]
    count = min(sum(s.end == "ok" for p in pairs for s in p[side].samples) for side in (0, 1))
    ratio = sides[1] / sides[0] if sides[0] else None
    says = _agreed(ratios, _SAME_RATIO)
    return Row("throughput tokens/s", sides[0], sides[1], ratio, ratios, None, count, says)


def _tokens(arm: Arm) -> int:
    return sum(s.prompt_tokens + s.output_tokens for s in arm.samples if s.end == "ok")


def _tokens_per_s(arms: Sequence[Arm]) -> float:
    took_s = sum(arm.took_s for arm in arms)
    return sum(_tokens(arm) for arm in arms) / took_s if took_s else 0.0


def _ends(samples: Sequence[Sample]) -> Ends:
    reasons = Counter(s.reason for s in samples if s.end != "ok")
    counts = Counter(s.end for s in samples)
    return Ends(len(samples), counts["ok"], counts["failed"], counts["lost"], dict(reasons.most_common(3)))


def _notes(proof: Proof, ends: dict[Way, Ends]) -> list[str]:
    """Say what weakens the figures."""
    notes = []
    if proof.lengths.lane_tokens < LANE_TOKENS:
        notes.append(
            f"Forebay ran with its defaults but for admission.long_prompt_tokens: {proof.lengths.lane_tokens} "
            f"instead of {LANE_TOKENS}, because the engine is slow or its context short."
        )
    samples = [s for arm in proof.arms for s in arm.samples]
    per_arm = len(samples) // max(1, len(proof.arms))
    longs = min(sum(s.kind == "long" for arm in proof.arms if arm.way == way for s in arm.samples) for way in _WAYS)
    if ends["direct"].answered < ends["direct"].asked or ends["forebay"].answered < ends["forebay"].asked:
        notes.append("Times are those of answered calls alone: a way that fails many of them looks fast.")
    for way in _WAYS:
        notes += [f"{WAY_NAMES[way]}: {count} x {reason}" for reason, count in ends[way].reasons.items()]
    if longs < 100:
        notes.append(f"{longs} long calls each way: their P99 is about the slowest of them.")
    if per_arm < 40 or proof.timing.pairs < _SURE_PAIRS:
        notes.append(f"{proof.timing.pairs} pairs of arms of {per_arm} calls: more seconds give narrower ranges.")
    notes += _swings(proof)
    late_s = percentile(sorted(s.late_s for s in samples), 0.99)
    if late_s > _LATE_S:
        notes.append(f"The load maker was late by {late_s * 1e3:.0f} ms (P99): the machine is short of CPU.")
    prompts = sum(s.prompt_tokens for s in samples)
    cached = sum(s.cached_tokens for s in samples)
    if cached > 0.3 * prompts:
        notes.append(f"The engine had {cached / prompts:.0%} of the prompt tokens in its cache (the chat template).")
    return notes


def _swings(proof: Proof) -> list[str]:
    """Tell how much the engine alone differs from arm to arm, if it is much."""
    medians = []
    for arm in proof.arms:
        values = sorted(_all(arm, _ttft_ms("short"))) if arm.way == "direct" else []
        if values:
            medians.append(percentile(values, 0.5))
    if not medians or max(medians) <= _SWING * min(medians):
        return []
    return [
        f"The engine alone had a short TTFT P50 of {min(medians):.0f} to {max(medians):.0f} ms from arm to arm: "
        "chance of the arrivals, or other work on the machine."
    ]
