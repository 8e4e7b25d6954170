"""A process of a data plane that has several: `python -m forebay.crew gate | worker`, started by the supervisor alone.

What it says to the supervisor are lines on standard output that begin with `@`; its log goes to standard error. The
end of its standard input means that the supervisor is gone: it accepts nothing more, lets its calls end, and ends.
"""

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import uvloop

from forebay.app import DataPlane
from forebay.clock import SystemClock
from forebay.config.load import Pinned, Settings, environment, load, parse_address, parse_file
from forebay.config.source import MAX_BYTES
from forebay.crossing.remote import RemoteGate
from forebay.errors import ConfigError
from forebay.gatekeeper import Gatekeeper
from forebay.handover import FORMAT, Hello, Taken
from forebay.worker import Worker

log = logging.getLogger(__name__)

MARK = "@"
_READ_BYTES = 65_536
_BEATS = 10


def main(arguments: list[str] | None = None) -> int:
    """Run one process to its end; return the exit code."""
    options = _parser().parse_args(arguments)
    logging.basicConfig(
        stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s", level="INFO", force=True
    )
    clock = SystemClock()
    try:
        settings = _settings(options, clock.wall_s())
    except ConfigError as error:
        for fault in error.faults:
            log.error("%s", fault)
        return 2
    logging.getLogger().setLevel(settings.log_level.upper())
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_run(options, settings, clock))
    return 0


async def _run(options: argparse.Namespace, settings: Settings, clock: SystemClock) -> None:
    loop = asyncio.get_running_loop()
    asked = Asked(loop)
    listeners = [socket.socket(fileno=number) for number in options.listeners]
    if options.role == "gate":
        plane = DataPlane(loop, clock, settings, options.data_dir, options.config)
        gatekeeper = Gatekeeper(plane, options.workers, listeners, say)
        asked.on_line = gatekeeper.told
        plane.beats.append(Pulse())
        gatekeeper.begin()
        # The supervisor has the sockets; what is left to be said is that all workers serve.
        taken = None if options.taken is None else Taken(socket.socket(fileno=options.taken), Hello(FORMAT, "", 0), [])
        await asked.unless(gatekeeper.serve(socket.socket(fileno=options.gate), taken))
        await asked.to_stop.wait()
        await gatekeeper.stop()
        return
    gate = RemoteGate(loop, clock, options.gate_path, options.number)
    plane = DataPlane(loop, clock, settings, options.data_dir, options.config, gate)
    worker = Worker(plane, gate, listeners, options.workers)
    plane.beats.append(Pulse())
    worker.begin()
    await asked.unless(worker.serve())
    if not asked.to_stop.is_set():
        say(f"serves {options.number}")
    await asked.to_stop.wait()
    await worker.stop(lingers=asked.lingers)


class Pulse:
    """Tells the supervisor once a second that the loop turns; called ten times a second."""

    def __init__(self) -> None:
        self._beats = 0

    def __call__(self) -> None:
        """Count a beat, and say so when a second of them is over."""
        self._beats += 1
        if self._beats % _BEATS == 0:
            say("lives")


class Asked:
    """What the supervisor wants of this process.

    Attributes:
        to_stop: it is to end.
        lingers: the address is served by others, or the supervisor is gone: it accepts nothing from now on.
        on_line: called with each line of standard input.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.to_stop = asyncio.Event()
        self.lingers = False
        self.on_line: Callable[[bytes], None] = _nothing
        self._loop = loop
        self._rest = b""
        loop.add_signal_handler(signal.SIGTERM, self.to_stop.set)
        loop.add_signal_handler(signal.SIGINT, self.to_stop.set)
        loop.add_signal_handler(signal.SIGUSR1, self._retire)
        os.set_blocking(0, False)
        loop.add_reader(0, self._read)

    async def unless(self, work: Coroutine[Any, Any, None]) -> None:
        """Do some work, unless this process is to end before it is done."""
        task = self._loop.create_task(work)
        waiting = self._loop.create_task(self.to_stop.wait())
        await asyncio.wait((task, waiting), return_when=asyncio.FIRST_COMPLETED)
        for each in (task, waiting):
            each.cancel()
        await asyncio.gather(task, waiting, return_exceptions=True)
        if task.done() and not task.cancelled():
            task.result()

    def _retire(self) -> None:
        self.lingers = True
        self.to_stop.set()

    def _read(self) -> None:
        try:
            data = os.read(0, _READ_BYTES)
        except BlockingIOError:
            return
        if not data:
            self._loop.remove_reader(0)
            log.error("the supervisor is gone; this process finishes its calls and ends")
            self._retire()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self.on_line(line)


def say(text: str) -> None:
    """Tell the supervisor something; when it is gone nobody is told, and calls go on to their end."""
    with suppress(BrokenPipeError):
        os.write(1, f"{MARK}{text}\n".encode())


def _nothing(_line: bytes) -> None:
    """Nobody listens to the supervisor's lines."""


def _settings(options: argparse.Namespace, wall_s: float) -> Settings:
    """Read the file; one that is faulty at this moment is no reason not to serve as before."""
    environ = environment()
    try:
        return load(options.config, environ, wall_s, listen=options.listen, admin=options.admin)
    except ConfigError:
        good = os.pread(options.good, MAX_BYTES + 1, 0)
        return parse_file(good, str(options.config), environ, wall_s, Pinned(options.listen, options.admin))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m forebay.crew", description=__doc__)
    parser.add_argument("role", choices=("gate", "worker"))
    parser.add_argument("--config", required=True, type=Path)
    parser.add_argument("--good", required=True, type=int, help="descriptor of the latest good file")
    parser.add_argument("--data-dir", required=True, type=Path)
    parser.add_argument("--listen", type=parse_address)
    parser.add_argument("--admin", type=parse_address)
    parser.add_argument("--workers", required=True, type=int)
    parser.add_argument("--number", type=int, default=0, help="of a worker")
    parser.add_argument("--listeners", required=True, type=_numbers, help="descriptors of the clients' sockets")
    parser.add_argument("--gate-path", required=True, type=Path, help="where workers find the gate")
    parser.add_argument("--gate", type=int, help="descriptor on which the gate listens")
    parser.add_argument("--taken", type=int, help="descriptor of the link to the process that is taken over")
    return parser


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


if __name__ == "__main__":
    sys.exit(main())
