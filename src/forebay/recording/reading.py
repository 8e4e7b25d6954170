"""Reads the journal back: the `close` lines of all segments, for questions afterwards.

Nothing of the request path reads it. Segments may be written, swept and recovered by others meanwhile.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

import msgspec
from msgspec import Struct

from forebay.recording.lines import CloseLine

# Far longer than any line that is written; what has no line feed by then is not one of ours.
MAX_LINE_BYTES = 1_048_576
# A segment written to last before this much ahead of the wanted time holds nothing newer: clocks may step a little.
_STEP_S = 300.0


class _Head(Struct, gc=False):
    kind: str
    ts: float


class Reader:
    """Reads one journal, a line at a time, so that memory stays bounded whatever its size.

    A line is passed over and counted in `skipped` when it is half written, damaged, of an unknown kind, or does
    not fit `CloseLine`. A line with more fields than we know is read without them.

    Args:
        folder: `DATA_DIR/journal`; one that does not exist is an empty journal.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._head = msgspec.json.Decoder(_Head)
        self._close = msgspec.json.Decoder(CloseLine)
        self.skipped = 0
        self.segments = 0

    def closes(self, since_s: float = 0.0) -> Iterator[CloseLine]:
        """Yield the calls that ended at a time or later: segments by age, lines in the order of writing.

        Several processes write at once, and each write holds 50 ms, so the whole is not sorted by `ts`.
        `segments` and `skipped` grow while it is read.

        Args:
            since_s: seconds since the Unix epoch.

        Raises:
            OSError: a segment is there and cannot be read.
        """
        for path in sorted(self._folder.glob("*.jsonl")):
            try:
                with path.open("rb") as file:
                    if path.stat().st_mtime >= since_s - _STEP_S:
                        self.segments += 1
                        yield from self._lines_of(file, since_s)
            except FileNotFoundError:
                continue  # swept in this moment

    def _lines_of(self, file: BinaryIO, since_s: float) -> Iterator[CloseLine]:
        while text := file.readline(MAX_LINE_BYTES):
            if not text.endswith(b"\n"):
                self.skipped += 1
                _pass_line(file)
                continue
            line = self._decoded(text, since_s)
            if line is not None:
                yield line

    def _decoded(self, text: bytes, since_s: float) -> CloseLine | None:
        """Return a wanted line; None for an `open` line, an older one, and one that cannot be used."""
        try:
            head = self._head.decode(text)
            if head.kind == "close":
                return self._close.decode(text) if head.ts >= since_s else None
        except (msgspec.DecodeError, UnicodeDecodeError):
            self.skipped += 1
            return None
        self.skipped += head.kind != "open"
        return None


def closes(folder: Path, since_s: float = 0.0) -> Iterator[CloseLine]:
    """Yield the calls of a journal as `Reader.closes` does, when the lines passed over are of no interest.

    Args:
        folder: `DATA_DIR/journal`.
        since_s: seconds since the Unix epoch.

    Raises:
        OSError: a segment is there and cannot be read.
    """
    return Reader(folder).closes(since_s)


def _pass_line(file: BinaryIO) -> None:
    while (rest := file.readline(MAX_LINE_BYTES)) and not rest.endswith(b"\n"):
        pass
