"""Answers that go on: turns, the share of prefill, the bound of memory, and giving up; no network, no engine."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from inquests import inquest_of
from routing.before_pool import KNOWN, Bench
from routing.before_pool import call as call_of
from upstream.engine_side import FakeRecord, FakeReply, sending_of

from forebay import continuing
from forebay.continuing import MAX_UNKNOWN, SHARE_RATIO, SHARE_TIME_S, Continuer
from forebay.domain import FailureKind, Outcome, Usage
from forebay.policy import Capacity, Stream
from forebay.ports import Lease
from forebay.resuming import Resuming
from forebay.traffic import Answer, Call, Verdict, changed
from forebay.upstream.continuation.reasons import Reason
from forebay.upstream.continuation.shapes import Plan
from forebay.upstream.deadlines import Sending
from forebay.upstream.relay import PING
from forebay.wire.sse import Event

PLAN = Plan("vllm", "chat", exact=True, text=True, collects_ids=True)
BROKEN = Verdict(True, Outcome.TRUNCATED, FailureKind.TRUNCATED, message="the engine broke off its answer")
WELL = Verdict(True, Outcome.OK)
REFUSED = Verdict(True, Outcome.ENGINE_ERROR, FailureKind.STATUS, 400, Answer(400, (), b'{"message":"no prefix"}'))
LIMIT = 1000


def body(**fields: Any) -> bytes:
    messages = [{"role": "user", "content": "hi"}]
    return json.dumps({"model": "m", "stream": True, "messages": messages, "max_tokens": LIMIT} | fields).encode()


def chunk(leg: int, text: str, ids: list[int], prompt: list[int] | None = None) -> Event:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": None, "token_ids": ids}
    head = {"id": f"leg-{leg}", "created": leg, "model": "m"}
    return Event(json.dumps(head | {"choices": [choice], "prompt_token_ids": prompt}).encode())


Script = Callable[[Sending, Lease], Verdict]


class World:
    """A continuer on a fleet whose engines do what a script says."""

    def __init__(self, *names: str, **pool: object) -> None:
        self.bench = Bench(*names, **pool)
        acting = inquest_of(*self.bench.acting)
        self.continuer = Continuer(self.bench.fleet, self.bench.retries, Resuming(None), acting, self.count)
        self.tokens: int | None = None
        self.texts: list[tuple[str, bytes, str, frozenset[str]]] = []
        self.legs: list[str] = []
        self.free = asyncio.Event()
        self.free.set()
        self.script: Script = lambda sending, lease: WELL

    async def count(self, *asked: Any) -> int | None:
        self.texts.append(asked)
        return self.tokens

    def follow(self, text: str = "t0", sent: bytes = b"", **stream: Any) -> Sending:
        """An answer of which the client has a text, one token for each word."""
        sending = changed(sending_of(stream=Stream(**stream)), body=sent or body(), plan=PLAN)
        sending = self.continuer.follow(call_of(100), sending)
        assert sending.thread is not None
        for number, word in enumerate(text.split(" ")):
            sending.thread.events(chunk(1, f" {word}", [number], [7, 8, 9] if not number else None))
        return sending

    async def attempt(
        self, call: Call, sending: Sending, lease: Lease, reply: Any, record: Any
    ) -> tuple[Verdict, FailureKind | None]:
        self.legs.append(lease.replica.name)
        await self.free.wait()
        verdict = self.script(sending, lease)
        failure = None if verdict.outcome is Outcome.OK or verdict.answer is not None else verdict.failure
        lease.report(failure, answered=failure is None)
        return verdict, failure

    async def go_on(
        self, sending: Sending, verdict: Verdict = BROKEN, dead: str = "a", limit: int | None = None
    ) -> Verdict:
        self.reply, self.record = FakeReply(framed=True), FakeRecord()
        self.reply.head(200, (), None)
        partners: Any = (self.reply, self.record)
        call = changed(call_of(100), max_tokens=limit)
        return await self.continuer.go_on(call, sending, (verdict, dead), self.attempt, partners)

    async def company(self) -> None:
        """Wait until the client of the last answer has been kept company twice."""
        await asyncio.sleep(0)  # what was just started makes its reply
        async with asyncio.timeout(60):
            while self.reply.body.count(PING) < 2:
                await asyncio.sleep(0.001)

    async def settle(self) -> None:
        for _ in range(20):
            await asyncio.sleep(0)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuing, "RETURN_S", 0.02)
    monkeypatch.setattr(continuing, "LOOK_S", 0.001)


# legs


def test_another_replica_goes_on() -> None:
    async def scene() -> None:
        world = World("a", "b")
        assert await world.go_on(world.follow()) is WELL
        assert (world.legs, world.record.continued, world.continuer.moved) == (["b"], 1, {"main": 1})
        assert not any(world.continuer.lost.values())

    asyncio.run(scene())


def test_two_moves_and_no_more() -> None:
    async def scene() -> None:
        world = World("a", "b", "c", "d")
        world.script = lambda sending, lease: BROKEN
        verdict = await world.go_on(world.follow())
        assert (verdict.outcome, verdict.failure) == (Outcome.TRUNCATED, FailureKind.TRUNCATED)
        assert "moves_spent" in verdict.message
        assert len(set(world.legs)) == 2 and "a" not in world.legs
        assert world.continuer.lost[Reason.MOVES_SPENT] == 1

    asyncio.run(scene())


def test_the_only_replica_may_come_back() -> None:
    async def scene() -> None:
        world = World("a")
        assert await world.go_on(world.follow()) is WELL
        assert world.legs == ["a"]

    asyncio.run(scene())


def test_nobody_is_left() -> None:
    async def scene() -> None:
        world = World("a", "b")
        for name in ("a", "b"):
            world.bench.state(name).drained = True
        verdict = await world.go_on(world.follow())
        assert verdict.failure is FailureKind.TRUNCATED and "no_engine" in verdict.message
        assert (world.legs, world.record.continued) == ([], 0)
        assert world.continuer.lost[Reason.NO_ENGINE] == 1

    asyncio.run(scene())


def test_a_refusal_is_tried_otherwise_on_the_same_replica_and_not_shown() -> None:
    async def scene() -> None:
        world = World("a", "b")
        world.script = lambda sending, lease: REFUSED
        verdict = await world.go_on(world.follow())
        assert world.legs == ["b", "b"], "a replica that refuses a prefix is well"
        assert verdict.answer is None and "no prefix" not in verdict.message
        assert verdict.failure is FailureKind.STATUS

    asyncio.run(scene())


def test_a_pool_without_room_is_waited_for() -> None:
    async def scene() -> None:
        world = World("a", "b", max_in_flight=1)
        held = world.bench.into("b")
        running = asyncio.ensure_future(world.go_on(world.follow(ping_s=0.005)))
        await world.company()
        assert not running.done() and world.legs == [], "it gave up, or took the dead one"
        held.report(None, answered=True)
        assert await running is WELL
        assert world.legs == ["b"]

    asyncio.run(scene())


def test_the_call_deadline_ends_it() -> None:
    async def scene() -> None:
        world = World("a", "b")
        verdict = await world.go_on(world.follow(), Verdict(True, Outcome.TIMEOUT, FailureKind.TOTAL))
        assert verdict.failure is FailureKind.TOTAL and world.legs == []
        assert world.continuer.lost[Reason.DEADLINE] == 1

    asyncio.run(scene())


def test_nothing_is_left_of_the_limit() -> None:
    async def scene() -> None:
        world = World("a", "b")
        sending = world.follow("t0 t1 t2", body(max_tokens=3, stream_options={"include_usage": True}))
        verdict = await world.go_on(sending)
        assert (verdict.outcome, world.legs) == (Outcome.OK, [])
        assert world.record.usage == Usage(3, 3)
        assert b'"finish_reason":"length"' in world.reply.body and b"data: [DONE]\n\n" in world.reply.body
        assert b'"completion_tokens":3' in world.reply.body and world.reply.ended

    asyncio.run(scene())


@pytest.mark.parametrize(
    ("fields", "reason"),
    [({"n": 2}, Reason.SEVERAL_CHOICES), ({"logprobs": True}, Reason.LOGPROBS), ({"presence_penalty": 1}, "penalties")],
)
def test_why_a_request_is_not_followed_is_counted(fields: dict[str, Any], reason: Reason) -> None:
    async def scene() -> None:
        world = World("a", "b")
        sending = changed(sending_of(), body=body(**fields))
        assert world.continuer.follow(call_of(1), sending) is sending
        verdict = await world.go_on(sending)
        assert verdict.failure is FailureKind.TRUNCATED and str(reason) in verdict.message
        assert world.continuer.lost[reason] == 1

    asyncio.run(scene())


# turns


def waiting(world: World, count: int) -> list["asyncio.Task[Verdict]"]:
    """So many broken answers, the later ones with more text."""
    return [asyncio.ensure_future(world.go_on(world.follow(" ".join(["w"] * (n + 1))))) for n in range(count)]


def test_while_no_speed_is_known_eight_go_on_at_once() -> None:
    async def scene() -> None:
        world = World("a", "b")
        world.free.clear()
        tasks = waiting(world, MAX_UNKNOWN + 3)
        await world.settle()
        assert len(world.legs) == MAX_UNKNOWN
        world.free.set()
        assert await asyncio.gather(*tasks) == [WELL] * len(tasks)

    asyncio.run(scene())


def test_a_share_of_the_prefill_and_the_longest_answer_first() -> None:
    async def scene() -> None:
        # 20 % of 2 s of two replicas: room for 3 answers of 100 tokens of prompt, and a few of their own.
        speed = 3.5 * 100 / (SHARE_RATIO * SHARE_TIME_S) / 2
        world = World("a", "b", capacity=Capacity(prefill_tokens_per_s=speed))
        lengths: list[int] = []

        def script(sending: Sending, lease: Lease) -> Verdict:
            lengths.append(len(json.loads(sending.body)["kv_transfer_params"]["prompt_token_ids"]) - 3)
            return WELL

        world.script = script
        world.free.clear()
        tasks = waiting(world, 6)
        await world.settle()
        assert len(world.legs) == 3
        world.free.set()
        await asyncio.gather(*tasks)
        assert lengths == [1, 2, 3, 6, 5, 4]

    asyncio.run(scene())


def test_a_leg_that_has_joined_makes_room_before_it_ends() -> None:
    async def scene() -> None:
        world = World("a", "b", capacity=Capacity(prefill_tokens_per_s=1))
        joined = asyncio.Event()

        def script(sending: Sending, lease: Lease) -> Verdict:
            assert sending.thread is not None
            assert sending.thread.events(chunk(2, " next", [99]))
            assert lease.first_token_s is not None, "its replica still counts it as computing"
            joined.set()
            return WELL

        world.script = script
        world.free.clear()
        tasks = waiting(world, 2)
        await world.settle()
        assert len(world.legs) == 1, "more than a share, and nobody waits"
        world.free.set()
        await asyncio.gather(*tasks)
        assert len(world.legs) == 2 and joined.is_set()

    asyncio.run(scene())


def test_a_client_that_leaves_while_its_answer_waits_gives_its_turn_back() -> None:
    async def scene() -> None:
        world = World("a", "b", capacity=Capacity(prefill_tokens_per_s=1))
        world.free.clear()
        running, left, last = waiting(world, 3)
        await world.settle()
        assert len(world.legs) == 1
        assert left.cancel() and last.cancel()
        await asyncio.gather(left, last, return_exceptions=True)
        world.free.set()
        assert await running is WELL
        # Had one of them kept its turn, this answer would wait for ever.
        assert await asyncio.wait_for(world.go_on(world.follow()), 60) is WELL

    asyncio.run(scene())


def test_a_client_that_leaves_while_its_leg_runs_or_looks_for_room_gives_its_turn_back() -> None:
    async def scene() -> None:
        world = World("a", "b", capacity=Capacity(prefill_tokens_per_s=1), max_in_flight=1)
        world.free.clear()
        (running,) = waiting(world, 1)
        await world.settle()
        held = next(state for state in world.bench.fleet.states() if state.in_flight)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        (looking,) = waiting(world, 1)  # the fake engine has not let go of its place
        await world.settle()
        looking.cancel()
        await asyncio.gather(looking, return_exceptions=True)
        held.in_flight = 0
        world.free.set()
        assert await asyncio.wait_for(world.go_on(world.follow()), 60) is WELL

    asyncio.run(scene())


def test_a_client_that_waits_for_its_turn_is_kept_company() -> None:
    async def scene() -> None:
        world = World("a", "b", capacity=Capacity(prefill_tokens_per_s=1))
        world.free.clear()
        (first,) = waiting(world, 1)
        await world.settle()
        second = asyncio.ensure_future(world.go_on(world.follow(ping_s=0.002)))
        await world.company()
        world.free.set()
        await asyncio.gather(first, second)

    asyncio.run(scene())


# memory


def test_the_largest_transcripts_are_forgotten_beyond_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        world = World("a", "b", capacity=KNOWN)
        small, large = world.follow("t0"), world.follow("x" * 5000)
        monkeypatch.setattr(continuing, "MAX_HELD_BYTES", 4000)
        world.continuer.tick()
        assert small.thread is not None and large.thread is not None
        assert (small.thread.given_up, large.thread.given_up) == (None, Reason.ANSWER_TOO_LONG)
        large.thread.events(chunk(1, "y" * 5000, [5]))
        assert large.thread.held_bytes == 0, "what cannot go on is not kept"
        verdict = await world.go_on(large)
        assert verdict.failure is FailureKind.TRUNCATED and world.legs == []
        assert world.continuer.lost[Reason.ANSWER_TOO_LONG] == 1
        assert await world.go_on(small) is WELL

    asyncio.run(scene())


def test_a_later_leg_is_forgotten_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        world = World("a", "b")

        def script(sending: Sending, lease: Lease) -> Verdict:
            thread = sending.thread
            assert thread is not None
            assert thread.events(chunk(2, " next", [99]))
            monkeypatch.setattr(continuing, "MAX_HELD_BYTES", 10)
            world.continuer.tick()
            assert thread.events(chunk(2, "y" * 5000, [100])), "the client still gets all of it"
            assert thread.held_bytes == 0
            return BROKEN

        world.script = script
        verdict = await world.go_on(world.follow())
        assert "answer_too_long" in verdict.message and world.legs == ["b"]

    asyncio.run(scene())


def test_answers_that_have_ended_are_not_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World("a", "b")
    ended, running = world.follow("x" * 5000), world.follow("t0")
    world.continuer.leave(ended)
    world.continuer.leave(sending_of())
    monkeypatch.setattr(continuing, "MAX_HELD_BYTES", 3000)
    world.continuer.tick()
    assert running.thread is not None and running.thread.given_up is None
