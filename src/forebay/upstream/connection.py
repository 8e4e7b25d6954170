"""One keep-alive connection to one engine: HTTP/1.1, one answer at a time."""

import asyncio
from typing import TYPE_CHECKING, Any

import httptools

from forebay.domain import FailureKind, Replica
from forebay.ports import Receiver
from forebay.traffic import Header

if TYPE_CHECKING:
    from forebay.upstream.connections import Connections


# What is written of a body before the loop gets a turn.
SLICE_BYTES = 262_144
_NOTHING = memoryview(b"")


class Connection:
    """One connection to one replica; an asyncio protocol without its base class (see decisions/0002)."""

    __slots__ = (
        "_at_chunk", "_draining", "_full", "_headers", "_interim", "_parser", "_pool", "_read_any", "_receiver",
        "_single_use", "_unsent", "_until_close", "idle_since_s", "replica", "reused", "transport",
    )  # fmt: skip

    def __init__(self, replica: Replica, pool: "Connections", *, single_use: bool = False) -> None:
        self.replica = replica
        self._single_use = single_use
        self.transport: asyncio.Transport | None = None
        self.reused = False
        self.idle_since_s = 0.0
        self._pool = pool
        self._receiver: Receiver | None = None
        self._headers: list[Header] = []
        self._interim = False
        self._read_any = False
        self._until_close = False
        self._draining = False
        self._at_chunk = False
        self._full = False
        self._unsent = _NOTHING

    def send(self, head: bytes, body: bytes, receiver: Receiver) -> None:
        """Send one request; the answer goes to the receiver."""
        self._receiver = receiver
        self._read_any = False
        transport = self.transport
        if transport is None or transport.is_closing():
            self._lose(FailureKind.RESET)
        elif len(body) <= SLICE_BYTES:
            transport.write(head + body)
        else:
            transport.write(head)
            self._unsent = memoryview(body)
            self._send_slice()

    def _send_slice(self) -> None:
        """Send the next part of a large body: the loop gets a turn after each, and waits while the engine reads."""
        if not self._unsent or self._full or self.transport is None or self._receiver is None:
            return
        self.transport.write(self._unsent[:SLICE_BYTES])
        self._unsent = self._unsent[SLICE_BYTES:]
        if self._unsent and not self._full:
            self._pool.loop.call_soon(self._send_slice)

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
        self._parser: Any = httptools.HttpResponseParser(self)

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
        except (httptools.HttpParserError, httptools.HttpParserUpgrade):
            self._lose(FailureKind.BAD_ANSWER)
        # The parser tells of a chunk's size only when its line is complete.
        self._at_chunk = self._at_chunk and data.endswith(b"\r\n")

    def eof_received(self) -> bool:
        """End an answer that is framed by the end of the connection; close in any case."""
        receiver = self._receiver
        if receiver is not None and self._until_close:
            self._receiver = None
            receiver.on_end()
        return False

    def connection_lost(self, _error: Exception | None) -> None:
        """Tell whoever waits; may be called again."""
        if self.transport is None:
            return
        self._pool.forget(self)
        self._lose(FailureKind.TRUNCATED if self._read_any else FailureKind.RESET)
        self.transport = None
        # It refers to us too: a cycle would keep both until the next collection, which stops the loop.
        self._parser = None

    def pause_writing(self) -> None:
        """The engine reads slowly."""
        self._full = True

    def resume_writing(self) -> None:
        """The engine caught up."""
        self._full = False
        self._send_slice()

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
        headers, self._headers = self._headers, []  # trailers, if any, go into a list that nobody reads
        framing = {name for name, _ in headers}
        self._until_close = b"content-length" not in framing and b"transfer-encoding" not in framing
        self._receiver.on_head(status, headers)

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
        whole = not self._unsent  # an engine may answer before it has read the body; the rest is then dropped
        self._unsent = _NOTHING
        if self._parser.should_keep_alive() and whole and not self._single_use:
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
