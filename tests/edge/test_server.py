"""The clockwork of client connections, and a real socket once."""

import asyncio
import socket
from email.utils import formatdate
from typing import Any

import pytest
from edge.client_side import FakeTransport, get, post, read_answers

from forebay.clock import ManualClock, SystemClock
from forebay.edge.connection import ClientConnection
from forebay.edge.reply import Reply
from forebay.edge.server import EdgeServer
from forebay.policy import Limits, Policy
from forebay.traffic import Request


class IdleLoop:
    """Takes tasks and never runs them."""

    def create_task(self, coroutine: Any) -> None:
        coroutine.close()


async def never(_request: Request, _reply: Reply) -> None:
    raise AssertionError


class Edge:
    """A server on a clock that stands still, with connections that have no network."""

    def __init__(self, **limits: Any) -> None:
        self.clock = ManualClock(1000.0)
        self.server = EdgeServer(IdleLoop(), self.clock, never)  # type: ignore[arg-type]
        self.server.apply(Policy({}, {}, {}, Limits(**limits)))

    def connect(self, *reads: bytes) -> tuple[ClientConnection, FakeTransport]:
        connection, transport = ClientConnection(self.server), FakeTransport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        for read in reads:
            connection.data_received(read)
        return connection, transport

    def after(self, seconds: float) -> None:
        self.clock.advance(seconds)
        self.server.tick()


WIRE = post(b"{}")


@pytest.mark.parametrize(
    ("reads", "allowed_s", "status"),
    [
        ((), 75.0, None),
        ((WIRE[:9],), 10.0, 408),
        ((WIRE[:9], WIRE[9:20]), 10.0, 408),
        ((WIRE[:-1],), 60.0, 408),
    ],
    ids=["idle", "head", "slow head", "body"],
)
def test_each_phase_has_its_time(reads: tuple[bytes, ...], allowed_s: float, status: int | None) -> None:
    edge = Edge()
    _, transport = edge.connect(*reads)
    edge.after(allowed_s)
    assert not transport.closing
    edge.after(0.1)
    assert transport.closing
    assert [answer.status for answer in read_answers(transport.sent)] == ([status] if status else [])


def test_an_exchange_may_take_as_long_as_it_takes() -> None:
    edge = Edge()
    connection, transport = edge.connect(WIRE)
    edge.after(100_000)
    assert connection.busy
    assert not transport.closing
    assert edge.server.busy_connections == 1


def test_the_date_follows_the_clock() -> None:
    edge = Edge()
    edge.after(3600)
    assert edge.server.date == formatdate(edge.clock.wall_s(), usegmt=True).encode()
    assert edge.server.date.endswith(b" GMT")


def test_connections_are_bounded() -> None:
    edge = Edge(max_connections=2)
    connections = [edge.connect() for _ in range(3)]
    assert [transport.closing for _, transport in connections] == [False, False, True]
    assert read_answers(connections[2][1].sent)[0].status == 503
    for connection, _ in connections[1:]:
        connection.connection_lost(None)
    assert len(edge.server._connections) == 1
    assert not edge.connect()[1].closing


def test_draining_closes_what_is_idle_and_leaves_what_runs() -> None:
    edge = Edge()
    _, idle = edge.connect()
    _, running = edge.connect(WIRE)
    edge.server.stop_accepting()
    assert edge.server.draining
    assert (idle.closing, running.closing) == (True, False)
    edge.server.cut_all()
    assert running.aborted


def test_new_limits_hold_for_open_connections() -> None:
    edge = Edge()
    connection, transport = edge.connect()
    edge.server.apply(Policy({}, {}, {}, Limits(body_bytes=1)))
    connection.data_received(WIRE)
    assert read_answers(transport.sent)[0].status == 413


@pytest.mark.integration
def test_a_real_socket() -> None:
    async def echo(request: Request, reply: Reply) -> None:
        assert request.peer == "127.0.0.1"
        reply.whole(200, (), request.path + b" " + request.body)

    async def main() -> bytes:
        server = EdgeServer(asyncio.get_running_loop(), SystemClock(), echo)
        port = await server.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(post(b"{}", target=b"/a") + get(b"/b", b"Connection: close"))
        seen = await asyncio.wait_for(reader.read(), 30)
        writer.close()
        await writer.wait_closed()
        server.stop_accepting()
        server.cut_all()
        return seen

    assert [answer.body for answer in read_answers(asyncio.run(main()))] == [b"/a {}", b"/b "]


@pytest.mark.parametrize(("sharers", "most"), [(1, 4), (2, 6)])
def test_processes_that_share_an_address_share_its_connections(sharers: int, most: int) -> None:
    edge = Edge(max_connections=4)
    edge.server.sharers = sharers
    transports = [edge.connect()[1] for _ in range(most + 1)]
    assert [transport.closing for transport in transports] == [False] * most + [True]


def test_a_pause_closes_the_listener_of_this_process_alone() -> None:
    async def main() -> None:
        edge = EdgeServer(asyncio.get_running_loop(), SystemClock(), never)
        listener = socket.create_server(("127.0.0.1", 0))
        port = await edge.listen_on(listener.dup())
        assert edge.descriptors()
        edge.pause_accepting()
        assert edge.descriptors() == [] and not edge.draining
        _, writer = await asyncio.open_connection("127.0.0.1", port)
        listener.setblocking(False)
        accepted, _ = await asyncio.get_running_loop().sock_accept(listener)
        for each in (accepted, listener, writer):
            each.close()

    asyncio.run(main())
