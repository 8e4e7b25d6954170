"""Server-sent events: a pure incremental framer.

Parsing is over lines of the stream, never over reads: an event may be cut at any byte, many may come
in one read, lines may end in LF, CRLF or CR. Comments and blocks without data (`retry:`, `id:`) are
dropped, and `id:` fields with them: some client libraries fail on blocks that carry no data.

Source: WHATWG HTML, 9.2.5 and 9.2.6.
"""

from msgspec import Struct

MAX_EVENT_BYTES = 8 * 1024 * 1024
DONE = b"[DONE]"


class Event(Struct, frozen=True, gc=False):
    """One event: its data (lines joined by LF), its name, empty for the default, and an id of ours (None: without)."""

    data: bytes
    name: bytes = b""
    id: bytes | None = None


class FrameError(Exception):
    """The stream cannot be framed: an event is larger than the bound."""


def render(event: Event) -> bytes:
    """Write an event back as bytes, in the form that every client library reads."""
    if event.id is None and not event.name and b"\n" not in event.data:
        return b"data: %b\n\n" % event.data
    head = b"" if event.id is None else b"id: %b\n" % event.id
    if event.name:
        head += b"event: %b\n" % event.name
    return head + b"".join(b"data: %b\n" % line for line in event.data.split(b"\n")) + b"\n"


def lone_event(chunk: bytes) -> bytes | None:
    """Return the data of a read that is one whole HTTP chunk holding one whole one-line event, else None.

    It must be framed exactly as we would frame it (size in lower-case hex, no extension), so that the
    read can be passed on as it is.
    """
    size_end = chunk.find(b"\r\n", 1, 8)
    start = size_end + 2
    end = len(chunk) - 4
    if (
        size_end > 0
        and chunk.find(b"\n", start) == end
        and chunk.endswith(b"\n\n\r\n")
        and chunk.startswith(b"data: ", start)
        and chunk.find(b"\r", start) == end + 2
        and chunk[:size_end] == b"%x" % (end + 2 - start)
    ):
        return chunk[start + 6 : end]
    return None


class Framer:
    """Cuts one stream into events; `feed` returns those that the new bytes complete.

    Args:
        max_event_bytes: bound on what is kept of one unfinished event.
    """

    __slots__ = ("_after_cr", "_buffer", "_max_event_bytes", "_started")

    def __init__(self, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._buffer = bytearray()
        self._after_cr = False
        self._started = False
        self._max_event_bytes = max_event_bytes

    def feed(self, chunk: bytes) -> list[Event]:
        """Take the next bytes of the stream.

        Raises:
            FrameError: an event grows beyond the bound.
        """
        # One whole event of one line is what engines send for each token: no copy into the buffer.
        if (
            not self._buffer
            and chunk.find(b"\n") == len(chunk) - 2
            and chunk.startswith(b"data: ")
            and chunk.endswith(b"\n\n")
            and b"\r" not in chunk
            and len(chunk) > 8
            and not self._after_cr
        ):
            self._started = True
            return [Event(chunk[6:-2])]
        return self._feed_any(chunk)

    def rest(self) -> Event | None:
        """Return the event that lacks only its blank line when the stream ends, if there is one.

        The standard discards it; engines that forget the last blank line are common enough that the
        caller may want to look (it must not trust a cut JSON text, which this cannot tell apart).
        """
        return _parse_block(bytes(self._buffer))

    def is_idle(self) -> bool:
        """Say whether no event is under way."""
        return not self._buffer and not self._after_cr

    def _feed_any(self, chunk: bytes) -> list[Event]:
        if self._after_cr or b"\r" in chunk:
            chunk = self._unify_line_ends(chunk)
        buffer = self._buffer
        searched = max(0, len(buffer) - 1)
        buffer += chunk
        if not self._started and len(buffer) >= 3:
            self._started = True
            if buffer.startswith(b"\xef\xbb\xbf"):
                del buffer[:3]
        events: list[Event] = []
        start = 0
        end = buffer.find(b"\n\n", searched)
        while end >= 0:
            event = _parse_block(bytes(buffer[start:end]))
            if event is not None:
                events.append(event)
            start = end + 2
            end = buffer.find(b"\n\n", start)
        if start:
            del buffer[:start]
            self._started = True
        if len(buffer) > self._max_event_bytes:
            raise FrameError(f"an event is larger than {self._max_event_bytes} bytes")
        return events

    def _unify_line_ends(self, chunk: bytes) -> bytes:
        if self._after_cr and chunk.startswith(b"\n"):
            chunk = chunk[1:]
            self._after_cr = False
        if chunk:
            self._after_cr = chunk.endswith(b"\r")
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _parse_block(block: bytes) -> Event | None:
    if block.startswith(b"data: ") and b"\n" not in block:
        return Event(block[6:]) if len(block) > 6 else None
    data: list[bytes] = []
    name = b""
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        if field == b"data":
            data.append(value.removeprefix(b" "))
        elif field == b"event":
            name = value.removeprefix(b" ")
    joined = b"\n".join(data)
    return Event(joined, name) if joined else None
