"""Which level each pool stands on: by its replicas, its queue and its people; on a clock that stands still."""

from typing import Any

import pytest
from routing.before_pool import call, replicas

from forebay.actions import Actions
from forebay.admission.gate import LocalGate, LocalPermit
from forebay.clock import ManualClock
from forebay.domain import Signal, Value
from forebay.engines.contract import Telemetry
from forebay.laddering import PERIOD_S, SMALLER_BATCH_RATIO, Laddering, by_hand
from forebay.policy import Capacity, Ladder, LevelOverride, Model, Policy, Pool
from forebay.ports import PoolView
from forebay.routing.pool import Fleet
from forebay.traffic import Call, changed

ROOM = 10_000


def node(level: int) -> LevelOverride:
    return LevelOverride("node", "", level)


class World:
    """A pool of two replicas with a model that gives way, and one beside it."""

    def __init__(self, **pool: Any) -> None:
        self.clock = ManualClock(1000.0)
        self.fleet = Fleet(self.clock)
        self.gate = LocalGate(self.clock, self.fleet)
        self.actions = Actions(self.fleet, self.clock)
        self.laddering = Laddering(self.fleet, self.gate.basin, self.actions, self.clock)
        self.pool = {"capacity": Capacity(kv_tokens=ROOM), **pool}
        self.preemptions = 0.0
        self.follow()

    def follow(self, *levels: LevelOverride, ladder: Ladder | None = Ladder()) -> None:  # noqa: B008
        pools = (Pool("main", "vllm", replicas("a", "b"), **self.pool), Pool("spare", "vllm", replicas("s")))
        models = {"m": Model("m", "main", ladder=ladder), "small": Model("small", "spare")}
        self.policy = Policy({pool.name: pool for pool in pools}, models, {}, levels=levels)
        for listener in (self.fleet, self.gate, self.actions, self.laddering):
            listener.apply(self.policy)

    def said(self, kv: float | None, waiting: float = 0.0, only: str = "") -> None:
        """Let the replicas of the pool be read."""
        usage = Signal(None, "absent") if kv is None else Signal(kv, "engine")
        for state in self.fleet.states("main"):
            if only in ("", state.replica.name):
                telemetry = Telemetry(
                    waiting=Signal(waiting, "engine"),
                    kv_usage_ratio=usage,
                    preemptions=Signal(self.preemptions, "engine"),
                )
                state.telemetry, state.polled_at_s = telemetry, self.clock.now_s()
                state.noted(None, None)

    def run(self, seconds: float, kv: float | None = None, waiting: float = 0.0) -> int:
        """Let time pass, with a reading every two seconds if there is one; return the level of the pool."""
        for number in range(round(seconds / PERIOD_S)):
            if kv is not None and number % 4 == 0:
                self.said(kv, waiting)
            self.clock.advance(PERIOD_S)
            self.laddering.tick()
        return self.laddering.own_level("main")

    def come(self, tokens: int, output: int = 0, value: Value = "medium") -> list[LocalPermit]:
        inside: list[LocalPermit] = []
        self.gate.offer(valued(call(tokens, output), value), "main", inside.append, lambda refusal: None)
        return inside

    def told(self) -> list[tuple[str, str]]:
        return [(line.what, line.reason.partition(":")[0]) for line in reversed(self.actions.shown())]


def valued(made: Call, value: Value) -> Call:
    return changed(made, value=value)


@pytest.fixture
def world() -> World:
    return World()


@pytest.mark.parametrize(("kv", "level"), [(0.84, 0), (0.86, 1), (0.93, 2), (0.98, 3)])
def test_a_full_engine_with_calls_waiting(world: World, kv: float, level: int) -> None:
    assert world.run(6, kv, waiting=3) == level
    assert world.laddering.engaged is (level > 0)


def test_a_full_engine_with_nobody_waiting(world: World) -> None:
    assert world.run(600, 0.95) == 0
    assert not world.laddering.engaged and world.told() == []


def test_the_list_of_actions_names_level_and_reason(world: World) -> None:
    world.run(6, 0.93, waiting=3)
    world.run(120, 0.2)
    assert world.told() == [("up", "level 0 to 2"), ("down", "level 2 to 1"), ("down", "level 1 to 0")]
    up = world.actions.shown()[-1]
    assert (up.pool, up.kind, up.target) == ("main", "ladder", "main") and "KV 93%, calls wait" in up.reason


def test_readings_that_grow_old_are_no_evidence(world: World) -> None:
    world.run(6, 0.93, waiting=3)
    assert world.run(11) == 2
    assert world.run(90) == 0


def test_calls_that_wait_here_suffer_and_low_ones_do_not() -> None:
    for value, level in (("low", 0), ("medium", 1)):
        world = World()
        for name in ("a", "b"):
            assert world.come(8000, 1500), name
        assert not world.come(2000, value=value)  # type: ignore[arg-type]
        assert world.run(1.5) == 0
        assert world.run(5) == level, value
        if level:
            assert world.laddering._watches["main"].pressure.reserved.value == pytest.approx(0.95 + 0.2)


def test_without_any_word_of_kv_there_is_no_level() -> None:
    world = World(capacity=Capacity(streams=1))
    for _ in range(5):
        world.come(5000, 500)
    assert world.run(60) == 0
    assert world.laddering._watches["main"].pressure.pains == ("waiting",)
    assert list(world.laddering.gauge_kv()) == []


def test_a_pool_whose_models_do_not_give_way_is_shown_and_noted_nowhere(world: World) -> None:
    world.follow(ladder=None)
    assert world.run(6, 0.98, waiting=3) == 3
    assert world.told() == []
    assert list(world.laddering.gauge_levels()) == [(("main",), 3), (("spare",), 0)]


def test_replicas_that_preempt_get_smaller_batches_until_all_is_well(world: World) -> None:
    a, b = world.fleet.states("main")
    for _ in range(3):
        world.preemptions += 1
        world.said(0.9, only="a")
        world.run(2)
    assert world.laddering.own_level("main") == 1
    assert (a.room_ratio, b.room_ratio) == (SMALLER_BATCH_RATIO, 1.0)
    world.run(90, 0.3)
    assert (world.laddering.own_level("main"), a.room_ratio) == (0, 1.0)


def test_people_go_before_the_automaton_and_the_highest_of_them_counts(world: World) -> None:
    levels = world.laddering.levels
    assert levels("main", "t") == (0, 0)
    world.follow(LevelOverride("tenant", "t", 2), LevelOverride("pool", "main", 1))
    assert world.laddering.engaged
    assert (levels("main", "t"), levels("main", "u"), levels("spare", "u")) == ((2, 2), (1, 1), (0, 0))
    world.follow(node(0), LevelOverride("tenant", "t", 1))
    world.run(6, 0.98, waiting=3)
    assert (levels("main", "u"), levels("main", "t")) == ((0, 0), (3, 1))
    world.follow()
    assert levels("main", "u") == (3, 0)


def test_levels_of_other_nodes_count_beside_the_own(world: World) -> None:
    world.follow(LevelOverride("pool", "main", 1))
    world.laddering.share((node(2),))
    assert world.laddering.levels("main", "t") == (2, 2)
    assert world.laddering.levels("spare", "t") == (2, 2)
    world.laddering.share(())
    assert world.laddering.levels("spare", "t") == (0, 0)
    assert world.laddering.report() == {"main": 0, "spare": 0}


def test_a_process_without_a_gate_follows_what_it_is_told(world: World) -> None:
    world.run(6, 0.93, waiting=3)
    views = world.laddering.views()
    assert views["main"] == PoolView(2, 0, True, pytest.approx(0.93)) and views["spare"] == PoolView()  # type: ignore[arg-type]
    worker = World().laddering
    worker.told(views, (node(1),))
    assert worker.engaged and worker.view("main") == views["main"] and worker.view("gone") == PoolView()
    assert (worker.levels("main", "t"), worker.levels("spare", "t")) == ((2, 1), (1, 1))
    worker.told({}, ())
    assert not worker.engaged and worker.levels("main", "t") == (0, 0)


def test_of_two_for_the_same_the_higher_counts() -> None:
    hands = by_hand((node(0), node(3), LevelOverride("pool", "p", 2), LevelOverride("pool", "p", 1)))
    assert hands is not None and (hands.level("x", "y"), hands.pools) == (3, {"p": 2})
    assert by_hand(()) is None


def test_what_is_shown(world: World) -> None:
    world.follow(LevelOverride("tenant", "t", 2))
    world.run(6, 0.86, waiting=3)
    shown = world.laddering.shown(1)
    assert shown["by_hand"] == [{"scope": "tenant", "name": "t", "level": 2}]
    (row,) = shown["pools"]  # type: ignore[misc]
    assert (row["pool"], row["level"], row["own_level"], row["pains"]) == ("main", 1, 1, ["waiting"])
    assert (row["kv_measured_ratio"], row["kv_reserved_ratio"]) == (0.86, 0.0)
    pains = {labels: value for labels, value in world.laddering.gauge_pains() if value}
    assert pains == {("main", "waiting"): 1.0}
