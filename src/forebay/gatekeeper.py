"""The process that has the gate of several workers: limits, queue, replicas, retries, the month; no clients.

It also answers the control plane, and hands the listening sockets, which it holds but does not serve, to a process that
takes over.
"""

import asyncio
import logging
import os
import socket
from collections.abc import Callable
from typing import Any

import msgspec

from forebay.app import DataPlane
from forebay.clock import Clock
from forebay.crossing.host import GateHost, Room
from forebay.handover import FORMAT, Hello, Offer, Released, Spent, Taken
from forebay.ledger import Counted
from forebay.single import Desk, outlive, settle_memory

log = logging.getLogger(__name__)

_LOOK_S = 0.02
# Longer than the grace of the workers, which are cut at its end: nobody is left by then.
_MARGIN_S = 5.0


class Gatekeeper:
    """Runs the gate.

    Args:
        plane: its rooms; those of the request path stay idle.
        workers: how many processes will connect.
        listeners: the workers' sockets, to be handed over.
        say: tells the supervisor something: `desk PATH`, `serves`, `retire`.
    """

    def __init__(
        self, plane: DataPlane, workers: int, listeners: list[socket.socket], say: Callable[[str], None]
    ) -> None:
        self._plane = plane
        self._workers = workers
        self._listeners = listeners
        self._say = say
        clock: Clock = plane.clock
        self._started_s = clock.wall_s()
        self._host = GateHost(plane.loop, Room(clock, plane.gate, plane.fleet, plane.budgets), workers)
        plane.policy.subscribe(self._host)
        plane.beats.append(self._host.tick)
        self._desk = Desk(plane)
        self._host.views, self._host.shared = plane.laddering.views, plane.laddering.shared
        self._host.pages.own_sheet = plane.metrics.sheet
        self._host.pages.own_state = plane.status
        plane.local.gathered = self._host.pages.read
        self._offer = Offer(plane.loop, self._hello, lambda: [each.fileno() for each in listeners], self._release)

    def begin(self) -> None:
        """Begin the background work."""
        plane = self._plane
        plane.background(plane.tick, plane.poller.run, plane.follower.run, plane.ledger.run, *plane.sharing_work())

    async def serve(self, listener: socket.socket, taken: Taken | None = None) -> None:
        """Serve workers.

        Args:
            listener: a bound Unix socket.
            taken: a running process, which is told to finish when all workers serve.
        """
        plane = self._plane
        await plane.poller.round()
        if plane.sharing is not None:
            await plane.sharing.joined()
        await self._host.listen(listener)
        # All calls of its workers are counted here, whatever their ids begin with.
        counted_from_s = self._started_s
        if taken is not None:
            while sum(guest.serves for guest in self._host.guests) < self._workers:  # noqa: ASYNC110 - at the start
                await asyncio.sleep(_LOOK_S)
            released = await taken.ready(plane.loop)
            counted_from_s = released.counted_until_s or counted_from_s
            plane.once(outlive(plane, taken))
        plane.once(plane.read_ledger((Counted(("",), counted_from_s),)))
        plane.ready = True
        self._say(f"desk {await self._desk.open()}")
        self._offer.start(plane.data_dir / "run")
        settle_memory()

    def told(self, line: bytes) -> None:
        """Take what the supervisor says of its child processes, for the status."""
        self._plane.siblings = msgspec.json.decode(line, type=list[dict[str, Any]])

    async def stop(self) -> None:
        """Wait until the workers have gone, within their grace, and end."""
        plane = self._plane
        taken = self._offer.taken
        if not taken:
            self._offer.stop()
        # Who starts next binds the address anew: a copy left open here would hold it, and nobody would serve it.
        for listener in self._listeners:
            listener.close()
        shutdown = plane.policy.current.shutdown
        until_s = plane.clock.now_s() + shutdown.drain_delay_s + shutdown.grace_s + _MARGIN_S
        while self._host.guests and plane.clock.now_s() < until_s:  # noqa: ASYNC110 - bounded, at the end
            await asyncio.sleep(_LOOK_S)
        self._host.close()
        plane.edge.cut_all()
        await asyncio.sleep(0)
        await plane.end()
        await plane.ledger.stop()
        if taken:
            spent = plane.ledger.since_handed()
            self._offer.tell(Spent(spent.month, spent.spent))
            self._offer.stop()
        self._desk.close(unlinks=not taken)

    def _hello(self) -> Hello:
        return Hello(FORMAT, str(self._plane.settings.listen), os.getpid(), ("",))

    async def _release(self) -> Released:
        """Let another process serve: the supervisor lets the workers finish, and the month is left to the other one."""
        self._say("retire")
        return Released(await self._plane.ledger.hand_over())
