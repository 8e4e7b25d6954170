"""Accepting from a socket that several processes share, so that each gets its part.

The kernel wakes all of them, and the same one would win most of the time: 32 keep-alive connections of a proxy would be
one worker's. So who has more connections than the mean waits a moment before it accepts, and leaves the connection to
those that have fewer.
"""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable, Sequence
from typing import Any, Final

log = logging.getLogger(__name__)

STEP_S: Final = 0.0005
"""For each connection more than the mean."""
LONGEST_S: Final = 0.005
_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_EXHAUSTED_S: Final = 0.1


def delay_s(connections: int, mean_connections: float) -> float:
    """Return how long to leave a connection to others, in seconds.

    Args:
        connections: that this process has.
        mean_connections: over all processes that share the socket.
    """
    return min(LONGEST_S, max(0.0, STEP_S * (connections - mean_connections)))


class Acceptor:
    """Accepts one connection at a time from sockets that others accept from too.

    Args:
        loop: the running loop.
        listeners: bound and listening; `close` closes them.
        factory: makes the protocol of a connection.
        delay: returns how long to leave the next connection to others, in seconds, given those on their way here.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        listeners: Sequence[socket.socket],
        factory: Callable[[], Any],
        delay: Callable[[int], float],
    ) -> None:
        self._loop = loop
        self._listeners = tuple(listeners)
        self._factory = factory
        self._delay = delay
        self._coming: set[asyncio.Task[None]] = set()
        self._later: dict[socket.socket, asyncio.TimerHandle] = {}

    def start(self) -> None:
        """Begin to accept."""
        for listener in self._listeners:
            listener.setblocking(False)
            self._loop.add_reader(listener, self._ready, listener)

    def stop(self) -> None:
        """Accept no more; what was accepted goes on."""
        for listener in self._listeners:
            self._loop.remove_reader(listener)
        for handle in self._later.values():
            handle.cancel()
        self._later.clear()

    def close(self) -> None:
        """Accept no more, and let go of the sockets: who starts next binds the address anew."""
        self.stop()
        for listener in self._listeners:
            listener.close()
        self._listeners = ()

    def _ready(self, listener: socket.socket) -> None:
        delay = self._delay(len(self._coming))
        if delay > 0.0:
            self._pause(listener, delay, self._take)
        else:
            self._take(listener)

    def _pause(self, listener: socket.socket, delay: float, then: Callable[[socket.socket], None]) -> None:
        self._loop.remove_reader(listener)
        self._later[listener] = self._loop.call_later(delay, self._resume, listener, then)

    def _resume(self, listener: socket.socket, then: Callable[[socket.socket], None]) -> None:
        del self._later[listener]
        self._loop.add_reader(listener, self._ready, listener)
        then(listener)

    def _take(self, listener: socket.socket) -> None:
        try:
            accepted, _ = listener.accept()
        except (BlockingIOError, InterruptedError, ConnectionAbortedError):
            return  # another one was faster, or the client has left
        except OSError as error:
            if error.errno in _EXHAUSTED:
                log.error("no connection can be accepted for now: %s", error.strerror)
            self._pause(listener, _EXHAUSTED_S, _wait)
            return
        accepted.setblocking(False)
        task = self._loop.create_task(self._connected(accepted))
        self._coming.add(task)
        task.add_done_callback(self._coming.discard)

    async def _connected(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._factory, accepted)
        except OSError as error:
            log.debug("a connection ended at once: %s", error)
            accepted.close()


def _wait(_listener: socket.socket) -> None:
    """What is ready then is seen by the loop."""
