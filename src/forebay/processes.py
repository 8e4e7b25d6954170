"""Child processes of the data plane: started, watched, restarted with back-off, stopped.

The data plane never waits for a child. A child learns that its parent is gone from the end of its
standard input; it leads its own process group, so that a Ctrl-C in a terminal reaches the parent
alone and so that nothing of the group outlives it.
"""

import asyncio
import os
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from typing import cast

from msgspec import Struct

from forebay.clock import Clock, timestamp

LINE_BYTES = 2_000  # of one printed line; the rest of it is cut
LINES_PER_S = 100  # relayed; more are dropped and counted, so that a chatty child cannot hold the loop
RESTART_LOG = 32  # last restarts that are remembered
DRAIN_S = 0.5  # how long the last words of a dead child are waited for
KILL_S = 5.0  # how long a killed child is waited for


class Backoff(Struct, frozen=True):
    """How long to wait before a child is started again, in seconds.

    Attributes:
        first_s: after the first exit, and after an exit that followed a healthy run.
        limit_s: the longest wait.
        healthy_s: a run of at least this length was healthy.
    """

    first_s: float = 0.5
    limit_s: float = 30.0
    healthy_s: float = 30.0

    def delay_s(self, previous_s: float | None, ran_s: float) -> float:
        """Decide the wait before the next start.

        Args:
            previous_s: seconds waited before the run that has just ended; None when it was the first.
            ran_s: seconds that it ran; 0 when it could not be started.
        """
        if previous_s is None or ran_s >= self.healthy_s:
            return self.first_s
        return min(previous_s * 2, self.limit_s)


DEFAULT_BACKOFF = Backoff()


class ChildState(StrEnum):
    """Where a child is in its life; the closed list behind `children[].state`."""

    STARTING = "starting"
    RUNNING = "running"
    BACKOFF = "backoff"
    STOPPED = "stopped"


class Restart(Struct, frozen=True):
    """One entry of the restart log.

    Attributes:
        at: when the run ended, RFC 3339.
        exit: how it ended, as in `ChildReport.last_exit`.
        ran_s: seconds that it ran.
        delay_s: seconds waited before the next start.
    """

    at: str
    exit: str
    ran_s: float
    delay_s: float


class ChildReport(Struct, frozen=True):
    """A child as `/internal/status` shows it.

    Attributes:
        pid: of the running process; None when there is none.
        restarts: starts after the first, since `start`.
        last_exit: `exit 3`, `signal SIGKILL` or `cannot start: REASON`; None before the first end.
        log: the last restarts, oldest first.
    """

    name: str
    state: ChildState
    pid: int | None
    restarts: int
    last_exit: str | None
    log: tuple[Restart, ...]


class LineRelay:
    """Cuts what a child prints into clean lines of bounded length and number.

    Args:
        emit: gets each line, at most `LINE_BYTES` and a mark long, without control characters.
        clock: for the bound of `LINES_PER_S`.
    """

    def __init__(self, emit: Callable[[str], None], clock: Clock) -> None:
        self._emit = emit
        self._clock = clock
        self._line = bytearray()
        self._cut = False
        self._window_s = clock.now_s()
        self._sent = 0
        self._dropped = 0

    def feed(self, data: bytes) -> None:
        """Take the next bytes and relay every line that they end."""
        *ends, rest = data.split(b"\n")
        for piece in ends:
            self._append(piece)
            self._flush()
        self._append(rest)

    def close(self) -> None:
        """Relay the last line, when it has no end, and the count of lines dropped."""
        self._flush()
        self._tell_dropped()

    def _append(self, piece: bytes) -> None:
        room = LINE_BYTES - len(self._line)
        self._line += piece[:room]
        self._cut = self._cut or len(piece) > room

    def _flush(self) -> None:
        line, cut = _printable(self._line), self._cut
        self._line.clear()
        self._cut = False
        if not line:
            return
        now_s = self._clock.now_s()
        if now_s - self._window_s >= 1.0:
            self._tell_dropped()
            self._window_s, self._sent = now_s, 0
        if self._sent >= LINES_PER_S:
            self._dropped += 1
            return
        self._sent += 1
        self._emit(f"{line} [cut]" if cut else line)

    def _tell_dropped(self) -> None:
        if self._dropped:
            self._emit(f"[{self._dropped} lines dropped]")
            self._dropped = 0


class Child:
    """One supervised child process.

    Args:
        name: for reports.
        command: program and arguments; no shell.
        clock: for the length of runs.
        env: the child's whole environment; None means the parent's.
        nice: priority that the child gets right after its start, 0 to 19.
        on_line: gets every line that the child prints on either output; called in the loop's thread, must not
            raise and must not block.
        backoff: when it is started again.
        pass_fds: descriptors that it gets, under the same numbers.
    """

    def __init__(  # noqa: PLR0913 - four of them are options with a safe default
        self,
        name: str,
        command: Sequence[str],
        clock: Clock,
        env: Mapping[str, str] | None = None,
        *,
        nice: int = 0,
        on_line: Callable[[str], None] = lambda line: None,
        backoff: Backoff = DEFAULT_BACKOFF,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.name = name
        self._command = tuple(command)
        self._clock = clock
        self._env = None if env is None else dict(env)
        self._nice = nice
        self._on_line = on_line
        self._backoff = backoff
        self._pass_fds = tuple(pass_fds)
        self._input: asyncio.WriteTransport | None = None
        self._state = ChildState.STOPPED
        self._pid: int | None = None
        self._restarts = 0
        self._last_exit: str | None = None
        self._log: deque[Restart] = deque(maxlen=RESTART_LOG)
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to supervise and return at once: a command that cannot start is retried like one that exits.

        Raises:
            RuntimeError: it has been started and not stopped.
        """
        if self._task is not None:
            raise RuntimeError(f"child {self.name} is already supervised")
        self._stopping.clear()
        self._restarts = 0
        self._state = ChildState.STARTING
        self._task = asyncio.get_running_loop().create_task(self._supervise(), name=f"child {self.name}")

    def launch_with(self, command: Sequence[str], pass_fds: Sequence[int]) -> None:
        """Change the command and the descriptors for the next start."""
        self._command = tuple(command)
        self._pass_fds = tuple(pass_fds)

    def tell(self, line: bytes) -> None:
        """Write to the child's standard input; not when it is away, or has not read what it was told."""
        pipe = self._input
        if pipe is not None and not pipe.is_closing() and not pipe.get_write_buffer_size():
            pipe.write(line)

    def kill(self) -> None:
        """Kill the child and its group as it runs now; it is started again."""
        self._signal(signal.SIGKILL)

    async def stop(self, grace_s: float, number: signal.Signals = signal.SIGTERM) -> None:
        """Ask the child to end, kill its group when it does not, and end the supervision.

        Args:
            grace_s: seconds between the signal and SIGKILL.
            number: the signal that asks.
        """
        task = self._task
        if task is None:
            return
        self._stopping.set()
        try:
            self._signal(number)
            await asyncio.wait({task}, timeout=grace_s)
            if not task.done():
                self._signal(signal.SIGKILL)
                await asyncio.wait({task}, timeout=KILL_S)
        finally:
            task.cancel()
            self._task = None
        with suppress(asyncio.CancelledError):
            await task

    def report(self) -> ChildReport:
        """Describe the child as it is now."""
        return ChildReport(self.name, self._state, self._pid, self._restarts, self._last_exit, tuple(self._log))

    def _signal(self, number: signal.Signals) -> None:
        """Signal the child while it is known to be ours: SIGKILL to its whole group, others to it alone."""
        if self._pid is None:
            return
        send = os.killpg if number is signal.SIGKILL else os.kill
        with suppress(ProcessLookupError):
            send(self._pid, number)

    async def _supervise(self) -> None:
        previous_s: float | None = None
        try:
            while True:
                started_s = self._clock.now_s()
                self._state = ChildState.STARTING
                self._last_exit = await self._run()
                if self._stopping.is_set():
                    return
                ran_s = self._clock.now_s() - started_s
                previous_s = self._backoff.delay_s(previous_s, ran_s)
                entry = Restart(timestamp(self._clock.wall_s()), self._last_exit, round(ran_s, 3), previous_s)
                self._log.append(entry)
                self._state = ChildState.BACKOFF
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._stopping.wait(), previous_s)
                    return
                self._restarts += 1
        finally:
            self._state = ChildState.STOPPED

    async def _run(self) -> str:
        """Run the command once, to its end; say how it ended."""
        loop = asyncio.get_running_loop()
        run = _Run(loop, LineRelay(self._on_line, self._clock))
        try:
            transport, _ = await loop.subprocess_exec(
                lambda: run,
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                start_new_session=True,
                env=self._env,
                pass_fds=self._pass_fds,
            )
        except OSError as error:
            return f"cannot start: {error.strerror or type(error).__name__}"
        self._pid = transport.get_pid()
        self._input = cast("asyncio.WriteTransport | None", transport.get_pipe_transport(0))
        try:
            self._state = ChildState.RUNNING
            self._lower_priority(self._pid)
            if self._stopping.is_set():
                self._signal(signal.SIGTERM)
            await run.exited
        finally:
            self._signal(signal.SIGKILL)  # whatever the child has left behind in its group
            self._pid = self._input = None
            await asyncio.wait({run.silent}, timeout=DRAIN_S)
            transport.close()
        return _exit_text(transport.get_returncode())

    def _lower_priority(self, pid: int) -> None:
        if self._nice:
            with suppress(ProcessLookupError, PermissionError):
                os.setpriority(os.PRIO_PROCESS, pid, self._nice)


class _Run(asyncio.SubprocessProtocol):
    """One life of a child: `exited` when it has ended, `silent` when its output has."""

    def __init__(self, loop: asyncio.AbstractEventLoop, lines: LineRelay) -> None:
        self.exited: asyncio.Future[None] = loop.create_future()
        self.silent: asyncio.Future[None] = loop.create_future()
        self._lines = lines

    def pipe_data_received(self, fd: int, data: bytes) -> None:
        self._lines.feed(data)

    def pipe_connection_lost(self, fd: int, exc: Exception | None) -> None:
        if fd == 1 and not self.silent.done():
            self._lines.close()
            self.silent.set_result(None)

    def process_exited(self) -> None:
        if not self.exited.done():
            self.exited.set_result(None)


def _printable(line: bytearray) -> str:
    text = line.decode("utf-8", "replace").rstrip()
    return "".join(char if char.isprintable() else " " for char in text)


def _exit_text(returncode: int | None) -> str:
    if returncode is None:
        return "exit unknown"
    if returncode >= 0:
        return f"exit {returncode}"
    try:
        return f"signal {signal.Signals(-returncode).name}"
    except ValueError:
        return f"signal {-returncode}"
