"""What a simulated engine saw: the last requests, whole, in memory only.

It holds prompts and credentials, because tests must see what an engine would have received. So the engine
belongs on the loopback, and its log is never written anywhere.
"""

from collections import deque
from typing import Any

import msgspec
from msgspec import Struct

MAX_ENTRIES = 10_000
MAX_BODY_BYTES = 64 * 1024 * 1024


class Seen(Struct, kw_only=True):
    """One request.

    Attributes:
        number: of all requests, from 1.
        attempt: of those that want the engine to work, from 1; 0 for any other.
        arrived_s: seconds since the server started, at the last byte of the request.
        headers: names and values as they came, in order.
        body: None when the log had no room to keep it.
        connection: of all connections, from 1.
        nth: request on its connection, from 1.
        fault: name of the action that was done to it; empty for requests that take none.
        status: HTTP status of the answer, 0 while there is none.
        tokens: generated tokens sent, as far as the fault let them.
        ended_s: when the answer was complete or the engine cut it.
        disconnected_s: when the caller was seen to leave before that.
    """

    number: int
    arrived_s: float
    method: str
    path: str
    headers: list[tuple[str, str]]
    body_bytes: int
    body: bytes | None
    connection: int
    nth: int
    attempt: int = 0
    fault: str = ""
    status: int = 0
    tokens: int = 0
    ended_s: float | None = None
    disconnected_s: float | None = None


class RequestLog:
    """The last `MAX_ENTRIES` requests; the oldest bodies go first when all together exceed `MAX_BODY_BYTES`."""

    def __init__(self) -> None:
        self._entries: deque[Seen] = deque()
        self._kept: deque[Seen] = deque()
        self._kept_bytes = 0
        self.requests = 0
        self.attempts = 0

    def add(self, seen: Seen) -> None:
        """Keep a request."""
        self.requests = seen.number
        self._entries.append(seen)
        if len(self._entries) > MAX_ENTRIES:
            self._entries.popleft()
        self._kept.append(seen)
        self._kept_bytes += seen.body_bytes
        while self._kept_bytes > MAX_BODY_BYTES or len(self._kept) > MAX_ENTRIES:
            oldest = self._kept.popleft()
            self._kept_bytes -= oldest.body_bytes
            oldest.body = None

    def count_attempt(self, seen: Seen) -> None:
        """Number a request that wants the engine to work."""
        self.attempts += 1
        seen.attempt = self.attempts

    def entries(self, after: int = 0) -> list[Seen]:
        """Return the kept requests with a number above `after`, oldest first."""
        return [seen for seen in self._entries if seen.number > after]

    def clear(self) -> None:
        """Forget all requests and count from 1 again."""
        self._entries.clear()
        self._kept.clear()
        self._kept_bytes = self.requests = self.attempts = 0

    def render(self, after: int = 0) -> bytes:
        """Return the log as JSON: counts, and one object for each request."""
        shown = [_shown(seen) for seen in self.entries(after)]
        return msgspec.json.encode({"requests": shown, "seen": self.requests, "attempts": self.attempts})


def _shown(seen: Seen) -> dict[str, Any]:
    fields = msgspec.structs.asdict(seen)
    body = fields.pop("body")
    try:
        fields["json"] = msgspec.json.decode(body) if body else None
    except (msgspec.DecodeError, UnicodeDecodeError):
        fields["json"] = None
    return fields
