"""The HTTP side of a simulated engine: connections, framing, and what is no request."""

import asyncio
import json
import socket
from typing import Any

import pytest
from engines.sim.caller import QUICK, Caller, Play, chat
from engines.sim.manual_loop import ManualLoop
from msgspec.structs import replace

from forebay.clock import ManualClock
from forebay.engines.sim.http import FLUSH_S, Connection

pytestmark = pytest.mark.integration


def test_a_head_request_is_refused_without_a_body(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        raw = await caller.send("HEAD", "/health")
        assert (raw.status, raw.body) == (405, b"")

    play(scenario)


def test_connections_are_kept_and_closed_when_idle(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        reader, writer = await asyncio.open_connection(caller.server.host, caller.server.port)
        for _ in range(2):
            writer.write(b"GET /version HTTP/1.1\r\nhost: x\r\n\r\n")
            assert b'{"version"' in await reader.readuntil(b"}")
        assert caller.server.stats()["connections_accepted"] == 1
        assert [entry.nth for entry in caller.server.log.entries()] == [1, 2]
        async with asyncio.timeout(20):
            assert await reader.read() == b""
        writer.close()

    play(scenario, spec=replace(QUICK, keep_alive_s=0.1))


def test_pipelined_requests_are_answered_in_order(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        reader, writer = await asyncio.open_connection(caller.server.host, caller.server.port)
        writer.write(b"GET /version HTTP/1.1\r\n\r\nGET /load HTTP/1.1\r\nconnection: close\r\n\r\n")
        data = await reader.read()
        assert data.index(b'{"version"') < data.index(b'{"server_load"')
        writer.close()

    play(scenario)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (b"not http at all\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 70_000 + b"\r\n\r\n", 431),
    ],
    ids=["garbage", "headers"],
)
def test_what_is_no_request_is_refused(play: Play, data: bytes, status: int) -> None:
    async def scenario(caller: Caller) -> None:
        reader, writer = await asyncio.open_connection(caller.server.host, caller.server.port)
        writer.write(data)
        assert int((await reader.read()).split(b" ", 2)[1]) == status
        writer.close()

    play(scenario)


def test_a_caller_that_waits_to_be_asked_is_asked(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        raw = await caller.post("/tokenize", {"prompt": "a"}, headers="expect: 100-continue\r\n")
        assert raw.data.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK")

    play(scenario)


def test_http_1_0_gets_a_stream_without_chunks(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        reader, writer = await asyncio.open_connection(caller.server.host, caller.server.port)
        body = json.dumps(chat(stream=True)).encode()
        writer.write(b"POST /v1/chat/completions HTTP/1.0\r\ncontent-length: %d\r\n\r\n%b" % (len(body), body))
        data = await reader.read()
        assert b"chunked" not in data
        assert data.endswith(b"data: [DONE]\n\n")
        writer.close()

    play(scenario)


def test_a_cut_waits_for_what_was_written_before_it_but_not_for_ever() -> None:
    class Transport:
        """A transport that never gets rid of its bytes until the test says so."""

        pending = 100
        aborted = False

        def is_closing(self) -> bool:
            return self.aborted

        def get_write_buffer_size(self) -> int:
            return self.pending

        def get_extra_info(self, name: str) -> socket.socket:
            return plug

        def abort(self) -> None:
            self.aborted = True

    class App:
        def opened(self, connection: Connection) -> int:
            return 1

    def cut(pending: int) -> tuple[Transport, ManualLoop]:
        transport: Any = Transport()
        transport.pending = pending
        app: Any = App()
        loop: Any = ManualLoop(ManualClock())
        connection = Connection(app, loop, 5.0, lambda: b"")
        connection.connection_made(transport)
        connection.cut("rst")
        return transport, loop

    with socket.socket() as plug:
        assert cut(0)[0].aborted
        transport, loop = cut(100)
        loop.run(0.1)
        assert not transport.aborted
        transport.pending = 0
        loop.run(0.1)
        assert transport.aborted
        transport, loop = cut(100)
        loop.run(2 * FLUSH_S)
        assert transport.aborted
