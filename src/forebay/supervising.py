"""The process that starts the gate, the workers and the control plane, and restarts what dies.

It owns the listening sockets and serves nothing itself, so there is little that could end it. A child that dies takes
nothing along: the sockets are here, limits and load are in the gate, running answers are in the workers.
"""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

from forebay.claim import Claim
from forebay.clock import Clock
from forebay.config.load import Address, Settings, environment, read_file
from forebay.config.reload import DocumentWatch
from forebay.handover import Taken, bound_unix_socket
from forebay.processes import Backoff, Child, ChildState

log = logging.getLogger(__name__)

MARK: Final = "@"
START_S: Final = 30.0
"""How long gate and workers may take to serve at the start; then the start has failed."""
_GATE_BACKOFF: Final = Backoff(first_s=0.02, limit_s=5.0)
_WORKER_BACKOFF: Final = Backoff(first_s=0.2, limit_s=10.0)
_MARGIN_S: Final = 8.0
GATE_SILENT_S: Final = 8.0
"""A gate that says nothing for so long hangs; it speaks every second, and takes a second or two to start."""
WORKER_SILENT_S: Final = 30.0
"""The same for a worker: as long as a liveness probe would wait."""
_REPORT_S: Final = 1.0
_BACKLOG: Final = 4096
_MOST_SEED: Final = 2**32 - 1


class StartError(Exception):
    """Gate and workers do not serve."""


class Order(Struct, frozen=True):
    """What is to be started.

    Attributes:
        config: the file.
        listen: of the command line; goes before that of the file.
        admin: likewise.
        workers: how many.
    """

    config: Path
    data_dir: Path
    listen: Address | None
    admin: Address | None
    workers: int


class Supervisor:
    """Runs the processes of one data plane.

    Args:
        loop: the running loop.
        clock: monotonic and wall time.
        settings: of the file, as it is now.
        order: what is to be started.
        replaced: set when another process serves in this one's place: it is to be stopped.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, clock: Clock, settings: Settings, order: Order, replaced: asyncio.Event
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._settings = settings
        self._order = order
        self._replaced = replaced
        self._watch = DocumentWatch(settings, order.config, order.data_dir / "policy")
        self._good = tempfile.TemporaryFile()
        self._listeners: list[socket.socket] = []
        self._gate_socket = socket.socket(socket.AF_UNIX)
        self._gate_path = order.data_dir / "run" / f"gate-{os.getpid()}.sock"
        self._children: list[Child] = []
        self._workers: list[Child] = []
        self._gate: Child | None = None
        self._control_plane: Child | None = None
        self._desk: asyncio.Future[str] = loop.create_future()
        self._serving: set[str] = set()
        self._all_serve = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []
        self._retired = False
        self._heard_s: dict[str, float] = {}
        self._claim = Claim(order.data_dir)
        # The gate compares hashes of prompts that workers make: one secret seed for all, also for those started again.
        self._environ = {**environment(), "PYTHONHASHSEED": str(1 + secrets.randbelow(_MOST_SEED))}

    async def start(self, taken: Taken | None = None) -> int:
        """Start gate and workers; return the data port once all serve.

        Raises:
            OSError: the address cannot be listened on, or the data folder cannot be written.
            StartError: they do not serve within 30 s.
            ClaimedError: another process has the data folder, and is not taken over.
        """
        if taken is None:
            self._claim.take()
        try:
            await self._start_all(taken)
        except BaseException:
            await self.stop()
            raise
        if taken is not None and self._gate is not None:
            # A gate that is started again has nothing to take over.
            self._gate.launch_with(*self._gate_launch(None))
            taken.close()
        works = (self._report(), self._follow(), self._claim.inherit())
        self._tasks = [self._loop.create_task(work) for work in works]
        port: int = self._listeners[0].getsockname()[1]
        return port

    @property
    def desk(self) -> str:
        """The path of the socket on which the control plane asks."""
        return self._desk.result()

    async def start_control_plane(self, child: Child) -> None:
        """Start it, and stop it when this process stops."""
        self._control_plane = child
        self._children.append(child)
        await child.start()

    async def stop(self) -> None:
        """Let the workers drain, all at once, then end the others."""
        shutdown = self._watch.settings.policy.shutdown
        grace_s = shutdown.drain_delay_s + shutdown.grace_s + _MARGIN_S
        number = signal.SIGUSR1 if self._retired else signal.SIGTERM
        for task in self._tasks:
            task.cancel()
        # With the last copy of the listening sockets gone, new connections are refused and do not wait for nobody.
        delay_s = 0.0 if self._retired else shutdown.drain_delay_s
        for listener in self._listeners:
            self._loop.call_later(delay_s, listener.close)
        serving = [*self._workers, *([] if self._gate is None else [self._gate])]
        await asyncio.gather(*(child.stop(grace_s, number) for child in serving))
        for child in reversed(self._children):
            await child.stop(grace_s=_MARGIN_S if child is self._gate else 2.0)
        for listener in self._listeners:
            listener.close()
        self._gate_socket.close()
        with contextlib.suppress(OSError):
            self._gate_path.unlink()
        self._good.close()
        self._claim.release()

    async def _start_all(self, taken: Taken | None) -> None:
        """Start gate and workers, and wait until they serve."""
        self._keep(read_file(self._order.config))
        self._bind(taken)
        (self._order.data_dir / "run").mkdir(parents=True, exist_ok=True, mode=0o700)
        self._gate_socket.close()
        self._gate_socket = bound_unix_socket(self._gate_path)
        self._gate_socket.listen(64)
        self._gate = await self._child("gate", _GATE_BACKOFF, *self._gate_launch(taken))
        for number in range(self._order.workers):
            command, descriptors = self._launch("worker", "--number", str(number))
            self._workers.append(await self._child(f"worker {number}", _WORKER_BACKOFF, command, descriptors))
        try:
            async with asyncio.timeout(START_S):
                await self._all_serve.wait()
                await asyncio.shield(self._desk)
        except TimeoutError:
            raise StartError(f"gate and workers do not serve within {START_S:g} s; their log says why") from None

    def _bind(self, taken: Taken | None) -> None:
        address = self._settings.listen
        if taken is not None:
            self._listeners = [each.dup() for each in taken.listening_on(str(address))]
        if self._listeners:
            return
        found = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
        for family, _, _, _, where in dict.fromkeys(found):
            listener = socket.create_server(where[:2], family=family, backlog=_BACKLOG)
            self._listeners.append(listener)
            if not address.port:
                break  # any port: the same one on two addresses cannot be asked for

    def _gate_launch(self, taken: Taken | None) -> tuple[list[str], list[int]]:
        number = self._gate_socket.fileno()
        command, descriptors = self._launch("gate", "--gate", str(number))
        descriptors.append(number)
        if taken is not None:
            command += ["--taken", str(taken.fileno())]
            descriptors.append(taken.fileno())
        return command, descriptors

    def _launch(self, role: str, *more: str) -> tuple[list[str], list[int]]:
        """Return command line and descriptors of a child."""
        order = self._order
        listeners = [listener.fileno() for listener in self._listeners]
        command = [sys.executable, "-m", "forebay.crew", role, "--config", str(order.config)]
        command += ["--good", str(self._good.fileno()), "--data-dir", str(order.data_dir)]
        command += ["--workers", str(order.workers), "--gate-path", str(self._gate_path)]
        command += ["--listeners", ",".join(map(str, listeners)), *more]
        for option, address in (("--listen", order.listen), ("--admin", order.admin)):
            command += [] if address is None else [option, str(address)]
        return command, [self._good.fileno(), *listeners]

    async def _child(self, name: str, backoff: Backoff, command: Sequence[str], descriptors: Sequence[int]) -> Child:
        heard = partial(self._heard, name)
        child = Child(name, command, self._clock, self._environ, on_line=heard, backoff=backoff, pass_fds=descriptors)
        self._children.append(child)
        await child.start()
        return child

    def _heard(self, name: str, line: str) -> None:
        """Take a line of a child: a word to us, or its log; any of them says that it lives."""
        self._heard_s[name] = self._clock.now_s()
        if not line.startswith(MARK):
            with contextlib.suppress(OSError):
                os.write(2, f"{line}\n".encode())
            return
        word, _, rest = line.removeprefix(MARK).partition(" ")
        if word == "serves":
            self._serving.add(rest)
            if len(self._serving) >= self._order.workers:
                self._all_serve.set()
        elif word == "desk" and not self._desk.done():
            self._desk.set_result(rest)
        elif word == "retire" and not self._retired:
            self._retired = True
            self._tasks.append(self._loop.create_task(self._retire()))

    async def _retire(self) -> None:
        """Another process serves: end what two must not both have, and then this one."""
        self._claim.release()
        if self._control_plane is not None:
            await self._control_plane.stop(grace_s=2.0)
        self._replaced.set()

    async def _report(self) -> None:
        """Tell the gate about the children, for the status, and kill those that hang."""
        while True:
            for child in (*self._workers, *([] if self._gate is None else [self._gate])):
                self._look_at(child, GATE_SILENT_S if child is self._gate else WORKER_SILENT_S)
            if self._gate is not None:
                reports = [child.report() for child in self._children]
                self._gate.tell(msgspec.json.encode(reports) + b"\n")
            await asyncio.sleep(_REPORT_S)

    def _look_at(self, child: Child, silent_s: float) -> None:
        """Kill a child that has run and said nothing for so long: its loop stands still, and with it all it has."""
        now_s = self._clock.now_s()
        if child.report().state is not ChildState.RUNNING:
            self._heard_s[child.name] = now_s
        elif now_s - self._heard_s.get(child.name, now_s) > silent_s:
            log.error("%s has said nothing for %g s: it hangs and is killed", child.name, silent_s)
            self._heard_s[child.name] = now_s
            child.kill()

    async def _follow(self) -> None:
        """Keep the latest good file for children that are started while the one on disk is faulty."""
        while True:
            await asyncio.sleep(self._watch.period_s)
            before = self._watch.settings.digest
            clock = self._clock
            await self._loop.run_in_executor(None, self._watch.poll, clock.now_s(), clock.wall_s())
            if self._watch.settings.digest != before:
                self._keep(read_file(self._order.config))

    def _keep(self, data: bytes) -> None:
        self._good.seek(0)
        self._good.truncate()
        self._good.write(data)
        self._good.flush()
