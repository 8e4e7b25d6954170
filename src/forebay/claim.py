"""The right to a data folder: one process has it, until it lets go or ends, however it ends.

Two processes on one folder would overwrite each other's count of the month, and each would seed the next one with
half of what was spent.
"""

import asyncio
import fcntl
import logging
import os
from contextlib import suppress
from pathlib import Path

log = logging.getLogger(__name__)

_MAX_PID_BYTES = 20
# Who has handed over lets go within moments.
INHERIT_S = 10.0
_LOOK_S = 0.05


class ClaimedError(Exception):
    """Another process has the folder."""


class Claim:
    """A lock on `run/lock` in a data folder; the file stays, the lock ends with the process.

    Args:
        data_dir: the folder.
    """

    def __init__(self, data_dir: Path) -> None:
        self._data_dir = data_dir
        self._descriptor = -1

    def take(self) -> None:
        """Claim the folder; where the file system has no locks, or nothing can be written, say so and go on.

        Raises:
            ClaimedError: another process has it; the message says which, and what to do.
        """
        if self._descriptor >= 0:
            return
        path = self._data_dir / "run" / "lock"
        descriptor = -1
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            owner = os.read(descriptor, _MAX_PID_BYTES).decode("ascii", "replace").strip()
            os.close(descriptor)
            raise ClaimedError(
                f"{self._data_dir} is in use by process {owner or 'unknown'}: give this one another --data-dir, "
                "replace the running one with --take-over, or wait until it has stopped"
            ) from None
        except OSError as error:
            if descriptor >= 0:
                os.close(descriptor)
            reason = error.strerror or type(error).__name__
            log.warning("%s cannot be locked, so a second process on it would not be noticed: %s", path, reason)
            return
        self._descriptor = descriptor
        with suppress(OSError):  # a full disk: the lock holds all the same
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, b"%d\n" % os.getpid(), 0)

    async def inherit(self) -> None:
        """Claim the folder that the process that was taken over lets go; one that hangs ends nothing that serves."""
        try:
            async with asyncio.timeout(INHERIT_S):
                while True:
                    try:
                        return self.take()
                    except ClaimedError:
                        await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            log.error("the process that was taken over has not let go of %s: it may still write there", self._data_dir)

    def release(self) -> None:
        """Let another process have it; a second time changes nothing."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
