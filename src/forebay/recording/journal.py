"""The journal: lines go into a bounded ring on the request path, and from there to disk in a thread.

`write(2)` without fsync survives the death of the process, not of the machine. A line is on its way to
disk at most `flush_s` after it was written here; while the disk is slow, full or gone, lines wait in the
ring, and beyond its bound the ring sheds: new `open` lines first, then old ones, old `close` lines last.
"""

import errno
import os
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path

from forebay.clock import Clock
from forebay.recording.files import Files
from forebay.recording.recovery import Recovery
from forebay.recording.segments import Bounds, Segments

RETRY_S = 1.0
CLOSE_TIMEOUT_S = 2.0
# A write that has not returned for this long is shown as a failure: the disk hangs.
_STUCK_S = 1.0
_BATCH_BYTES = 1_048_576
_RECOVERY_PAUSE_S = 0.002
_FULL = frozenset((errno.ENOSPC, errno.EDQUOT))

Counts = Iterator[tuple[tuple[str, ...], float]]


class _Batch:
    """Lines on their way to disk: taken from the ring, not all written yet."""

    __slots__ = ("data", "is_open")

    def __init__(self) -> None:
        self.data = b""
        self.is_open = False


class Journal:
    """Writes the lines of one process; `write` belongs to one thread, usually the loop's.

    Args:
        folder: made when it is missing.
        clock: for ages, retries and names.
        bounds: of memory and disk.
        files: the operating system.

    Attributes:
        written: lines on disk, by kind.
        dropped: lines lost, by kind.
        recovered: calls of dead processes that were closed as lost.
    """

    def __init__(self, folder: Path, clock: Clock, bounds: Bounds | None = None, files: Files | None = None) -> None:
        self._folder = folder
        self._clock = clock
        self._bounds = bounds or Bounds()
        self._files = files or Files()
        self._segments = Segments(folder, clock, self._bounds, self._files)
        self._opens: deque[bytes] = deque()
        self._closes: deque[bytes] = deque()
        # Each of the two is changed by one thread only, so that neither needs a lock.
        self._in_bytes = 0
        self._out_bytes = 0
        self._batch = _Batch()
        self._trouble = ""
        self._busy_since_s: float | None = None
        self._retry_due_s = 0.0
        self._recovery: Recovery | None = None
        self._steps: Iterator[None] | None = None
        self._recovery_done = False
        self._stopping = threading.Event()
        self._writer: threading.Thread | None = None
        self.written = {"open": 0, "close": 0}
        self.dropped = {"open": 0, "close": 0}

    @property
    def state(self) -> str:
        """`ok`, `full` (of the disk) or `failing: reason`."""
        if self._writer is not None and not self._writer.is_alive() and not self._stopping.is_set():
            return "failing: the writer thread has ended"
        since_s = self._busy_since_s
        if since_s is not None and self._clock.now_s() - since_s > _STUCK_S:
            return "failing: the disk does not answer"
        return self._trouble or "ok"

    @property
    def recovered(self) -> int:
        """Calls of dead processes that were closed as lost."""
        return self._recovery.closed if self._recovery is not None else 0

    def write(self, line: bytes, is_open: bool = False) -> None:
        """Hand over a line; never blocks, never raises.

        Args:
            line: JSON, without a line feed.
            is_open: an `open` line, which is given up before any `close` line.
        """
        bounds = self._bounds
        if (
            len(self._closes) + len(self._opens) >= bounds.ring_lines
            or self._in_bytes - self._out_bytes + len(line) > bounds.ring_bytes
        ) and not self._make_room(len(line), is_open):
            return
        self._in_bytes += len(line)
        if is_open:
            self._opens.append(line)
        else:
            self._closes.append(line)

    def start(self) -> None:
        """Begin to write in a thread, and to close what dead processes left open."""
        self._writer = threading.Thread(target=self._run, name="journal", daemon=True)
        self._writer.start()

    def close(self, timeout_s: float = CLOSE_TIMEOUT_S) -> None:
        """Write what is left, for at most so long, and stop.

        Args:
            timeout_s: a disk that hangs longer keeps the thread, which dies with the process.
        """
        self._stopping.set()
        if self._writer is not None:
            self._writer.join(timeout_s)

    def step(self) -> None:
        """Write what has come; the thread calls this over and over, tests without one."""
        now_s = self._clock.now_s()
        if now_s < self._retry_due_s:
            return
        self._busy_since_s = now_s
        try:
            self._segments.prepare()
            self._drain()
            self._recover()
        except OSError as error:
            self._give_up(error, now_s)
        else:
            self._trouble = ""
        finally:
            self._busy_since_s = None

    def lines_written(self) -> Counts:
        """Yield the lines on disk by kind, for the metric."""
        for kind, count in self.written.items():
            yield (kind,), count

    def lines_dropped(self) -> Counts:
        """Yield the lines lost by kind, for the metric."""
        for kind, count in self.dropped.items():
            yield (kind,), count

    def _make_room(self, line_bytes: int, is_open: bool) -> bool:
        """Shed until a line fits; False when it must be dropped itself."""
        for queue, kind in ((self._opens, "open"), (self._closes, "close")):
            while not is_open and queue:
                try:
                    shed = queue.popleft()
                except IndexError:
                    break  # the writer took it
                self._in_bytes -= len(shed)
                self.dropped[kind] += 1
                if (
                    len(self._closes) + len(self._opens) < self._bounds.ring_lines
                    and self._in_bytes - self._out_bytes + line_bytes <= self._bounds.ring_bytes
                ):
                    return True
        self.dropped["open" if is_open else "close"] += 1
        return False

    def _run(self) -> None:
        while not self._stopping.wait(self._bounds.flush_s if self._steps is None else _RECOVERY_PAUSE_S):
            self.step()
        self._retry_due_s = 0.0
        self.step()
        pending = self._batch.data or self._opens or self._closes or self.dropped["close"]
        complete = not pending and self._recovery_done
        try:
            self._segments.close(complete=complete)
        except OSError as error:
            self._give_up(error, self._clock.now_s())

    def _drain(self) -> None:
        # The closes are counted first: whatever they close was opened before, and is written before.
        closes = len(self._closes)
        self._write_batch()
        self._write_all(self._opens, len(self._opens), is_open=True)
        self._write_all(self._closes, closes, is_open=False)

    def _write_all(self, queue: deque[bytes], count: int, *, is_open: bool) -> None:
        while count > 0:
            lines: list[bytes] = []
            size_bytes = 0
            while count > 0 and size_bytes < _BATCH_BYTES:
                count -= 1
                try:
                    line = queue.popleft()
                except IndexError:
                    count = 0  # the ring shed it
                    break
                lines.append(line)
                size_bytes += len(line)
            self._out_bytes += size_bytes
            lines.append(b"")
            self._batch.data = b"\n".join(lines)
            self._batch.is_open = is_open
            self._write_batch()

    def _write_batch(self) -> None:
        """Write the batch to its end; what an error leaves of it is kept for the next time."""
        batch = self._batch
        while batch.data:
            self._busy_since_s = self._clock.now_s()
            written = self._segments.append(batch.data)
            if not written:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            self.written["open" if batch.is_open else "close"] += batch.data.count(b"\n", 0, written)
            batch.data = batch.data[written:]

    def _recover(self) -> None:
        """Do a step of closing what dead processes left open; begins with the first good moment of the disk."""
        if self._recovery is None:
            self._recovery = Recovery(self._folder, self._files, self._bounds.recovery_bytes, self._clock.wall_s())
            self._steps = self._recovery.steps(self._segments.tag, self._segments.inherited)
        if self._steps is not None:
            try:
                next(self._steps)
            except StopIteration:
                self._steps = None
                self._recovery_done = True
            except OSError:
                self._steps = None
                raise

    def _give_up(self, error: OSError, now_s: float) -> None:
        """Show what is wrong and leave the disk alone for a second."""
        reason = os.strerror(error.errno) if error.errno else type(error).__name__
        self._trouble = "full" if error.errno in _FULL else f"failing: {reason}"
        self._retry_due_s = now_s + RETRY_S
        try:
            self._segments.close_segment()
        except OSError:
            self._trouble += ", and the segment cannot be closed"
