"""Deaths and losses, turns of suspects, quarantine, features: on a fleet without engines."""

import asyncio
import json
from collections.abc import Coroutine
from typing import Any

import pytest
from routing.before_pool import Bench
from routing.before_pool import call as call_of
from upstream.engine_side import FakeReply, sending_of

from forebay.actions import Actions
from forebay.domain import FailureKind, Replica
from forebay.errors import Refused
from forebay.inquest import LOST_S, Inquest
from forebay.policy import Model, Policy
from forebay.ports import Lease
from forebay.routing.attempts import End
from forebay.routing.feature_breaker import HALF_WINDOW_S, HINT_CALLS, MIN_CALLS, MIN_OTHERS
from forebay.routing.poison import TTL_S
from forebay.traffic import Call, changed
from forebay.upstream.deadlines import Sending
from forebay.wire.members import read_members

WELL = End(None, False, True, 50, 50)


class FakeRecord:
    """Counts events."""

    output_events = 0


class World:
    """An inquest whose engines answer their health path as long as they are not dead."""

    def __init__(self, *names: str) -> None:
        self.bench = Bench(*names)
        self.actions = Actions(self.bench.fleet, self.bench.clock)
        self.dead: set[str] = set()
        self.looks = 0
        self.inquest = Inquest(self.bench.fleet, self.bench.retries, self.actions, self.fetch, self.bench.clock)
        self.reply = FakeReply()
        self.record = FakeRecord()
        self.sequence = 0

    async def fetch(self, replica: Replica, path: str, timeout_s: float) -> tuple[int, bytes]:
        self.looks += 1
        if replica.name in self.dead:
            raise ConnectionRefusedError
        return 200, b""

    def call(self, prompt: str = "", **body: Any) -> tuple[Call, Sending]:
        """A call and how it is sent; each has a prompt of its own unless told."""
        self.sequence += 1
        text = json.dumps({"model": "m", "prompt": prompt or f"p{self.sequence}"} | body).encode()
        call = changed(call_of(100), call_id=f"c{self.sequence}")
        return call, changed(sending_of(), pool="main", members=read_members(text))

    def lose(self, made: tuple[Call, Sending], name: str, decoded: int = 0, kind: FailureKind | None = None) -> bool:
        """Let a call be lost on a replica; return whether that is held against it."""
        lease = self.bench.into(name)
        held = self.inquest.ended(*made, lease, End(kind or FailureKind.RESET, True, False, decoded, decoded))
        lease.report(None, answered=False)
        return held

    def answer(self, made: tuple[Call, Sending], lease: Lease) -> None:
        self.inquest.ended(*made, lease, WELL)
        lease.report(None, answered=True)

    async def goes(self, made: tuple[Call, Sending], name: str = "c") -> Lease | None:
        """Let a call go that has a lease on a replica."""
        partners: Any = (self.reply, self.record)
        return await self.inquest.placed(*made, self.bench.into(name), frozenset(), partners)

    async def settled(self, made: tuple[Call, Sending], name: str) -> None:
        await self.inquest.settled(made[0], name)

    async def convict(self, made: tuple[Call, Sending]) -> None:
        """Let a request kill two replicas."""
        for name in ("a", "b"):
            self.dead.add(name)
            self.lose(made, name)
            await self.settled(made, name)

    def admits(self, made: tuple[Call, Sending], fallback: tuple[str, ...] = ()) -> str:
        """The code with which a request is turned away at the door, or an empty text."""
        try:
            self.inquest.admit(made[0], made[1].members, Policy({}, {"m": Model("m", "main", fallback=fallback)}, {}))
        except Refused as refusal:
            return refusal.code
        return ""


def run(scenario: Coroutine[Any, Any, None]) -> None:
    asyncio.run(asyncio.wait_for(scenario, 60))


def test_while_all_is_well_nothing_is_looked_at() -> None:
    world = World()
    world.inquest.tick()
    assert not world.inquest.alert and world.inquest.entries() == []


def test_a_loss_on_an_engine_that_lives_is_no_death() -> None:
    async def scenario() -> None:
        world = World()
        for made in (lost := [world.call() for _ in range(5)]):
            assert world.lose(made, "a")
        await world.settled(lost[0], "a")
        assert (world.looks, world.inquest.deaths, world.inquest.entries()) == (1, 0, [])
        world.lose(world.call(), "a")
        await asyncio.sleep(0.1)
        assert world.looks == 1, "it has just been looked at"

    run(scenario())


def test_calls_that_found_nobody_and_overload_accuse_no_one() -> None:
    async def scenario() -> None:
        world = World()
        world.dead.add("a")
        world.lose(world.call(), "a", kind=FailureKind.CONNECT)
        lease = world.bench.into("a")
        assert not world.inquest.ended(*world.call(), lease, End(FailureKind.STATUS, False, False, 0, 0))
        await asyncio.sleep(0.1)
        assert world.looks == 0

    run(scenario())


def test_suspects_go_one_at_a_time_to_one_replica_and_innocents_elsewhere() -> None:
    async def scenario() -> None:
        world = World("a", "b", "c", "d")
        world.dead.add("a")
        young, old = [world.call() for _ in range(2)], world.call()
        for made in young:
            world.lose(made, "a")
            world.bench.clock.advance(0.001)
        world.lose(old, "a", decoded=100)
        await world.settled(young[0], "a")
        assert world.inquest.deaths == 1 and world.bench.state("a").up is False
        newest = await world.goes(young[1])
        assert newest is not None and newest.replica.name == "b", "where all suspects go"
        waiting = asyncio.ensure_future(world.goes(young[0]))
        moved = await world.goes(old, "b")
        assert moved is not None and moved.replica.name != "b", "not where a suspect is tried"
        await asyncio.sleep(0.2)
        assert not waiting.done() and world.inquest.waiting() == {"main": 1}
        world.record.output_events = 40
        world.inquest.tick()
        second = await waiting
        assert second is not None and second.replica.name == "b"
        for made, lease in ((young[1], newest), (young[0], second), (old, moved)):
            world.answer(made, lease)
        world.inquest.tick()
        assert not [e for e in world.inquest.entries() if e.standing == "quarantined"]
        free = world.call()
        own = await world.goes(free)
        assert own is not None and own.replica.name == "c"

    run(scenario())


def test_the_second_death_is_quarantine_until_it_is_pardoned() -> None:
    async def scenario() -> None:
        world = World()
        made = world.call("kill")
        await world.convict(made)
        assert world.admits(made) == world.admits(world.call("kill", user="another")) == "request_quarantined"
        assert world.admits(world.call("kill", tools=[{}])) == world.admits(world.call()) == ""
        with pytest.raises(Refused, match="two engines died"):
            await world.goes(made)
        assert world.bench.state("c").in_flight == 0, "its lease is given back"
        (entry,) = world.inquest.entries()
        assert [(line.kind, line.what) for line in world.actions.shown()] == [
            ("poison", "quarantined"), ("death", "died"), ("death", "died"),
        ]  # fmt: skip
        world.inquest.apply(Policy({}, {}, {}, pardoned=frozenset((entry.fingerprint,))))
        assert world.admits(made) == "" and world.inquest.entries() == []
        await world.convict(made)
        assert world.admits(made) == "", "as long as the pardon holds"
        world.inquest.apply(Policy({}, {}, {}))
        assert world.admits(made) == "request_quarantined"

    run(scenario())


def test_a_suspect_that_nobody_can_try_gives_up_soon() -> None:
    async def scenario() -> None:
        world = World("a")
        world.dead.add("a")
        made = world.call()
        world.lose(made, "a")
        await world.settled(made, "a")
        with pytest.raises(Refused) as refused:
            await world.goes(made, "a")
        assert refused.value.code == "no_engine" and world.inquest.waiting() == {}

    run(scenario())


def test_a_suspect_whose_client_leaves_lets_the_next_one_go() -> None:
    async def scenario() -> None:
        world = World("a", "b", "c")
        world.dead.add("a")
        calls = [world.call() for _ in range(3)]
        for made in calls:
            world.lose(made, "a")
        await world.settled(calls[0], "a")
        waiting = [asyncio.ensure_future(world.goes(made)) for made in calls]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        assert len(done) == 1
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        assert not any(world.inquest.waiting().values())

    run(scenario())


def test_a_request_that_another_client_gets_answered_is_no_suspect_any_more() -> None:
    async def scenario() -> None:
        world = World("a", "b", "c")
        world.dead.add("a")
        first = world.call("hello")
        world.lose(first, "a")
        await world.settled(first, "a")
        assert len(world.inquest.entries()) == 1
        # Its own client has left; the same words come from somebody else, and their answer is short.
        other = world.call("hello", user="another")
        lease = await world.goes(other)
        assert lease is not None and lease.replica.name == "b"
        short = End(None, False, True, 1, 1)
        world.inquest.ended(*other, lease, short)
        lease.report(None, answered=True)
        assert world.inquest.entries() == []
        world.dead.add("b")
        late = world.call("hello", user="a third")
        world.lose(late, "b")
        await world.settled(late, "b")
        assert world.admits(late) == "", "a bystander of two deaths that was answered in between is not guilty"

    run(scenario())


def test_an_answer_that_goes_well_after_the_trial_clears_its_request() -> None:
    async def scenario() -> None:
        world = World("a", "b")
        world.dead.add("a")
        first = world.call("hello")
        world.lose(first, "a")
        await world.settled(first, "a")
        other = world.call("hello", user="another")
        lease = await world.goes(other, "b")
        assert lease is not None
        world.record.output_events = 100
        world.inquest.tick()
        assert world.inquest.entries() == [] and len(world.inquest.quarantine) == 1
        world.answer(other, lease)
        assert len(world.inquest.quarantine) == 0

    run(scenario())


def test_an_innocent_that_leaves_while_it_is_moved_away_gives_its_place_back(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        world = World("a", "b", "c")
        world.dead.add("a")
        young, old = world.call(), world.call()
        world.lose(young, "a")
        world.lose(old, "a", decoded=50)
        await world.settled(young, "a")
        tried = await world.goes(young)
        assert tried is not None and tried.replica.name == "b"

        async def forever(pool: str, call: Call, excluded: frozenset[str]) -> Lease | None:
            await asyncio.Event().wait()
            return None

        # As where the gate is in another process.
        monkeypatch.setattr(world.bench.retries, "take", forever)
        before = world.bench.state("b").in_flight
        moving = asyncio.ensure_future(world.goes(old, "b"))
        await asyncio.sleep(0)
        assert world.bench.state("b").in_flight == before + 1
        moving.cancel()
        await asyncio.gather(moving, return_exceptions=True)
        assert world.bench.state("b").in_flight == before

    run(scenario())


PICTURE = {"messages": [{"content": [{"type": "image_url"}]}]}


def test_a_feature_that_fails_is_sent_elsewhere_then_refused_and_comes_back() -> None:
    async def scenario() -> None:
        world = World("a", "b")
        plain = world.call()
        held = [world.lose(world.call(**PICTURE), "a", kind=FailureKind.STATUS)]
        for _ in range(MIN_OTHERS):
            world.answer(plain, world.bench.into("a"))
            world.answer(plain, world.bench.into("b"))
        held += [world.lose(world.call(**PICTURE), "a", kind=FailureKind.STATUS) for _ in range(MIN_CALLS - 1)]
        assert held == [True] * (HINT_CALLS - 1) + [False] * (MIN_CALLS - HINT_CALLS + 1)
        moved = await world.goes(world.call(**PICTURE), "a")
        assert moved is not None and moved.replica.name == "b"
        moved.report(None, answered=False)
        for _ in range(MIN_OTHERS):
            world.answer(plain, world.bench.into("b"))
        for _ in range(MIN_CALLS):
            world.lose(world.call(**PICTURE), "b", kind=FailureKind.STATUS)
        call, sending = made = world.call(**PICTURE)
        assert await world.goes(made, "a") is None and world.bench.state("a").in_flight == 0
        missing = world.inquest.cutoffs.missing(call, sending.members, "main")
        assert missing is not None and missing.code == "feature_unavailable" and "images" in str(missing)
        own = await world.goes(plain, "a")
        assert own is not None and own.replica.name == "a"
        assert dict(world.inquest.cutoffs.readings()) == {("main", "chat", "m", "images"): 2.0}
        world.bench.clock.advance(31.0)
        probe = await world.goes(made, "a")
        assert probe is not None and probe.replica.name == "a"
        world.answer(made, probe)
        assert dict(world.inquest.cutoffs.readings()) == {("main", "chat", "m", "images"): 1.0}
        kinds = [(line.kind, line.what) for line in world.actions.shown() if line.kind == "feature"]
        assert kinds == [("feature", "back"), ("feature", "cut off"), ("feature", "cut off")]

    run(scenario())


def test_a_cut_that_nobody_asks_about_is_forgotten_and_listed_as_back() -> None:
    async def scenario() -> None:
        world = World("a", "b")
        plain = world.call()
        world.lose(world.call(**PICTURE), "a", kind=FailureKind.STATUS)
        for _ in range(MIN_OTHERS):
            world.answer(plain, world.bench.into("a"))
        for _ in range(MIN_CALLS - 1):
            world.lose(world.call(**PICTURE), "a", kind=FailureKind.STATUS)
        assert dict(world.inquest.cutoffs.readings()) == {("main", "chat", "m", "images"): 1.0}
        world.bench.clock.advance(86_400.0)
        world.inquest.cutoffs.tick()
        assert not world.inquest.cutoffs.watches and dict(world.inquest.cutoffs.readings()) == {}
        assert [line.what for line in world.actions.shown() if line.kind == "feature"] == ["back", "cut off"]

    run(scenario())


def test_a_suspect_whose_feature_is_cut_off_ends_its_trial() -> None:
    async def scenario() -> None:
        world = World("a", "b")
        plain = world.call()
        world.lose(world.call(**PICTURE), "b", kind=FailureKind.STATUS)
        for _ in range(MIN_OTHERS):
            world.answer(plain, world.bench.into("b"))
        for _ in range(MIN_CALLS):
            world.lose(world.call(**PICTURE), "b", kind=FailureKind.STATUS)
        world.dead.add("a")
        suspect = world.call(**PICTURE)
        world.lose(suspect, "a")
        await world.settled(suspect, "a")
        partners: Any = (world.reply, world.record)
        lease = world.bench.into("b")
        assert await world.inquest.placed(*suspect, lease, frozenset("a"), partners) is None
        assert world.bench.state("b").in_flight == 0
        world.bench.clock.advance(LOST_S + TTL_S)
        world.inquest.tick()
        probe = await world.goes(probing := world.call(**PICTURE), "b")
        assert probe is not None
        world.answer(probing, probe)
        world.bench.clock.advance(2 * HALF_WINDOW_S)
        world.inquest.tick()
        assert not world.inquest.alert, "nothing is left of it that calls would have to be looked at for"

    run(scenario())


def test_a_feature_that_kills_is_refused_at_the_door_unless_another_model_may_serve_it() -> None:
    async def scenario() -> None:
        world = World("a", "b", "c")
        for number, name in enumerate("ab"):
            world.dead = {name}
            made = world.call(**PICTURE, seed=number, extra=number)
            world.lose(made, name)
            for _ in range(20):
                world.lose(world.call(), name, decoded=100)
            await world.settled(made, name)
        assert world.admits(world.call(**PICTURE)) == "feature_unavailable"
        assert world.admits(world.call()) == world.admits(world.call(**PICTURE), ("other",)) == ""

    run(scenario())
