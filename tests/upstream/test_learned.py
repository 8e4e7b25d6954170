"""Learned deadlines: what they follow, and that they never spiral: simulated with calls that are cut off."""

import math
import random
from collections.abc import Callable
from heapq import heappop, heappush
from statistics import NormalDist

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay.upstream.learned import (
    FLOOR_S,
    HALF_LIFE_S,
    MAX_KEYS,
    MIN_CALLS,
    TIGHTEN_PER_HOUR,
    Durations,
    Learned,
    LearnedTimeouts,
)

CONFIGURED_S = 60.0
Sampler = Callable[[float], float]


class World:
    """One model under a deadline that it teaches itself; a second of it is a tick and some calls."""

    def __init__(self, seed: int, calls_per_s: int = 4, configured_s: float = CONFIGURED_S) -> None:
        self.random = random.Random(seed)
        self.learned = LearnedTimeouts()
        self.now_s = 0.0
        self.calls_per_s = calls_per_s
        self.configured_s = configured_s
        self.limits: list[float] = []
        self.timeouts: list[int] = []
        self.in_flight: list[tuple[float, float, bool]] = []

    def run(self, seconds: int, sample: Sampler) -> None:
        for _ in range(seconds):
            self.now_s += 1.0
            limit_s = self.limit_s()
            for _ in range(self.calls_per_s):
                takes_s = sample(self.random.random())
                # A call keeps the deadline that it was sent with, and is heard of when it ends.
                heappush(self.in_flight, (self.now_s + min(takes_s, limit_s), min(takes_s, limit_s), takes_s > limit_s))
            self.limits.append(limit_s)
            self.timeouts.append(self.hear())
            self.learned.tick(self.now_s)

    def hear(self) -> int:
        late = 0
        while self.in_flight and self.in_flight[0][0] <= self.now_s:
            _, taken_s, timed_out = heappop(self.in_flight)
            self.learned.note("m", True, 100, self.configured_s, taken_s, "timeout" if timed_out else "done")
            late += timed_out
        return late

    def limit_s(self) -> float:
        return self.learned.limit_s("m", True, 100, self.configured_s)

    def shown(self) -> Learned:
        (only,) = self.learned.report()
        return only


def lognormal(median_s: float, sigma: float) -> Sampler:
    """Return durations by their quantile."""
    normal = NormalDist(math.log(median_s), sigma)
    return lambda u: math.exp(normal.inv_cdf(min(1.0 - 1e-9, max(1e-9, u))))


def quantile(sample: Sampler, ratio: float) -> float:
    return sample(ratio)


@pytest.fixture(scope="module")
def settled() -> World:
    """A day of calls: median 3 s, P95 7 s, P99 10 s."""
    world = World(1, calls_per_s=2)
    world.run(24 * 3600, lognormal(3.0, 0.5))
    return world


def copy_of(world: World) -> World:
    """Go on from the same state, with another history."""
    fresh = World(2, world.calls_per_s)
    fresh.now_s = world.now_s
    fresh.learned = LearnedTimeouts(world.now_s)
    sample = lognormal(3.0, 0.5)
    for _ in range(4000):
        fresh.learned.note("m", True, 100, CONFIGURED_S, sample(fresh.random.random()), "done")
    fresh.learned.tick(fresh.now_s)
    fresh.learned._limits["m", True, 7].limit_s = world.limit_s()
    return fresh


def test_nothing_is_known_at_first() -> None:
    world = World(0)
    assert world.limit_s() == CONFIGURED_S
    world.run(40, lambda _: 1.0)
    assert world.limit_s() == CONFIGURED_S and world.shown().trend == "unknown"
    assert world.shown().calls < MIN_CALLS


def test_it_settles_above_the_tail_and_times_nobody_out(settled: World) -> None:
    sample = lognormal(3.0, 0.5)
    limit_s = settled.limit_s()
    assert max(1.5 * quantile(sample, 0.95), quantile(sample, 0.99)) <= limit_s < 0.5 * CONFIGURED_S
    assert sum(settled.timeouts) < 0.001 * 2 * 24 * 3600
    shown = settled.shown()
    assert shown.p95_s == pytest.approx(quantile(sample, 0.95), rel=0.15)
    assert shown.limit_s == limit_s and shown.kind == "first_byte" and shown.below_tokens == 128


def test_it_tightens_by_a_tenth_an_hour_at_most(settled: World) -> None:
    limits = settled.limits
    for start in range(0, len(limits) - 3600, 600):
        assert limits[start + 3600] >= TIGHTEN_PER_HOUR * limits[start] - 1e-6
    assert limits[6 * 3600] < limits[2 * 3600], "and it does tighten"


@pytest.mark.parametrize("factor", [3.0, 5.0, 8.0])
def test_a_jump_of_latency_opens_it_within_a_minute(settled: World, factor: float) -> None:
    world = copy_of(settled)
    before_s = world.limit_s()
    slow = lognormal(3.0 * factor, 0.5)
    assert quantile(slow, 0.9) > before_s, "a deadline that does not move would cut off more than a tenth"
    world.run(60, slow)
    assert world.limit_s() >= min(CONFIGURED_S, quantile(slow, 0.99))
    world.run(4 * 3600, slow)
    late = world.timeouts[60:]
    bare = 1.0 - ratio_below(slow, CONFIGURED_S)
    assert sum(late) <= (0.002 + 1.2 * bare) * len(late) * world.calls_per_s


def ratio_below(sample: Sampler, limit_s: float) -> float:
    low, high = 0.0, 1.0
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if sample(middle) < limit_s else (low, middle)
    return low


def test_calls_sent_before_an_opening_do_not_open_it_again(settled: World) -> None:
    world = copy_of(settled)
    before_s = world.limit_s()
    for _ in range(6):
        world.learned.note("m", True, 100, CONFIGURED_S, before_s, "timeout")
    assert world.limit_s() == 2.0 * before_s < CONFIGURED_S
    for _ in range(12):
        world.learned.note("m", True, 100, CONFIGURED_S, before_s, "timeout")
    assert world.limit_s() == CONFIGURED_S, "but a flood does"


def test_a_pause_is_no_reason_to_tighten_at_once(settled: World) -> None:
    world = copy_of(settled)
    world.learned._limits["m", True, 7].limit_s = 50.0
    world.now_s += 1800.0
    world.learned.tick(world.now_s)
    assert 50.0 * TIGHTEN_PER_HOUR ** (60.0 / 3600.0) - 1e-9 <= world.limit_s() < 50.0


def test_after_a_jump_and_back_it_tightens_again(settled: World) -> None:
    world = copy_of(settled)
    world.run(300, lognormal(9.0, 0.5))
    opened_s = world.limit_s()
    world.run(10 * 3600, lognormal(3.0, 0.5))
    assert world.limit_s() < 0.8 * opened_s


def test_slow_drift_is_followed_without_time_outs(settled: World) -> None:
    world = copy_of(settled)
    for step in range(30):
        # To three times the latency in five hours.
        sample = lognormal(3.0 * 3.0 ** (step / 30), 0.5)
        world.run(600, sample)
        assert world.limit_s() >= quantile(sample, 0.99)
    assert sum(world.timeouts) < 0.002 * len(world.timeouts) * world.calls_per_s


def test_heavy_tails_keep_it_above_the_99th_percentile() -> None:
    world = World(5, calls_per_s=1, configured_s=600.0)
    heavy = lognormal(5.0, 1.2)
    world.run(36 * 3600, heavy)
    below = [limit_s < quantile(heavy, 0.99) for limit_s in world.limits]
    assert not any(below), "1.5 times the 95th percentile alone would be below it"
    assert 1.5 * quantile(heavy, 0.95) < quantile(heavy, 0.99)


def test_an_engine_that_hangs_opens_it_up_to_the_configured_one(settled: World) -> None:
    world = copy_of(settled)
    world.run(120, lambda _: 1e9)
    assert world.limit_s() == CONFIGURED_S
    world.run(3600, lambda _: 1e9)
    assert world.limit_s() == CONFIGURED_S, "time-outs never tighten it"


def test_a_plain_percentile_would_have_spiralled() -> None:
    """The same world with a naive P95 x 1.5 of what was seen, time-outs counted as what they took, shrinks."""
    draws = random.Random(7)
    sample, limit_s = lognormal(3.0, 1.0), CONFIGURED_S
    for _ in range(30):
        seen = sorted(taken for taken in (sample(draws.random()) for _ in range(500)) if taken <= limit_s)
        limit_s = 1.5 * seen[int(0.95 * len(seen))]
    assert limit_s < quantile(sample, 0.99), "time-outs that are left out of the sample"
    world = World(7)
    world.run(30 * 3600, sample)
    assert world.limit_s() >= quantile(sample, 0.99)


def test_clients_that_leave_early_do_not_shrink_it() -> None:
    world = World(3, calls_per_s=2)
    sample = lognormal(6.0, 0.4)
    for _ in range(24 * 3600):
        world.now_s += 1.0
        for _ in range(world.calls_per_s):
            takes_s, patience_s = sample(world.random.random()), world.random.expovariate(0.2)
            end = "left" if patience_s < takes_s else "done"
            world.learned.note("m", True, 100, CONFIGURED_S, min(takes_s, patience_s), end)  # type: ignore[arg-type]
        world.learned.tick(world.now_s)
    assert world.limit_s() >= quantile(sample, 0.99)


def test_floor_and_ceiling() -> None:
    world = World(4)
    world.run(40 * 3600 // 4, lambda _: 0.01)
    assert world.limit_s() >= FLOOR_S
    assert world.learned.limit_s("m", True, 100, 2.0) == 2.0, "never above the configured one, not even by the floor"
    world.run(20 * 3600, lambda _: 0.01)
    assert world.limit_s() == FLOOR_S


def test_what_is_no_longer_known_opens(settled: World) -> None:
    world = copy_of(settled)
    assert world.limit_s() < CONFIGURED_S
    world.now_s += 12 * HALF_LIFE_S
    world.learned.tick(world.now_s)
    assert world.limit_s() == CONFIGURED_S
    world.now_s += 12 * HALF_LIFE_S
    world.learned.tick(world.now_s)
    assert world.learned.report() == []


def test_models_kinds_and_lengths_are_apart_and_bounded() -> None:
    learned = LearnedTimeouts()
    for number in range(MAX_KEYS + 50):
        learned.note(f"m{number}", False, 10, 60.0, 1.0, "done")
    assert len(learned.report()) == MAX_KEYS
    assert learned.limit_s("m300", False, 10, 60.0) == 60.0
    learned = LearnedTimeouts()
    for model, streamed, tokens in (("a", True, 10), ("a", False, 10), ("a", True, 1000), ("b", True, 10)):
        learned.note(model, streamed, tokens, 60.0, 1.0, "done")
    learned.note("a", True, 15, 60.0, 1.0, "done")
    assert sorted((r.model, r.kind, r.below_tokens, r.calls) for r in learned.report()) == [
        ("a", "first_byte", 16, 2.0),
        ("a", "first_byte", 1024, 1.0),
        ("a", "total", 16, 1.0),
        ("b", "first_byte", 16, 1.0),
    ]


@given(
    st.lists(
        st.tuples(st.floats(0.001, 3000.0), st.sampled_from(["done", "timeout", "left"]), st.integers(0, 60)),
        max_size=300,
    ),
    st.floats(1.0, 900.0),
)
@settings(max_examples=50, deadline=None)
def test_whatever_happens_it_stays_between_floor_and_ceiling(
    history: list[tuple[float, str, int]], configured_s: float
) -> None:
    learned, now_s, before_s = LearnedTimeouts(), 0.0, configured_s
    for taken_s, end, pause_s in history * 3:
        now_s += pause_s
        learned.note("m", False, 5, configured_s, taken_s, end)  # type: ignore[arg-type]
        learned.tick(now_s)
        limit_s = learned.limit_s("m", False, 5, configured_s)
        assert min(FLOOR_S, configured_s) <= limit_s <= configured_s
        assert limit_s >= before_s * TIGHTEN_PER_HOUR ** (60.0 / 3600.0) - 1e-9, "one step is a minute's at most"
        before_s = limit_s


@given(st.lists(st.floats(0.3, 1500.0), min_size=1, max_size=200), st.floats(0.05, 0.999))
@example([1.0, 1.0, 1.0, 2.0, 3.0], 0.8)
def test_without_censoring_it_is_the_plain_percentile(takes: list[float], ratio: float) -> None:
    durations = Durations()
    for taken_s in takes:
        durations.add(taken_s, True)
    (found,) = durations.quantiles((ratio,))
    takes.sort()
    exact = takes[min(len(takes) - 1, max(0, math.ceil(ratio * len(takes) - 1e-6) - 1))]
    assert found is not None and exact * 0.999 <= found <= exact * 2 ** (1 / 8) * 1.001


def test_censored_calls_count_as_longer() -> None:
    draws, sample = random.Random(9), lognormal(3.0, 0.5)
    durations, plain = Durations(), Durations()
    for _ in range(20_000):
        takes_s, given_s = sample(draws.random()), draws.choice((2.0, 4.0, 8.0, 16.0))
        durations.add(min(takes_s, given_s), takes_s <= given_s)
        if takes_s <= given_s:
            plain.add(takes_s, True)
    (p95,) = durations.quantiles((0.95,))
    (wrong,) = plain.quantiles((0.95,))
    exact = quantile(sample, 0.95)
    assert p95 is not None and exact <= p95 <= exact * 2 ** (2 / 8), "never too short, two buckets too long at most"
    assert wrong is not None and wrong < 0.95 * exact, "left out, they would shorten it"


def test_where_the_sample_ends_nothing_is_known() -> None:
    durations = Durations()
    for _ in range(90):
        durations.add(1.0, True)
    for _ in range(10):
        durations.add(5.0, False)
    half, p95 = durations.quantiles((0.5, 0.95))
    assert half is not None and half >= 1.0 and p95 is None
