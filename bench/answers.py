"""Streams heard to the last byte: what the client has, how long it waited between two texts, how it ended."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Any, NamedTuple

from bench.peers import HOST, KEY

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
GIVE_UP_S = 120.0


class Wanted(NamedTuple):
    """One stream to ask for.

    Attributes:
        request_id: of the caller's choice.
        shape: of the endpoint, a key of `PATHS`.
        body: of the request.
    """

    request_id: str
    shape: str
    body: dict[str, Any]


class Heard:
    """One answer.

    Attributes:
        text: all of it.
        said: texts of the events, in order.
        heads: id and model of its events; llama.cpp tells the time of each event, too.
        finishes: finish reasons.
        usages: what it says of tokens.
        dones: sentinels.
        error: code of the typed error, or what went wrong on the way; empty without one.
        first_s: wait for the first text; 0 without one.
        gap_s: longest wait between two texts.
        raw: all bytes of all events.
    """

    def __init__(self) -> None:
        self.said: list[str] = []
        self.heads: set[str] = set()
        self.finishes: list[str] = []
        self.usages: list[dict[str, int]] = []
        self.dones = 0
        self.error = ""
        self.gap_s = 0.0
        self.raw = b""
        self.first_s = 0.0
        self._began_s = time.monotonic()
        self._last_s = 0.0

    @property
    def text(self) -> str:
        """Return the text so far."""
        return "".join(self.said)

    @property
    def whole(self) -> bool:
        """Say whether it ended as one answer does."""
        return not self.error and (self.dones, len(self.finishes), len(self.heads)) == (1, 1, 1)

    def take(self, event: bytes) -> None:
        """Take one event."""
        self.raw += event
        if not event.startswith(b"data: "):
            return
        if event == b"data: [DONE]":
            self.dones += 1
            return
        chunk = json.loads(event[6:])
        if "error" in chunk:
            self.error = str(chunk["error"].get("code"))
            return
        self.heads.add(f"{chunk['id']} {chunk['model']}")
        if chunk.get("usage"):
            self.usages.append(chunk["usage"])
        for choice in chunk["choices"]:
            self._choice(choice)

    def _choice(self, choice: dict[str, Any]) -> None:
        text = choice.get("text") or choice.get("delta", {}).get("content")
        if text:
            now_s = time.monotonic()
            if self._last_s:
                self.gap_s = max(self.gap_s, now_s - self._last_s)
            else:
                self.first_s = now_s - self._began_s
            self._last_s = now_s
            self.said.append(text)
        if choice.get("finish_reason"):
            self.finishes.append(choice["finish_reason"])


async def hear(port: int, wanted: Wanted) -> Heard:
    """Ask for one stream and listen to its end."""
    heard = Heard()
    writer = None
    try:
        async with asyncio.timeout(GIVE_UP_S):
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(_request(wanted))
            await listen(reader, heard)
    except (OSError, EOFError, TimeoutError, ValueError, KeyError) as error:
        heard.error = heard.error or f"{type(error).__name__}: {error}"
    finally:
        if writer is not None:
            writer.close()
            with suppress(OSError):
                await writer.wait_closed()
    return heard


async def listen(reader: asyncio.StreamReader, heard: Heard) -> None:
    """Take an answer, head and all, to its end.

    Raises:
        EOFError: it breaks off.
        ValueError, KeyError: it is none of an engine.
    """
    head = await reader.readuntil(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        heard.error = head.partition(b"\r\n")[0].decode()
        return
    async for event in _events(reader):
        heard.take(event)


def _request(wanted: Wanted) -> bytes:
    body = json.dumps(wanted.body).encode()
    lines = (
        f"POST {PATHS[wanted.shape]} HTTP/1.1",
        f"Host: {HOST}",
        f"Authorization: Bearer {KEY}",
        f"X-Request-Id: {wanted.request_id}",
        "Content-Type: application/json",
        f"Content-Length: {len(body)}",
        "Connection: close",
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    rest = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        rest += (await reader.readexactly(size + 2))[:-2]
        *whole, rest = rest.split(b"\n\n")
        for event in whole:
            yield event
