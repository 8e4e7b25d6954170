"""The few things that the journal asks of the operating system, in one place, so that tests can refuse them."""

import fcntl
import os
from pathlib import Path
from typing import NamedTuple


class Disk(NamedTuple):
    """A file system: its size, and what an ordinary user may still write."""

    total_bytes: int
    free_bytes: int


class Files:
    """Files of the journal's folder; every method raises OSError when the system says no."""

    def make_folder(self, folder: Path) -> None:
        """Make the folder if it is missing, for this user alone: records name tenants and addresses."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)

    def open(self, path: Path) -> int:
        """Open a file for reading and appending, making it if it is missing; return the descriptor."""
        return os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)

    def write(self, fd: int, data: bytes | memoryview) -> int:
        """Append; return how many bytes were taken, which may be fewer than given."""
        return os.write(fd, data)

    def read(self, fd: int, size_bytes: int, offset_bytes: int) -> bytes:
        """Read from a place; empty at the end."""
        return os.pread(fd, size_bytes, offset_bytes)

    def truncate(self, fd: int, size_bytes: int) -> None:
        """Cut a file back to this size."""
        os.ftruncate(fd, size_bytes)

    def size_bytes(self, fd: int) -> int:
        """Return the size of an open file."""
        return os.fstat(fd).st_size

    def is_linked(self, fd: int, path: Path) -> bool:
        """Say whether an open file is still the one under its name."""
        try:
            return os.path.samestat(os.fstat(fd), path.stat())
        except FileNotFoundError:
            return False

    def close(self, fd: int) -> None:
        """Close a descriptor."""
        os.close(fd)

    def lock(self, fd: int) -> bool:
        """Take the lock of an open file, which ends with the process; False if another holds it."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def disk(self, folder: Path) -> Disk:
        """Return size and free space of the file system under a folder."""
        stats = os.statvfs(folder)
        return Disk(stats.f_blocks * stats.f_frsize, stats.f_bavail * stats.f_frsize)
