"""The client's side of one exchange: head, framing, back-pressure."""

import asyncio
from collections.abc import Callable

from forebay.edge.render import status_line
from forebay.ports import ReplyListener
from forebay.traffic import Header

# Hop-by-hop headers, and those that Forebay writes itself. Source: RFC 9110, 7.6.1.
DROPPED = frozenset((
    b"access-control-allow-credentials", b"access-control-allow-origin", b"alt-svc", b"connection",
    b"content-length", b"date", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection",
    b"server", b"server-timing", b"set-cookie", b"te", b"trailer", b"transfer-encoding", b"upgrade",
    b"x-accel-buffering", b"x-forebay-call-id", b"x-forebay-degraded", b"x-forebay-pool", b"x-forebay-stripped",
    b"x-forebay-joined", b"x-forebay-replayed", b"x-forebay-resume", b"x-request-id",
))  # fmt: skip
_BODILESS = (204, 304)
_NO_BUFFERING = b"x-accel-buffering: no\r\ncache-control: no-cache\r\n"
_OURS_IN_STREAMS = frozenset((b"x-accel-buffering", b"cache-control"))


class Reply:
    """Writes one answer; see `ports.Reply`.

    Args:
        transport: of the client's connection.
        chunked: the client speaks HTTP/1.1, so that an answer of unknown length can be chunked.
        keep_alive: the connection may serve another request afterwards.
        bodiless: answer a HEAD request.
        finished: called once when the answer has been written, or cut.
    """

    __slots__ = (
        "_bodiless", "_chunked", "_date", "_finished",  "_head", "_transport", "blocked", "ended", "extra", "framed",
        "gone", "keep_alive", "listener", "started", "status", "timing",
    )  # fmt: skip

    def __init__(
        self,
        transport: asyncio.Transport,
        finished: Callable[["Reply"], None],
        date: bytes,
        chunked: bool,
        keep_alive: bool,
        bodiless: bool,
    ) -> None:
        self._transport = transport
        self._finished = finished
        self._date = date
        self._chunked = chunked
        self._bodiless = bodiless
        self.framed = False
        self._head = b""
        self.keep_alive = keep_alive
        self.listener: ReplyListener | None = None
        self.extra = b""
        self.timing: Callable[[], bytes] | None = None
        self.status = 0
        self.gone = False
        self.blocked = False
        self.started = False
        self.ended = False

    def head(self, status: int, headers: tuple[Header, ...], length_bytes: int | None) -> None:
        """Begin the answer; it goes out with the first bytes of the body, in one write."""
        self.started = True
        self.status = status
        lines = [status_line(status), b"date: %b\r\n" % self._date]
        named = _connection_options(headers)
        if length_bytes is None:
            named |= _OURS_IN_STREAMS
        lines += [b"%b: %b\r\n" % h for h in headers if h[0] not in DROPPED and h[0] not in named]
        lines.append(self.extra)
        if self.timing is not None:
            lines.append(b"server-timing: %b\r\n" % self.timing())
        if status in _BODILESS:
            self._bodiless = True
        elif length_bytes is not None:
            lines.append(b"content-length: %d\r\n" % length_bytes)
        elif self._chunked:
            self.framed = True
            lines.append(b"transfer-encoding: chunked\r\n" + _NO_BUFFERING)
        else:
            self.keep_alive = False
            lines.append(_NO_BUFFERING)
        if not self.keep_alive:
            lines.append(b"connection: close\r\n")
        lines.append(b"\r\n")
        self._head = b"".join(lines)

    def write(self, data: bytes) -> None:
        """Send a part of the body."""
        if self.gone or not data:
            return
        if self._bodiless:
            data = b""
        elif self.framed:
            data = b"%x\r\n%b\r\n" % (len(data), data)
        if self._head:
            data, self._head = self._head + data, b""
        self._transport.write(data)

    def pass_chunk(self, chunk: bytes) -> None:
        """Send a part of the body that is already framed."""
        if self._head:
            chunk, self._head = self._head + chunk, b""
        if not self.gone:
            self._transport.write(chunk)

    def end(self) -> None:
        """Finish the answer."""
        if self.ended:
            return
        self.ended = True
        tail = b"0\r\n\r\n" if self.framed and not self._bodiless else b""
        if self._head or tail:
            if not self.gone:
                self._transport.write(self._head + tail)
            self._head = b""
        self._finished(self)

    def abort(self) -> None:
        """Cut the connection: what was promised cannot be kept."""
        if self.ended:
            return
        self.ended = True
        self.keep_alive = False
        self._transport.abort()
        self._finished(self)

    def whole(self, status: int, headers: tuple[Header, ...], body: bytes) -> None:
        """Send a complete answer."""
        self.head(status, headers, len(body))
        self.write(body)
        self.end()

    # the connection's side

    def client_gone(self) -> bool:
        """Note that the client left; say whether somebody was told."""
        self.gone = True
        listener = self.listener
        if listener is None:
            return False
        listener.client_gone()
        return True

    def client_ready(self, ready: bool) -> None:
        """Note whether the client takes more."""
        self.blocked = not ready
        if self.listener is not None:
            self.listener.client_ready(ready)


def _connection_options(headers: tuple[Header, ...]) -> frozenset[bytes]:
    """Return the header names that Connection headers declare hop-by-hop."""
    options = [value for name, value in headers if name == b"connection"]
    if not options:
        return _NO_OPTIONS
    return frozenset(option.strip().lower() for option in b",".join(options).split(b","))


_NO_OPTIONS: frozenset[bytes] = frozenset()
