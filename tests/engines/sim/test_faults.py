"""Scripts of faults: read strictly, consumed one step at a time."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engines.sim import faults
from forebay.engines.sim.faults import WELL, Cut, Die, FaultScript, Loading, Ok, Status, name_of, read


def script(*steps: dict[str, object], now_s: float = 0.0) -> FaultScript:
    return FaultScript(read(json.dumps(steps).encode()), now_s)


def test_steps_are_consumed_in_order_and_then_all_is_well() -> None:
    steps = script({"action": "status", "status": 500, "times": 2}, {"action": "ok"}, {"action": "reset"})
    assert [name_of(steps.take(0.0)) for _ in range(6)] == ["status", "status", "ok", "reset", "ok", "ok"]
    assert steps.left == 0


def test_a_step_for_always_is_never_used_up() -> None:
    steps = script({"action": "hang", "always": True}, {"action": "reset"})
    assert {name_of(steps.take(float(now))) for now in range(100)} == {"hang"}


def test_a_step_for_seconds_begins_with_its_turn() -> None:
    steps = script({"action": "reset"}, {"action": "loading", "for_s": 10}, {"action": "drain", "for_s": 5}, now_s=100)
    assert name_of(steps.current(500)) == "reset"
    assert name_of(steps.take(500)) == "reset"
    assert [name_of(steps.take(now)) for now in (500, 509.9, 510, 514.9, 515)] == [
        *("loading", "loading", "drain", "drain", "ok")
    ]


def test_a_turn_that_passed_unseen_counts_from_its_own_time() -> None:
    steps = script({"action": "loading", "for_s": 10}, {"action": "drain", "for_s": 5})
    assert [name_of(steps.take(now)) for now in (12, 14.9, 15.5)] == ["drain", "drain", "ok"]


def test_looking_consumes_nothing() -> None:
    steps = script({"action": "cut", "after_tokens": 3})
    assert steps.current(0) == steps.current(9) == steps.take(9) == Cut(after_tokens=3)
    assert steps.current(9) == Ok()


@given(st.lists(st.integers(1, 5), max_size=10))
def test_each_step_is_done_as_often_as_it_says(times: list[int]) -> None:
    steps = FaultScript(tuple(Status(status=500 + index, times=count) for index, count in enumerate(times)), 0.0)
    taken = [steps.take(0.0) for _ in range(sum(times))]
    statuses = [action.status for action in taken if isinstance(action, Status)]
    assert statuses == [500 + index for index, count in enumerate(times) for _ in range(count)]
    assert steps.take(0.0) is faults.WELL


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("{}", "list"),
        ('[{"action": "explode"}]', "explode"),
        ('[{"action": "cut"}]', "after_tokens"),
        ('[{"action": "cut", "after_tokens": -1}]', "after_tokens"),
        ('[{"action": "cut", "after_tokens": 1, "how": "boom"}]', "how"),
        ('[{"action": "ok", "times": 0}]', "times"),
        ('[{"action": "status", "status": 99}]', "status"),
        ('[{"action": "ok", "tiems": 2}]', "tiems"),
        ("[", "fault steps"),
    ],
)
def test_a_script_that_cannot_be_says_why(text: str, part: str) -> None:
    with pytest.raises(ValueError, match=part):
        read(text.encode())


def test_a_script_is_bounded() -> None:
    with pytest.raises(ValueError, match="at most"):
        read(json.dumps([{"action": "ok"}] * (faults.MAX_STEPS + 1)).encode())


def test_actions_compare_by_value() -> None:
    assert Loading(for_s=1) != Loading(for_s=2)


def test_a_step_may_hold_for_some_bodies_only() -> None:
    script = FaultScript(read(b'[{"action": "die", "if_body": "poison"}, {"action": "reset"}]'), 0.0)
    assert script.take(0.0, b'{"prompt":"hi"}') == WELL
    assert script.take(0.0, b'{"prompt":"poison"}') == Die(if_body="poison")
    assert script.take(0.0, b"{}") == faults.Reset()
