"""The control plane as a program: `python -m forebay.console`, started by the data plane.

It ends when its standard input does, because then its parent is gone, and on SIGTERM.
"""

import argparse
import asyncio
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import uvicorn

from forebay.clock import SystemClock
from forebay.config.load import environment, load_joint
from forebay.console.app import build
from forebay.console.dataplane import DataPlane
from forebay.console.guard import Listen
from forebay.console.state import ConsoleState
from forebay.console.token import admin_token
from forebay.errors import ConfigError
from forebay.store.contract import Store
from forebay.store.on_redis import RedisStore

NICE = 10
EXIT_CANNOT_START = 3
MAX_CONNECTIONS = 64
GRACE_S = 2  # for answers that are on their way when the process is told to stop
HARD_STOP_S = 5.0  # after the end of standard input; a disk that hangs must not keep the process


def main(arguments: Sequence[str] | None = None) -> int:
    """Serve until standard input ends or SIGTERM comes.

    Returns:
        0 after a stop that was asked for, 3 when it could not start; the reason is on standard error.
    """
    options = _parser().parse_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s %(name)s: %(message)s")
    os.setpriority(os.PRIO_PROCESS, 0, max(NICE, os.getpriority(os.PRIO_PROCESS, 0)))
    try:
        listener = _bound(options.listen)
        return asyncio.run(_serve(options, listener))
    except OSError as error:
        what = error.filename or f"{options.listen.host}:{options.listen.port}"
        sys.stderr.write(f"forebay console: cannot start: {what}: {error.strerror}\n")
    return EXIT_CANNOT_START


def listen_address(text: str) -> Listen:
    """Read `host:port` or `[v6]:port`.

    Raises:
        argparse.ArgumentTypeError: it is neither.
    """
    host, _, port = text.rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise argparse.ArgumentTypeError(f"{text!r}: give HOST:PORT, such as 127.0.0.1:7081")
    return Listen(host, int(port))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m forebay.console", description=__doc__)
    parser.add_argument("--listen", required=True, type=listen_address, metavar="HOST:PORT")
    parser.add_argument("--data-dir", required=True, type=Path)
    parser.add_argument("--data-socket", required=True, type=Path, help="Unix socket of the data plane")
    parser.add_argument("--config", help="the file that the data plane was started with; only shown")
    return parser


def _bound(listen: Listen) -> socket.socket:
    family = socket.AF_INET6 if ":" in listen.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((listen.host, listen.port))
        listener.listen(MAX_CONNECTIONS)
    except OSError:
        listener.close()
        raise
    return listener


def _store(config: str | None) -> Store | None:
    """Return where several nodes meet, by the configuration as it is now; None without.

    Raises:
        ConfigError: the file cannot be read.
    """
    url = "" if config is None else load_joint(Path(config), environment()).url
    return RedisStore(url) if url else None


async def _serve(options: argparse.Namespace, listener: socket.socket) -> int:
    clock = SystemClock()
    store, store_fault = None, None
    try:
        store = _store(options.config)
    except ConfigError as error:
        store_fault = f"the configuration cannot be read, so documents are not shared: {error.faults[0]}"
    state = ConsoleState(
        clock,
        options.data_dir,
        DataPlane(options.data_socket, clock),
        listen=options.listen,
        token=admin_token(options.data_dir),
        config_file=options.config,
    )
    state.store_fault = store_fault
    if store is not None:
        state.meet(store)
    server = _Server(
        uvicorn.Config(
            build(state),
            http="h11",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            proxy_headers=False,
            limit_concurrency=MAX_CONNECTIONS,
            timeout_keep_alive=30,
            timeout_graceful_shutdown=GRACE_S,
        )
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, server.end)
    threading.Thread(target=_watch_stdin, args=(server,), name="watch stdin", daemon=True).start()
    await server.serve(sockets=[listener])
    return 0


class _Server(uvicorn.Server):
    """A server that leaves the signals alone: uvicorn's own way ends the process by the signal, not with 0."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    def end(self) -> None:
        """Stop within a tick; may be called from any thread."""
        self.should_exit = True


def _watch_stdin(server: _Server) -> None:
    """Stop the server at the end of standard input, and the process when that does not help."""
    with suppress(OSError):
        while os.read(0, 4096):
            pass
    server.end()
    time.sleep(HARD_STOP_S)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
