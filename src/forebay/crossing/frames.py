"""Frames on a stream of bytes: four bytes of length, then a message. Pure."""

from collections.abc import Iterator
from typing import Final

MAX_FRAME_BYTES: Final = 16_777_216
"""Longer than any message; a stream that announces more is none of ours."""
_HEAD_BYTES: Final = 4


class FrameError(ValueError):
    """The bytes are no frames."""


def framed(payload: bytes) -> bytes:
    """Return a message as a frame.

    Raises:
        FrameError: it is too long for one.
    """
    if len(payload) > MAX_FRAME_BYTES:
        raise FrameError(f"a message of {len(payload)} bytes is too long")
    return len(payload).to_bytes(_HEAD_BYTES, "big") + payload


class Frames:
    """Cuts what arrives into messages, wherever the reads end; holds at most one unfinished frame and one read."""

    __slots__ = ("_rest",)

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take a read and yield every message that it completes.

        Raises:
            FrameError: a frame is longer than `MAX_FRAME_BYTES`; the stream cannot be read on.
        """
        data = self._rest + data if self._rest else data
        place, end = 0, len(data)
        while end - place >= _HEAD_BYTES:
            size = int.from_bytes(data[place : place + _HEAD_BYTES], "big")
            if size > MAX_FRAME_BYTES:
                raise FrameError(f"a frame of {size} bytes is announced, at most {MAX_FRAME_BYTES} are allowed")
            begin = place + _HEAD_BYTES
            if end - begin < size:
                break
            place = begin + size
            yield data[begin:place]
        self._rest = data[place:]
