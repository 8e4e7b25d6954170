"""One HTTP/1.1 connection of a simulated engine, with a way to break every rule.

Shaped like uvicorn: headers of a stream go out at once, bodies without a length are chunked, an idle
connection is closed after a while, and a caller that closes its side is gone. Requests are answered one
after the other.
"""

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol, cast

import httptools
from msgspec import Struct

from forebay.engines.sim.errors import error_body
from forebay.engines.sim.faults import How

MAX_BODY_BYTES = 64 * 1024 * 1024
MAX_HEAD_BYTES = 64 * 1024
MAX_PIPELINED = 16
# How long a cut waits for what was written before it, and how often it looks.
FLUSH_S = 1.0
FLUSH_STEP_S = 0.002

JSON = b"application/json"
EVENTS = b"text/event-stream; charset=utf-8"

Header = tuple[bytes, bytes]


class HttpRequest(Struct, frozen=True):
    """One request as it came.

    Attributes:
        target: path and query.
        headers: names as sent, values stripped, in order.
        connection: number of the connection, from 1.
        nth: of the requests on it, from 1.
    """

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int
    nth: int
    keep_alive: bool
    chunks: bool

    def header(self, name: str) -> str:
        """Return the first value of a header, empty if there is none; the name in lower case."""
        return next((value for key, value in self.headers if key.lower() == name), "")


class Listener(Protocol):
    """Who gives the answer in work, and must know what happens to the connection."""

    def client_gone(self) -> None:
        """The caller left."""
        ...

    def client_ready(self) -> None:
        """There is room to write again."""
        ...


class App(Protocol):
    """Who answers."""

    def opened(self, connection: "Connection") -> int:
        """Take note of a connection; return its number."""
        ...

    def closed(self, connection: "Connection") -> None:
        """Forget a connection."""
        ...

    def handle(self, request: HttpRequest, connection: "Connection") -> None:
        """Answer a request, now or later."""
        ...


class Connection(asyncio.Protocol):
    """Reads requests and writes answers, honest or not.

    Args:
        app: answers.
        loop: that it runs on.
        keep_alive_s: idle time after an answer before it is closed.
        date: makes the value of the Date header.
    """

    def __init__(
        self, app: App, loop: asyncio.AbstractEventLoop, keep_alive_s: float, date: Callable[[], bytes]
    ) -> None:
        self._app = app
        self._loop = loop
        self._keep_alive_s = keep_alive_s
        self._date = date
        self._idle: asyncio.TimerHandle | None = None
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[HttpRequest] = deque()
        self._request: HttpRequest | None = None
        self._refused = 0
        self._number = 0
        self._count = 0
        self._closing = False
        self._new_message()
        self.listener: Listener | None = None
        self.paused = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin."""
        # uvloop's transports are no subclasses of asyncio's.
        self._transport = cast(asyncio.Transport, transport)
        self._number = self._app.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell who answers that the caller is gone."""
        self._closing = True
        self._cancel_idle()
        listener, self.listener = self.listener, None
        if listener is not None:
            listener.client_gone()
        self._app.closed(self)

    def data_received(self, data: bytes) -> None:
        """Parse what came, then answer the first whole request."""
        if self._closing:
            return
        self._cancel_idle()
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._refused = self._refused or 400
        except httptools.HttpParserUpgrade:
            self._refused = 400
        if self._refused and self._request is None and not self._waiting:
            self._refuse()
        else:
            self._next()

    def pause_writing(self) -> None:
        """The caller reads slower than the engine writes."""
        self.paused = True

    def resume_writing(self) -> None:
        """The caller caught up."""
        self.paused = False
        if self.listener is not None:
            self.listener.client_ready()

    # What the parser calls.

    def on_url(self, url: bytes) -> None:
        """Collect the target, which may come in pieces."""
        self._target += url
        self._bound_head(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Collect a header."""
        self._headers.append((name.decode("latin-1"), value.decode("latin-1")))
        self._bound_head(len(name) + len(value))

    def on_headers_complete(self) -> None:
        """Ask for the body if the caller waits to be asked."""
        expects = (value.lower() for name, value in self._headers if name.lower() == "expect")
        if "100-continue" in expects and self._request is None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        """Collect a piece of the body."""
        self._body += data
        if len(self._body) > MAX_BODY_BYTES:
            self._refused = 413
            self._body.clear()

    def on_message_complete(self) -> None:
        """Put a whole request in the line."""
        if self._refused:
            return
        self._count += 1
        request = HttpRequest(
            method=self._parser.get_method().decode("latin-1"),
            target=self._target.decode("latin-1"),
            headers=self._headers,
            body=bytes(self._body),
            connection=self._number,
            nth=self._count,
            keep_alive=self._parser.should_keep_alive(),
            chunks=self._parser.get_http_version() != "1.0",
        )
        self._new_message()
        if len(self._waiting) >= MAX_PIPELINED:
            self._refused = 400
        else:
            self._waiting.append(request)

    # What those who answer call.

    def respond(self, status: int, body: bytes, headers: tuple[Header, ...] = (), content_type: bytes = JSON) -> None:
        """Send a whole answer; to a HEAD request only its headers."""
        head = self._head(status, content_type, len(body), headers)
        self._transport.write(head if self._request is not None and self._request.method == "HEAD" else head + body)
        self._done()

    def promise(self, status: int, body: bytes, length_bytes: int) -> None:
        """Send an answer whose Content-Length is not that of its body, then close."""
        self._transport.write(self._head(status, JSON, length_bytes, ()) + body)
        self.cut("fin")

    def begin(self) -> None:
        """Send the headers of a stream of events."""
        self._transport.write(self._head(200, EVENTS, None, ()))

    def send(self, data: bytes, last: bool = False) -> None:
        """Send a part of a stream, in one write; `last` ends it."""
        if self._request is not None and self._request.chunks:
            end = b"0\r\n\r\n" if last else b""
            data = b"%x\r\n%b\r\n%b" % (len(data), data, end) if data else end
        self._transport.write(data)
        if last:
            self._done()

    def raw(self, data: bytes) -> None:
        """Send bytes as they are."""
        self._transport.write(data)

    def cut(self, how: How) -> None:
        """Close the connection as soon as what was written is out, with a FIN or a RST."""
        self.listener = None
        self._closing = True
        self._close_flushed(how, int(FLUSH_S / FLUSH_STEP_S))

    def close(self) -> None:
        """Close the connection now, because the server stops."""
        self._transport.abort()

    def _done(self) -> None:
        """Make room for the next request, or close."""
        self.listener = None
        keep = self._request is not None and self._request.keep_alive and not self._refused
        self._request = None
        if not keep:
            self._closing = True
            self._transport.close()
            return
        self._idle = self._loop.call_later(self._keep_alive_s, self._transport.close)
        if self._waiting:
            self._loop.call_soon(self._next)

    def _next(self) -> None:
        if self._request is None and self._waiting and not self._closing:
            self._cancel_idle()
            self._request = self._waiting.popleft()
            self._app.handle(self._request, self)

    def _refuse(self) -> None:
        """Answer what is no request, and close."""
        self.respond(self._refused, error_body(self._refused, "Invalid HTTP request received."))

    def _close_flushed(self, how: How, looks: int) -> None:
        if self._transport.is_closing():
            return
        if self._transport.get_write_buffer_size() and looks:
            self._loop.call_later(FLUSH_STEP_S, self._close_flushed, how, looks - 1)
        elif how == "rst":
            # With a linger time of 0 the kernel sends a RST in place of a FIN.
            linger = struct.pack("ii", 1, 0)
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._transport.abort()
        else:
            self._transport.close()

    def _head(self, status: int, content_type: bytes, length_bytes: int | None, headers: tuple[Header, ...]) -> bytes:
        try:
            phrase = HTTPStatus(status).phrase.encode()
        except ValueError:
            phrase = b""
        lines = [b"HTTP/1.1 %d %b" % (status, phrase), b"date: " + self._date(), b"server: uvicorn"]
        lines.append(b"content-type: " + content_type)
        lines += [b"%b: %b" % header for header in headers]
        if length_bytes is not None:
            lines.append(b"content-length: %d" % length_bytes)
        elif self._request is not None and self._request.chunks:
            lines.append(b"transfer-encoding: chunked")
        if self._request is None or not self._request.keep_alive:
            lines.append(b"connection: close")
        return b"\r\n".join(lines) + b"\r\n\r\n"

    def _new_message(self) -> None:
        self._target = b""
        self._headers: list[tuple[str, str]] = []
        self._head_bytes = 0
        self._body = bytearray()

    def _bound_head(self, added_bytes: int) -> None:
        self._head_bytes += added_bytes
        if self._head_bytes > MAX_HEAD_BYTES:
            self._refused = 431
            self._headers.clear()
            self._target = b""

    def _cancel_idle(self) -> None:
        if self._idle is not None:
            self._idle.cancel()
            self._idle = None
