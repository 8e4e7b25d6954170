"""A tenant whose traffic goes bad is served by another model for a while; on a clock that stands still."""

from typing import Any

import pytest
from routing.before_pool import CHAT, replicas
from test_status import NoJournal
from upstream.engine_side import FakeReply, sending_of

from forebay.actions import Actions
from forebay.clock import ManualClock
from forebay.degrade.tenants import PROBE_EVERY, SLICE_S
from forebay.degrading import Degrading
from forebay.domain import FailureKind, Outcome, Tenant
from forebay.policy import Degrade, Model, Policy, Pool, Timeouts
from forebay.recording.metrics import Metrics
from forebay.recording.record import CallRecord, Recorder
from forebay.routing.ejection import ACTION_EVERY_S
from forebay.routing.pool import Fleet
from forebay.traffic import Answer, Call, Verdict, Work, changed
from forebay.upstream.trial import Trial
from forebay.wire.endpoints import BY_PATH

OK = Verdict(True, Outcome.OK)
TTL_S = 60.0
BAD = FailureKind.FIRST_BYTE


def late(kind: FailureKind = BAD) -> Verdict:
    return Verdict(False, Outcome.TIMEOUT, kind)


class World:
    """Two pools with a model each; `m` degrades to `small`."""

    def __init__(self) -> None:
        self.clock = ManualClock(1000.0)
        self.fleet = Fleet(self.clock)
        self.actions = Actions(self.fleet, self.clock)
        self.degrading = Degrading(self.fleet, self.actions, self.clock)
        self.metrics = Metrics(self.clock)
        self.recorder = Recorder(self.clock, NoJournal(), self.metrics)
        self.numbers = 0
        self.follow()

    def follow(self, degrade: Degrade | None = Degrade("small", TTL_S), **spare: Any) -> None:  # noqa: B008
        main, other = (
            Pool("main", "vllm", replicas("a")),
            Pool("spare", **{"engine": "vllm", "replicas": replicas("s"), **spare}),
        )
        tenants = {b"%d" % i: Tenant(f"t{i}") for i in range(20)}
        models = {"m": Model("m", "main", degrade=degrade), "small": Model("small", "spare")}
        self.policy = Policy({"main": main, "spare": other}, models, tenants)
        for listener in (self.fleet, self.metrics, self.actions, self.degrading):
            listener.apply(self.policy)

    def call(self, tenant: str, deadline_s: float = 10_000.0) -> Call:
        work = Work(100, 10, 10, "m", (1.0,), (("k",),), (7,))
        now_s = self.clock.now_s()
        return Call("c", CHAT, "m", True, False, Tenant(tenant), 100, 10, (), now_s, now_s + deadline_s, work=work)

    def placed(self, call: Call) -> tuple[Call, FakeReply, CallRecord]:
        self.numbers += 1
        reply, record = FakeReply(), self.recorder.open(f"c{self.numbers}", "r", "chat", "")
        record.understood(call)
        return self.degrading.placed(call, self.policy, reply, record), reply, record

    def run(self, tenant: str, verdict: Verdict = OK, failure: FailureKind | None = None, **other: Any) -> str:
        """One call; return the model that served it."""
        call, _, record = self.placed(self.call(tenant, **other))
        record.close(200, Outcome.OK)
        sending = changed(sending_of(model=call.model, timeouts=Timeouts()), pool=self.policy.models[call.model].pool)
        lease = self.fleet.take(sending.pool, call, held=False)
        assert lease is not None
        lease.report(None, answered=True)
        self.degrading.ended(Trial(call, sending, lease, verdict, failure))
        return call.model

    def slice(self, bad: dict[str, FailureKind] | None = None, each: int = 4) -> None:
        """Ten seconds in which every tenant makes some calls; those of some tenants fail."""
        for number in range(20):
            tenant = f"t{number}"
            kind = (bad or {}).get(tenant)
            for _ in range(each):
                self.run(tenant, OK if kind is None else late(kind), kind)
        self.pass_time(SLICE_S)

    def pass_time(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.degrading.tick()
        self.actions.tick()

    def moved(self) -> list[str]:
        return [labels[0] for labels, _ in self.degrading.moved()]

    def told(self) -> list[tuple[str, str]]:
        return [(line.what, line.target) for line in reversed(self.actions.shown()) if line.kind == "tenant"]


@pytest.fixture
def world() -> World:
    return World()


def until_moved(world: World, kind: FailureKind = BAD, tenant: str = "t3") -> None:
    for _ in range(12):
        world.slice({tenant: kind})
        if world.moved():
            break
    assert world.moved() == [tenant]


def test_a_bad_tenant_is_moved_and_the_answer_says_so(world: World) -> None:
    until_moved(world)
    asked = world.call("t3")
    call, reply, record = world.placed(asked)
    assert (call.model, reply.extra) == ("small", b"x-forebay-degraded: tenant\r\n")
    assert (call.work.features, call.work.kin, call.work.blocks) == ((), (), (7,)), "he teaches nothing about m"
    assert record.model == "small" and record.row.degraded == ("tenant",)
    assert world.metrics.degradations.child(("tenant",)).value >= 1
    other, reply, record = world.placed(world.call("t4"))
    assert (other.model, reply.extra, record.row.degraded) == ("m", b"", ())


def test_what_is_shown_of_a_move(world: World) -> None:
    until_moved(world)
    (row,) = world.degrading.shown()
    assert (row["tenant"], row["model"], row["served_by"]) == ("t3", "m", "small")
    assert 0 < float(str(row["left_s"])) <= TTL_S and "calls bad" in str(row["reason"])
    line = world.actions.shown()[0]
    assert (line.pool, line.kind, line.what, line.target) == ("main", "tenant", "moved", "t3 (m)")
    assert line.ttl_s == TTL_S and "by itself" in line.undo and line.reason == row["reason"]


def test_he_comes_back_by_himself_when_his_traffic_is_good(world: World) -> None:
    until_moved(world)
    before_s = world.clock.now_s()
    for _ in range(12):
        world.slice(each=40)
        if not world.moved():
            break
    assert world.moved() == []
    assert world.clock.now_s() - before_s <= TTL_S + 2 * SLICE_S
    assert world.told() == [("moved", "t3 (m)"), ("returned", "t3 (m)")]
    assert world.actions.arbiter.standing() == []
    assert world.run("t3") == "m"


def test_he_is_kept_while_his_probes_are_bad(world: World) -> None:
    until_moved(world)
    for _ in range(8):
        world.slice({"t3": BAD}, each=5 * PROBE_EVERY)
    assert world.moved() == ["t3"]
    assert ("kept", "t3 (m)") in world.told()


def test_a_slow_engine_moves_nobody(world: World) -> None:
    for _ in range(12):
        world.slice({f"t{number}": BAD for number in range(20)})
    assert world.told() == []


@pytest.mark.parametrize(
    "kind",
    [FailureKind.CONNECT, FailureKind.RESET, FailureKind.TRUNCATED, FailureKind.LOADING, FailureKind.CREDENTIAL],
)
def test_what_a_replica_does_to_a_call_is_nobodys_fault(world: World, kind: FailureKind) -> None:
    for _ in range(12):
        world.slice({"t3": kind})
    assert world.told() == []


@pytest.mark.parametrize("kind", [FailureKind.STALL, FailureKind.BAD_ANSWER, FailureKind.IN_BAND, FailureKind.TOTAL])
def test_what_counts_for_him(world: World, kind: FailureKind) -> None:
    until_moved(world, kind)


@pytest.mark.parametrize(
    ("verdict", "failure"),
    [
        (Verdict(False, Outcome.CLIENT_CLOSED), None),
        (Verdict(False, Outcome.ENGINE_ERROR, FailureKind.STATUS, 400, Answer(400, (), b"")), None),
        (Verdict(False, Outcome.ENGINE_ERROR, FailureKind.STATUS, 429, Answer(429, (), b"")), FailureKind.STATUS),
    ],
)
def test_who_left_was_refused_or_met_overload_counts_for_nothing(
    world: World, verdict: Verdict, failure: FailureKind | None
) -> None:
    for _ in range(60):
        world.run("t3", verdict, failure)
        world.run("t4")
    assert not world.degrading._watched["m"].tenants._tenants.get("t3")


def test_a_deadline_of_the_calls_own_counts_for_nothing(world: World) -> None:
    world.run("t3", late(FailureKind.TOTAL), FailureKind.TOTAL, deadline_s=0.5)
    assert not world.degrading._watched["m"].tenants._tenants


def test_a_learned_deadline_counts_for_nothing(world: World) -> None:
    call = world.call("t3")
    lease = world.fleet.take("main", call)
    assert lease is not None
    sending = changed(sending_of(), learned_s=5.0)
    world.degrading.ended(Trial(call, sending, lease, late(), BAD))
    assert not world.degrading._watched["m"].tenants._tenants
    world.degrading.ended(Trial(call, changed(sending, learned_s=0.0), lease, late(), BAD))
    assert world.degrading._watched["m"].tenants._tenants


def test_one_at_a_time(world: World) -> None:
    world.follow(Degrade("small", 3600.0))
    bad = {"t3": BAD, "t4": BAD}
    began_s = world.clock.now_s()
    while len(world.moved()) < 2 and world.clock.now_s() < began_s + 300:
        world.slice(bad)
    first, second = [line for line in reversed(world.actions.shown()) if line.what == "moved"]
    assert {first.target, second.target} == {"t3 (m)", "t4 (m)"}
    assert world.actions.arbiter.denied >= 1
    assert first.at < second.at
    assert world.clock.now_s() - began_s >= ACTION_EVERY_S


def test_where_the_other_pool_cannot_serve_the_call_stays_at_home(world: World) -> None:
    until_moved(world)
    world.follow(drained=frozenset("s"))
    assert [world.placed(world.call("t3"))[0].model for _ in range(5)] == ["m"] * 5
    world.follow()
    assert world.placed(changed(world.call("t3"), endpoint=BY_PATH["/v1/messages"]))[0].model == "small"
    world.follow(engine="openai")
    assert world.placed(changed(world.call("t3"), endpoint=BY_PATH["/tokenize"]))[0].model == "m"


def test_taking_the_setting_out_brings_all_home_at_once(world: World) -> None:
    until_moved(world)
    world.follow()
    assert world.moved() == ["t3"], "a policy that says the same changes nothing"
    world.follow(None)
    assert world.moved() == []
    assert world.told()[-1] == ("returned", "t3 (m)")
    assert world.actions.arbiter.standing() == []
    assert world.run("t3") == "m"


def test_another_setting_begins_anew(world: World) -> None:
    until_moved(world)
    world.follow(Degrade("small", 2 * TTL_S))
    assert world.moved() == []


def test_whoever_nobody_decides_about_comes_home_at_the_end(world: World) -> None:
    until_moved(world)
    (action,) = world.actions.arbiter.standing()
    world.actions.arbiter.undo("main", "tenant", "t3 (m)")
    world.actions.on_end["tenant"](action)
    assert world.moved() == []
