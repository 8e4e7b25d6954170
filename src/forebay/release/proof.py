"""The order of a proof: the engine's speed, its capacity, then the same load on both ways in turns."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Literal

from msgspec import Struct

from forebay.clock import Clock
from forebay.release.load import Client, Sample, closed_loop, open_loop
from forebay.release.mix import UTILISATION_RATIO, Lengths, Prompts, Speed, schedule

Way = Literal["direct", "forebay"]
WAY_NAMES: dict[Way, str] = {"direct": "the engine alone", "forebay": "through Forebay"}
Stage = Callable[[str, float], None]
"""Told what begins, and how many seconds it should take."""

MIN_SECONDS = 20.0
_SPEED_S = 2.0  # what finding the speed takes, more or less
_CALL_LIMIT_S = 60.0
_PAUSE_S = 0.3
# From so many seconds on, so many pairs: six that agree are no chance at 5 % (sign test: 2 in 64), four at 13 %.
_PAIRS = ((600.0, 10), (80.0, 6), (40.0, 4), (0.0, 2))
_EXACT_S = 0.25  # a prompt that is computed faster is too short to tell the speed
_GUESSED_WORKERS = (16, 48, 128)  # tried in turn when the engine does not say how many calls it runs
_WORTH_RATIO = 1.1  # more workers are tried as long as they bring this much


class Unprovable(Exception):
    """The engine cannot be measured; the message says why and what to do, in one line."""


class Timing(Struct, frozen=True):
    """How the time is spent, in seconds; `pairs` of arms, one each way."""

    capacity_s: float
    warm_s: float
    arm_s: float
    pairs: int


class Run(Struct, frozen=True):
    """What all steps share.

    Attributes:
        seed: of the arrivals.
        salt: of the prompts; new in every run, or they would be in the engine's cache from the run before.
    """

    timing: Timing
    seed: str
    salt: str
    clock: Clock
    stage: Stage


class Arm(Struct, frozen=True):
    """One run of the load on one way.

    Attributes:
        pair: number of its pair, from 0.
        took_s: from the first arrival to the last end.
    """

    pair: int
    way: Way
    samples: list[Sample]
    took_s: float


class Proof(Struct, frozen=True):
    """All that was measured.

    Attributes:
        capacity_per_s: calls per second that the engine answers at most, asked directly.
        offered_per_s: calls per second of the load.
    """

    speed: Speed
    lengths: Lengths
    timing: Timing
    capacity_per_s: float
    offered_per_s: float
    arms: list[Arm]


def timing_for(seconds: float) -> Timing:
    """Divide the time.

    Args:
        seconds: for everything, at least `MIN_SECONDS`.

    Raises:
        ValueError: it is less, or no number.
    """
    if not seconds >= MIN_SECONDS:
        raise ValueError(f"--seconds {seconds:g}: too few; at least {MIN_SECONDS:g} are needed")
    pairs = next(pairs for least_s, pairs in _PAIRS if seconds >= least_s)
    capacity_s = min(max(0.12 * seconds, 3.0), 20.0)
    warm_s = min(max(0.06 * seconds, 1.5), 10.0)
    slot_s = (seconds - capacity_s - warm_s - _SPEED_S) / (2 * pairs)
    return Timing(capacity_s, warm_s, max(2.0, 0.85 * slot_s - _PAUSE_S), pairs)


def first_way(pair: int) -> Way:
    """Return which way goes first in a pair: ABBA, then BAAB, so that no drift of the machine favours either."""
    return "direct" if pair % 4 in (0, 3) else "forebay"


async def measure_speed(client: Client, concurrency: int, salt: str) -> Speed:
    """Find out how fast the engine is with a few small calls.

    Args:
        client: of the engine itself.
        concurrency: calls that are made at once to see how fast it makes tokens.
        salt: of the prompts.

    Raises:
        Unprovable: the engine does not answer as it should.
    """
    prompts = Prompts(f"{salt}/speed")
    await _answered(client, prompts, 8, 2)  # whatever the first call of all sets up
    small = await _answered(client, prompts, 8, 8)
    words = 128
    large = await _answered(client, prompts, words, 2)
    if (large.ttft_s or 0.0) < _EXACT_S:
        larger = await _call(client, prompts, 6 * words, 2)
        if larger.end == "ok" and larger.ttft_s is not None:  # else its context is small
            words, large = 6 * words, larger
    return _speed_of(small, large, words, await _decode_rate(client, prompts, concurrency))


async def _decode_rate(client: Client, prompts: Prompts, concurrency: int) -> float:
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_call(client, prompts, 8, 16)) for _ in range(concurrency)]
    samples = [task.result() for task in tasks]
    begun_s = [s.at_s + s.ttft_s for s in samples if s.ttft_s is not None]
    took_s = max(s.at_s + s.total_s for s in samples) - min(begun_s, default=0.0)
    return sum(s.output_tokens for s in samples) / max(took_s, 1e-3)


def _speed_of(small: Sample, large: Sample, words: int, decode_tokens_per_s: float) -> Speed:
    tokens = max(1, large.prompt_tokens - small.prompt_tokens) if large.prompt_tokens else words - 8
    per_word = tokens / (words - 8)
    took_s = max((large.ttft_s or 0.0) - (small.ttft_s or 0.0), (large.ttft_s or 0.0) / 4, 1e-3)
    return Speed(tokens / took_s, decode_tokens_per_s, per_word, max(0, round(small.prompt_tokens - 8 * per_word)))


async def _answered(client: Client, prompts: Prompts, words: int, max_tokens: int) -> Sample:
    sample = await _call(client, prompts, words, max_tokens)
    if sample.end != "ok" or sample.ttft_s is None:
        raise Unprovable(why(sample))
    return sample


async def _call(client: Client, prompts: Prompts, words: int, max_tokens: int) -> Sample:
    return await client.call("short", prompts.text(words), max_tokens, _CALL_LIMIT_S)


def why(sample: Sample) -> str:
    """Say why a call was not answered, and what to do."""
    if sample.status in (401, 403):
        return f"it refuses the key ({sample.reason}); put the right one into a variable and name it: --key-env NAME"
    if sample.end == "ok":
        return "it answered without a single token"
    return f"a small chat was not answered: {sample.reason}"


async def compare(clients: dict[Way, Client], speed: Speed, lengths: Lengths, slots: int | None, run: Run) -> Proof:
    """Measure the engine's capacity, then offer 90 % of it to both ways in turns.

    Args:
        clients: of both ways.
        speed: as measured.
        lengths: of prompts and answers.
        slots: calls that the engine runs at once; None when unknown.
        run: what all steps share.

    Raises:
        Unprovable: the engine answers nothing under load, or Forebay passes nothing on.
    """
    timing = run.timing
    run.stage("capacity of the engine", timing.capacity_s)
    capacity_per_s, workers = await _capacity(clients["direct"], lengths, slots, run)
    run.stage("Forebay gets to know the engine", timing.warm_s)
    prompts = Prompts(f"{run.salt}/warm")
    warm = await closed_loop(clients["forebay"], workers, timing.warm_s, lengths, prompts, run.clock)
    if all(sample.end != "ok" for sample in warm):
        raise Unprovable(f"through Forebay {why(warm[0])}")
    offered_per_s = capacity_per_s * UTILISATION_RATIO
    arms: list[Arm] = []
    for pair in range(timing.pairs):
        first = first_way(pair)
        for way in (first, "forebay" if first == "direct" else "direct"):
            run.stage(f"pair {pair + 1} of {timing.pairs}: {WAY_NAMES[way]}", timing.arm_s * 1.15)
            arms.append(await _arm(clients[way], pair, way, offered_per_s, lengths, run))
            await asyncio.sleep(_PAUSE_S)
    return Proof(speed, lengths, timing, capacity_per_s, offered_per_s, arms)


async def _arm(client: Client, pair: int, way: Way, rate_per_s: float, lengths: Lengths, run: Run) -> Arm:
    asks = schedule(f"{run.seed}/{pair}", rate_per_s, run.timing.arm_s)
    prompts = Prompts(f"{run.salt}/{pair}/{way}")
    limit_s = max(15.0, 2 * run.timing.arm_s)
    samples = await open_loop(client, asks, lengths, prompts, limit_s, run.clock)
    took_s = max(s.at_s + s.total_s for s in samples) - min(s.at_s for s in samples)
    return Arm(pair, way, samples, took_s)


async def _capacity(client: Client, lengths: Lengths, slots: int | None, run: Run) -> tuple[float, int]:
    """Return calls per second at most, and how many at once that took."""
    tried = _GUESSED_WORKERS if slots is None else (slots + max(1, slots // 2),)
    each_s = run.timing.capacity_s / len(tried)
    best, best_workers = 0.0, tried[0]
    for workers in tried:
        prompts = Prompts(f"{run.salt}/capacity/{workers}")
        samples = await closed_loop(client, workers, each_s, lengths, prompts, run.clock)
        rate_per_s = rate_of(samples)
        better = rate_per_s > best * _WORTH_RATIO
        if rate_per_s > best:
            best, best_workers = rate_per_s, workers
        if not better:
            break
    if best <= 0:
        raise Unprovable(why(samples[0]))
    return best, best_workers


def rate_of(samples: Sequence[Sample]) -> float:
    """Return answered calls per second of a closed loop, from the first start to the last end.

    The end, when fewer and fewer calls run, is counted in: that says a little less than the engine can do, where
    any cut would say more if calls live longer than the loop.
    """
    ends_s = [s.at_s + s.total_s for s in samples if s.end == "ok"]
    if not ends_s:
        return 0.0
    return len(ends_s) / max(max(ends_s) - min(s.at_s for s in samples), 1e-9)
