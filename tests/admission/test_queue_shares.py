"""The shares of classes and lanes."""

import pytest
from admission.before_gate import LONG_TOKENS
from admission.before_queue import Line

from forebay.domain import VALUES, Value
from forebay.policy import PATIENT, Admission, ClassPolicy

# classes


def test_the_highest_class_goes_first() -> None:
    line = Line()
    for value in reversed(VALUES):
        line.push(value=value)
    assert [one.value for one in line.serve(3)] == ["high", "medium", "low"]


def test_each_class_gets_its_share_and_the_highest_the_rest() -> None:
    line = Line()
    for _ in range(1000):
        for value in VALUES:
            line.push(value=value)
    line.serve(600)
    total = line.tokens()
    shares = {value: line.tokens(value=value) / total for value in VALUES}
    assert shares["low"] == pytest.approx(0.1, abs=0.01)
    assert shares["medium"] == pytest.approx(0.3, abs=0.01)
    assert shares["high"] == pytest.approx(0.6, abs=0.02)


def test_each_lane_keeps_the_shares_of_the_classes() -> None:
    line = Line()
    for _ in range(300):
        line.push(tokens=LONG_TOKENS, value="medium", long=True)
        line.push(tokens=LONG_TOKENS, value="low", long=True)
    for _ in range(20_000):
        line.push(tokens=100, value="low")
    line.serve(15_000)
    long_tokens = line.tokens(long=True)
    assert line.tokens(long=True, value="low") / long_tokens == pytest.approx(0.1, abs=0.05)


def test_a_class_that_was_away_claims_nothing_for_that_time() -> None:
    line = Line()
    for _ in range(2000):
        line.push(value="high")
    line.serve(1000)
    for _ in range(200):
        line.push(value="medium")
    got = [one.value for one in line.serve(100)]
    assert got.count("medium") == pytest.approx(30, abs=2)
    assert "mediummedium" not in "".join(got[:30]), "they take turns from the beginning"


def test_a_class_without_a_share_waits_for_the_others() -> None:
    classes: dict[Value, ClassPolicy] = {**PATIENT, "low": ClassPolicy(5.0, 50.0, 600.0, 0.0)}
    line = Line(Admission(classes=classes))
    line.push(value="low")
    for _ in range(50):
        line.push(value="high")
    assert [one.value for one in line.serve(51)] == ["high"] * 50 + ["low"]


# lanes


def test_a_long_prompt_that_cannot_start_hides_no_short_one() -> None:
    line = Line()
    long = line.push(tokens=LONG_TOKENS, long=True)
    short = line.push()
    assert set(line.queue.heads()) == {long, short}
    assert line.queue.may_pass(long)
    assert not line.queue.may_pass(short), "the long lane takes no more than its share"


def test_the_long_lane_gets_its_share_and_no_more() -> None:
    line = Line()
    for _ in range(50):
        line.push(tokens=LONG_TOKENS, long=True)
    for _ in range(5000):
        line.push()
    line.serve(3000)
    assert line.tokens(long=True) / line.tokens() == pytest.approx(0.1, abs=0.02)


def test_waiting_longer_gives_the_long_lane_no_more() -> None:
    line = Line()
    for _ in range(20):
        line.push(tokens=LONG_TOKENS, long=True)
    line.now_s += 500.0
    for _ in range(2000):
        line.push()
    line.serve(1000)
    assert line.tokens(long=True) / line.tokens() == pytest.approx(0.1, abs=0.05)


def test_a_long_prompt_of_a_higher_class_goes_first() -> None:
    line = Line()
    for _ in range(100):
        line.push(value="medium")
    longs = [line.push(tokens=LONG_TOKENS, value="high", long=True) for _ in range(2)]
    assert line.serve(2) == longs


def test_short_calls_pass_a_blocked_long_one_up_to_their_part() -> None:
    line = Line()
    long = line.push(tokens=LONG_TOKENS, long=True)
    for _ in range(2000):
        line.push()
    passed = 0
    while line.queue.may_pass(long):
        short = next(head for head in line.queue.heads() if not head.long)
        line.let_in(short)
        passed += short.call.prompt_tokens
    assert passed == pytest.approx(9 * LONG_TOKENS, abs=200)
    assert line.queue.heads()[0] is long


def test_a_long_lane_without_a_share_is_passed_for_ever() -> None:
    line = Line(Admission(long_share_ratio=0.0))
    long = line.push(tokens=LONG_TOKENS, long=True)
    for _ in range(3000):
        line.push()
    assert long not in line.serve(3000)
    assert line.queue.may_pass(long)
    assert line.serve(1) == [long]


def test_shorts_that_went_in_while_no_long_one_waited_are_no_debt() -> None:
    line = Line()
    for _ in range(3000):
        line.push()
    line.serve(2000)
    long = line.push(tokens=LONG_TOKENS, long=True)
    assert line.queue.heads()[0] is long
    assert line.queue.may_pass(long)
    line.serve(1)
    line.push(tokens=LONG_TOKENS, long=True)
    assert not line.queue.heads()[0].long
