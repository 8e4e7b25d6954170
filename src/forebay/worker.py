"""One of several processes that serve clients: it asks the gate for places, and has nothing to decide about limits.

The listening sockets are those of its supervisor, the same in all workers: one queue of connections, which ends with
none of them.
"""

import asyncio
import logging
import socket

import msgspec

from forebay.app import DataPlane
from forebay.crossing.burden import accepts
from forebay.crossing.messages import Burden, Kind, View
from forebay.crossing.mirror import follow
from forebay.crossing.remote import RemoteGate
from forebay.domain import Replica
from forebay.single import drain, settle_memory

log = logging.getLogger(__name__)

BURDEN_BEATS = 2
_UP_S = 0.01


class Worker:
    """Runs one worker.

    Args:
        plane: all of it; asks `gate`.
        gate: in its own process.
        listeners: bound sockets, the supervisor's.
        workers: how many there are.
    """

    def __init__(self, plane: DataPlane, gate: RemoteGate, listeners: list[socket.socket], workers: int) -> None:
        self._plane = plane
        self._gate = gate
        self._listeners = listeners
        self._accepting = self._stopping = self._begun = False
        self._beats = 0
        plane.edge.sharers = workers
        gate.on_view = self._seen
        gate.on_gather = self._said
        plane.local.gathered = gate.page
        plane.others_lag_s = lambda: gate.worst_lag_s
        plane.beats.append(self._beat)

    def begin(self) -> None:
        """Begin the background work."""
        self._plane.journal.start()
        self._plane.background(self._plane.tick, self._plane.follower.run, self._gate.run)

    async def serve(self) -> None:
        """Accept connections as soon as there is a gate."""
        while not self._gate.up:  # noqa: ASYNC110 - once, at the start
            await asyncio.sleep(_UP_S)
        self._accept()
        self._plane.ready = True
        self._gate.tell(Burden(0, 0.0))
        settle_memory()

    async def stop(self, *, lingers: bool) -> None:
        """Drain and end.

        Args:
            lingers: the address is served by others, or nobody is there to wait for.
        """
        self._stopping = True
        await drain(self._plane, lingers=lingers)
        await self._plane.end()
        for listener in self._listeners:
            listener.close()
        await self._plane.loop.run_in_executor(None, self._plane.journal.close)

    def _accept(self) -> None:
        self._accepting = self._begun = True
        self._plane.edge.share(self._listeners, lambda: self._gate.mean_connections)

    def _beat(self) -> None:
        plane = self._plane
        self._gate.tick()
        self._beats += 1
        if self._beats % BURDEN_BEATS or not self._begun:
            return
        connections = plane.edge.open_connections
        self._gate.tell(Burden(connections, plane.lag_s))
        if self._stopping:
            return
        wanted = accepts(self._accepting, connections, self._gate.mean_connections, plane.lag_s)
        if wanted and not self._accepting:
            log.info("this worker accepts connections again")
            self._accept()
        elif self._accepting and not wanted:
            log.warning("this worker accepts no connections for now: %d are open, its loop is late", connections)
            plane.edge.pause_accepting()
        self._accepting = wanted

    def _said(self, kind: Kind) -> bytes:
        """Say how this worker is."""
        if kind == "metrics":
            return msgspec.msgpack.encode(self._plane.metrics.sheet())
        return msgspec.json.encode(self._plane.status())

    def _seen(self, roster: tuple[tuple[str, Replica], ...], view: View) -> None:
        """Make the copy of the replicas what the gate says; those that this process does not know yet are left out."""
        self._plane.laddering.told(view.pools, view.shared)
        states = {(state.pool.name, state.replica.name): state for state in self._plane.fleet.states()}
        for (pool, replica), standing in zip(roster, view.standings, strict=True):
            state = states.get((pool, replica.name))
            if state is not None:
                follow(state, standing)
