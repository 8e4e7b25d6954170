"""The pool of connections to engines."""

import asyncio
import errno
import ssl
from collections import deque

from forebay.clock import Clock
from forebay.domain import Replica
from forebay.upstream.connection import Connection

# Below uvicorn's 5 s, so that we and not the engine close an idle connection: an engine's close can
# cross a request on the wire. llama.cpp keeps connections for 5 s too (cpp-httplib), nginx for 75.
IDLE_EXPIRY_S = 4.0
MAX_IDLE_PER_REPLICA = 512
DRAIN_S = 1.0
# Errors of dialling that say nothing about the engine.
OUR_OWN_LACK = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)


class Connections:
    """The pool of all connections, by replica; the last one used is used first.

    At most 512 idle connections a replica are kept, none longer than 4 s idle; how many are in use is
    bounded by who may call (`max_in_flight`, limits of tenants, `limits.max_connections`).
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock) -> None:
        self.loop = loop
        self._clock = clock
        self._idle: dict[str, deque[Connection]] = {}
        self._open: set[Connection] = set()
        self._draining: dict[Connection, float] = {}
        self._tls: ssl.SSLContext | None = None
        self.opened: dict[str, int] = {}

    def take(self, replica: Replica) -> Connection | None:
        """Return an idle connection that is still fresh, or None."""
        idle = self._idle.get(replica.name)
        if not idle:
            return None
        expired_before_s = self._clock.now_s() - IDLE_EXPIRY_S
        while idle:
            connection = idle.pop()
            if connection.transport is None or connection.transport.is_closing():
                continue
            if connection.idle_since_s < expired_before_s:
                connection.transport.close()
                continue
            connection.reused = True
            return connection
        return None

    async def dial(self, replica: Replica, timeout_s: float, *, single_use: bool = False) -> Connection:
        """Open a connection.

        Args:
            replica: where to.
            timeout_s: for all of it, TLS included.
            single_use: for one health poll: never pooled, never counted.

        Raises:
            OSError: refused, unreachable, or the name is unknown.
            TimeoutError: took too long.
        """
        if not single_use:
            self.opened[replica.name] = self.opened.get(replica.name, 0) + 1
        connection = Connection(replica, self, single_use=single_use)
        context = self._tls_context() if replica.tls else None
        try:
            async with asyncio.timeout(timeout_s):
                await self.loop.create_connection(
                    lambda: connection,  # type: ignore[type-var]  # no base class: decisions/0002
                    replica.host,
                    replica.port,
                    ssl=context,
                )
        except (asyncio.CancelledError, TimeoutError):
            connection.connection_lost(None)  # uvloop closes such a transport without a word
            raise
        if connection.transport is not None:
            self._open.add(connection)
        return connection

    def give_back(self, connection: Connection) -> None:
        """Keep a connection for the next call."""
        if self._draining:
            self._draining.pop(connection, None)
        idle = self._idle.setdefault(connection.replica.name, deque())
        if connection.transport is None or len(idle) >= MAX_IDLE_PER_REPLICA:
            if connection.transport is not None:
                connection.transport.close()
            return
        connection.idle_since_s = self._clock.now_s()
        idle.append(connection)

    def drain(self, connection: Connection) -> None:
        """Watch a connection whose answer only lacks its framing; it has a second for that."""
        self._draining[connection] = self._clock.now_s()

    def forget(self, connection: Connection) -> None:
        """Drop a connection that has ended."""
        self._open.discard(connection)
        self._draining.pop(connection, None)
        idle = self._idle.get(connection.replica.name)
        if idle and connection in idle:
            idle.remove(connection)

    def sweep(self) -> None:
        """Close what has expired: idle connections, and ends of answers that never come; every second."""
        for connection, since_s in list(self._draining.items()):
            if self._clock.now_s() - since_s > DRAIN_S:
                connection.abort()
        expired_before_s = self._clock.now_s() - IDLE_EXPIRY_S
        for name, idle in list(self._idle.items()):
            while idle and idle[0].idle_since_s < expired_before_s:
                connection = idle.popleft()
                if connection.transport is not None:
                    connection.transport.close()
            if not idle:
                del self._idle[name]

    def close(self) -> None:
        """Cut every connection."""
        for connection in list(self._open):
            connection.abort()

    def _tls_context(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls
