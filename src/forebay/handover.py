"""The hand-over of the listening sockets from a running process to the one that replaces it.

The old process offers them on a Unix socket in its data folder. The new one takes copies (SCM_RIGHTS), starts,
and says so when it can serve; only then does the old one stop accepting, let go of what two processes must not
both have, and finish its calls. Both have the same sockets, so what waits in the accept queue is taken by whoever
is left. A new process that ends before it is ready changes nothing for the old one.
"""

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec
from msgspec import Struct

log = logging.getLogger(__name__)

SOCKET_NAME: Final = "handover.sock"
FORMAT: Final = 1
"""Of the messages; a process that speaks another one is not taken over."""
ANSWER_S: Final = 5.0
"""How long the running process may take to answer; it must be told from one that hangs."""
READY_S: Final = 180.0
"""How long a new process may take until it serves; then another one may take over."""
RELEASE_S: Final = 15.0
"""How long it may take to let go, which includes stopping its control plane."""
MAX_LINE_BYTES: Final = 33_554_432
_MAX_SOCKETS: Final = 16
# A Unix socket's path is at most 107 bytes long on Linux.
_MAX_SOCKET_PATH = 100
_READY = b"ready\n"


class HandOverError(Exception):
    """The running process cannot be taken over."""


class Hello(Struct, frozen=True):
    """What the old process says with its sockets.

    Attributes:
        listen: the address that they listen on, as configured.
        run_ids: what the ids of its calls begin with.
    """

    format: int
    listen: str
    pid: int
    run_ids: tuple[str, ...] = ()


class Spent(Struct, frozen=True):
    """What the tenants have spent: a part of a month.

    Attributes:
        month: months since the year 0.
        spent: tokens and billionths of money, by tenant.
    """

    month: int = 0
    spent: dict[str, tuple[int, int]] = {}


class Released(Struct, frozen=True):
    """The old process has let go.

    Attributes:
        counted_until_s: seconds since the epoch; what its calls spent before that is on disk.
    """

    counted_until_s: float = 0.0


def bound_unix_socket(path: Path) -> socket.socket:
    """Return a socket that is bound to a path, for this user alone; what was bound there before is cut off from it.

    Raises:
        OSError: the folder cannot be written, or the path is too long.
    """
    if len(os.fsencode(path)) > _MAX_SOCKET_PATH:
        raise OSError(errno.ENAMETOOLONG, f"{path} is too long for a socket")
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    try:
        listener.bind(str(path))
        path.chmod(0o600)
    except OSError:
        listener.close()
        raise
    return listener


class Offer:
    """The old side: offers the sockets, until somebody has taken them.

    Args:
        loop: the running loop.
        hello: made for each who asks.
        sockets: the descriptors that are offered.
        release: lets go of what two processes must not both have, and says until when spending is on disk.

    Attributes:
        taken: another process serves in this one's place.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        hello: Callable[[], Hello],
        sockets: Callable[[], list[int]],
        release: Callable[[], Awaitable[Released]],
    ) -> None:
        self._loop = loop
        self._hello = hello
        self._sockets = sockets
        self._release = release
        self._task: asyncio.Task[None] | None = None
        self._listener: socket.socket | None = None
        self._taker: socket.socket | None = None
        self._path = Path()
        self.taken = False

    def start(self, folder: Path) -> None:
        """Begin to offer; what cannot be offered is said, and is no reason not to serve."""
        self._path = folder / SOCKET_NAME
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._listener = bound_unix_socket(self._path)
            self._listener.listen(4)
            self._listener.setblocking(False)
        except OSError as error:
            log.warning("this process cannot be taken over: no socket in %s: %s", folder, error.strerror or error)
            return
        self._task = self._loop.create_task(self._offer(self._listener), name="hand-over")

    def stop(self) -> None:
        """Offer no more."""
        if self._task is not None:
            self._task.cancel()
        if self._listener is not None:
            self._listener.close()
            if not self.taken:
                with suppress(OSError):
                    self._path.unlink()

    def tell(self, spent: Spent | None) -> None:
        """Tell the new process what was spent since the release, and that this one ends."""
        taker, self._taker = self._taker, None
        if taker is not None:
            with suppress(OSError):
                taker.setblocking(True)
                taker.settimeout(1.0)
                taker.sendall(msgspec.json.encode(spent or Spent()) + b"\n")
            taker.close()

    async def _offer(self, listener: socket.socket) -> None:
        while not self.taken:
            taker, _ = await self._loop.sock_accept(listener)
            taker.setblocking(False)
            try:
                await self._give(taker)
            except OSError as error:
                log.warning("the hand-over failed: %s", error.strerror or type(error).__name__)
            finally:
                if self._taker is None:
                    taker.close()

    async def _give(self, taker: socket.socket) -> None:
        """Serve one who asks; it has taken over as soon as it is ready."""
        hello = self._hello()
        socket.send_fds(taker, [msgspec.json.encode(hello) + b"\n"], self._sockets()[:_MAX_SOCKETS])
        try:
            async with asyncio.timeout(READY_S):
                answer = await self._loop.sock_recv(taker, len(_READY))
        except TimeoutError:
            answer = b""  # it hangs, and would keep others from taking over
        if answer != _READY:
            log.warning("the process that asked for the listening sockets ended before it was ready; this one goes on")
            return
        self._taker, self.taken = taker, True
        log.info("another process serves from now on; this one finishes its calls")
        released = await self._release()
        with suppress(OSError):  # it has died meanwhile; the calls of this one are finished all the same
            await self._loop.sock_sendall(taker, msgspec.json.encode(released) + b"\n")


class Taken:
    """The new side: the sockets of the running process, and its word that it has let go.

    Attributes:
        hello: what it said of itself.
        sockets: listening ones.
    """

    def __init__(self, link: socket.socket, hello: Hello, sockets: list[socket.socket]) -> None:
        self._link = link
        self._rest = b""
        self.hello = hello
        self.sockets = sockets

    def fileno(self) -> int:
        """Return the descriptor of the link, for a child process that goes on with it."""
        return self._link.fileno()

    def listening_on(self, address: str) -> list[socket.socket]:
        """Return the sockets that listen on an address; the configuration may have another one by now."""
        return self.sockets if self.hello.listen == address else []

    async def ready(self, loop: asyncio.AbstractEventLoop) -> Released:
        """Say that this process serves, and wait until the old one has let go; one that dies has let go of all."""
        self._link.setblocking(False)
        try:
            async with asyncio.timeout(RELEASE_S):
                await loop.sock_sendall(self._link, _READY)
                line = await self._line(loop)
            return msgspec.json.decode(line, type=Released)
        except (OSError, msgspec.DecodeError) as error:
            log.warning("the process that was taken over did not say that it has let go: %s", type(error).__name__)
            return Released()

    async def ended(self, loop: asyncio.AbstractEventLoop) -> Spent | None:
        """Wait until the old process has finished its calls; return what they spent, None when it died."""
        try:
            return msgspec.json.decode(await self._line(loop), type=Spent)
        except (OSError, msgspec.DecodeError):
            return None
        finally:
            self._link.close()

    def close(self) -> None:
        """Leave the old process alone: it goes on."""
        self._link.close()
        for listener in self.sockets:
            listener.close()

    async def _line(self, loop: asyncio.AbstractEventLoop) -> bytes:
        while b"\n" not in self._rest:
            data = await loop.sock_recv(self._link, 65_536)
            if not data or len(self._rest) > MAX_LINE_BYTES:
                raise ConnectionResetError
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line


def running(data_dir: Path) -> Taken | None:
    """Return what `take_over` does, and warn when there is nothing to be taken over.

    Raises:
        HandOverError: as `take_over`.
    """
    taken = take_over(data_dir)
    if taken is None:
        log.warning("no process runs on %s that could be taken over; this is a plain start", data_dir)
    return taken


def take_over(data_dir: Path) -> Taken | None:
    """Ask the process that runs on a data folder for its sockets; None when there is none.

    Raises:
        HandOverError: there is one, and it does not hand over.
    """
    path = data_dir / "run" / SOCKET_NAME
    link = socket.socket(socket.AF_UNIX)
    link.settimeout(ANSWER_S)
    try:
        link.connect(str(path))
    except (FileNotFoundError, ConnectionRefusedError):
        link.close()
        return None
    except OSError as error:
        link.close()
        raise HandOverError(f"{path}: cannot be asked: {error.strerror or type(error).__name__}") from None
    try:
        line, descriptors, _, _ = socket.recv_fds(link, 65_536, _MAX_SOCKETS)
        sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        for received in sockets:
            # Else our children have them too, and hold the address when we are killed.
            received.set_inheritable(False)
        hello = msgspec.json.decode(line, type=Hello)
    except (OSError, msgspec.DecodeError) as error:
        link.close()
        text = f"{path}: the running process does not hand over ({type(error).__name__}); stop it and start plainly"
        raise HandOverError(text) from None
    taken = Taken(link, hello, sockets)
    if hello.format != FORMAT:
        taken.close()
        raise HandOverError(f"{path}: the running process hands over in another way; stop it and start plainly")
    return taken
