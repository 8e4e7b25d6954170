"""The journal's files: one segment at a time is appended to, old ones go, a lock says that the writer lives.

A segment is called `YYYYMMDD-HHMMSS-TAG.jsonl` (UTC), where TAG is the process id. `TAG.lock` is held
locked by the living process and removed when it has closed its journal completely. So a lock file that
nobody holds means a process that died, whatever the process ids have come to mean since.
"""

import errno
import os
from datetime import UTC, datetime
from pathlib import Path

from msgspec import Struct

from forebay.clock import Clock
from forebay.recording.files import Files

_CHECK_S = 1.0
_SWEEP_S = 60.0
_MAX_TAGS = 64


class Bounds(Struct, frozen=True):
    """Everything that is bounded in the journal.

    Attributes:
        ring_lines: lines that wait for the disk in memory.
        ring_bytes: the same in bytes.
        flush_s: pause between two writes.
        segment_bytes: a segment is closed at this size, or at an eighth of what is kept.
        segment_age_s: or at this age.
        keep_bytes: size of all segments, at most half of the file system.
        keep_age_s: age at which a segment is deleted.
        free_ratio: nothing is written when less of the file system than this is free.
        recovery_bytes: how much of a dead process's segments is read, newest first, in whole segments.
    """

    ring_lines: int = 65_536
    ring_bytes: int = 67_108_864
    flush_s: float = 0.05
    segment_bytes: int = 16_777_216
    segment_age_s: float = 3600.0
    keep_bytes: int = 1_073_741_824
    keep_age_s: float = 30 * 86_400.0
    free_ratio: float = 0.05
    recovery_bytes: int = 268_435_456


class Segments:
    """The segments of one process; used by the writer thread alone. Every method may raise OSError."""

    def __init__(self, folder: Path, clock: Clock, bounds: Bounds, files: Files) -> None:
        self._folder = folder
        self._clock = clock
        self._bounds = bounds
        self._files = files
        self._keep_bytes = bounds.keep_bytes
        self._lock_fd: int | None = None
        self._fd: int | None = None
        self._path = folder
        self._size_bytes = 0
        self._opened_s = 0.0
        self._check_due_s = 0.0
        self._sweep_due_s = 0.0
        self.tag = ""
        self.inherited: list[Path] = []

    def prepare(self) -> None:
        """Make sure that appending may begin; looks at the disk once a second.

        `tag` and `inherited` are set from then on: the name of this process, and the segments of a dead
        process that had the same name.

        Raises:
            OSError: ENOSPC when too little of the disk is free; or whatever is wrong with the folder.
        """
        now_s = self._clock.now_s()
        if self._lock_fd is not None and now_s < self._check_due_s:
            return
        self._files.make_folder(self._folder)
        disk = self._files.disk(self._folder)
        self._keep_bytes = min(self._bounds.keep_bytes, disk.total_bytes // 2)
        self._check_names()
        if disk.free_bytes < disk.total_bytes * self._bounds.free_ratio:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        if self._lock_fd is None:
            self._take_tag()
        if self._fd is not None and now_s >= self._opened_s + self._bounds.segment_age_s:
            self.close_segment()
        if now_s >= self._sweep_due_s:
            self._sweep_due_s = now_s + _SWEEP_S
            self._sweep()
        self._check_due_s = now_s + _CHECK_S

    def append(self, data: bytes) -> int:
        """Append whole lines.

        Args:
            data: lines, each with its line feed.

        Returns:
            How many bytes of whole lines are in the file now, counted from the start of `data`.
        """
        fd = self._fd if self._fd is not None else self._begin()
        written = self._files.write(fd, data)
        if written < len(data):
            # A torn line must not stay in front of the lines that follow.
            written = data.rfind(b"\n", 0, written) + 1
            self._files.truncate(fd, self._size_bytes + written)
        self._size_bytes += written
        if self._size_bytes >= min(self._bounds.segment_bytes, self._keep_bytes // 8):
            self.close_segment()
            self._sweep_due_s = 0.0
        return written

    def close_segment(self) -> None:
        """Close the segment; the next line begins another one."""
        fd, self._fd = self._fd, None
        if fd is not None:
            self._files.close(fd)

    def close(self, *, complete: bool) -> None:
        """Close everything.

        Args:
            complete: every close line is written, so that the next start has nothing to recover.
        """
        self.close_segment()
        fd, self._lock_fd = self._lock_fd, None
        if fd is not None:
            try:
                if complete:
                    self._lock_path().unlink(missing_ok=True)
            finally:
                self._files.close(fd)

    def _lock_path(self) -> Path:
        return self._folder / f"{self.tag}.lock"

    def _check_names(self) -> None:
        """Notice that segment or lock have been deleted: what is written to them would be lost."""
        if self._fd is not None and not self._files.is_linked(self._fd, self._path):
            self.close_segment()
        if self._lock_fd is not None and not self._files.is_linked(self._lock_fd, self._lock_path()):
            self._files.close(self._lock_fd)
            self._lock_fd = None

    def _take_tag(self) -> None:
        """Take the first name that no living process has: the process id, unless another namespace has it too."""
        pid = os.getpid()
        for number in range(_MAX_TAGS):
            self.tag = f"{pid}_{number}" if number else str(pid)
            path = self._lock_path()
            existed = path.exists()
            fd = self._files.open(path)
            if self._files.lock(fd) and self._files.is_linked(fd, path):
                self._lock_fd = fd
                self.inherited = sorted(self._folder.glob(f"*-{self.tag}.jsonl")) if existed else []
                return
            self._files.close(fd)
        raise OSError(errno.EBUSY, f"{_MAX_TAGS} living processes with the id {pid} write here")

    def _begin(self) -> int:
        second = int(self._clock.wall_s())
        # Never an older one: a dead process with the same id may be under recovery.
        while (path := self._folder / f"{datetime.fromtimestamp(second, UTC):%Y%m%d-%H%M%S}-{self.tag}.jsonl").exists():
            second += 1
        self._path = path
        self._fd = fd = self._files.open(self._path)
        self._size_bytes = self._files.size_bytes(fd)
        self._opened_s = self._clock.now_s()
        return fd

    def _sweep(self) -> None:
        """Delete the oldest segments beyond size and age; the latest of every process stays."""
        latest: dict[str, Path] = {}
        found = sorted(self._folder.glob("*-*-*.jsonl"))
        for path in found:
            latest[path.stem.split("-", 2)[2]] = path
        now_s = self._clock.wall_s()
        kept_bytes = 0
        for path in reversed(found):
            try:
                stats = path.stat()
                kept_bytes += stats.st_size
                old = now_s - stats.st_mtime > self._bounds.keep_age_s
                if (old or kept_bytes > self._keep_bytes) and latest[path.stem.split("-", 2)[2]] != path:
                    path.unlink()
            except FileNotFoundError:
                continue  # another process sweeps the same folder
