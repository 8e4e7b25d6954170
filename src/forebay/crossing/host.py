"""The gate's side: serves the workers' connections out of one gate, and frees what a worker had when it is gone."""

import asyncio
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Final

from msgspec import Struct

from forebay.admission.gate import LocalGate, LocalPermit
from forebay.admission.queue import Waiting
from forebay.clock import Clock
from forebay.crossing import messages
from forebay.crossing.link import Link
from forebay.crossing.messages import (
    FORMAT,
    Again,
    Allowed,
    Ask,
    Burden,
    FirstToken,
    Gone,
    Granted,
    HeldLease,
    HeldPermit,
    Joined,
    MayRetry,
    Move,
    Page,
    Place,
    Release,
    Report,
    Roster,
    Sheets,
    Turned,
    View,
    call_of,
    turned,
)
from forebay.crossing.mirror import standing_of
from forebay.crossing.pages import Pages
from forebay.domain import Spend
from forebay.errors import Refused
from forebay.policy import LevelOverride, Policy
from forebay.ports import Lease, PoolView
from forebay.routing.budget import RetryBudgets
from forebay.routing.pool import Fleet
from forebay.routing.replica import ReplicaState

log = logging.getLogger(__name__)

ASSEMBLE_S: Final = 1.0
"""After its start a gate grants nothing until all workers have told what they hold, but no longer than this."""
EARLY_S: Final = 3.0
"""A call for a pool that this gate does not know yet waits so long for the policy that names it."""
SETTLE_S: Final = 0.01
"""A call that has no room in its tenant's limits is looked at once more after so long."""
VIEW_TICKS: Final = 2
_SETTLED_SOON: Final = ("concurrency_limit", "insufficient_quota")
_NOTHING_USED = Spend(0)


class Room(Struct, frozen=True):
    """What the gate decides from."""

    clock: Clock
    gate: LocalGate
    fleet: Fleet
    budgets: RetryBudgets


class GateHost:
    """Serves workers; follows the policy.

    Args:
        loop: the running loop.
        room: limits, queue, replicas, budgets.
        workers: how many there are to be.

    Attributes:
        guests: the connected workers.
        pages: what they say of themselves.
        views: returns how the pools do, by name.
        shared: returns the levels that people have set on other nodes.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, room: Room, workers: int) -> None:
        self._loop = loop
        self._room = room
        self._expected = workers
        self._started_s = room.clock.now_s()
        self._server: asyncio.Server | None = None
        self._pools: frozenset[str] = frozenset()
        self._roster = Roster(())
        self._states: tuple[ReplicaState, ...] = ()
        # By the identity of the replica's value, which its state holds.
        self._numbers: dict[int, int] = {}
        self._ticks = 0
        self.guests: list[Guest] = []
        self.views: Callable[[], dict[str, PoolView]] = dict
        self.shared: Callable[[], tuple[LevelOverride, ...]] = tuple
        self.pages = Pages(loop, lambda: list(self.guests), lambda: self._assembled)
        self._assembled = False

    def apply(self, policy: Policy) -> None:
        """Follow a new policy: workers get the replicas before any place on them."""
        self._pools = frozenset(policy.pools)
        self._states = tuple(self._room.fleet.states())
        self._numbers = {id(state.replica): number for number, state in enumerate(self._states)}
        self._roster = Roster(tuple((state.pool.name, state.replica) for state in self._states))
        for guest in self.guests:
            guest.send(self._roster)
            guest.pump()

    async def listen(self, listener: socket.socket) -> None:
        """Serve on a bound Unix socket."""
        self._server = await self._loop.create_unix_server(self._link, sock=listener)

    def close(self) -> None:
        """Serve no more."""
        if self._server is not None:
            self._server.close()
        self.pages.close()
        for guest in list(self.guests):
            guest.cut()

    def tick(self) -> None:
        """Show the workers how the replicas are, and decide on calls that came early; ten times a second."""
        if not self._assembled:
            now_s = self._room.clock.now_s()
            joined = len({guest.number for guest in self.guests if guest.number is not None})
            self._assembled = joined >= self._expected or now_s - self._started_s >= ASSEMBLE_S
        self._ticks += 1
        if self._ticks % VIEW_TICKS == 0 and self.guests:
            view = self._view()
            for guest in self.guests:
                guest.send(view)
        for guest in self.guests:
            guest.pump()
        self.pages.tick(self._ticks)

    def place_of(self, lease: Lease | None) -> Place | None:
        """Describe a lease by the latest roster."""
        if lease is None:
            return None
        number = self._numbers.get(id(lease.replica))
        return None if number is None else Place(number, lease.uncached_tokens, lease.started_s)

    def may_decide(self, pool: str) -> bool:
        """Say whether a call for a pool can be decided on yet."""
        return self._assembled and pool in self._pools

    def _view(self) -> View:
        connections = [guest.connections for guest in self.guests if guest.number is not None]
        mean = sum(connections) / len(connections) if connections else 0.0
        lag_s = max((guest.lag_s for guest in self.guests), default=0.0)
        return View(tuple(map(standing_of, self._states)), mean, lag_s, self.views(), self.shared())

    def _link(self) -> Link:
        guest = Guest(self, self._room)
        return Link(self._loop, guest.take, partial(self._came, guest), partial(self._left, guest))

    def _came(self, guest: "Guest", link: Link) -> None:
        guest.link = link
        self.guests.append(guest)
        guest.send(self._roster)

    def _left(self, guest: "Guest", link: Link) -> None:
        self.guests.remove(guest)
        guest.free()
        self.pages.left(guest)


class Guest:
    """One worker: what it holds and waits for.

    Attributes:
        number: None until it has said which it is.
        pid: of its process; 0 until then.
        connections: of clients, as it said last.
        serves: it takes clients.
        lag_s: how late its loop is, as it said last.
    """

    def __init__(self, host: GateHost, room: Room) -> None:
        self._host = host
        self._room = room
        self._permits: dict[int, LocalPermit] = {}
        self._leases: dict[int, Lease] = {}
        self._waiting: dict[int, tuple[Waiting, str]] = {}
        self._moving: dict[int, asyncio.Task[None]] = {}
        self._early: dict[int, tuple[float, Ask | Again]] = {}
        self._again: dict[int, asyncio.TimerHandle] = {}
        self.link: Link | None = None
        self.number: int | None = None
        self.pid = 0
        self.connections = 0
        self.serves = False
        self.lag_s = 0.0

    def send(self, message: Struct) -> None:
        """Send it something."""
        if self.link is not None:
            self.link.send(message)

    def cut(self) -> None:
        """End its connection."""
        if self.link is not None:
            self.link.cut()

    def take(self, data: bytes) -> None:  # noqa: C901 - one line for each message
        """Take one message."""
        match messages.from_worker(data):
            case Ask() | Again() as wish:
                self._wish(wish)
            case FirstToken(lease=number):
                if number in self._leases:
                    self._leases[number].first_token()
            case Report() as report:
                lease = self._leases.pop(report.lease, None)
                if lease is not None:
                    lease.report(
                        report.failure,
                        answered=report.answered,
                        cached_tokens=report.cached_tokens,
                        again=report.again,
                    )
            case Release() as release:
                self._release(release)
            case Gone(id=number):
                self._gone(number)
            case MayRetry() as asked:
                self.send(Allowed(asked.id, self._room.budgets.try_take(asked.pool, asked.tenant)))
            case Move() as move:
                self._move(move)
            case Burden() as burden:
                self.connections, self.lag_s, self.serves = burden.connections, burden.lag_s, True
            case Sheets() as sheets:
                self._host.pages.came(self, sheets)
            case Page() as page:
                self._host.pages.asked(self, page)
            case Joined() as joined:
                self._join(joined)

    def pump(self) -> None:
        """Decide on calls that came before they could be decided on."""
        if not self._early:
            return
        now_s = self._room.clock.now_s()
        for number, (came_s, wish) in list(self._early.items()):
            if self._host.may_decide(wish.pool):
                del self._early[number]
                self._decide(wish)
            elif now_s - came_s >= EARLY_S:
                del self._early[number]
                text = "this model has just changed; try again in a moment"
                self.send(Turned(number, "no_engine", text, 1))

    def free(self) -> None:
        """Free all that it had: its connection has ended."""
        self._early.clear()
        for again in self._again.values():
            again.cancel()
        self._again.clear()
        for waiting, pool in self._waiting.values():
            self._room.gate.basin.leave(waiting, pool)
        self._waiting.clear()
        for task in self._moving.values():
            task.cancel()
        for lease in self._leases.values():
            lease.report(None, answered=False)
        self._leases.clear()
        for permit in self._permits.values():
            permit.release(None)
        self._permits.clear()

    def _join(self, joined: Joined) -> None:
        if joined.format != FORMAT:
            log.error("worker %d is of another version and is not served", joined.number)
            self.cut()
            return
        self.number, self.pid = joined.number, joined.pid
        for permit in joined.permits:
            self._adopt_permit(permit)
        for lease in joined.leases:
            self._adopt_lease(lease)
        held = len(joined.permits)
        log.info("worker %d has joined%s", joined.number, f" with {held} running calls" if held else "")

    def _adopt_permit(self, held: HeldPermit) -> None:
        permit = self._room.gate.adopt(call_of(held.need), held.pool)
        if permit is not None:
            self._permits[held.id] = permit

    def _adopt_lease(self, held: HeldLease) -> None:
        call = call_of(held.need)
        foreseen = max(0, call.prompt_tokens - held.uncached_tokens)
        lease = self._room.fleet.adopt(held.pool, held.replica, call, foreseen)
        if lease is not None:
            self._leases[held.id] = lease
            if held.prefilled:
                # Not a first token: when it came, and after what, is not known here.
                lease.prefilled()

    def _wish(self, wish: Ask | Again) -> None:
        if self._host.may_decide(wish.pool):
            self._decide(wish)
        else:
            self._early[wish.id] = (self._room.clock.now_s(), wish)

    def _decide(self, wish: Ask | Again) -> None:
        call = call_of(wish.need)
        if isinstance(wish, Again):
            lease = self._room.fleet.take(wish.pool, call, frozenset(wish.excluded), held=False)
            self._grant(wish.id, lease, Granted(wish.id, self._host.place_of(lease), call.value))
            return
        waiting = self._room.gate.offer(
            call, wish.pool, partial(self._admitted, wish.id, call.tenant.name), partial(self._refused, wish)
        )
        if waiting is not None:
            self._waiting[wish.id] = (waiting, wish.pool)

    def _admitted(self, number: int, tenant: str, permit: LocalPermit) -> None:
        self._waiting.pop(number, None)
        self._again.pop(number, None)
        self._permits[number] = permit
        self._room.budgets.note_call(permit.pool, tenant)
        self._grant(number, permit.lease, Granted(number, self._host.place_of(permit.lease), permit.value))

    def _refused(self, wish: Ask, refusal: Refused) -> None:
        self._waiting.pop(wish.id, None)
        if refusal.code in _SETTLED_SOON and wish.id not in self._again:
            # The end of the call before it may be on its way, from another worker: the client may know of it already.
            loop = asyncio.get_running_loop()
            self._again[wish.id] = loop.call_later(SETTLE_S, self._decide, wish)
            return
        self._again.pop(wish.id, None)
        self.send(turned(wish.id, refusal))

    def _grant(self, number: int, lease: Lease | None, granted: Granted) -> None:
        if lease is not None:
            if granted.place is None:
                lease.report(None, answered=False)
            else:
                self._leases[number] = lease
        self.send(granted)

    def _release(self, release: Release) -> None:
        permit = self._permits.pop(release.permit, None)
        if permit is not None:
            used = None if release.tokens is None else Spend(release.tokens, release.money)
            permit.release(_NOTHING_USED if release.told else used)

    def _gone(self, number: int) -> None:
        """Take back what nobody waits for: a wish, a wait, or what it was answered with."""
        self._early.pop(number, None)
        again = self._again.pop(number, None)
        if again is not None:
            again.cancel()
        waiting = self._waiting.pop(number, None)
        if waiting is not None:
            self._room.gate.basin.leave(*waiting)
        moving = self._moving.pop(number, None)
        if moving is not None:
            moving.cancel()
        lease = self._leases.pop(number, None)
        if lease is not None:
            lease.report(None, answered=False)
        permit = self._permits.pop(number, None)
        if permit is not None:
            permit.withdraw()

    def _move(self, move: Move) -> None:
        permit = self._permits.get(move.permit)
        if permit is None or not self._host.may_decide(move.pool):
            self.send(Turned(move.id, "no_engine", "no engine can take this call now", 1))
            return
        self._moving[move.id] = asyncio.get_running_loop().create_task(self._moved(move, permit))

    async def _moved(self, move: Move, permit: LocalPermit) -> None:
        try:
            await permit.move(move.pool)
        except Refused as refusal:
            self.send(turned(move.id, refusal))
            return
        finally:
            self._moving.pop(move.id, None)
        lease = permit.lease
        self._grant(move.id, lease, Granted(move.id, self._host.place_of(lease), permit.value))
