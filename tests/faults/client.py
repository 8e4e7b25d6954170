"""A client on asyncio that checks framing, and times each part of an answer."""

import asyncio
import time
from typing import NamedTuple, Self

from cases.rawhttp import Address, Response


class Timed(NamedTuple):
    """An answer and its times.

    Attributes:
        longest_gap_s: the longest wait for a part of it, the first one included.
    """

    response: Response
    began_s: float
    longest_gap_s: float


class Link:
    """One keep-alive connection to the gateway.

    Attributes:
        pieces: chunks of streamed answers that have come.
    """

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self.pieces = 0

    @classmethod
    async def open(cls, address: Address) -> Self:
        """Connect."""
        return cls(*await asyncio.open_connection(*address, limit=4_194_304))

    def close(self) -> None:
        """Leave politely (FIN)."""
        self.writer.close()

    def reset(self) -> None:
        """Leave at once; a reset if something is unread."""
        self.writer.transport.abort()

    async def ask(self, request: bytes) -> Timed:
        """Send one request and read the whole answer.

        Raises:
            ConnectionError: the connection ended before the head was complete.
        """
        began_s = time.monotonic()
        self.writer.write(request)
        try:
            head = await self.reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            raise ConnectionError(f"no answer, only {error.partial!r}") from None
        gaps_s = [time.monotonic() - began_s]
        first, *lines = head[:-4].decode("latin-1").split("\r\n")
        fields = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if "content-length" in fields:
            body, clean = await self._exactly(int(fields["content-length"]))
        else:
            body, clean = await self._chunked(gaps_s)
        took_s = time.monotonic() - began_s
        response = Response(int(first.split(" ")[1]), list(fields.items()), body, clean, took_s)
        return Timed(response, began_s, max(gaps_s))

    async def _exactly(self, count: int) -> tuple[bytes, bool]:
        try:
            return await self.reader.readexactly(count), True
        except (asyncio.IncompleteReadError, ConnectionError) as error:
            return getattr(error, "partial", b""), False

    async def _chunked(self, gaps_s: list[float]) -> tuple[bytes, bool]:
        body = bytearray()
        last_s = time.monotonic()
        while True:
            try:
                size = int(await self.reader.readuntil(b"\r\n"), 16)
            except (asyncio.IncompleteReadError, ConnectionError):
                return bytes(body), False
            data, whole = await self._exactly(size + 2)
            self.pieces += data.startswith(b"data: ")
            now_s = time.monotonic()
            gaps_s.append(now_s - last_s)
            last_s = now_s
            body += data[:size]
            if not whole or size == 0:
                return bytes(body), whole
