"""Tries against a scripted engine on the loopback: the bytes that reach it, and its connections."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest
from notation import DONE, FIN, HANG, RST, STOP, D, Wait, chunk, raw, reply, stream
from scripted import ScriptedEngine
from upstream.engine_side import HEAD, LAST, FakeRecord, FakeReply, call_of, sending_of

from forebay.clock import SystemClock
from forebay.domain import FailureKind, Outcome, Replica
from forebay.policy import Timeouts
from forebay.traffic import Call, Verdict, changed
from forebay.upstream.connection import SLICE_BYTES
from forebay.upstream.send import Upstream

pytestmark = pytest.mark.integration


def replica_of(engine: ScriptedEngine, **more: Any) -> Replica:
    return Replica(engine.name, "127.0.0.1", engine.port, **more)


class Caller:
    """Runs tries in one loop with one upstream."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.upstream = Upstream(self.loop, SystemClock())
        self.replies: list[FakeReply] = []

    async def ask(self, replica: Replica, call: Call | None = None, **terms: Any) -> Verdict:
        call = call or call_of()
        now_s = SystemClock().now_s()
        call = changed(call, received_s=now_s, deadline_s=now_s + 30)
        self.replies.append(FakeReply())
        sending = changed(
            sending_of(**terms), body=b'{"model":"m","stream":%b}' % (b"true" if call.stream else b"false")
        )
        attempt = self.upstream.attempt(call, replica, sending, self.replies[-1], FakeRecord())
        return await asyncio.wait_for(attempt, 30)


def run(test: Callable[[Caller], Coroutine[Any, Any, None]]) -> None:
    async def main() -> None:
        caller = Caller()
        try:
            await test(caller)
        finally:
            caller.upstream.connections.close()
            await asyncio.sleep(0.01)

    asyncio.run(main())


AT_ONCE = raw(HEAD + b"".join(map(chunk, (D("ok"), STOP, DONE))) + LAST)


@pytest.mark.parametrize(
    ("streamed", "script", "connections"),
    [
        (False, None, 1),
        (True, AT_ONCE, 1),
        # The next call may come before the last chunk of the answer, and that connection is not free yet.
        (True, None, 2),
    ],
    ids=["whole", "streamed", "streamed, the last chunk apart"],
)
def test_many_requests_use_one_connection(
    engine: Callable[..., ScriptedEngine], streamed: bool, script: Any, connections: int
) -> None:
    made = engine()
    made.default = script or made.default

    async def test(caller: Caller) -> None:
        for _ in range(200):
            verdict = await caller.ask(replica_of(made), call_of(stream=streamed))
            assert verdict.outcome is Outcome.OK, verdict
        assert caller.upstream.connections.opened[made.name] <= connections

    run(test)
    assert made.accepted <= connections
    assert len(made.posts) == 200


def test_concurrent_requests_use_one_connection_each_and_keep_them(engine: Callable[..., ScriptedEngine]) -> None:
    made = engine()

    async def test(caller: Caller) -> None:
        for _ in range(5):
            verdicts = await asyncio.gather(*(caller.ask(replica_of(made)) for _ in range(8)))
            assert {verdict.outcome for verdict in verdicts} == {Outcome.OK}

    run(test)
    assert made.accepted <= 16


def test_the_bytes_of_a_request(engine: Callable[..., ScriptedEngine]) -> None:
    made = engine(base_path="/base")
    replica = replica_of(made, base_path="/base", query="api-version=1", authorization="Bearer engine-key")

    async def test(caller: Caller) -> None:
        assert (await caller.ask(replica)).outcome is Outcome.OK

    run(test)
    (seen,) = made.posts
    assert (seen.method, seen.target) == ("POST", "/base/v1/chat/completions?api-version=1")
    assert seen.body == b'{"model":"m","stream":true}'
    assert {key.lower(): value for key, value in seen.headers} == {
        "host": f"127.0.0.1:{made.port}",
        "content-type": "application/json",
        "accept-encoding": "identity",
        "authorization": "Bearer engine-key",
        "x-request-id": "call-1",
        "user-agent": "t",
        "content-length": "27",
    }


@pytest.mark.parametrize("size", [SLICE_BYTES - 1, SLICE_BYTES + 1, 3_000_000])
def test_bodies_of_any_size(engine: Callable[..., ScriptedEngine], size: int) -> None:
    made = engine()
    body = b'{"model":"m","x":"' + b"y" * (size - 20) + b'"}'
    assert len(body) == size

    async def test(caller: Caller) -> None:
        sending = changed(sending_of(), body=body)
        now_s = SystemClock().now_s()
        call = changed(call_of(stream=False), deadline_s=now_s + 30)
        verdict = await caller.upstream.attempt(call, replica_of(made), sending, FakeReply(), FakeRecord())
        assert verdict.outcome is Outcome.OK

    run(test)
    assert made.posts[0].body == body


def test_a_stale_connection_is_replaced_once(engine: Callable[..., ScriptedEngine]) -> None:
    made = engine()
    made.default = AT_ONCE

    async def test(caller: Caller) -> None:
        assert (await caller.ask(replica_of(made))).outcome is Outcome.OK
        made.play(raw(FIN))
        assert (await caller.ask(replica_of(made))).outcome is Outcome.OK
        assert [reply.body for reply in caller.replies] == [D("ok") + STOP + DONE] * 2

    run(test)
    assert [(seen.connection, seen.nth) for seen in made.posts] == [(1, 1), (1, 2), (2, 1)]


@pytest.mark.parametrize("end", [FIN, RST])
def test_a_fresh_connection_that_dies_is_no_stale_one(engine: Callable[..., ScriptedEngine], end: Any) -> None:
    made = engine()

    async def test(caller: Caller) -> None:
        made.play(raw(end))
        verdict = await caller.ask(replica_of(made), call_of(stream=False))
        assert (verdict.failure, verdict.committed) == (FailureKind.RESET, False)
        assert (await caller.ask(replica_of(made), call_of(stream=False))).outcome is Outcome.OK
        made.play(raw(end), raw(end))
        assert (await caller.ask(replica_of(made), call_of(stream=False))).failure is FailureKind.RESET

    run(test)
    assert len(made.posts) == 4, "one try, one success, one stale and one fresh try"


def test_an_answer_that_began_is_never_asked_for_again(engine: Callable[..., ScriptedEngine]) -> None:
    made = engine()

    async def test(caller: Caller) -> None:
        assert (await caller.ask(replica_of(made), call_of(stream=False))).outcome is Outcome.OK
        made.play(raw(b"HTTP/1.1 200 OK\r\n", FIN))
        assert (await caller.ask(replica_of(made), call_of(stream=False))).failure is FailureKind.TRUNCATED

    run(test)
    assert len(made.posts) == 2


def test_nobody_listens() -> None:
    async def test(caller: Caller) -> None:
        server = await caller.loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        server.close()
        await server.wait_closed()
        replica = Replica(f"127.0.0.1:{port}", "127.0.0.1", port)
        verdict = await caller.ask(replica, timeouts=Timeouts(connect_s=2))
        assert (verdict.failure, verdict.committed) == (FailureKind.CONNECT, False)
        assert str(port) not in verdict.message
        unknown = Replica("x:1", "host.invalid", 1)
        assert (await caller.ask(unknown, timeouts=Timeouts(connect_s=2))).failure is FailureKind.CONNECT

    run(test)


def test_an_engine_that_closes_after_each_answer(engine: Callable[..., ScriptedEngine]) -> None:
    made = engine()

    async def test(caller: Caller) -> None:
        for _ in range(3):
            made.play(reply(200, {"model": "m"}, close=True))
            assert (await caller.ask(replica_of(made), call_of(stream=False))).outcome is Outcome.OK

    run(test)
    assert made.accepted == 3


def test_an_answer_that_lacks_its_last_chunk_is_finished_and_its_connection_kept_when_it_comes(
    engine: Callable[..., ScriptedEngine],
) -> None:
    made = engine()

    async def test(caller: Caller) -> None:
        made.play(stream(D("x"), STOP, DONE, Wait(0.2)))
        verdict = await caller.ask(replica_of(made))
        assert verdict.outcome is Outcome.OK
        connections = caller.upstream.connections
        assert connections.take(replica_of(made)) is None
        async with asyncio.timeout(30):
            while (kept := connections.take(replica_of(made))) is None:
                await asyncio.sleep(0.005)
        connections.give_back(kept)
        assert (await caller.ask(replica_of(made))).outcome is Outcome.OK

    run(test)
    assert made.accepted == 1


def test_a_silent_engine_is_found_by_the_clockwork(engine: Callable[..., ScriptedEngine]) -> None:
    made = engine()

    async def test(caller: Caller) -> None:
        made.play(raw(HANG))
        asked = caller.loop.create_task(caller.ask(replica_of(made), timeouts=Timeouts(first_byte_s=0.05)))
        while not asked.done():
            await asyncio.sleep(0.02)
            caller.upstream.tick()
        assert asked.result().failure is FailureKind.FIRST_BYTE

    run(test)
    assert made.posts[0].closed_s is not None


def test_a_cancelled_try_cuts_the_engine(engine: Callable[..., ScriptedEngine]) -> None:
    made = engine()

    async def test(caller: Caller) -> None:
        made.play(stream(D("x"), HANG))
        asked = caller.loop.create_task(caller.ask(replica_of(made)))
        while not (caller.replies and caller.replies[0].started):
            await asyncio.sleep(0.005)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        for _ in range(3000):
            if made.posts[0].closed_s is not None:
                break
            await asyncio.sleep(0.01)
        assert made.posts[0].closed_s is not None
        caller.upstream.tick()

    run(test)
