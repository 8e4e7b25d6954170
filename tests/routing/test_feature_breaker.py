"""Features that fail or kill are cut off; everything else, and what is everybody's trouble, is not."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.routing.feature_breaker import (
    ALL,
    CRASH_OPEN_S,
    HALF_WINDOW_S,
    HINT_CALLS,
    IDLE_S,
    MAX_CRASH_OPEN_S,
    MAX_KEYS,
    MAX_OPEN_S,
    MIN_CALLS,
    OPEN_S,
    PROBE_S,
    FeatureBreakers,
    Key,
    Suspected,
)
from forebay.routing.features import FEATURES

KEY: Key = ("pool", "chat", "m")


def mask(*names: str) -> int:
    return sum(1 << FEATURES.index(name) for name in names)


PLAIN, IMAGES, TOOLS = mask(), mask("images"), mask("tools")


def answer(breakers: FeatureBreakers, count: int, of: int = PLAIN, replica: str = "a", now_s: float = 0.0) -> None:
    for _ in range(count):
        breakers.answered(KEY, replica, of, now_s)


def fail(breakers: FeatureBreakers, count: int, of: int = IMAGES, replica: str = "a", now_s: float = 0.0) -> list[str]:
    return [breakers.failed(KEY, replica, of, now_s) for _ in range(count)]


def watching() -> FeatureBreakers:
    """Breakers that count since a failure that is nobody's."""
    breakers = FeatureBreakers()
    assert not breakers.watches(0.0)
    breakers.failed(KEY, "a", PLAIN, 0.0)
    assert breakers.watches(0.0) and breakers.watches(HALF_WINDOW_S)
    answer(breakers, 100)
    return breakers


def test_a_feature_that_fails_is_cut_off_there_and_nothing_else_is() -> None:
    breakers = watching()
    assert fail(breakers, MIN_CALLS)[-1] == "images" and breakers.opened == 1
    assert breakers.refuses(KEY, "a", IMAGES, 1.0) == breakers.refuses(KEY, "a", IMAGES | TOOLS, 1.0) == "images"
    assert breakers.refuses(KEY, "b", IMAGES, 1.0) == breakers.refuses(KEY, ALL, IMAGES, 1.0) == ""
    assert breakers.refuses(KEY, "a", TOOLS, 1.0) == breakers.refuses(("pool", "chat", "n"), "a", IMAGES, 1.0) == ""
    (shown,) = breakers.shown(1.0)
    assert (shown.replica, shown.feature, shown.state, shown.left_s) == ("a", "images", "open", OPEN_S - 1.0)
    assert shown.reason == "100% of 10 calls failed"


def test_its_failures_are_not_held_against_the_replica_long_before() -> None:
    blamed = fail(watching(), MIN_CALLS)
    assert blamed == [""] * (HINT_CALLS - 1) + ["images"] * (MIN_CALLS - HINT_CALLS + 1)


def test_what_fails_on_several_replicas_is_cut_off_on_all() -> None:
    breakers = watching()
    for number in range(MIN_CALLS):
        fail(breakers, 1, replica="ab"[number % 2])
    assert breakers.refuses(KEY, ALL, IMAGES, 1.0) == breakers.refuses(KEY, "never seen", IMAGES, 1.0) == "images"


def test_one_bad_replica_does_not_take_a_feature_from_the_pool() -> None:
    breakers = watching()
    for number in range(40):
        fail(breakers, 1)
        answer(breakers, 1, IMAGES, "b")
        if number % 5 == 0:
            fail(breakers, 1, replica="b")
    assert breakers.refuses(KEY, "a", IMAGES, 1.0) == "images" and breakers.refuses(KEY, ALL, IMAGES, 1.0) == ""


def test_what_nobody_is_without_is_the_replicas_trouble() -> None:
    breakers = FeatureBreakers()
    assert set(fail(breakers, 200)) == {""} and breakers.shown(0.0) == []


def test_what_everybody_fails_at_is_the_replicas_trouble() -> None:
    breakers = FeatureBreakers()
    for number in range(200):
        assert breakers.failed(KEY, "a", IMAGES if number % 2 else PLAIN, 0.0) == ""


def test_half_of_the_calls_may_fail() -> None:
    breakers = watching()
    for _ in range(100):
        answer(breakers, 1, IMAGES)
        assert fail(breakers, 1) == [""]


def test_of_features_that_come_together_the_one_that_fails_is_blamed() -> None:
    breakers, draws = watching(), random.Random(1)
    for _ in range(600):
        one = (TOOLS if draws.random() < 0.5 else 0) | (IMAGES if draws.random() < 0.2 else 0)
        if breakers.refuses(KEY, "a", one, 0.0):
            continue
        if one & IMAGES:
            fail(breakers, 1, one)
        else:
            answer(breakers, 1, one)
    assert [shown.feature for shown in breakers.shown(0.0)] == ["images"]


def test_calls_are_forgotten_and_so_is_the_watch() -> None:
    breakers = watching()
    for number in range(60):
        now_s = number * HALF_WINDOW_S / 4
        answer(breakers, 10, now_s=now_s)
        fail(breakers, 1, now_s=now_s)
    assert breakers.shown(0.0) == [], "eight in the window are too few"
    assert not breakers.watches(now_s + 2 * HALF_WINDOW_S)


def test_a_probe_lets_it_in_again_or_keeps_it_out_for_twice_as_long() -> None:
    breakers, now_s, lengths = watching(), 0.0, []
    fail(breakers, MIN_CALLS)
    for _ in range(7):
        left_s = breakers.shown(now_s)[0].left_s
        lengths.append(left_s)
        now_s += left_s
        assert breakers.refuses(KEY, "a", IMAGES, now_s) == ""
        breakers.begins(KEY, "a", IMAGES, now_s)
        assert breakers.shown(now_s)[0].state == "half_open"
        assert breakers.refuses(KEY, "a", IMAGES, now_s) == "images", "one at a time"
        assert breakers.refuses(KEY, "a", IMAGES, now_s + PROBE_S) == "", "a probe that never ends"
        assert breakers.failed(KEY, "a", IMAGES, now_s) == "images"
    assert lengths == [30.0, 60.0, 120.0, 240.0, 480.0, MAX_OPEN_S, MAX_OPEN_S]
    now_s += MAX_OPEN_S
    breakers.begins(KEY, "a", IMAGES, now_s)
    assert breakers.answered(KEY, "a", IMAGES, now_s) == ["images"] and breakers.shown(now_s) == []


def test_a_probe_without_a_verdict_leaves_the_place_to_the_next() -> None:
    breakers = watching()
    fail(breakers, MIN_CALLS)
    breakers.begins(KEY, "a", IMAGES, OPEN_S)
    breakers.cancelled(KEY, "a", IMAGES)
    assert breakers.refuses(KEY, "a", IMAGES, OPEN_S) == ""


def test_calls_that_began_before_do_not_end_the_cut() -> None:
    breakers = watching()
    fail(breakers, MIN_CALLS)
    assert breakers.answered(KEY, "a", IMAGES, 1.0) == [] and breakers.refuses(KEY, "a", IMAGES, 1.0) == "images"


# deaths


def crash(breakers: FeatureBreakers, *suspects: tuple[int, int], now_s: float = 0.0) -> list[str]:
    return [feature for _, feature in breakers.crashed([Suspected(KEY, each, seen) for each, seen in suspects], now_s)]


@pytest.mark.parametrize(("share", "others"), [(0, 2), (5, 2), (10, 1)])
def test_a_feature_that_kills_is_cut_off_on_the_whole_pool(share: int, others: int) -> None:
    breakers = watching()
    answer(breakers, share, IMAGES)
    assert crash(breakers, (IMAGES, 1)) == [], "once is chance"
    bystanders = [(PLAIN, 100 + number) for number in range(others)]
    assert crash(breakers, (IMAGES, 2), *bystanders) == ["images"]
    assert breakers.refuses(KEY, ALL, IMAGES, 1.0) == "images" and breakers.refuses(KEY, "b", PLAIN, 1.0) == ""
    (shown,) = breakers.shown(0.0)
    assert (shown.replica, shown.left_s, shown.reason) == (ALL, CRASH_OPEN_S, "engines died of it")


def test_one_request_that_kills_twice_is_no_feature() -> None:
    breakers = watching()
    assert [crash(breakers, (IMAGES, 1)) for _ in range(5)] == [[]] * 5


def test_what_is_common_is_blamed_late_or_never() -> None:
    breakers = watching()
    answer(breakers, 300, IMAGES)
    assert [crash(breakers, (IMAGES, number)) for number in range(5)] == [[]] * 5


def test_deaths_by_chance_cut_nothing_off() -> None:
    draws, cut = random.Random(5), 0
    for _ in range(200):
        breakers = watching()
        answer(breakers, 100, TOOLS)
        for number in range(4):
            suspects = [(TOOLS if draws.random() < 0.5 else PLAIN, 10 * number + n) for n in range(3)]
            cut += len(crash(breakers, *suspects))
    assert cut <= 2


def test_deaths_of_a_feature_are_forgotten_and_a_failed_probe_is_longer_out() -> None:
    breakers = watching()
    crash(breakers, (IMAGES, 1))
    assert crash(breakers, (IMAGES, 2), now_s=2000.0) == [], "too long ago"
    assert crash(breakers, (IMAGES, 3), now_s=2001.0) == ["images"]
    now_s = 2001.0
    for expected in (1200.0, 2400.0, MAX_CRASH_OPEN_S, MAX_CRASH_OPEN_S):
        now_s += breakers.shown(now_s)[0].left_s
        breakers.begins(KEY, "b", IMAGES, now_s)
        crash(breakers, (IMAGES, 9), now_s=now_s)
        assert breakers.shown(now_s)[0].left_s == expected


def test_a_death_takes_failures_back() -> None:
    breakers = watching()
    for _ in range(3 * MIN_CALLS):
        fail(breakers, 1)
        breakers.forgive(KEY, "a", IMAGES)
    assert breakers.shown(0.0) == []


def test_keys_are_bounded() -> None:
    breakers = FeatureBreakers()
    for number in range(MAX_KEYS + 5):
        breakers.failed(("pool", "chat", f"m{number}"), "a", IMAGES, 0.0)
    assert breakers.failed(("pool", "chat", "late"), "a", IMAGES, 0.0) == ""
    later_s = 3 * HALF_WINDOW_S
    for number in range(MAX_KEYS + 5):
        breakers.failed(("pool", "chat", f"n{number}"), "a", IMAGES, later_s)
    assert fail(breakers, 1, now_s=later_s) == [""]


@given(st.lists(st.tuples(st.sampled_from("faubx"), st.integers(0, 511), st.sampled_from("ab"), st.floats(0.0, 40.0))))
@settings(max_examples=60)
def test_of_any_history_what_is_cut_off_comes_back(steps: list[tuple[str, int, str, float]]) -> None:
    breakers, now_s = FeatureBreakers(), 0.0
    for number, (step, of, replica, pause_s) in enumerate(steps):
        now_s += pause_s
        match step:
            case "f":
                breakers.failed(KEY, replica, of, now_s)
            case "a":
                breakers.answered(KEY, replica, of, now_s)
            case "u":
                breakers.cancelled(KEY, replica, of)
            case "b":
                breakers.begins(KEY, replica, of, now_s)
            case _:
                breakers.crashed([Suspected(KEY, of, number)], now_s)
    later_s = now_s + MAX_CRASH_OPEN_S + PROBE_S
    assert all(breakers.refuses(KEY, replica, 511, later_s) == "" for replica in ("a", "b", ALL))


def test_a_cut_that_nobody_asks_about_is_forgotten() -> None:
    breakers = watching()
    fail(breakers, MIN_CALLS)
    assert breakers.expire(OPEN_S + IDLE_S - 1.0) == [] and breakers.watches(OPEN_S + IDLE_S - 1.0)
    assert breakers.expire(OPEN_S + IDLE_S) == [(KEY, "images")]
    assert not breakers.watches(OPEN_S + IDLE_S) and breakers.shown(OPEN_S + IDLE_S) == []
    assert breakers.expire(OPEN_S + IDLE_S) == []


def test_a_probe_puts_off_that_a_cut_is_forgotten() -> None:
    breakers = watching()
    fail(breakers, MIN_CALLS)
    breakers.begins(KEY, "a", IMAGES, 100.0)
    assert breakers.expire(OPEN_S + IDLE_S) == breakers.expire(100.0 + PROBE_S + IDLE_S - 1.0) == []
    assert breakers.expire(100.0 + PROBE_S + IDLE_S) == [(KEY, "images")]
