"""Features that fail or kill are cut off; everything else, and what is everybody's trouble, is not."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.routing.features import (
    CRASH_OPEN_S,
    HALF_WINDOW_S,
    HINT_CALLS,
    MAX_COMBINATIONS,
    MAX_CRASH_OPEN_S,
    MAX_KEYS,
    MAX_OPEN_S,
    MIN_CALLS,
    MIN_OTHERS,
    OPEN_S,
    PROBE_S,
    FeatureBreakers,
    Key,
    mask_of,
    name_of,
)

KEY: Key = ("pool", "chat", "m")


def mask(
    tokens: int = 100, *, tools: bool = False, vision: bool = False, stream: bool = True, lora: bool = False
) -> int:
    return mask_of(tokens, tools=tools, guided=False, vision=vision, stream=stream, lora=lora)


PLAIN, VISION = mask(), mask(vision=True)


def opened_by(breakers: FeatureBreakers, calls: int, bad: int, good: int = PLAIN, others: int = 100) -> str:
    """Let calls fail among others that do not; return what was cut off."""
    for _ in range(others):
        breakers.answered(KEY, good, 0.0)
    for _ in range(calls):
        blame = breakers.failed(KEY, bad, 0.0)
        if blame is not None and blame.opened:
            return blame.feature
    return ""


def test_names_and_lengths() -> None:
    every = mask_of(3000, tools=True, guided=True, vision=True, stream=True, lora=True)
    bits = [1 << place for place in range(every.bit_length()) if every >> place & 1]
    assert [name_of(bit) for bit in bits] == ["tools", "guided", "vision", "stream", "lora", "prompt < 4096"]
    assert mask(0) != mask(1) and mask(2**30) == mask(2**20)
    assert name_of(mask(2**30, stream=False)) == "prompt >= 524288"


def test_a_feature_that_fails_is_cut_off_and_the_others_are_not() -> None:
    breakers = FeatureBreakers()
    assert opened_by(breakers, MIN_CALLS - 1, VISION) == ""
    assert opened_by(breakers, 1, VISION, others=0) == "vision"
    assert breakers.refuses(KEY, VISION, 1.0) == "vision"
    assert breakers.refuses(KEY, mask(5000, tools=True, vision=True), 1.0) == "vision"
    assert breakers.refuses(KEY, PLAIN, 1.0) == "" == breakers.refuses(("other", "chat", "m"), VISION, 1.0)
    (shown,) = breakers.shown(1.0)
    assert (shown.place, shown.feature, shown.state, shown.left_s) == ("pool", "vision", "open", OPEN_S - 1.0)
    assert shown.reason == "100% of 20 calls failed" and breakers.opened == 1


def test_its_failures_are_not_held_against_the_replica_long_before() -> None:
    breakers = FeatureBreakers()
    for _ in range(20):
        breakers.answered(KEY, PLAIN, 0.0)
    blames = [breakers.failed(KEY, VISION, 0.0) for _ in range(MIN_CALLS)]
    assert all(blame is None for blame in blames[: HINT_CALLS - 1])
    assert all(blame is not None and blame.feature == "vision" for blame in blames[HINT_CALLS - 1 :])
    assert [blame is not None and blame.opened for blame in blames].count(True) == 1


def test_what_nobody_is_without_is_the_replicas_trouble() -> None:
    breakers = FeatureBreakers()
    for number in range(200):
        assert breakers.failed(KEY, mask(1 << number % 12, tools=number % 2 == 0), 0.0) is None
    assert breakers.shown(0.0) == []


def test_half_of_the_calls_may_fail() -> None:
    breakers = FeatureBreakers()
    for _ in range(100):
        breakers.answered(KEY, PLAIN, 0.0)
    for _ in range(200):
        breakers.answered(KEY, VISION, 0.0)
        assert breakers.failed(KEY, VISION, 0.0) is None


def test_of_features_that_come_together_the_one_that_fails_most_is_blamed() -> None:
    breakers, draws = FeatureBreakers(), random.Random(1)
    for _ in range(600):
        vision = draws.random() < 0.2
        one = mask(draws.choice((100, 5000)), tools=draws.random() < 0.5, vision=vision, stream=draws.random() < 0.7)
        if breakers.refuses(KEY, one, 0.0):
            continue
        if vision:
            breakers.failed(KEY, one, 0.0)
        else:
            breakers.answered(KEY, one, 0.0)
    assert [shown.feature for shown in breakers.shown(0.0)] == ["vision"]


def test_calls_are_forgotten() -> None:
    breakers = FeatureBreakers()
    for _ in range(50):
        breakers.answered(KEY, PLAIN, 0.0)
    for number in range(200):
        now_s = number * HALF_WINDOW_S / 7
        breakers.answered(KEY, PLAIN, now_s)
        blame = breakers.failed(KEY, VISION, now_s)
        assert blame is None or not blame.opened, "fourteen in the window are too few"


def test_one_probe_at_a_time_and_its_success_closes() -> None:
    breakers = FeatureBreakers()
    opened_by(breakers, MIN_CALLS, VISION)
    breakers.answered(KEY, VISION, 1.0)
    assert breakers.refuses(KEY, VISION, OPEN_S - 0.1) == "vision", "a straggler says nothing"
    assert breakers.refuses(KEY, VISION, OPEN_S) == ""
    assert breakers.refuses(KEY, VISION, OPEN_S) == "vision" and breakers.shown(OPEN_S)[0].state == "half_open"
    breakers.cancelled(KEY, VISION)
    assert breakers.refuses(KEY, VISION, OPEN_S) == "", "the probe's client left"
    assert breakers.refuses(KEY, VISION, OPEN_S + PROBE_S) == "", "a probe that does not end"
    breakers.answered(KEY, VISION, OPEN_S + PROBE_S)
    assert breakers.shown(OPEN_S) == [] and breakers.refuses(KEY, VISION, OPEN_S) == ""


def test_a_failed_probe_doubles_the_time() -> None:
    breakers, now_s, lengths = FeatureBreakers(), 0.0, []
    opened_by(breakers, MIN_CALLS, VISION)
    for _ in range(7):
        lengths.append(breakers.shown(now_s)[0].left_s)
        now_s += lengths[-1]
        assert breakers.refuses(KEY, VISION, now_s) == ""
        blame = breakers.failed(KEY, VISION, now_s)
        assert blame is not None and blame.feature == "vision" and not blame.opened
    assert lengths == [30.0, 60.0, 120.0, 240.0, 480.0, MAX_OPEN_S, MAX_OPEN_S]


def test_what_was_cut_off_begins_anew_when_it_is_back() -> None:
    breakers = FeatureBreakers()
    opened_by(breakers, MIN_CALLS, VISION)
    assert breakers.refuses(KEY, VISION, OPEN_S) == ""
    breakers.answered(KEY, VISION, OPEN_S)
    assert [breakers.failed(KEY, VISION, OPEN_S) for _ in range(3)] == [None] * 3
    breakers = busy(0.05)
    breakers.crashed(KEY, [(VISION, 1)], 0.0)
    assert breakers.crashed(KEY, [(VISION, 2)], 0.0) == "vision" and breakers.restore(KEY, "vision")
    assert breakers.crashed(KEY, [(VISION, 3)], 1.0) == ""


def test_failures_of_what_was_cut_off_are_not_held_against_its_company() -> None:
    breakers = FeatureBreakers()
    long_vision, long = mask(5000, vision=True), mask(5000)
    for _ in range(100):
        breakers.answered(KEY, PLAIN, 0.0)
    for _ in range(5):
        breakers.answered(KEY, long, 0.0)
    for _ in range(MIN_CALLS):
        breakers.failed(KEY, long_vision, 0.0)
    assert [shown.feature for shown in breakers.shown(0.0)] == ["vision"]
    assert [breakers.failed(KEY, long, 0.0) for _ in range(4)] == [None] * 4


def test_with_few_others_to_compare_nothing_is_said() -> None:
    breakers = FeatureBreakers()
    assert opened_by(breakers, 100, VISION, others=MIN_OTHERS - 1) == ""
    assert opened_by(breakers, 1, VISION, others=1) == "vision"


def test_an_operator_lets_it_in_again() -> None:
    breakers = FeatureBreakers()
    opened_by(breakers, MIN_CALLS, VISION)
    assert not breakers.restore(KEY, "tools") and not breakers.restore(("x", "y", "z"), "vision")
    assert breakers.restore(KEY, "vision") and not breakers.restore(KEY, "vision")
    assert breakers.refuses(KEY, VISION, 1.0) == ""


# engines that die


def busy(share: float, calls: int = 400) -> FeatureBreakers:
    """Return breakers that have seen traffic of which a part has pictures."""
    breakers = FeatureBreakers()
    for number in range(calls):
        breakers.answered(KEY, VISION if number < share * calls else PLAIN, 0.0)
    return breakers


def test_a_rare_feature_whose_requests_kill_is_cut_off_at_its_second_request() -> None:
    breakers = busy(0.05)
    assert breakers.crashed(KEY, [(VISION, 1)], 1.0) == ""
    assert breakers.crashed(KEY, [(VISION, 1)], 2.0) == "", "the same request again is the request, not the feature"
    assert breakers.crashed(KEY, [(VISION, 2)], 3.0) == "vision"
    assert breakers.refuses(KEY, VISION, 4.0) == "vision" and breakers.refuses(KEY, PLAIN, 4.0) == ""
    assert breakers.shown(3.0)[0].left_s == CRASH_OPEN_S


def test_a_common_feature_takes_more_and_one_of_all_is_never_blamed() -> None:
    breakers = busy(0.4)
    cut = [breakers.crashed(KEY, [(VISION, number)], 1.0) for number in range(8)]
    assert cut.index("vision") in (4, 5) and breakers.refuses(KEY, PLAIN, 2.0) == ""
    everyone = busy(1.0)
    assert [everyone.crashed(KEY, [(VISION, number)], 1.0) for number in range(16)] == [""] * 16


def test_many_suspects_prove_little() -> None:
    breakers = busy(0.05)
    for number in range(3):
        suspects = [(PLAIN, 100 * number + k) for k in range(30)] + [(VISION, 100 * number + 99)]
        assert breakers.crashed(KEY, suspects, 1.0) == "", "one of thirty-one has it by chance"


def test_a_probe_that_kills_again_waits_twice_as_long() -> None:
    breakers = busy(0.05)
    breakers.crashed(KEY, [(VISION, 1)], 0.0)
    breakers.crashed(KEY, [(VISION, 2)], 0.0)
    now_s, lengths = 0.0, []
    for number in range(5):
        lengths.append(breakers.shown(now_s)[0].left_s)
        now_s += lengths[-1]
        assert breakers.refuses(KEY, VISION, now_s) == ""
        breakers.crashed(KEY, [(VISION, 3 + number)], now_s)
    assert lengths == [600.0, 1200.0, 2400.0, MAX_CRASH_OPEN_S, MAX_CRASH_OPEN_S]


@pytest.mark.parametrize("share", [0.02, 0.1])
def test_a_feature_that_kills_costs_three_engines_of_eight_and_the_rest_runs_on(share: float) -> None:
    """Each request with it kills: it is tried twice (poison), the next one of its kind is the last."""
    breakers, draws, deaths, served = busy(0.0), random.Random(3), 0, 0
    for number in range(3000):
        one = VISION if draws.random() < share else PLAIN
        now_s = number * 0.1
        if breakers.refuses(KEY, one, now_s):
            continue
        if one == VISION:
            for _ in range(2):
                deaths += 1
                if breakers.crashed(KEY, [(one, number)], now_s):
                    break
        else:
            breakers.answered(KEY, one, now_s)
            served += 1
    assert deaths == 3 and served > 2500


@given(st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_engines_that_die_for_no_reason_in_the_requests_cut_hardly_anything_off(seed: int) -> None:
    breakers, draws = FeatureBreakers(), random.Random(seed)

    def one() -> int:
        return mask(draws.choice((50, 500, 5000)), tools=draws.random() < 0.3, vision=draws.random() < 0.1)

    for _ in range(500):
        breakers.answered(KEY, one(), 0.0)
    cut = [breakers.crashed(KEY, [(one(), n * 10 + k) for k in range(draws.randint(1, 4))], 1.0) for n in range(4)]
    # At 1 % for each of some eight features and three looks a few false ones are to be expected over all seeds.
    assert len([name for name in cut if name]) <= 1


# bounds


def test_keys_are_bounded_and_idle_ones_make_room() -> None:
    breakers = FeatureBreakers()
    for number in range(2 * MAX_KEYS):
        breakers.answered((f"r{number}", "chat", "m"), PLAIN, 0.0)
    assert len(breakers._scopes) == MAX_KEYS
    assert breakers.failed(("new", "chat", "m"), VISION, 1.0) is None
    breakers.answered(("new", "chat", "m"), PLAIN, 3 * HALF_WINDOW_S)
    assert list(breakers._scopes) == [("new", "chat", "m")]


def test_combinations_are_bounded() -> None:
    breakers = FeatureBreakers()
    for number in range(4 * MAX_COMBINATIONS):
        breakers.answered(KEY, number << 5 | 8, 0.0)
    assert len(breakers._scopes[KEY].tallies) == MAX_COMBINATIONS


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["answered", "failed", "refuses", "cancelled", "crashed"]),
            st.sampled_from([PLAIN, VISION, mask(5000), mask(5000, tools=True), mask(100, lora=True)]),
            st.floats(0.0, 20.0),
        ),
        max_size=300,
    )
)
@settings(max_examples=60, deadline=None)
def test_of_any_history_a_cut_ends_and_only_what_has_the_feature_is_refused(
    steps: list[tuple[str, int, float]],
) -> None:
    breakers, now_s = FeatureBreakers(), 0.0
    for number, (step, one, pause_s) in enumerate(steps * 3):
        now_s += pause_s
        if step == "refuses":
            name = breakers.refuses(KEY, one, now_s)
            assert not name or name in {name_of(1 << place) for place in range(26) if one >> place & 1}
        elif step == "crashed":
            breakers.crashed(KEY, [(one, number)], now_s)
        elif step == "cancelled":
            breakers.cancelled(KEY, one)
        else:
            getattr(breakers, step)(KEY, one, now_s)
        for shown in breakers.shown(now_s):
            assert 0.0 <= shown.left_s <= MAX_CRASH_OPEN_S
    now_s += MAX_CRASH_OPEN_S + PROBE_S
    for one in (PLAIN, VISION):
        assert breakers.refuses(KEY, one, now_s) == ""
        breakers.answered(KEY, one, now_s)
        assert breakers.refuses(KEY, one, now_s) == ""
