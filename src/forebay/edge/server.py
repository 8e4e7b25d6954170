"""The listeners of the data plane, and the clockwork of its client connections."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from email.utils import formatdate

from forebay.clock import Clock
from forebay.edge.accepting import Acceptor, delay_s
from forebay.edge.connection import ClientConnection, Handler
from forebay.policy import Limits, Policy

UNEVEN = 8
"""Connections that processes which share an address may have more than their part, times the other processes."""


class EdgeServer:
    """Accepts connections and hands complete requests to one handler.

    Args:
        loop: the data plane's loop.
        clock: monotonic and wall time.
        handler: called for each request, with its reply; handles its own errors.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, handler: Handler) -> None:
        self.loop = loop
        self.clock = clock
        self.handler = handler
        self.limits = Limits()
        self.date = b""
        # Answers that begin from now on are the last on their connections.
        self.draining = False
        # So are those that have begun.
        self.closing = False
        self._connections: set[ClientConnection] = set()
        self._servers: list[asyncio.Server] = []
        self._internal: asyncio.Server | None = None
        self._acceptor: Acceptor | None = None
        # Processes that share the address, and its limit of connections.
        self.sharers = 1
        self.tick()

    def apply(self, policy: Policy) -> None:
        """Follow a new policy."""
        self.limits = policy.limits

    async def listen(self, host: str, port: int) -> int:
        """Listen on TCP; return the port, which is chosen by the system for 0.

        Raises:
            OSError: the address is taken or not ours.
        """
        server = await self.loop.create_server(
            lambda: ClientConnection(self),  # type: ignore[arg-type, return-value]  # no base class: decisions/0002
            host,
            port,
            backlog=4096,
            reuse_address=True,
        )
        self._servers.append(server)
        bound: int = server.sockets[0].getsockname()[1]
        return bound

    async def listen_on(self, listener: socket.socket) -> int:
        """Listen on a socket that is bound already; return the port."""
        port: int = listener.getsockname()[1]
        server = await self.loop.create_server(
            lambda: ClientConnection(self),  # type: ignore[arg-type, return-value]  # no base class: decisions/0002
            sock=listener,
            backlog=4096,
        )
        self._servers.append(server)
        return port

    def share(self, listeners: Sequence[socket.socket], mean_connections: Callable[[], float]) -> None:
        """Accept from sockets that other processes accept from too, about as much as each of them.

        Args:
            listeners: bound; they stay the caller's.
            mean_connections: returns how many connections each process has.
        """

        def delay(coming: int) -> float:
            return delay_s(len(self._connections) + coming, mean_connections())

        self._acceptor = Acceptor(self.loop, listeners, lambda: ClientConnection(self), delay)
        self._acceptor.start()

    def descriptors(self) -> list[int]:
        """Return the descriptors of the TCP listeners."""
        return [listener.fileno() for server in self._servers for listener in server.sockets]

    async def listen_unix(self, listener: socket.socket) -> None:
        """Listen on a bound Unix socket."""
        server = await self.loop.create_unix_server(
            lambda: ClientConnection(self),  # type: ignore[arg-type, return-value]  # no base class: decisions/0002
            sock=listener,
        )
        self._internal = server

    def opened(self, connection: ClientConnection) -> bool:
        """Register a connection; say whether it may stay."""
        self._connections.add(connection)
        return len(self._connections) * self.sharers <= self.limits.max_connections + UNEVEN * (self.sharers - 1)

    def closed(self, connection: ClientConnection) -> None:
        """Forget a connection."""
        self._connections.discard(connection)

    def tick(self) -> None:
        """Renew the date and end connections that took too long; called every second."""
        self.date = formatdate(self.clock.wall_s(), usegmt=True).encode()
        now_s = self.clock.now_s()
        limits = self.limits
        allowed_s = {
            "idle": limits.idle_connection_s,
            "head": limits.header_s,
            "body": limits.body_s,
            "closing": limits.header_s,
            "exchange": float("inf"),
        }
        for connection in list(self._connections):
            if now_s - connection.since_s > allowed_s[connection.phase]:
                connection.expire()

    def stop_accepting(self) -> None:
        """Close the TCP listeners and idle connections; running exchanges go on and are the last on theirs."""
        self.close_listeners()
        self.closing = True
        for connection in list(self._connections):
            if not connection.busy:
                connection.close()

    def close_listeners(self) -> None:
        """Take no new connection; open ones may bring one more request, which is the last on theirs."""
        self.draining = True
        self.pause_accepting()
        if self._acceptor is not None:
            self._acceptor.close()

    def pause_accepting(self) -> None:
        """Take no new connection for now; the socket stays open in the processes that share it."""
        if self._acceptor is not None:
            self._acceptor.stop()
        for server in self._servers:
            server.close()
        self._servers = []

    def cut_all(self) -> None:
        """Cut every connection that is left; what runs on it is told that the client is gone."""
        if self._internal is not None:
            self._internal.close()
        for connection in list(self._connections):
            connection.cut()

    @property
    def open_connections(self) -> int:
        """How many connections are open, idle ones and the control plane's included."""
        return len(self._connections)

    @property
    def busy_connections(self) -> int:
        """How many connections have an exchange running or waiting."""
        return sum(connection.busy for connection in self._connections)
