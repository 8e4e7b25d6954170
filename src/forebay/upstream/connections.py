"""Pooled keep-alive connections to engines: HTTP/1.1, one answer at a time."""

import asyncio
import ssl
from collections import deque
from typing import Protocol

import httptools

from forebay.clock import Clock
from forebay.domain import FailureKind, Replica
from forebay.ports import Header

# Below uvicorn's 5 s, so that we and not the engine close an idle connection: an engine's close can
# cross a request on the wire. llama.cpp keeps connections for 5 s too (cpp-httplib), nginx for 75.
IDLE_EXPIRY_S = 4.0
MAX_IDLE_PER_REPLICA = 512
DRAIN_S = 1.0


class Receiver(Protocol):
    """Who takes one answer; each answer ends with `on_end` or `on_lost`, once."""

    def on_head(self, status: int, headers: list[Header]) -> None:
        """The head arrived (interim 1xx answers are left out)."""
        ...

    def takes(self, read: bytes) -> bool:
        """Take a whole read that begins where a chunk of the body begins, or leave it to the parser.

        Only a read that is exactly one chunk may be taken: the parser never learns of it.
        """
        ...

    def on_body(self, data: bytes) -> None:
        """A part of the body arrived, de-chunked."""
        ...

    def on_end(self) -> None:
        """The answer is complete."""
        ...

    def on_lost(self, kind: FailureKind) -> None:
        """The connection ended, or spoke no HTTP, before the answer was complete."""
        ...


class Connection:
    """One connection to one replica; an asyncio protocol without its base class (see decisions/0002)."""

    __slots__ = (
        "_at_chunk", "_draining", "_headers", "_interim", "_parser", "_pool", "_read_any", "_receiver", "_until_close",
        "idle_since_s", "replica", "reused", "transport",
    )  # fmt: skip

    def __init__(self, replica: Replica, pool: "Connections") -> None:
        self.replica = replica
        self.transport: asyncio.Transport | None = None
        self.reused = False
        self.idle_since_s = 0.0
        self._pool = pool
        self._parser = httptools.HttpResponseParser(self)
        self._receiver: Receiver | None = None
        self._headers: list[Header] = []
        self._interim = False
        self._read_any = False
        self._until_close = False
        self._draining = False
        self._at_chunk = False

    def send(self, parts: list[bytes], receiver: Receiver) -> None:
        """Send one request; the answer goes to the receiver."""
        self._receiver = receiver
        self._read_any = False
        if self.transport is None or self.transport.is_closing():
            self._lose(FailureKind.RESET)
        else:
            self.transport.write(parts[0]) if len(parts) == 1 else self.transport.writelines(parts)

    @property
    def answered(self) -> bool:
        """Whether a byte of the current answer has arrived."""
        return self._read_any

    def release(self, receiver: Receiver) -> None:
        """Leave an answer whose meaning is complete: what is left of its framing is read and dropped."""
        if self._receiver is receiver:
            self._receiver = None
            self._draining = True
            self._pool.drain(self)

    def drop(self, receiver: Receiver) -> None:
        """Cut the connection if it still answers this receiver: the engine stops working on the call."""
        if self._receiver is receiver:
            self.abort()

    def abort(self) -> None:
        """Cut the connection at once and forget the receiver."""
        self._receiver = None
        if self.transport is not None:
            self.transport.abort()

    def pause(self, paused: bool) -> None:
        """Stop or resume reading, so that a slow client slows its engine."""
        if self.transport is None or self.transport.is_closing():
            return
        if paused:
            self.transport.pause_reading()
        else:
            self.transport.resume_reading()

    # asyncio's side

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Take the transport."""
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        """Parse what the engine sent."""
        if self._receiver is None and not self._draining:
            # Bytes that nobody asked for would be read as the next call's answer.
            self.abort()
            return
        self._read_any = True
        if self._at_chunk and self._receiver is not None and self._receiver.takes(data):
            return
        self._at_chunk = False
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._lose(FailureKind.BAD_ANSWER)

    def eof_received(self) -> bool:
        """End an answer that is framed by the end of the connection; close in any case."""
        receiver = self._receiver
        if receiver is not None and self._until_close:
            self._receiver = None
            receiver.on_end()
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        """Tell whoever waits."""
        self._pool.forget(self)
        self._lose(FailureKind.TRUNCATED if self._read_any else FailureKind.RESET)
        self.transport = None

    def pause_writing(self) -> None:
        """The engine reads slowly: the body is already in the transport's buffer, so nothing to do."""

    def resume_writing(self) -> None:
        """The engine caught up."""

    # httptools' side

    def on_message_begin(self) -> None:
        """A head begins; one that answers no request would be taken for the next call's answer."""
        self._headers = []
        if self._receiver is None and self.transport is not None:
            self.transport.abort()

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header line."""
        self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        """The head is complete."""
        status = self._parser.get_status_code()
        self._interim = 100 <= status < 200
        if self._interim or self._receiver is None:
            return
        framing = {name for name, _ in self._headers}
        self._until_close = b"content-length" not in framing and b"transfer-encoding" not in framing
        self._receiver.on_head(status, self._headers)

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        if self._receiver is not None:
            self._receiver.on_body(data)

    def on_chunk_complete(self) -> None:
        """A chunk ended: if the read ends here too, the next one begins with a chunk."""
        self._at_chunk = True

    def on_chunk_header(self) -> None:
        """A chunk begins."""
        self._at_chunk = False

    def on_message_complete(self) -> None:
        """The answer is complete: give the connection back first, so that the next call can have it."""
        if self._interim:
            return
        receiver, self._receiver = self._receiver, None
        self._draining = self._at_chunk = False
        # Valid inside this callback only: read later it says False and every call would dial anew.
        if self._parser.should_keep_alive():
            self._pool.give_back(self)
        elif self.transport is not None:
            self.transport.close()
        if receiver is not None:
            receiver.on_end()

    def _lose(self, kind: FailureKind) -> None:
        receiver, self._receiver = self._receiver, None
        if self.transport is not None:
            self.transport.abort()
        if receiver is not None:
            receiver.on_lost(kind)


class Connections:
    """The pool of all connections, by replica; the last one used is used first.

    At most 512 idle connections a replica are kept, none longer than 4 s idle; how many are in use is
    bounded by who may call (`max_in_flight`, limits of tenants, `limits.max_connections`).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self._loop = loop
        self._clock = clock
        self._idle: dict[str, deque[Connection]] = {}
        self._open: set[Connection] = set()
        self._draining: dict[Connection, float] = {}
        self._tls: ssl.SSLContext | None = None
        self.opened: dict[str, int] = {}

    def take(self, replica: Replica) -> Connection | None:
        """Return an idle connection that is still fresh, or None."""
        idle = self._idle.get(replica.name)
        if not idle:
            return None
        expired_before_s = self._clock.now_s() - IDLE_EXPIRY_S
        while idle:
            connection = idle.pop()
            if connection.transport is None or connection.transport.is_closing():
                continue
            if connection.idle_since_s < expired_before_s:
                connection.transport.close()
                continue
            connection.reused = True
            return connection
        return None

    async def dial(self, replica: Replica, timeout_s: float, *, counted: bool = True) -> Connection:
        """Open a connection.

        Args:
            replica: where to.
            timeout_s: for all of it, TLS included.
            counted: whether it shows in the metric; health polls do not.

        Raises:
            OSError: refused, unreachable, or the name is unknown.
            TimeoutError: took too long.
        """
        if counted:
            self.opened[replica.name] = self.opened.get(replica.name, 0) + 1
        connection = Connection(replica, self)
        context = self._tls_context() if replica.tls else None
        async with asyncio.timeout(timeout_s):
            await self._loop.create_connection(
                lambda: connection,  # type: ignore[type-var]  # no base class: decisions/0002
                replica.host,
                replica.port,
                ssl=context,
            )
        self._open.add(connection)
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next call."""
        if self._draining:
            self._draining.pop(connection, None)
        idle = self._idle.setdefault(connection.replica.name, deque())
        if connection.transport is None or len(idle) >= MAX_IDLE_PER_REPLICA:
            if connection.transport is not None:
                connection.transport.close()
            return
        connection.idle_since_s = self._clock.now_s()
        idle.append(connection)

    def drain(self, connection: Connection) -> None:
        """Watch a connection whose answer only lacks its framing; it has a second for that."""
        self._draining[connection] = self._clock.now_s()

    def forget(self, connection: Connection) -> None:
        """Drop a connection that has ended."""
        self._open.discard(connection)
        self._draining.pop(connection, None)
        idle = self._idle.get(connection.replica.name)
        if idle and connection in idle:
            idle.remove(connection)

    def sweep(self) -> None:
        """Close what has expired: idle connections, and ends of answers that never come; every second."""
        for connection, since_s in list(self._draining.items()):
            if self._clock.now_s() - since_s > DRAIN_S:
                connection.abort()
        expired_before_s = self._clock.now_s() - IDLE_EXPIRY_S
        for name, idle in list(self._idle.items()):
            while idle and idle[0].idle_since_s < expired_before_s:
                connection = idle.popleft()
                if connection.transport is not None:
                    connection.transport.close()
            if not idle:
                del self._idle[name]

    def close(self) -> None:
        """Cut every connection."""
        for connection in list(self._open):
            connection.abort()

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls
