"""What the data plane says about itself, asked over its Unix socket, bounded in time and size."""

import asyncio
from pathlib import Path
from typing import Any

import httptools
import msgspec
from msgspec import Struct

from forebay.clock import Clock

TIMEOUT_S = 1.0
MAX_BYTES = 4 * 1024 * 1024
FRESH_S = 0.5  # a younger answer is not asked for again
READ_BYTES = 65_536

Status = dict[str, Any]


class DataPlaneView(Struct, frozen=True):
    """The last good status and how old it is.

    Attributes:
        reachable: the data plane has answered just now.
        age_s: seconds since `status` was read; None when it never was.
        fault: why it is not reachable, or None.
    """

    reachable: bool
    age_s: float | None
    status: Status | None
    fault: str | None

    def replicas(self) -> frozenset[str] | None:
        """Return what replicas may be called, by name and by `host:port`; None when the status does not name all."""
        status = self.status or {}
        listed = status.get("replicas")
        if not isinstance(listed, list) or status.get("replicas_left_out"):
            return None
        names = [str(entry["replica"]) for entry in listed if isinstance(entry, dict) and "replica" in entry]
        return frozenset([*names, *(name.partition("/")[0] for name in names)])

    def models(self) -> frozenset[str] | None:
        """Return the names of the models; None when the status does not name all."""
        status = self.status or {}
        listed = status.get("models")
        return frozenset(listed) if isinstance(listed, dict) and not status.get("models_left_out") else None

    def pools(self) -> frozenset[str] | None:
        """Return the names of the pools; None when the status does not name all."""
        listed = (self.status or {}).get("ladder")
        levels = listed.get("pools") if isinstance(listed, dict) else None
        return frozenset(str(row["pool"]) for row in levels) if isinstance(levels, list) else None

    def held(self, document: str) -> tuple[int, int]:
        """Return (epoch, seq) of a document as the data plane holds it; (0, 0) when the status does not say."""
        documents = (self.status or {}).get("documents")
        entry = documents.get(document) if isinstance(documents, dict) else None
        epoch, seq = (entry.get("epoch"), entry.get("seq")) if isinstance(entry, dict) else (None, None)
        return (epoch, seq) if isinstance(epoch, int) and isinstance(seq, int) else (0, 0)


class DataPlane:
    """The client of the data plane's socket.

    Args:
        socket: path of the Unix socket.
        clock: for ages.
    """

    def __init__(self, socket: Path, clock: Clock) -> None:
        self._socket = socket
        self._clock = clock
        self._status: Status | None = None
        self._read_s = 0.0
        self._fault: str | None = "not asked yet"
        self._tried_s: float | None = None
        self._one = asyncio.Lock()

    async def view(self) -> DataPlaneView:
        """Ask the data plane, unless it has just been asked; never fails and never takes longer than `TIMEOUT_S`."""
        async with self._one:
            if self._tried_s is None or self._clock.now_s() - self._tried_s >= FRESH_S:
                await self._refresh()
        age_s = None if self._status is None else round(self._clock.now_s() - self._read_s, 3)
        return DataPlaneView(self._fault is None, age_s, self._status, self._fault)

    async def _refresh(self) -> None:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                body = await _get(self._socket, "/internal/status")
            self._status = msgspec.json.decode(body, type=Status)
            self._read_s = self._clock.now_s()
            self._fault = None
        except TimeoutError:
            self._fault = f"no answer within {TIMEOUT_S:g} s"
        except OSError as error:
            self._fault = f"no connection: {error.strerror or type(error).__name__}"
        except (_BadAnswerError, httptools.HttpParserError, msgspec.DecodeError, UnicodeDecodeError) as error:
            self._fault = f"bad answer: {str(error) or type(error).__name__}"
        self._tried_s = self._clock.now_s()


class _BadAnswerError(Exception):
    """The data plane has answered something that is not its status."""


class _Collector:
    """Callbacks of the parser: the body, whole and bounded."""

    def __init__(self) -> None:
        self.body = bytearray()
        self.complete = False

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        self.complete = True


async def _get(socket: Path, path: str) -> bytes:
    reader, writer = await asyncio.open_unix_connection(str(socket))
    try:
        writer.write(f"GET {path} HTTP/1.1\r\nHost: dataplane\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        return await _read_answer(reader)
    finally:
        writer.close()


async def _read_answer(reader: asyncio.StreamReader) -> bytes:
    collector = _Collector()
    parser = httptools.HttpResponseParser(collector)
    total = 0
    while not collector.complete:
        data = await reader.read(READ_BYTES)
        total += len(data)
        if not data:
            raise _BadAnswerError("it ends too early")
        if total > MAX_BYTES:
            raise _BadAnswerError(f"more than {MAX_BYTES} bytes")
        parser.feed_data(data)
    if parser.get_status_code() != 200:
        raise _BadAnswerError(f"HTTP status {parser.get_status_code()}")
    return bytes(collector.body)
