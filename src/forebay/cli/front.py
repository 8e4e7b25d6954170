"""The processes that a measurement starts beside the user's engine: a Forebay in front of it, an embedded engine."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import msgspec

from forebay.clock import SystemClock
from forebay.domain import Replica
from forebay.processes import Child
from forebay.release.proof import Unprovable
from forebay.upstream.fetch import Fetcher

_START_S = 60.0
_STOP_S = 5.0
_POLL_S = 0.1


@asynccontextmanager
async def forebay_in_front(settings: dict[str, Any], ports: tuple[int, int], fetch: Fetcher) -> AsyncIterator[Replica]:
    """Run a Forebay in a process and a folder of its own; both are gone afterwards.

    Args:
        settings: its configuration.
        ports: of its data plane and its control plane, as in the configuration.
        fetch: does one GET.

    Yields:
        Its address, once it serves and its start costs no more CPU.

    Raises:
        Unprovable: it does not start.
    """
    front, admin = (Replica(f"127.0.0.1:{port}", "127.0.0.1", port) for port in ports)
    with TemporaryDirectory(prefix="forebay-prove-", ignore_cleanup_errors=True) as folder:
        file = _written(folder, settings)
        command = [sys.executable, "-m", "forebay.cli.attached", "serve", "-c", file]
        async with running("Forebay", [*command, "--data-dir", str(Path(folder, "data"))]) as child:
            await until(child, lambda: answers(front, "/health/ready", fetch))
            # Its start takes a second of CPU, which must not fall into the measurement.
            await until(child, lambda: _listens(admin, fetch))
            yield front


def _written(folder: str, settings: dict[str, Any]) -> str:
    """Write a configuration, as JSON, which is YAML too; return its path."""
    path = Path(folder, "forebay.yaml")
    path.write_bytes(msgspec.json.encode(settings))
    return str(path)


class _Words:
    """The last words of a child, for the one line that says why it ended."""

    def __init__(self) -> None:
        self.last = ""

    def take(self, line: str) -> None:
        self.last = line or self.last


@asynccontextmanager
async def running(name: str, command: list[str]) -> AsyncIterator["Running"]:
    """Run a command as a child that is stopped afterwards.

    Args:
        name: for faults.
        command: program and arguments.
    """
    words = _Words()
    child = Child(name, command, SystemClock(), on_line=words.take)
    await child.start()
    try:
        yield Running(child, words)
    finally:
        await child.stop(_STOP_S)


class Running:
    """A child that should be running."""

    def __init__(self, child: Child, words: _Words) -> None:
        self._child = child
        self._words = words

    def check(self) -> None:
        """Raise when it has ended.

        Raises:
            Unprovable: with its last words.
        """
        seen = self._child.report()
        if seen.last_exit is not None:
            raise Unprovable(f"the {seen.name} ended ({seen.last_exit}): {self._words.last or 'it said nothing'}")


async def until(child: Running, ready: Callable[[], Awaitable[bool]]) -> None:
    """Wait until a child is ready, at most a minute.

    Args:
        child: that must go on running.
        ready: asked ten times a second.

    Raises:
        Unprovable: it has ended, or the time is over.
    """
    try:
        async with asyncio.timeout(_START_S):
            while not await ready():
                child.check()
                await asyncio.sleep(_POLL_S)
    except TimeoutError:
        raise Unprovable(
            f"a process of ours did not become ready in {_START_S:.0f} s; the machine is too busy"
        ) from None


async def answers(replica: Replica, path: str, fetch: Fetcher) -> bool:
    """Say whether a GET is answered with 200."""
    try:
        return (await fetch(replica, path, 1.0))[0] == 200
    except OSError:
        return False


async def _listens(replica: Replica, fetch: Fetcher) -> bool:
    try:
        return (await fetch(replica, "/", 1.0))[0] > 0
    except OSError:
        return False


def free_port() -> int:
    """Return a port of the loopback that nobody listens on at this moment."""
    with socket.socket() as probing:
        probing.bind(("127.0.0.1", 0))
        port: int = probing.getsockname()[1]
        return port
