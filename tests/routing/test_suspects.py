"""Whose turn it is among the suspects of a death."""

from hypothesis import given
from hypothesis import strategies as st

from forebay.routing.suspects import ALONE, MAX_WAITING, TRIAL_S, Trials, site_of


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


def test_once_some_have_come_through_the_others_go_together() -> None:
    trials = Trials()
    for number in range(ALONE + 10):
        trials.enter("p", f"c{number}", float(number))
    left = list(range(ALONE + 10))

    def next_goes() -> bool:
        if trials.turn("p", f"c{left[-1]}", 0.0):
            left.pop()
            return True
        return False

    for number in range(ALONE):
        assert next_goes() and not next_goes()
        trials.leave("p", f"c{ALONE + 9 - number}")
    assert next_goes() and next_goes() and not next_goes(), "two at once"
    trials.leave("p", f"c{left[-1] + 1}")
    assert next_goes() and next_goes() and next_goes() and not next_goes(), "four at once"
    trials.died("p")
    for call_id in [f"c{number}" for number in range(left[-1] + 1, ALONE + 10)]:
        trials.leave("p", call_id)
    trials.died("p")
    assert next_goes() and not next_goes(), "a death begins it anew"


def test_who_waits_is_bounded() -> None:
    trials = Trials()
    assert all(trials.enter("p", f"c{n}", 0.0) for n in range(MAX_WAITING))
    assert not trials.enter("p", "more", 0.0)
    trials.leave("p", "c0")
    assert trials.enter("p", "more", 0.0)


@given(st.lists(st.tuples(st.sampled_from(["enter", "turn", "leave"]), st.integers(0, 6), st.floats(0.0, 3.0))))
def test_of_any_history_nobody_is_lost(steps: list[tuple[str, int, float]]) -> None:
    trials, now_s, waiting, begun = Trials(), 0.0, set(), set[int]()
    for step, number, pause_s in steps:
        now_s += pause_s
        if step == "enter" and number not in waiting and number not in begun:
            assert trials.enter("p", f"c{number}", now_s)
            waiting.add(number)
        elif step == "turn" and trials.turn("p", f"c{number}", now_s):
            assert number in waiting
            waiting.remove(number)
            begun.add(number)
        elif step == "leave":
            trials.leave("p", f"c{number}")
            waiting.discard(number)
            begun.discard(number)
        assert trials.waiting().get("p", 0) == len(waiting)
    for _ in range(len(waiting)):
        # Whoever waits gets his turn.
        now_s += TRIAL_S
        (chosen,) = [number for number in waiting if trials.turn("p", f"c{number}", now_s)]
        waiting.remove(chosen)
