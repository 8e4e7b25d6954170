"""The learned speed of a replica, and how much unprefilled work it is given."""

import math
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.policy import Capacity
from forebay.routing.capacity import (
    HOLD_S,
    LONG_S,
    MAX_HOLD_S,
    MAX_TOKENS_PER_S,
    MIN_HOLD_S,
    MIN_HOLD_TOKENS,
    MIN_LONG_TOKENS,
    MIN_SAMPLES,
    Depth,
    Speed,
    long_from_tokens,
)

BASE_S = 0.03


def any_size(dice: Random) -> float:
    return float(2 ** dice.uniform(4, 14))


def mostly_short(dice: Random) -> float:
    return dice.uniform(20, 400) if dice.random() < 0.9 else dice.uniform(2000, 30_000)


def learned(
    tokens_per_s: float,
    size: Callable[[Random], float] = any_size,
    *,
    count: int = 300,
    noise: float = 0.1,
    outliers: float = 0.0,
    late_by: float = 10.0,
    seed: int = 1,
    speed: Speed | None = None,
) -> Speed:
    dice = Random(seed)
    speed = speed or Speed(Capacity())
    for _ in range(count):
        tokens = size(dice)
        taken_s = (BASE_S + tokens / tokens_per_s) * dice.lognormvariate(-noise * noise / 2, noise)
        speed.observe(tokens, taken_s * (late_by if dice.random() < outliers else 1.0))
    return speed


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("size", [any_size, mostly_short])
@pytest.mark.parametrize("tokens_per_s", [500.0, 20_000.0, 100_000.0])
def test_speed_is_learned_within_a_tenth(tokens_per_s: float, size: Callable[[Random], float], seed: int) -> None:
    speed = learned(tokens_per_s, size, seed=seed)
    assert speed.tokens_per_s == pytest.approx(tokens_per_s, rel=0.1)
    assert speed.predict_s(1000) == pytest.approx(BASE_S + 1000 / tokens_per_s, rel=0.1)
    assert speed.error_ratio < 0.15


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("outliers", "late_by"), [(0.02, 10.0), (0.02, 100.0), (0.05, 10.0)])
def test_outliers_teach_little(outliers: float, late_by: float, seed: int) -> None:
    speed = learned(20_000.0, count=100)
    learned(20_000.0, outliers=outliers, late_by=late_by, seed=seed, speed=speed)
    assert speed.tokens_per_s == pytest.approx(20_000, rel=0.1)


def test_an_engine_that_warms_up_is_not_taken_for_a_slow_one() -> None:
    speed = Speed(Capacity())
    speed.observe(100, 30.0)
    learned(20_000.0, count=50, speed=speed)
    assert speed.tokens_per_s == pytest.approx(20_000, rel=0.15)


@pytest.mark.parametrize("factor", [0.1, 0.5, 2.0, 10.0])
def test_a_change_of_speed_is_followed(factor: float) -> None:
    speed = learned(20_000.0)
    learned(20_000.0 * factor, count=500, speed=speed, seed=2)
    assert speed.tokens_per_s == pytest.approx(20_000 * factor, rel=0.15)


@pytest.mark.parametrize("tokens", [1.0, 512.0, 100_000.0])
def test_from_prompts_all_alike_no_speed_can_be_told(tokens: float) -> None:
    speed = learned(20_000.0, lambda _: tokens)
    assert not speed.known
    assert speed.predict_s(tokens) == 0.0
    learned(20_000.0, count=500, speed=speed)
    assert speed.tokens_per_s == pytest.approx(20_000, rel=0.1)


def test_first_tokens_that_do_not_depend_on_the_prompt_tell_of_no_bottleneck() -> None:
    speed = Speed(Capacity())
    for number in range(100):
        speed.observe(1000.0 * (1 + number % 7), 1.0 - 0.1 * (number % 7))
    assert not speed.known


def test_nothing_is_known_before_a_few_first_tokens() -> None:
    speed = learned(20_000.0, count=MIN_SAMPLES - 1)
    assert not speed.known
    assert speed.predict_s(1000) == 0.0
    learned(20_000.0, count=1, speed=speed)
    assert speed.known


def test_until_a_speed_can_be_told_the_best_that_was_seen_stands_for_it() -> None:
    speed = Speed(Capacity())
    speed.observe(10.0, 0.001)
    assert speed.likely_tokens_per_s == 0.0, "the first call may have waited for anything, or for nothing"
    speed.observe(50.0, 0.5)
    speed.observe(1000.0, 4.0)
    speed.observe(1000.0, 9.0)
    assert (speed.likely_tokens_per_s, speed.known) == (250.0, False)
    learned(1000.0, any_size, count=MIN_SAMPLES, noise=0.0, speed=speed)
    assert speed.likely_tokens_per_s == speed.tokens_per_s > 0.0


def test_no_bottleneck_is_no_likely_speed() -> None:
    speed = Speed(Capacity())
    for tokens in range(1, MIN_SAMPLES + 2):
        speed.observe(tokens, 0.5)
    assert speed.likely_tokens_per_s == 0.0


def test_a_declared_speed_is_the_likely_one_from_the_start() -> None:
    speed = Speed(Capacity(prefill_tokens_per_s=5000.0))
    assert speed.likely_tokens_per_s == 5000.0
    speed.observe(1.0, 1.0)
    speed.observe(1e6, 1.0)
    assert speed.likely_tokens_per_s == 5000.0


def test_what_is_declared_goes_before_what_is_learned() -> None:
    speed = Speed(Capacity(prefill_tokens_per_s=5000.0))
    assert speed.known
    assert speed.predict_s(1000) == pytest.approx(0.2)
    learned(20_000.0, speed=speed)
    assert speed.tokens_per_s == pytest.approx(5000.0)
    speed.declare(Capacity())
    assert speed.tokens_per_s == pytest.approx(20_000, rel=0.1)
    speed.declare(Capacity(prefill_tokens_per_s=1.0))
    assert speed.tokens_per_s == pytest.approx(1.0)


def test_the_base_of_a_declared_speed_is_learned() -> None:
    speed = learned(20_000.0, noise=0.0, speed=Speed(Capacity(prefill_tokens_per_s=20_000.0)))
    assert speed.base_s == pytest.approx(BASE_S, rel=0.01)


@given(st.lists(st.tuples(st.floats(1, 1e7), st.floats(0, 1e4)), max_size=60), st.sampled_from((None, 1.0, 1e6)))
def test_whatever_is_seen_predictions_are_finite(seen: list[tuple[float, float]], declared: float | None) -> None:
    speed = Speed(Capacity(prefill_tokens_per_s=declared))
    for tokens, taken_s in seen:
        speed.observe(tokens, taken_s)
        assert 0.0 <= speed.tokens_per_s <= MAX_TOKENS_PER_S * 1.001
        for size in (0.0, 1.0, 1e9):
            assert math.isfinite(speed.predict_s(size))
            assert speed.predict_s(size) >= 0.0
        assert 0.0 <= speed.error_ratio <= 2.0


# how deep


def turns(depth: Depth, count: int, dry: int) -> None:
    for number in range(count):
        if number < dry:
            depth.ran_dry()
        depth.dispatched()


def test_an_engine_that_ran_dry_is_held_less_short() -> None:
    depth = Depth()
    turns(depth, 64, 3)
    assert depth.hold_s == pytest.approx(HOLD_S * 1.25)
    for _ in range(100):
        turns(depth, 64, 64)
    assert depth.hold_s == MAX_HOLD_S


def test_an_engine_that_never_runs_dry_is_held_shorter() -> None:
    depth = Depth()
    turns(depth, 64, 1)
    assert depth.hold_s == pytest.approx(HOLD_S * 0.95)
    for _ in range(100):
        turns(depth, 64, 0)
    assert depth.hold_s == MIN_HOLD_S


def test_a_slow_engine_gets_some_tokens_all_the_same() -> None:
    depth = Depth()
    assert depth.tokens(Speed(Capacity())) == MIN_HOLD_TOKENS
    assert depth.tokens(Speed(Capacity(prefill_tokens_per_s=10.0))) == MIN_HOLD_TOKENS
    assert depth.tokens(Speed(Capacity(prefill_tokens_per_s=20_000.0))) == pytest.approx(20_000 * HOLD_S)
    # What passes before a first token in any case is no work of the engine's.
    speed = learned(20_000.0, noise=0.0)
    assert depth.tokens(speed) == pytest.approx(20_000 * (HOLD_S + BASE_S), rel=0.01)


# lanes


def test_a_prompt_is_long_by_its_time_but_never_when_it_is_small() -> None:
    assert long_from_tokens(0, 0.0) == 0
    assert long_from_tokens(0, 3000.0) == 3000 * LONG_S
    assert long_from_tokens(0, 10.0) == MIN_LONG_TOKENS


def test_lanes_follow_a_change_of_speed_and_no_wobble() -> None:
    lane = long_from_tokens(0, 2000.0)
    dice = Random(1)
    assert {long_from_tokens(lane, 2000.0 * dice.uniform(0.7, 1.45)) for _ in range(1000)} == {lane}
    assert long_from_tokens(lane, 1000.0) == 1000 * LONG_S
    assert long_from_tokens(lane, 4000.0) == 4000 * LONG_S
    assert long_from_tokens(lane, 0.0) == 0
