"""One connection between a worker and the gate: messages in, messages out, many in one write."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, cast

import msgspec
from msgspec import Struct

from forebay.crossing.frames import FrameError, Frames, framed
from forebay.crossing.messages import encode

log = logging.getLogger(__name__)

LATER_S: Final = 0.001
MAX_BUFFERED_BYTES: Final = 67_108_864
"""Unsent messages; the other side that takes none of so many hangs, and the connection is cut."""


class Link(asyncio.Protocol):
    """Sends and takes messages; no task, no coroutine per message.

    Args:
        loop: the running loop.
        on_message: called with each message, undecoded, in order.
        on_open: called when the connection stands.
        on_lost: called once when it has ended, however.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        on_message: Callable[[bytes], None],
        on_open: Callable[["Link"], None],
        on_lost: Callable[["Link"], None],
    ) -> None:
        self._loop = loop
        self._on_message = on_message
        self._on_open = on_open
        self._on_lost = on_lost
        self._frames = Frames()
        self._out: list[bytes] = []
        self._soon = False
        self._transport: asyncio.Transport | None = None

    def send_later(self, message: Struct) -> None:
        """Send a message that nobody waits for, within a millisecond: in one write with what comes meanwhile."""
        if not self._out:
            self._loop.call_later(LATER_S, self._flush)
        self._out.append(framed(encode(message)))

    def send(self, message: Struct) -> None:
        """Send a message, in one write with the others of this turn of the loop; not when the connection is gone."""
        if not self._soon:
            self._soon = True
            self._loop.call_soon(self._flush)
        self._out.append(framed(encode(message)))

    def close(self) -> None:
        """Send what is left, and end the connection."""
        self._flush()
        if self._transport is not None:
            self._transport.close()

    def cut(self) -> None:
        """End the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._on_open(self)

    def data_received(self, data: bytes) -> None:
        """Hand over what is complete; who speaks otherwise is cut off."""
        try:
            for message in self._frames.feed(data):
                self._on_message(message)
        except (FrameError, msgspec.DecodeError) as error:
            log.error("a message between gate and worker cannot be read: %s", error)
            self.cut()

    def connection_lost(self, _error: Exception | None) -> None:
        """Tell that it has ended."""
        self._transport = None
        self._on_lost(self)

    def _flush(self) -> None:
        out, self._out = self._out, []
        self._soon = False
        transport = self._transport
        if not out or transport is None or transport.is_closing():
            return
        transport.write(b"".join(out))
        if transport.get_write_buffer_size() > MAX_BUFFERED_BYTES:
            log.error("the other side takes no messages; the connection is cut")
            transport.abort()
