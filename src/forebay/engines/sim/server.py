"""Serve a simulated engine, in a test's own loop or until a signal."""

import asyncio
import signal
from collections.abc import Callable
from pathlib import Path

from forebay.clock import Clock
from forebay.engines.sim import faults
from forebay.engines.sim.faults import AnyAction
from forebay.engines.sim.http import Connection
from forebay.engines.sim.record import RequestLog
from forebay.engines.sim.routes import SimApp
from forebay.engines.sim.spec import SimSpec


class SimServer:
    """A simulated engine that listens.

    Attributes:
        host: address that it is bound to.
        port: TCP port that it is bound to.
        died: set when a fault, or a signal, ends it.
    """

    def __init__(self, app: SimApp, server: asyncio.Server) -> None:
        self._app = app
        self._server = server
        self.died = asyncio.Event()
        app.on_death = self._die
        address = server.sockets[0].getsockname()
        self.host: str = address[0]
        self.port: int = address[1]

    @property
    def base_url(self) -> str:
        """Where it is, without `/v1`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"http://{host}:{self.port}"

    @property
    def log(self) -> RequestLog:
        """What it saw."""
        return self._app.log

    def stats(self) -> dict[str, int]:
        """Return what `/sim/stats` shows."""
        return self._app.stats()

    def set_faults(self, *steps: AnyAction) -> None:
        """Replace the script of faults."""
        self._app.set_faults(steps)

    def reset(self) -> None:
        """Be well again, as `POST /sim/reset`."""
        self._app.reset()

    def _die(self) -> None:
        self._server.close()
        self._app.close()
        self.died.set()

    async def close(self) -> None:
        """Stop listening and cut all connections."""
        self._server.close()
        self._app.close()
        await self._server.wait_closed()


async def serve(spec: SimSpec, host: str, port: int, clock: Clock) -> SimServer:
    """Start a simulated engine in the running loop.

    Args:
        spec: what it is.
        host: address to bind to; it shows prompts and credentials on `/sim/log`, so keep it on the loopback.
        port: TCP port, 0 for any free one.
        clock: a running one.

    Raises:
        OSError: the address cannot be bound.
    """
    loop = asyncio.get_running_loop()
    app = SimApp(spec, clock, loop)
    server = await loop.create_server(
        lambda: Connection(app, loop, spec.keep_alive_s, app.date), host, port, backlog=2048
    )
    return SimServer(app, server)


def read_faults(path: Path | None) -> tuple[AnyAction, ...]:
    """Read a script of faults from a file; none without one.

    Raises:
        OSError: the file cannot be read.
        ValueError: it is no script; the message names the file.
    """
    if path is None:
        return ()
    try:
        return faults.read(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


async def serve_until_signal(server: SimServer, ready: Callable[[], None]) -> None:
    """Wait for SIGTERM or SIGINT, or until a fault has ended the server; then close it.

    Args:
        server: what to close.
        ready: called as soon as a signal would be heard.
    """
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, server.died.set)
    ready()
    await server.died.wait()
    await server.close()
