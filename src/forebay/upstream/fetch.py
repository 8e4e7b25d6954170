"""Small requests to engines beside the calls: health, telemetry, probes, counts of tokens."""

import asyncio

from forebay.domain import FailureKind, Replica
from forebay.traffic import Header
from forebay.upstream.connections import Connections

MAX_PAGE_BYTES = 8 * 1024 * 1024


class _Page:
    """Collects one answer."""

    def __init__(self, done: "asyncio.Future[tuple[int, bytes]]") -> None:
        self._done = done
        self._status = 0
        self._parts: list[bytes] = []
        self._bytes = 0

    def on_head(self, status: int, _headers: list[Header]) -> None:
        self._status = status

    def takes(self, _read: bytes) -> bool:
        return False

    def on_body(self, data: bytes) -> None:
        self._bytes += len(data)
        if self._bytes <= MAX_PAGE_BYTES:
            self._parts.append(data)

    def on_end(self) -> None:
        if self._done.done():
            return
        if self._bytes > MAX_PAGE_BYTES:
            self._done.set_exception(OSError(f"the page is larger than {MAX_PAGE_BYTES} bytes"))
        else:
            self._done.set_result((self._status, b"".join(self._parts)))

    def on_lost(self, kind: FailureKind) -> None:
        if not self._done.done():
            self._done.set_exception(ConnectionError(f"no whole answer: {kind.value}"))


class Fetcher:
    """Asks engines for pages, each on a connection of its own: a poll never holds up a call."""

    def __init__(self, loop: asyncio.AbstractEventLoop, connections: Connections) -> None:
        self._loop = loop
        self._connections = connections

    async def __call__(self, replica: Replica, path: str, timeout_s: float) -> tuple[int, bytes]:
        """GET one path of an engine; return status and body.

        Args:
            replica: which engine.
            path: below its base path, with the leading slash.
            timeout_s: for connecting and the whole answer.

        Raises:
            OSError: no connection, a broken answer, or one larger than 8 MiB.
            TimeoutError: not complete in time.
        """
        return await self._ask(replica, _head("GET", replica, path), b"", timeout_s)

    async def post(self, replica: Replica, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        """POST a JSON body to one path of an engine; return status and body of the answer.

        Args:
            replica: which engine.
            path: below its base path, with the leading slash.
            body: JSON text.
            timeout_s: for connecting, sending and the whole answer.

        Raises:
            OSError: no connection, a broken answer, or one larger than 8 MiB.
            TimeoutError: not complete in time.
        """
        content = ("Content-Type: application/json", f"Content-Length: {len(body)}")
        return await self._ask(replica, _head("POST", replica, path, content), body, timeout_s)

    async def _ask(self, replica: Replica, head: bytes, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        async with asyncio.timeout(timeout_s):
            connection = await self._connections.dial(replica, timeout_s, single_use=True)
            done: asyncio.Future[tuple[int, bytes]] = self._loop.create_future()
            try:
                connection.send(head, body, _Page(done))
                return await done
            finally:
                connection.abort()


def _head(method: str, replica: Replica, path: str, content: tuple[str, ...] = ()) -> bytes:
    lines = [
        f"{method} {replica.base_path}{path} HTTP/1.1",
        f"Host: {replica.host}:{replica.port}",
        "Connection: close",
        *content,
    ]
    if replica.authorization:
        lines.append(f"Authorization: {replica.authorization}")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")
