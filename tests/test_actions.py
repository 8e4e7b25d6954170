"""The list of what Forebay did by itself, and its one arbiter."""

import pytest
from routing.before_pool import Bench

from forebay.actions import KEPT, MAX_KINDS, Actions
from forebay.domain import FailureKind
from forebay.policy import BreakerPolicy, Policy
from forebay.routing.ejection import Action

BREAKER = BreakerPolicy(failures=1, open_s=10)


@pytest.fixture
def bench() -> Bench:
    return Bench("a", "b", "c", breaker=BREAKER)


@pytest.fixture
def actions(bench: Bench) -> Actions:
    return Actions(bench.fleet, bench.clock)


def told(actions: Actions) -> list[tuple[str, str, str]]:
    return [(line.kind, line.what, line.target) for line in reversed(actions.shown())]


def test_a_replica_goes_out_and_comes_back(bench: Bench, actions: Actions) -> None:
    bench.fail("a")
    (line,) = actions.shown()
    assert (line.pool, line.kind, line.what, line.target, line.reason) == ("main", "eject", "out", "a", "reset")
    assert line.ttl_s == 10.0 and line.undo and line.at.endswith("Z")
    bench.clock.advance(10.1)
    bench.into("a").report(FailureKind.STALL, answered=False)
    assert len(actions.shown()) == 1, "it was still out"
    bench.clock.advance(30)
    bench.into("a").report(None, answered=True)
    assert told(actions) == [("eject", "out", "a"), ("eject", "back", "a")]


def test_a_replica_that_left_the_policy_is_forgotten(bench: Bench, actions: Actions) -> None:
    bench.fail("a")
    actions.apply(Policy({}, {}, {}))
    assert not actions._out


def test_panic_begins_and_ends(bench: Bench, actions: Actions) -> None:
    for name in "ab":
        bench.fail(name)
    for _ in range(3):
        actions.tick()
    assert told(actions)[2:] == [("panic", "begun", "main")]
    bench.clock.advance(10.1)
    bench.into("a").report(None, answered=True)
    actions.tick()
    assert told(actions)[-1] == ("panic", "ended", "main")


def test_the_list_is_bounded_by_kind(actions: Actions) -> None:
    actions.note(("main", "tenant", "t"), "moved", "why", 600.0, "how")
    for number in range(5 * KEPT):
        actions.note(("main", "eject", f"r{number}"), "out", "why")
    for number in range(2 * MAX_KINDS):
        actions.note(("main", f"kind{number}", "x"), "done", "why")
    lines = actions.shown()
    assert len(lines) == 1 + KEPT + MAX_KINDS - 2
    assert [line.target for line in lines if line.kind == "eject"][0] == f"r{5 * KEPT - 1}"
    assert lines[-1].kind == "eject" or lines[-1].kind == "tenant"


def test_whose_time_is_up_is_told_once_to_his_automaton(bench: Bench, actions: Actions) -> None:
    ended: list[Action] = []
    actions.on_end["ladder"] = ended.append
    now_s = bench.clock.now_s()
    assert actions.arbiter.take(Action("main", "ladder", "x", "why", now_s, now_s + 5.0))
    actions.tick()
    assert ended == []
    bench.clock.advance(5.0)
    actions.tick()
    actions.tick()
    assert [action.target for action in ended] == ["x"]
