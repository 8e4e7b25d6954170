"""Death or mere loss, and whose turn it is."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.domain import FailureKind
from forebay.routing.poison import DEATH_WINDOW_S, Flight, Quarantine
from forebay.routing.suspects import DEATH_LOSSES, MAX_FLIGHTS, MAX_WAITING, TRIAL_S, Deaths, Trials, site_of


def flight(number: int, decoded: int = 0) -> Flight:
    return Flight(f"c{number}", number, 1, 0.0, decoded)


def lose(deaths: Deaths, count: int, in_flight: int, kind: FailureKind = FailureKind.RESET, now_s: float = 0.0) -> None:
    for number in range(count):
        assert deaths.lost("a", kind, flight(number), in_flight, now_s)


@pytest.mark.parametrize(
    ("lost", "in_flight", "dead"),
    [(1, 1, False), (1, 5, False), (2, 2, True), (2, 5, False), (DEATH_LOSSES, 50, True)],
)
def test_how_many_lost_calls_make_a_death(lost: int, in_flight: int, dead: bool) -> None:
    deaths, quarantine = Deaths(), Quarantine()
    lose(deaths, lost, in_flight)
    assert (deaths.finding("a", "c0", quarantine, 0.1) is not None) == dead
    assert (len(quarantine) > 0) == dead


@pytest.mark.parametrize("kind", [FailureKind.RESET, FailureKind.TRUNCATED, FailureKind.IN_BAND, FailureKind.STALL])
def test_one_lost_call_and_a_closed_port_are_a_death(kind: FailureKind) -> None:
    deaths, quarantine = Deaths(), Quarantine()
    lose(deaths, 1, 1, kind)
    assert deaths.finding("a", "c0", quarantine, 0.1) is None
    deaths.unreachable("a", 0.2)
    judged = deaths.finding("a", "c0", quarantine, 0.2)
    assert judged is not None and judged.finding == "suspect"


@pytest.mark.parametrize("kind", [FailureKind.STALL, FailureKind.FIRST_BYTE])
def test_a_slow_engine_is_no_dead_one(kind: FailureKind) -> None:
    deaths, quarantine = Deaths(), Quarantine()
    lose(deaths, 50, 50, kind)
    assert deaths.finding("a", "c0", quarantine, 0.1) is None and len(quarantine) == 0


@pytest.mark.parametrize("kind", [FailureKind.CONNECT, FailureKind.STATUS, FailureKind.LOADING, FailureKind.TOTAL])
def test_other_failures_are_nobodys_death(kind: FailureKind) -> None:
    deaths, quarantine = Deaths(), Quarantine()
    for number in range(10):
        assert not deaths.lost("a", kind, flight(number), 10, 0.0)
    deaths.unreachable("a", 0.0)
    assert deaths.finding("a", "c0", quarantine, 0.1) is None


def test_losses_far_apart_are_no_death_and_replicas_are_apart() -> None:
    deaths, quarantine = Deaths(), Quarantine()
    for number in range(5):
        now_s = number * (DEATH_WINDOW_S + 0.1)
        deaths.lost("a", FailureKind.RESET, flight(number), 9, now_s)
        deaths.lost(f"b{number}", FailureKind.RESET, flight(100 + number), 9, now_s)
        assert deaths.finding("a", f"c{number}", quarantine, now_s + 0.1) is None


def test_all_calls_of_a_death_are_judged_together_and_late_ones_with_it() -> None:
    deaths, quarantine = Deaths(), Quarantine()
    lose(deaths, 4, 5)
    first = deaths.finding("a", "c0", quarantine, 0.1)
    assert first is not None and first == deaths.finding("a", "c0", quarantine, 0.1)
    deaths.lost("a", FailureKind.RESET, flight(4, 99), 1, 0.5)
    late = deaths.finding("a", "c4", quarantine, 0.6)
    assert late is not None and late.finding == "innocent"
    assert all(entry.deaths == 1 for entry in quarantine.entries(1.0))


def test_calls_of_one_death_are_bounded() -> None:
    deaths, quarantine = Deaths(), Quarantine()
    lose(deaths, MAX_FLIGHTS + 5, MAX_FLIGHTS + 5)
    assert deaths.finding("a", "c0", quarantine, 0.1) is not None
    assert deaths.finding("a", f"c{MAX_FLIGHTS}", quarantine, 0.1) is None


def test_one_at_a_time_the_newest_first() -> None:
    trials = Trials()
    for number in (1, 3, 2):
        assert trials.enter("p", f"c{number}", float(number))
    assert trials.waiting() == {"p": 3}
    assert [trials.turn("p", f"c{n}", 10.0) for n in (1, 2, 3)] == [False, False, True]
    assert not trials.turn("p", "c2", 10.0)
    trials.leave("p", "c3")
    trials.leave("p", "c3")
    assert trials.turn("p", "c2", 10.0)
    assert trials.enter("q", "c9", 0.0) and trials.turn("q", "c9", 10.0), "pools do not wait for each other"


def test_a_long_trial_lets_the_next_one_in() -> None:
    trials = Trials()
    trials.enter("p", "c1", 1.0)
    trials.enter("p", "c2", 2.0)
    assert trials.turn("p", "c2", 0.0)
    assert not trials.turn("p", "c1", TRIAL_S - 0.1) and trials.turn("p", "c1", TRIAL_S)
    trials.leave("p", "c2")
    trials.leave("p", "c1")
    assert trials.waiting() == {}


def test_all_are_tried_on_the_same_replica() -> None:
    assert site_of(["b", "a", "c"]) == site_of(["c", "a"]) == "a" and site_of([]) == ""


def test_who_waits_is_bounded() -> None:
    trials = Trials()
    assert all(trials.enter("p", f"c{n}", 0.0) for n in range(MAX_WAITING))
    assert not trials.enter("p", "more", 0.0)
    trials.leave("p", "c0")
    assert trials.enter("p", "more", 0.0)


@given(st.lists(st.tuples(st.sampled_from(["enter", "turn", "leave"]), st.integers(0, 6), st.floats(0.0, 3.0))))
def test_of_any_history_nobody_is_lost_and_one_begins_at_a_time(steps: list[tuple[str, int, float]]) -> None:
    trials, now_s, waiting, begun = Trials(), 0.0, set(), dict[int, float]()
    for step, number, pause_s in steps:
        now_s += pause_s
        if step == "enter" and number not in waiting and number not in begun:
            assert trials.enter("p", f"c{number}", now_s)
            waiting.add(number)
        elif step == "turn" and trials.turn("p", f"c{number}", now_s):
            assert number in waiting and all(now_s >= since + TRIAL_S for since in begun.values())
            waiting.remove(number)
            begun[number] = now_s
        elif step == "leave":
            trials.leave("p", f"c{number}")
            waiting.discard(number)
            begun.pop(number, None)
        assert trials.waiting().get("p", 0) == len(waiting)
    now_s += TRIAL_S
    for _ in range(len(waiting)):
        # Whoever waits gets his turn.
        (chosen,) = [number for number in waiting if trials.turn("p", f"c{number}", now_s)]
        waiting.remove(chosen)
        now_s += TRIAL_S
