"""One client connection: strict HTTP/1.1 in, one exchange at a time out."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import httptools

from forebay.edge.render import error_body, error_headers
from forebay.edge.reply import Reply
from forebay.edge.upgrade import without_upgrade
from forebay.errors import ForebayError, Refused
from forebay.traffic import Request

if TYPE_CHECKING:
    from forebay.edge.server import EdgeServer

# A client may send this many requests ahead before its connection is no longer read.
MAX_PIPELINED = 16

Handler = Callable[[Request, Reply], Coroutine[Any, Any, None]]


class ClientConnection:
    """An asyncio protocol without its base class (see decisions/0002)."""

    __slots__ = (
        "_body", "_body_bytes", "_complete", "_fault", "_head_bytes", "_headers", "_in_head", "_owner", "_parser",
        "_peer", "_queue", "_raw_head", "_repeated", "_reply", "_target", "_task", "since_s", "transport",
    )  # fmt: skip

    def __init__(self, owner: "EdgeServer") -> None:
        self._owner = owner
        self._parser = httptools.HttpRequestParser(self)
        self._peer = ""
        self._queue: deque[tuple[Request, bool]] = deque()
        self._reply: Reply | None = None
        self._task: asyncio.Task[None] | None = None
        self._fault: ForebayError | None = None
        self._complete = True
        self._raw_head = b""
        self.transport: asyncio.Transport | None = None
        self.since_s = owner.clock.now_s()
        self._reset()

    @property
    def busy(self) -> bool:
        """Whether an exchange is running or waiting."""
        return self._reply is not None or bool(self._queue)

    @property
    def phase(self) -> str:
        """What the connection waits for: `idle`, `head`, `body` or `exchange`."""
        if self.busy:
            return "exchange"
        if self._complete:
            return "idle"
        return "head" if self._in_head else "body"

    def expire(self) -> None:
        """End a connection that took too long; a half-sent request gets an answer."""
        if self._complete:
            self.close()
            return
        self._fault = Refused("request_timeout", "the request was not complete in time")
        self._refuse()

    def close(self) -> None:
        """Close once everything written has been sent."""
        if self.transport is not None:
            self.transport.close()

    def cut(self) -> None:
        """Close at once."""
        if self.transport is not None:
            self.transport.abort()

    # asyncio's side

    def connection_made(self, transport: asyncio.Transport) -> None:
        """Take the transport."""
        self.transport = transport
        peer = transport.get_extra_info("peername")
        self._peer = peer[0] if isinstance(peer, tuple) else "unix"
        if not self._owner.opened(self):
            self._fault = Refused("too_many_connections", "too many connections are open", retry_after_s=1)
            self._refuse()

    def data_received(self, data: bytes) -> None:
        """Parse what the client sent."""
        if self._fault is not None:
            return
        if self._in_head:
            if self._complete:
                self._complete = False
                self.since_s = self._owner.clock.now_s()
            self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._ignore_upgrade(data)
        except httptools.HttpParserError as error:
            self._fault = self._fault or Refused("bad_request", f"not valid HTTP/1.1: {_reason(error)}")
        if self._in_head and self._head_bytes > self._owner.limits.header_bytes:
            self._fault = self._fault or _head_too_large()
        if self._fault is not None:
            self._refuse()

    def eof_received(self) -> bool:
        """Take a half-closed connection as closed, as other proxies do."""
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        """Tell the running exchange, and forget the waiting ones."""
        self._owner.closed(self)
        self._queue.clear()
        reply, self._reply = self._reply, None
        if reply is not None and not reply.client_gone() and self._task is not None and not reply.ended:
            self._task.cancel()
        self.transport = None

    def pause_writing(self) -> None:
        """The client takes no more for now."""
        if self._reply is not None:
            self._reply.client_ready(False)

    def resume_writing(self) -> None:
        """The client takes more."""
        if self._reply is not None:
            self._reply.client_ready(True)

    # httptools' side

    def on_message_begin(self) -> None:
        """A request begins."""
        self._complete = False

    def on_url(self, url: bytes) -> None:
        """A part of the target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header line; trailers come here too, and could otherwise pass as headers."""
        if not self._in_head:
            return
        name = name.lower()
        if name in self._headers:
            self._repeated.add(name)
            value = self._headers[name] + b", " + value
        self._headers[name] = value

    def on_headers_complete(self) -> None:
        """The head is complete: refuse what is ambiguous before the body is read."""
        self._in_head = False
        headers = self._headers
        if self._fault is not None:
            return
        limits = self._owner.limits
        if self._head_bytes > limits.header_bytes and self._head_size() > limits.header_bytes:
            self._fault = _head_too_large()
        elif b"host" in self._repeated or (b"host" not in headers and self._parser.get_http_version() == "1.1"):
            self._fault = Refused("bad_request", "send exactly one Host header")
        elif b"transfer-encoding" in headers and self._parser.get_http_version() != "1.1":
            self._fault = Refused("bad_request", "Transfer-Encoding needs HTTP/1.1")
        elif int(headers.get(b"content-length", b"0")) > limits.body_bytes:
            self._fault = self._too_large()
        elif headers.get(b"expect", b"").lower() == b"100-continue" and self.transport is not None and not self.busy:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        self._body_bytes += len(data)
        if self._body_bytes > self._owner.limits.body_bytes:
            self._fault = self._fault or self._too_large()
        elif self._fault is None:
            self._body.append(data)

    def on_message_complete(self) -> None:
        """The request is complete, unless it offers another protocol: then the parser stops behind this."""
        if self._fault is not None or self._parser.should_upgrade():
            return
        path, _, query = self._target.partition(b"?")
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        keep_alive = self._parser.should_keep_alive()
        request = Request(
            self._parser.get_method(),
            path,
            query,
            self._headers,
            frozenset(self._repeated) if self._repeated else _NOTHING,
            body,
            self._peer,
            self._owner.clock.now_s(),
        )
        one_dot_one = self._parser.get_http_version() == "1.1"
        self._reset()
        self._complete = True
        if self._reply is None and not self._queue:
            self._begin(request, keep_alive, one_dot_one)
            return
        self._queue.append((request, keep_alive))
        if len(self._queue) >= MAX_PIPELINED and self.transport is not None:
            self.transport.pause_reading()

    # exchanges

    def _begin(self, request: Request, keep_alive: bool, chunked: bool) -> None:
        assert self.transport is not None
        self._reply = reply = Reply(
            self.transport,
            self._ended,
            date=self._owner.date,
            chunked=chunked,
            keep_alive=keep_alive and not self._owner.draining,
            bodiless=request.method == b"HEAD",
        )
        # Owned here: cancelled when the client leaves, awaited by nobody because it handles its errors.
        self._task = self._owner.loop.create_task(self._owner.handler(request, reply))

    def _ended(self, reply: Reply) -> None:
        self._reply = None
        self.since_s = self._owner.clock.now_s()
        if self.transport is None:
            return
        if not reply.keep_alive or self._owner.draining:
            self.transport.close()
        elif self._fault is not None:
            self._refuse()
        elif self._queue:
            request, keep_alive = self._queue.popleft()
            self.transport.resume_reading()
            self._begin(request, keep_alive, chunked=True)

    def _refuse(self) -> None:
        """Answer a request that cannot be served, behind those that came before it, and close."""
        if self.transport is None or self.transport.is_closing() or self.busy:
            return
        fault = self._fault
        assert fault is not None
        reply = Reply(
            self.transport, lambda _: None, date=self._owner.date, chunked=True, keep_alive=False, bodiless=False
        )
        reply.whole(fault.status, error_headers(fault), error_body(fault))
        self.transport.close()

    def _ignore_upgrade(self, data: bytes) -> None:
        """Parse a request that offers h2c or websocket again, without the offer."""
        plain = without_upgrade(data) if self._head_bytes == len(data) else None
        self._parser = httptools.HttpRequestParser(self)
        self._reset()
        if plain is None:
            self._fault = Refused("bad_request", "protocol upgrades are not offered")
        else:
            self.data_received(plain)

    def _head_size(self) -> int:
        return len(self._target) + sum(len(name) + len(value) + 4 for name, value in self._headers.items())

    def _too_large(self) -> Refused:
        return Refused("body_too_large", f"the body is larger than {self._owner.limits.body_bytes} bytes")

    def _reset(self) -> None:
        self._target = b""
        self._headers: dict[bytes, bytes] = {}
        self._repeated: set[bytes] = set()
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._head_bytes = 0
        self._in_head = True


_NOTHING: frozenset[bytes] = frozenset()


def _head_too_large() -> Refused:
    return Refused("headers_too_large", "the request's head is larger than limits.header_bytes")


def _reason(error: Exception) -> str:
    return str(error)[:100]
