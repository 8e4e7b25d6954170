"""The order of a proof: how time is spent, who goes first, and a whole one against a simulated engine."""

import asyncio
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.clock import SystemClock
from forebay.domain import Replica
from forebay.engines.sim import SimSpec, serve
from forebay.engines.sim.faults import Status
from forebay.release.load import Client, Sample, Target
from forebay.release.mix import Lengths
from forebay.release.proof import (
    Proof,
    Run,
    Timing,
    Unprovable,
    compare,
    first_way,
    measure_speed,
    rate_of,
    timing_for,
    why,
)

SPEC = SimSpec(iteration_base_ms=1.0, max_num_seqs=4, max_model_len=4096, max_num_batched_tokens=512)
LENGTHS = Lengths(20, 200, 30, 210, 6)


@given(st.floats(20.0, 3600.0))
def test_all_parts_together_take_the_time(seconds: float) -> None:
    timing = timing_for(seconds)
    spent_s = 2.0 + timing.capacity_s + timing.warm_s + 2 * timing.pairs * (timing.arm_s + 0.3)
    assert 0.75 * seconds <= spent_s <= seconds
    assert timing.pairs % 2 == 0 and timing.arm_s >= 2.0


@pytest.mark.parametrize("seconds", [0.0, 19.9, -1.0, float("nan")])
def test_too_few_seconds_are_refused(seconds: float) -> None:
    with pytest.raises(ValueError, match="--seconds .* at least 20"):
        timing_for(seconds)


def test_neither_way_is_favoured_by_the_order() -> None:
    assert [first_way(pair) for pair in range(4)] == ["direct", "forebay", "forebay", "direct"]


def steady(workers: int, call_s: float, seconds: float) -> list[Sample]:
    made = []
    for worker in range(workers):
        at_s = 100.0 + worker * call_s / workers
        while at_s < 100.0 + seconds:
            made.append(Sample("short", at_s=at_s, end="ok", total_s=call_s))
            at_s += call_s
    return made


@pytest.mark.parametrize(("workers", "call_s"), [(4, 0.5), (1, 0.3), (8, 1.7)])
def test_the_rate_of_a_loop_is_never_too_high(workers: int, call_s: float) -> None:
    rate = rate_of(steady(workers, call_s, 40.0))
    assert 0.9 * workers / call_s <= rate <= workers / call_s * 1.001


def test_calls_that_live_longer_than_the_loop_make_no_rate_too_high() -> None:
    """128 at once at an engine that answers 20 a second, one after the other."""
    queued = [Sample("short", at_s=0.0, end="ok", total_s=(n + 1) / 20) for n in range(128)]
    assert rate_of(queued) == pytest.approx(20.0)


def test_only_answered_calls_make_a_rate() -> None:
    samples = steady(2, 0.5, 10.0)
    for sample in samples:
        sample.end = "failed"
    assert rate_of(samples) == 0.0
    assert rate_of([]) == 0.0


@pytest.mark.parametrize(
    ("sample", "words"),
    [
        (Sample("short", end="failed", status=401, reason="HTTP 401: no"), "--key-env"),
        (Sample("short", end="failed", status=404, reason="HTTP 404: no model"), "HTTP 404: no model"),
        (Sample("short", end="ok", status=200), "without a single token"),
    ],
)
def test_why_an_engine_cannot_be_measured(sample: Sample, words: str) -> None:
    assert words in why(sample)


async def prove(stages: list[str], second_is_broken: bool = False) -> Proof:
    """A whole proof with two engines in the place of the two ways."""
    clock = SystemClock()
    engines = [await serve(SPEC, "127.0.0.1", 0, clock) for _ in range(2)]
    if second_is_broken:
        engines[1].set_faults(Status(status=503, always=True))
    try:
        replicas = [Replica(f"127.0.0.1:{engine.port}", "127.0.0.1", engine.port) for engine in engines]
        direct, through = (Client(Target(replica, "sim", True), clock) for replica in replicas)
        speed = await measure_speed(direct, 4, "1")
        run = Run(Timing(0.4, 0.2, 0.5, 2), "1", "salt", clock, lambda text, _: stages.append(text))
        return await compare({"direct": direct, "forebay": through}, speed, LENGTHS, 4, run)
    finally:
        for engine in engines:
            await engine.close()


@pytest.mark.integration
def test_a_whole_proof() -> None:
    stages: list[str] = []
    proof = asyncio.run(prove(stages))
    assert [(arm.pair, arm.way) for arm in proof.arms] == [
        (0, "direct"),
        (0, "forebay"),
        (1, "forebay"),
        (1, "direct"),
    ]
    assert len(stages) == 6 and stages[2].startswith("pair 1 of 2")
    assert proof.offered_per_s == pytest.approx(0.9 * proof.capacity_per_s)
    assert proof.speed.prefill_tokens_per_s > 0 and proof.speed.decode_tokens_per_s > 0
    for pair in (0, 1):
        one, two = (arm for arm in proof.arms if arm.pair == pair)
        assert [(s.number, s.kind) for s in one.samples] == [(s.number, s.kind) for s in two.samples]
        assert Counter(s.end for s in one.samples + two.samples) == {"ok": 2 * len(one.samples)}
        assert all(s.output_tokens == 6 for s in one.samples)


@pytest.mark.integration
def test_a_forebay_that_answers_nothing_is_said() -> None:
    with pytest.raises(Unprovable, match="through Forebay a small chat was not answered: HTTP 503"):
        asyncio.run(prove([], second_is_broken=True))
