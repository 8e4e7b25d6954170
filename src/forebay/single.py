"""A data plane in one process: how it starts, drains, ends, and hands its sockets to the one that replaces it.

The control plane and the embedded engine are children that it never waits for.
"""

import asyncio
import gc
import logging
import os
import tempfile
from contextlib import suppress
from pathlib import Path

from forebay.admission.spending import Seed
from forebay.app import DataPlane
from forebay.claim import Claim
from forebay.handover import FORMAT, Hello, Offer, Released, Spent, Taken, bound_unix_socket
from forebay.ledger import Counted
from forebay.processes import Child

log = logging.getLogger(__name__)

# After a hand-over clients may use their idle connections for so long; each is closed behind its next answer.
LINGER_S = 5.0
CONTROL_PLANE = "control plane"
_SOCKET_NAME = "data.sock"


class Single:
    """Runs one data plane.

    Args:
        plane: all of it.
        replaced: set when another process serves in this one's place: it is to be stopped.

    Attributes:
        socket_path: where the control plane asks.
    """

    def __init__(self, plane: DataPlane, replaced: asyncio.Event) -> None:
        self._plane = plane
        self._replaced = replaced
        self._desk = Desk(plane)
        self._claim = Claim(plane.data_dir)
        self._offer = Offer(plane.loop, self._hello, plane.edge.descriptors, self._release)
        self.socket_path = Path()

    def begin(self) -> None:
        """Begin the background work."""
        plane = self._plane
        plane.journal.start()
        plane.background(plane.tick, plane.poller.run, plane.follower.run, plane.ledger.run, *plane.sharing_work())

    async def listen(self, taken: Taken | None = None) -> int:
        """Serve; return the data port.

        Args:
            taken: the sockets of a running process, which is told to finish as soon as this one serves.

        Raises:
            OSError: the address cannot be listened on.
            ClaimedError: another process has the data folder, and is not taken over.
        """
        plane = self._plane
        address = plane.settings.listen
        port = 0
        if taken is None:
            self._claim.take()
        else:
            await plane.poller.round()
            if plane.sharing is not None:
                await plane.sharing.joined()
            for listener in taken.listening_on(str(address)):
                port = await plane.edge.listen_on(listener)
        port = port or await plane.edge.listen(address.host, address.port)
        plane.ready = True
        own = Counted((f"{plane.run_id}-",))
        if taken is None:
            plane.once(plane.read_ledger((own,)))
        else:
            released = await taken.ready(plane.loop)
            plane.once(self._claim.inherit())
            plane.once(plane.read_ledger((own, Counted(taken.hello.run_ids, released.counted_until_s))))
            plane.once(outlive(plane, taken))
        self.socket_path = await self._desk.open()
        self._offer.start(plane.data_dir / "run")
        settle_memory()
        return port

    async def start_child(self, child: Child) -> None:
        """Start a child and stop it when the data plane stops."""
        self._plane.children.append(child)
        await child.start()

    async def stop(self) -> None:
        """Drain: unready, wait for load balancers, stop accepting, let calls finish, then end.

        After a hand-over the address is still served, so nobody waits for load balancers, and idle connections are not
        closed at once: a client may be using one at this moment.
        """
        plane = self._plane
        taken = self._offer.taken
        if not taken:
            self._offer.stop()
        await drain(plane, lingers=taken)
        await plane.end()
        await plane.ledger.stop()
        if taken:
            spent = plane.ledger.since_handed()
            self._offer.tell(Spent(spent.month, spent.spent))
            self._offer.stop()
        self._desk.close(unlinks=not taken)
        await plane.loop.run_in_executor(None, plane.journal.close)
        self._claim.release()

    def _hello(self) -> Hello:
        return Hello(FORMAT, str(self._plane.settings.listen), os.getpid(), (f"{self._plane.run_id}-",))

    async def _release(self) -> Released:
        """Let another process serve: accept no more, and let go of what two processes must not both have."""
        self._plane.edge.close_listeners()
        for child in self._plane.children:
            if child.name == CONTROL_PLANE:
                await child.stop(grace_s=2.0)
        until_s = await self._plane.ledger.hand_over()
        self._claim.release()
        self._replaced.set()
        return Released(until_s)


class Desk:
    """Where a data plane answers its control plane: a Unix socket in the data folder, else in a temporary one."""

    def __init__(self, plane: DataPlane) -> None:
        self._plane = plane
        self._path = Path()
        self._temporary: Path | None = None

    async def open(self) -> Path:
        """Listen, and return where; without any socket the control plane sees no status."""
        folder = self._plane.data_dir / "run"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            listener = bound_unix_socket(folder / _SOCKET_NAME)
        except OSError:
            try:
                folder = self._temporary = Path(tempfile.mkdtemp(prefix="forebay-"))
                listener = bound_unix_socket(folder / _SOCKET_NAME)
            except OSError as error:
                log.error("no socket for the control plane, which will show nothing of this process: %s", error)
                return folder / _SOCKET_NAME
        await self._plane.edge.listen_unix(listener)
        self._path = folder / _SOCKET_NAME
        return self._path

    def close(self, *, unlinks: bool) -> None:
        """Remove the socket, unless another process has put its own there."""
        if unlinks:
            with suppress(OSError):
                self._path.unlink()
        if self._temporary is not None:
            with suppress(OSError):
                self._temporary.rmdir()


async def drain(plane: DataPlane, *, lingers: bool) -> None:
    """Let the calls of a process end within the grace, then cut what is left.

    Args:
        plane: of the process.
        lingers: another process serves the address already; idle connections may bring one call more for 5 s.
    """
    clock, edge = plane.clock, plane.edge
    shutdown = plane.policy.current.shutdown
    if lingers:
        edge.close_listeners()
    else:
        plane.ready = False
        await asyncio.sleep(shutdown.drain_delay_s)
        edge.stop_accepting()
    begun_s = clock.now_s()
    while clock.now_s() < begun_s + shutdown.grace_s:
        if lingers and clock.now_s() >= begun_s + LINGER_S:
            edge.stop_accepting()
        if not (edge.open_connections if lingers else edge.busy_connections):
            break
        await asyncio.sleep(0.02)
    edge.cut_all()
    await asyncio.sleep(0)


async def outlive(plane: DataPlane, taken: Taken) -> None:
    """Count what the calls of the process that was taken over still spend, when it has ended."""
    spent = await taken.ended(plane.loop)
    if spent is None:
        log.warning("the process that was taken over died; what its last calls spent is not counted")
    else:
        plane.ledger.add(Seed(spent.month, spent.spent))
        log.info("the process that was taken over has ended")


def settle_memory() -> None:
    """Leave alone what lives as long as the process: a full collection stops the loop."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
