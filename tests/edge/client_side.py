"""A client connection without a network: transport, owner and loop that do only what a test tells them."""

import re
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from forebay.clock import ManualClock
from forebay.edge.connection import ClientConnection
from forebay.edge.reply import Reply
from forebay.policy import Limits
from forebay.traffic import Request

DATE = b"Mon, 30 Nov 2026 12:00:00 GMT"
HEAD = re.compile(rb"HTTP/1\.1 (\d{3}) ([^\r\n]*)\r\n((?:[^\r\n:]+: [^\r\n]*\r\n)*)\r\n")


class FakeTransport:
    """Takes what is written; never closes anything but itself.

    Attributes:
        sent: what was written before the close.
        late: what was written after it, which a real transport would drop.
    """

    def __init__(self, peername: object = ("203.0.113.9", 4711)) -> None:
        self.sent = b""
        self.late = b""
        self.writes = 0
        self.closing = False
        self.aborted = False
        self.reading = True
        self._peername = peername

    def get_extra_info(self, name: str) -> object:
        return self._peername if name == "peername" else None

    def write(self, data: bytes) -> None:
        assert isinstance(data, bytes)
        self.writes += 1
        if self.closing:
            self.late += data
        else:
            self.sent += data

    def writelines(self, parts: list[bytes]) -> None:
        self.write(b"".join(parts))

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.closing = self.aborted = True

    def is_closing(self) -> bool:
        return self.closing

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True


class FakeTask:
    """A task that runs when the loop is told to; enough of one for a handler that never waits."""

    def __init__(self, coroutine: Coroutine[Any, Any, None]) -> None:
        self.coroutine = coroutine
        self.cancelled = False

    def cancel(self) -> bool:
        self.cancelled = True
        return True


class FakeOwner:
    """Owner, loop and handler in one: exchanges are collected, and answered by the test.

    Attributes:
        exchanges: requests with their replies, in the order in which handlers began.
        on_begin: called for each exchange.
    """

    def __init__(self, limits: Limits = Limits(), *, room: bool = True) -> None:  # noqa: B008
        self.clock = ManualClock(100.0)
        self.limits = limits
        self.date = DATE
        self.draining = self.closing = False
        self.loop: Any = self
        self.room = room
        self.exchanges: list[tuple[Request, Reply]] = []
        self.tasks: list[FakeTask] = []
        self.on_begin: Callable[[Request, Reply], None] | None = None
        self.connections: list[ClientConnection] = []
        self._pending: list[FakeTask] = []

    def opened(self, connection: ClientConnection) -> bool:
        self.connections.append(connection)
        return self.room

    def closed(self, connection: ClientConnection) -> None:
        self.connections.remove(connection)

    def create_task(self, coroutine: Coroutine[Any, Any, None]) -> FakeTask:
        task = FakeTask(coroutine)
        self.tasks.append(task)
        self._pending.append(task)
        return task

    async def handler(self, request: Request, reply: Reply) -> None:
        self.exchanges.append((request, reply))
        if self.on_begin is not None:
            self.on_begin(request, reply)

    def run(self) -> None:
        """Run handlers until none is pending, as the loop would after the callback."""
        while self._pending:
            task = self._pending.pop(0)
            if task.cancelled:
                task.coroutine.close()
                continue
            try:
                task.coroutine.send(None)
            except StopIteration:
                continue
            raise AssertionError("a handler waited")


class Client:
    """One connection as its client sees it."""

    def __init__(self, limits: Limits = Limits(), *, room: bool = True, peername: object = ("203.0.113.9", 1)) -> None:  # noqa: B008
        self.owner = FakeOwner(limits, room=room)
        self.transport = FakeTransport(peername)
        self.connection = ClientConnection(self.owner)
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    def send(self, *reads: bytes) -> None:
        """Hand over reads as a loop does: none once the transport closes, handlers between them."""
        for read in reads:
            if self.transport.closing:
                return
            self.connection.data_received(read)
            self.owner.run()

    def answers_itself(self, status: int = 200, body: bytes = b"ok") -> None:
        """Let every exchange be answered at once."""
        self.owner.on_begin = lambda _, reply: reply.whole(status, (), body)

    def answer(self, at: int = -1, body: bytes = b"ok") -> None:
        """Answer one exchange and let what waits behind it begin."""
        self.owner.exchanges[at][1].whole(200, (), body)
        self.owner.run()

    def leave(self) -> None:
        """Close the client's side."""
        self.transport.closing = True
        self.connection.connection_lost(None)

    @property
    def requests(self) -> list[Request]:
        return [request for request, _ in self.owner.exchanges]

    @property
    def answers(self) -> list["Seen"]:
        return read_answers(self.transport.sent)


class Seen(NamedTuple):
    """One answer as a strict client reads it."""

    status: int
    headers: dict[bytes, bytes]
    body: bytes

    @property
    def code(self) -> str:
        """The error code in the body."""
        found = re.search(rb'"code":"([a-z_]+)"', self.body)
        assert found, self.body
        return found.group(1).decode()


def read_answers(data: bytes, *, bodiless: bool = False) -> list[Seen]:
    """Read every answer of a connection; interim ones too. Fails on anything malformed or left over."""
    answers = []
    while data:
        head = HEAD.match(data)
        assert head, data[:200]
        data = data[head.end() :]
        pairs = [line.split(b": ", 1) for line in head.group(3).splitlines()]
        headers = {name.lower(): value for name, value in pairs}
        assert len(headers) == len(pairs), "a header came twice"
        status = int(head.group(1))
        if bodiless or status < 200 or status in (204, 304):
            body = b""
        elif headers.get(b"transfer-encoding") == b"chunked":
            assert b"content-length" not in headers
            body, data = _dechunk(data)
        elif b"content-length" in headers:
            size = int(headers[b"content-length"])
            body, data = data[:size], data[size:]
            assert len(body) == size, "cut"
        else:
            assert headers[b"connection"] == b"close"
            body, data = data, b""
        answers.append(Seen(status, headers, body))
    return answers


def _dechunk(data: bytes) -> tuple[bytes, bytes]:
    parts = []
    while True:
        size_text, _, data = data.partition(b"\r\n")
        size = int(size_text, 16)
        parts.append(data[:size])
        assert data[size : size + 2] == b"\r\n", "a chunk is cut"
        data = data[size + 2 :]
        if size == 0:
            return b"".join(parts), data


def post(body: bytes = b"{}", *more: bytes, target: bytes = b"/v1/chat/completions") -> bytes:
    """A request with a Content-Length."""
    lines = [b"POST %b HTTP/1.1" % target, b"Host: h", b"Content-Length: %d" % len(body), *more]
    return b"\r\n".join((*lines, b"", body))


def get(target: bytes = b"/", *more: bytes, version: bytes = b"1.1") -> bytes:
    """A request without a body."""
    return b"\r\n".join((b"GET %b HTTP/%b" % (target, version), b"Host: h", *more, b"", b""))
