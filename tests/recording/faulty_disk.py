"""A disk that refuses on command, below the journal."""

import errno
import os
import threading
from pathlib import Path

from forebay.recording.files import Disk, Files


class FaultyDisk(Files):
    """Real files, but each call may be made to fail.

    Attributes:
        broken: errno that `write` and `open` raise, or None.
        room_bytes: what may still be written before ENOSPC; None is endless.
        free_ratio: of the file system that is shown as free.
        hanging: while cleared, `write` does not return.
    """

    def __init__(self) -> None:
        self.broken: int | None = None
        self.broken_at_truncate: int | None = None
        self.room_bytes: int | None = None
        self.free_ratio = 0.5
        self.total_bytes = 10**12
        self.hanging = threading.Event()
        self.hanging.set()

    def _check(self) -> None:
        if self.broken is not None:
            raise OSError(self.broken, os.strerror(self.broken))

    def make_folder(self, folder: Path) -> None:
        self._check()
        super().make_folder(folder)

    def open(self, path: Path) -> int:
        self._check()
        return super().open(path)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self.hanging.wait()
        self._check()
        if self.room_bytes is None:
            return super().write(fd, data)
        if not self.room_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written = super().write(fd, data[: self.room_bytes])
        self.room_bytes -= written
        return written

    def truncate(self, fd: int, size_bytes: int) -> None:
        if self.broken_at_truncate is not None:
            raise OSError(self.broken_at_truncate, os.strerror(self.broken_at_truncate))
        super().truncate(fd, size_bytes)

    def disk(self, folder: Path) -> Disk:
        return Disk(self.total_bytes, int(self.total_bytes * self.free_ratio))


def lines_in(folder: Path) -> list[bytes]:
    """Every line of every segment, by name of the segment."""
    return [line for path in sorted(folder.glob("*.jsonl")) for line in path.read_bytes().splitlines(keepends=True)]
