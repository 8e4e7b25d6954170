"""Fit the iteration model to a real engine, and measure how far it is off.

Three numbers are fitted: an iteration costs `iteration_base_ms`, each prompt token in it `ms_per_prefill_token`, each
decoding sequence `ms_per_decode_seq`. Lone prompts of several lengths show the first two in their time to the first
token, several streams at once show the first and the last in the gaps between tokens. The error is then taken on a
mixed load that the fit has not seen.
"""

from collections.abc import Callable, Sequence
from math import sqrt
from random import Random
from statistics import median

from msgspec import Struct
from msgspec.structs import replace

from forebay.engines.sim.model import EngineModel, Seq
from forebay.engines.sim.spec import SimSpec
from forebay.plan.report import percentile
from forebay.plan.timing import Asked, Engine, Timed

FIRST_WORDS = 16
# Up to here each number of streams is measured: kernels for few rows are the least even.
_EACH_STREAMS = 4
# What costs nothing measurable costs this, because a prompt without cost would have no peak.
_LEAST_MS = 1e-6


class Effort(Struct, frozen=True, kw_only=True):
    """How much is measured; the defaults take one to four minutes.

    Attributes:
        longest_words: of a prompt that is tried, about its tokens.
        longest_ttft_s: longer prompts are not tried once one took this long: a slow engine is measured with short ones.
        repeats: of each measurement, before the mixed load and again after it; the median of a prompt length counts.
        output_tokens: longest answer.
        held_out: requests of the mixed load.
        utilisation_ratio: part of the time that the mixed load keeps the engine busy.
    """

    longest_words: int = 1024
    longest_ttft_s: float = 3.0
    repeats: int = 2
    output_tokens: int = 48
    held_out: int = 40
    utilisation_ratio: float = 0.6


class Row(Struct, frozen=True):
    """One equation of the fit: `seconds` is the sum of what an iteration, tokens and sequences cost.

    Attributes:
        iterations: that took this long.
    """

    iterations: float
    prefill_tokens: float
    decode_seqs: float
    seconds: float


class Error(Struct, frozen=True):
    """One percentile on the held-out load: as measured, as modelled, and how far the model is off."""

    name: str
    measured_s: float
    modelled_s: float

    @property
    def error_ratio(self) -> float:
        """Modelled over measured, less 1."""
        return self.modelled_s / self.measured_s - 1.0


class Calibration(Struct, frozen=True):
    """A fitted engine and its errors on load that the fit has not seen."""

    spec: SimSpec
    errors: tuple[Error, ...]
    requests: int

    @property
    def worst_ratio(self) -> float:
        """Largest error of all percentiles, without its sign."""
        return max(abs(error.error_ratio) for error in self.errors)


def calibrate(
    engine: Engine, spec: SimSpec, effort: Effort, random: Random, on_step: Callable[[str], None] | None = None
) -> Calibration:
    """Measure an engine that has nothing else to do, fit the model, and measure the model's error.

    Args:
        engine: to be measured.
        spec: slots, chunk and KV room of the engine, which are not measured; its speeds are replaced.
        effort: how much is measured.
        random: makes the mixed load.
        on_step: told what is being done.

    Raises:
        EngineError: the engine does not answer as it should.
        ValueError: too little could be measured for a fit.
    """
    tell = on_step or _nobody
    tell("warm up")
    engine.one(FIRST_WORDS, 2)
    # Before and after the mixed load, so that a machine that grows slower or faster is met in the middle.
    rows = _measured(engine, spec, effort, tell)
    longest_words = round(max(row.prefill_tokens for row in rows))
    tell(f"{effort.held_out} requests of a mixed load")
    seen = engine.together(mixed_load(fit(rows, spec), longest_words, effort, random))
    fitted = fit(rows + _measured(engine, spec, effort, tell), spec)
    return Calibration(fitted, errors(fitted, seen), len(seen))


def fit(rows: Sequence[Row], spec: SimSpec) -> SimSpec:
    """Return the spec with the speeds that fit the rows best: least squares of the relative errors, none below 0.

    Raises:
        ValueError: the rows do not tell the speeds apart.
    """
    found_s = [0.0, 0.0, 0.0]
    active = [0, 1, 2]
    while active:
        solved = _least_squares(rows, active)
        lowest = min(range(len(active)), key=lambda place: solved[place])
        if solved[lowest] >= 0:
            for place, column in enumerate(active):
                found_s[column] = solved[place]
            break
        del active[lowest]  # it would have to be below 0: the others explain the rows without it
    base_s, prefill_s, decode_s = found_s
    return replace(
        spec,
        iteration_base_ms=1000 * base_s,
        ms_per_prefill_token=max(_LEAST_MS, 1000 * prefill_s),
        ms_per_decode_seq=1000 * decode_s,
        prefill_tokens_per_s=0.0,
    )


def mixed_load(spec: SimSpec, longest_words: int, effort: Effort, random: Random) -> list[Asked]:
    """Make a load that keeps the fitted engine busy for a part of the time.

    Args:
        spec: the fitted engine.
        longest_words: of a prompt; lengths are spread evenly on a logarithmic scale.
        effort: how many requests, how long their answers are, how busy the engine shall be.
        random: makes it.
    """
    sizes = []
    for _ in range(effort.held_out):
        words = round(FIRST_WORDS * (longest_words / FIRST_WORDS) ** random.random())
        sizes.append((words, random.randint(max(2, effort.output_tokens // 4), effort.output_tokens)))
    # What a request costs the engine when all slots share the base of an iteration.
    shared_ms = spec.iteration_base_ms / spec.max_num_seqs + spec.ms_per_decode_seq
    costs_ms = [spec.iteration_base_ms + words * spec.prefill_ms + output * shared_ms for words, output in sizes]
    gap_s = sum(costs_ms) / len(costs_ms) / 1000 / effort.utilisation_ratio
    load, after_s = [], 0.0
    for words, output in sizes:
        load.append(Asked(after_s, words, output))
        after_s += random.expovariate(1 / gap_s)
    return load


def replay(spec: SimSpec, seen: Sequence[Timed]) -> tuple[list[float], list[float]]:
    """Run the same requests through the model; return the times to the first token and all gaps, in seconds."""
    model = EngineModel(spec)
    order = sorted(range(len(seen)), key=lambda index: seen[index].sent_s)
    last_s: dict[int, float] = {}
    ttfts_s, gaps_s = [], []
    now_s = 0.0
    while order or model.running or model.waiting:
        while order and (seen[order[0]].sent_s <= now_s or not (model.running or model.waiting)):
            index = order.pop(0)
            now_s = max(now_s, seen[index].sent_s)
            model.submit(Seq(index, seen[index].prompt_tokens, len(seen[index].token_s)))
        iteration = model.step()
        now_s += iteration.duration_s
        for token in iteration.emitted:
            if token.index:
                gaps_s.append(now_s - last_s[token.seq_id])
            else:
                ttfts_s.append(now_s - seen[token.seq_id].sent_s)
            last_s[token.seq_id] = now_s
    return ttfts_s, gaps_s


def errors(spec: SimSpec, seen: Sequence[Timed]) -> tuple[Error, ...]:
    """Compare the model with what was measured: P50 and P90 of the time to the first token and of the gaps.

    Raises:
        ValueError: no answer had two tokens.
    """
    modelled = replay(spec, seen)
    measured = [timed.ttft_s for timed in seen], [gap_s for timed in seen for gap_s in timed.gaps_s]
    found = []
    for name, real, model in zip(("TTFT", "ITL"), measured, modelled, strict=True):
        for share in (0.5, 0.9):
            ours, theirs = percentile(real, share), percentile(model, share)
            if ours is None or theirs is None:
                raise ValueError("the answers were too short to measure the time between tokens")
            found.append(Error(f"{name} P{share * 100:.0f}", ours, theirs))
    return tuple(found)


def _measured(engine: Engine, spec: SimSpec, effort: Effort, tell: Callable[[str], None]) -> list[Row]:
    """Measure lone prompts, then streams at once."""
    rows = _prefill_rows(engine, spec.chunk_tokens, effort, tell)
    # Decoding slows down as sequences grow, so it is measured behind prompts of a middle length.
    words = round(sqrt(FIRST_WORDS * max(row.prefill_tokens for row in rows)))
    return rows + _decode_rows(engine, spec.max_num_seqs, words, effort, tell)


def _prefill_rows(engine: Engine, chunk_tokens: int, effort: Effort, tell: Callable[[str], None]) -> list[Row]:
    """Measure lone prompts, each twice as long as the one before."""
    rows: list[Row] = []
    words = FIRST_WORDS
    while words <= effort.longest_words:
        tell(f"prompts of {words} words")
        seen = [engine.one(words, 2) for _ in range(effort.repeats)]
        tokens = median(timed.prompt_tokens for timed in seen)
        ttft_s = median(timed.ttft_s for timed in seen)
        rows.append(Row(-(-tokens // chunk_tokens), tokens, 0, ttft_s))
        if ttft_s > effort.longest_ttft_s:
            break
        words *= 2
    if len(rows) < 2:
        raise ValueError("the engine is too slow, or the longest prompt too short, to measure two lengths")
    return rows


def _decode_rows(engine: Engine, slots: int, words: int, effort: Effort, tell: Callable[[str], None]) -> list[Row]:
    """Measure 1, 2, 3, 4, 8, 16 ... streams at once, up to all slots: the gaps while all of them decode."""
    rows: list[Row] = []
    few = range(1, min(slots, _EACH_STREAMS) + 1)
    for streams in sorted({*few, *(min(slots, 1 << power) for power in range(slots.bit_length() + 1))}):
        tell(f"{streams} streams at once")
        for _ in range(effort.repeats):
            seen = engine.together([Asked(0.0, words, effort.output_tokens)] * streams)
            begin_s = max(timed.token_s[0] for timed in seen)
            end_s = min(timed.token_s[-1] for timed in seen)
            gaps_s = [
                after - before
                for timed in seen
                for before, after in zip(timed.token_s, timed.token_s[1:], strict=False)
                if before >= begin_s and after <= end_s
            ]
            if gaps_s:
                rows.append(Row(1, 0, streams, median(gaps_s)))
    return rows


def _least_squares(rows: Sequence[Row], columns: Sequence[int]) -> list[float]:
    """Return the seconds that one iteration, prompt token and decoding sequence take, those of the columns.

    Raises:
        ValueError: the rows do not tell them apart.
    """
    size = len(columns)
    matrix = [[0.0] * (size + 1) for _ in range(size)]
    for row in rows:
        terms = (row.iterations, row.prefill_tokens, row.decode_seqs)
        weighted = [terms[column] / row.seconds for column in columns]
        for line, own in zip(matrix, weighted, strict=True):
            for place, other in enumerate((*weighted, 1.0)):
                line[place] += own * other
    return _solved(matrix)


def _solved(matrix: list[list[float]]) -> list[float]:
    """Solve n equations in n unknowns by elimination.

    Args:
        matrix: n rows of n coefficients and the right side; is changed.

    Raises:
        ValueError: they have no single solution.
    """
    size = len(matrix)
    scale = max(abs(value) for line in matrix for value in line[:size])
    for column in range(size):
        pivot = max(range(column, size), key=lambda row: abs(matrix[row][column]))
        matrix[column], matrix[pivot] = matrix[pivot], matrix[column]
        if abs(matrix[column][column]) < 1e-12 * scale:
            raise ValueError("the measurements do not tell the speeds apart: more lengths and streams are needed")
        for row in range(size):
            if row != column:
                share = matrix[row][column] / matrix[column][column]
                matrix[row] = [a - share * b for a, b in zip(matrix[row], matrix[column], strict=True)]
    return [line[size] / line[place] for place, line in enumerate(matrix)]


def _nobody(_: str) -> None:
    """Stand in for who wants to know."""
