"""One client connection: strict HTTP/1.1 in, one exchange at a time out."""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

import httptools

from forebay.edge.headers import NOTHING, head_bytes, read_headers
from forebay.edge.render import error_body, error_headers
from forebay.edge.reply import Reply
from forebay.edge.upgrade import without_upgrade
from forebay.errors import ForebayError, Refused
from forebay.traffic import Request

if TYPE_CHECKING:
    from forebay.edge.server import EdgeServer

# A client may send this many requests ahead before its connection is no longer read.
MAX_PIPELINED = 16
# Framing of a chunked body beyond its content: a chunk of one byte has five bytes around it.
_FRAMING_RATIO = 8
_VERSIONS = ("1.1", "1.0")

Handler = Callable[[Request, Reply], Coroutine[Any, Any, None] | None]
"""Answers a request at once, or returns what will."""


class ClientConnection:
    """An asyncio protocol without its base class (see decisions/0002)."""

    __slots__ = (
        "_blocked", "_body", "_body_bytes", "_complete", "_fault", "_framing_bytes", "_fresh", "_head_bytes",
        "_headers", "_in_head", "_lines", "_owner", "_parser", "_peer", "_queue", "_read_bytes", "_repeated",
        "_reply", "_target", "_task", "since_s", "transport",
    )  # fmt: skip

    def __init__(self, owner: "EdgeServer") -> None:
        self._owner = owner
        self._parser: Any = httptools.HttpRequestParser(self)
        self._peer = ""
        self._queue: deque[tuple[Request, bool, bool]] = deque()
        self._reply: Reply | None = None
        self._task: asyncio.Task[None] | None = None
        self._fault: ForebayError | None = None
        self._blocked = self._fresh = False
        self._complete: bool
        self._headers: dict[bytes, bytes]
        self._read_bytes = 0
        self.transport: asyncio.Transport | None = None
        self.since_s = owner.clock.now_s()
        self._reset()

    @property
    def busy(self) -> bool:
        """Whether an exchange is running or waiting."""
        return self._reply is not None or bool(self._queue)

    @property
    def phase(self) -> str:
        """What the connection waits for: `closing`, `exchange`, `idle`, `head` or `body`."""
        if self.transport is None or self.transport.is_closing():
            return "closing"
        if self._reply is not None:
            return "exchange"
        if self._complete or self._blocked:
            return "idle"
        return "head" if self._in_head else "body"

    def expire(self) -> None:
        """End a connection that took too long: answer a half-sent request, cut one that does not close."""
        if self.phase == "closing":
            self.cut()
        elif self._complete or self.busy:
            self.close()
        else:
            self._fault = self._fault or Refused("request_timeout", "the request was not complete in time")
            self._advance()

    def close(self) -> None:
        """Close once everything written has been sent."""
        if self.transport is not None:
            self.since_s = self._owner.clock.now_s()
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
            self._advance()

    def data_received(self, data: bytes) -> None:
        """Parse what the client sent."""
        if self._fault is not None:
            return
        self._read_bytes = len(data)
        self._fresh = self._complete
        if self._complete:
            self._complete = False
            self.since_s = self._owner.clock.now_s()
        if self._in_head:
            self._head_bytes += len(data)
        else:
            self._framing_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._ignore_upgrade(data)
        except httptools.HttpParserError as error:
            self._fault = self._fault or Refused("bad_request", f"not valid HTTP/1.1: {str(error)[:100]}")
        self._check_bounds()
        self._advance()

    def eof_received(self) -> bool:
        """Take a half-closed connection as closed, as other proxies do."""
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        """Tell the running exchange, and forget the waiting ones."""
        self._owner.closed(self)
        self._queue.clear()
        reply, self._reply = self._reply, None
        self.transport = None
        task, self._task = self._task, None
        if reply is not None and not reply.client_gone() and task is not None:
            task.cancel()
        # Both refer to us too: a cycle would keep all of it until the next collection, which stops the loop.
        self._parser = None

    def pause_writing(self) -> None:
        """The client takes no more for now."""
        self._blocked = True
        if self._reply is not None:
            self._reply.client_ready(False)

    def resume_writing(self) -> None:
        """The client takes more."""
        self._blocked = False
        if self._reply is not None:
            self._reply.client_ready(True)
        self._advance()

    # httptools' side

    def on_message_begin(self) -> None:
        """A request begins."""
        self._complete = False

    def on_url(self, url: bytes) -> None:
        """A part of the target."""
        self._target += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header line; trailers come here too, and could otherwise pass as headers."""
        if self._in_head:
            self._lines.append((name, value))

    def on_headers_complete(self) -> None:
        """The head is complete: refuse what is ambiguous before the body is read."""
        self._in_head = False
        headers, self._repeated = read_headers(self._lines)
        self._headers = headers
        limits = self._owner.limits
        version = self._parser.get_http_version()
        if version not in _VERSIONS:
            self._refuse("bad_request", "only HTTP/1.1 and HTTP/1.0 are spoken here")
        elif b"host" in self._repeated or (b"host" not in headers and version == "1.1"):
            self._refuse("bad_request", "send exactly one Host header")
        elif b"transfer-encoding" in headers and version != "1.1":
            self._refuse("bad_request", "Transfer-Encoding needs HTTP/1.1")
        elif max(self._head_bytes, self._read_bytes) > limits.header_bytes < head_bytes(self._target, self._lines):
            self._refuse("headers_too_large", "the request's head is larger than limits.header_bytes")
        elif int(headers.get(b"content-length", b"0")) > limits.body_bytes:
            self._refuse("body_too_large", f"the body is larger than {limits.body_bytes} bytes")
        elif headers.get(b"expect", b"").lower() == b"100-continue" and self.transport is not None and not self.busy:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """A part of the body."""
        self._body_bytes += len(data)
        if self._body_bytes > self._owner.limits.body_bytes:
            self._refuse("body_too_large", f"the body is larger than {self._owner.limits.body_bytes} bytes")
        elif self._fault is None:
            self._body.append(data)

    def on_message_complete(self) -> None:
        """The request is complete, unless it offers another protocol: then the parser stops behind this."""
        parser = self._parser
        if self._fault is not None or parser.should_upgrade():
            return
        path, _, query = self._target.partition(b"?")
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        now_s = self._owner.clock.now_s()
        request = Request(parser.get_method(), path, query, self._headers, self._repeated, body, self._peer, now_s)
        self._queue.append((request, parser.should_keep_alive(), parser.get_http_version() == "1.1"))
        self._fresh = False
        self._reset()
        if len(self._queue) >= MAX_PIPELINED and self.transport is not None:
            self.transport.pause_reading()

    # exchanges

    def _advance(self) -> None:
        """Begin what can begin: the next exchange, or behind the last one the answer to a bad request."""
        transport = self.transport
        if self._reply is not None or self._blocked or transport is None or transport.is_closing():
            return
        if self._queue:
            if len(self._queue) == MAX_PIPELINED:
                transport.resume_reading()
            request, keep_alive, chunked = self._queue.popleft()
            keep_alive = keep_alive and not self._owner.draining
            reply = self._reply = Reply(
                transport, self._ended, self._owner.date, chunked, keep_alive, request.method == b"HEAD"
            )
            work = self._owner.handler(request, reply)
            # Owned here: cancelled when the client leaves; it handles its own errors.
            self._task = self._owner.loop.create_task(work) if work is not None else None
        elif self._fault is not None:
            reply = Reply(transport, _forget, self._owner.date, True, False, False)
            reply.whole(self._fault.status, error_headers(self._fault), error_body(self._fault))
            self.close()

    def _ended(self, reply: Reply) -> None:
        self._reply = None
        self.since_s = self._owner.clock.now_s()
        if not reply.keep_alive or self._owner.closing:
            self._queue.clear()
            self.close()
        elif self._queue or self._fault is not None:
            self._advance()

    def _refuse(self, code: str, message: str) -> None:
        self._fault = self._fault or Refused(code, message)

    def _check_bounds(self) -> None:
        """Bound what comes in without being content: an endless head, chunk framing, trailers."""
        header_bytes = self._owner.limits.header_bytes
        if self._head_bytes > header_bytes and self._in_head and not self._complete:
            self._refuse("headers_too_large", "the request's head is larger than limits.header_bytes")
        elif self._framing_bytes > header_bytes + _FRAMING_RATIO * self._body_bytes:
            self._refuse("body_too_large", "the body's chunked framing is larger than its content")

    def _ignore_upgrade(self, data: bytes) -> None:
        """Parse a request that offers h2c or websocket again, without the offer, if it began with this read."""
        plain = without_upgrade(data) if self._fresh else None
        self._parser = httptools.HttpRequestParser(self)
        self._reset()
        if plain is None:
            self._refuse("bad_request", "protocol upgrades are not offered")
        else:
            self.data_received(plain)

    def _reset(self) -> None:
        self._target = b""
        self._lines: list[tuple[bytes, bytes]] = []
        self._headers = {}
        self._repeated = NOTHING
        self._body: list[bytes] = []
        self._body_bytes = self._head_bytes = self._framing_bytes = 0
        self._in_head = self._complete = True


def _forget(_reply: Reply) -> None:
    """The answer to a bad request is nobody's exchange."""
