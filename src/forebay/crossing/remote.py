"""A worker's side: the gate as rooms see it, asked over one connection.

A permit costs one round trip; first token, report and release are sent and not answered. When the gate dies, what runs
goes on untouched: permits and leases are announced to the next one. Calls that want something wait for it, for a
bounded time.
"""

import asyncio
import itertools
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from msgspec import Struct

from forebay.clock import Clock
from forebay.crossing import messages
from forebay.crossing.link import Link
from forebay.crossing.messages import (
    FORMAT,
    Again,
    Allowed,
    Ask,
    FirstToken,
    FromGate,
    Gather,
    Gone,
    Granted,
    HeldLease,
    HeldPermit,
    Joined,
    Kind,
    MayRetry,
    Move,
    Page,
    PageIs,
    Place,
    Release,
    Report,
    Roster,
    Sheets,
    Turned,
    View,
    need_of,
)
from forebay.domain import FailureKind, Replica, Spend, Value
from forebay.errors import Refused
from forebay.ports import Lease
from forebay.traffic import Call

log = logging.getLogger(__name__)

WAIT_S: Final = 5.0
"""How long a call waits for a gate that is gone."""
SILENT_S: Final = 3.0
"""A gate that says nothing for so long hangs; it speaks several times a second."""
START_S: Final = 15.0
"""The same for one that is starting."""
PAGE_S: Final = 1.0
"""How long a page of all processes may take; then there is one of this process alone."""
RECONNECT_S: Final = 0.05
_RETRY_AFTER_S: Final = 2

_Answer = tuple[Granted | Allowed | PageIs, Replica | None]


class RemoteLease:
    """A try's place on one replica; see `ports.Lease`."""

    __slots__ = (
        "_gate",
        "_prefilled",
        "call",
        "first_token_s",
        "id",
        "pool",
        "replica",
        "started_s",
        "uncached_tokens",
    )

    def __init__(self, gate: "RemoteGate", number: int, where: tuple[str, Replica], call: Call, place: Place) -> None:
        self._gate: RemoteGate | None = gate
        self._prefilled = False
        self.id = number
        self.pool, self.replica = where
        self.call = call
        self.uncached_tokens = place.uncached_tokens
        self.started_s = place.started_s
        self.first_token_s: float | None = None

    @property
    def prefilling(self) -> bool:
        """Whether its prompt is still to be computed; of answers that come as a whole it is not known here."""
        return self.first_token_s is None

    def first_token(self) -> None:
        """Tell that a stream's first token came."""
        gate = self._gate
        if gate is not None and not self._prefilled:
            self._prefilled = True
            self.first_token_s = gate.now_s()
            gate.tell(FirstToken(self.id))

    def report(
        self, failure: FailureKind | None, *, answered: bool, cached_tokens: int | None = None, again: bool = False
    ) -> None:
        """Tell how the try ended; a second time changes nothing."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.ended(self, Report(self.id, failure, answered, cached_tokens, again))

    def held(self) -> HeldLease:
        """Describe it to a new gate."""
        need, name = need_of(self.call), self.replica.name
        return HeldLease(self.id, self.pool, name, need, self.uncached_tokens, self.started_s, self._prefilled)


class RemotePermit:
    """The right to occupy an engine; see `ports.Permit`."""

    __slots__ = ("_gate", "call", "id", "lease", "pool", "value")

    def __init__(self, gate: "RemoteGate", number: int, pool: str, call: Call) -> None:
        self._gate: RemoteGate | None = gate
        self.id = number
        self.pool = pool
        self.call = call
        self.lease: Lease | None = None
        self.value: Value = call.value

    async def move(self, pool: str) -> None:
        """Wait for a replica of another pool.

        Raises:
            Refused: the other pool has no room, or the gate is gone; `release` is still due.
        """
        gate = self._gate
        if gate is not None:
            self.give_back()
            self.pool = pool
            await gate.moved(self, pool)

    def release(self, used: Spend | None) -> None:
        """Give it back and settle the reservation."""
        gate, self._gate = self._gate, None
        if gate is not None:
            self.give_back()
            tokens, money = (None, 0.0) if used is None else (used.tokens, used.money)
            gate.released(self, Release(self.id, tokens, money, not gate.up))

    def give_back(self) -> None:
        """End a lease that nobody has used."""
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.report(None, answered=False)


class _Waiting(Struct):
    """Somebody waits for an answer.

    Attributes:
        message: as it was sent; sent again to the next gate.
        since_s: monotonic seconds, from which its time is counted while the gate is gone.
    """

    turn: "asyncio.Future[_Answer]"
    message: Ask | Move | Again | MayRetry | Page
    since_s: float


class RemoteGate:
    """The gate, asked over a Unix socket: `ports.Gate` and `ports.Retries`.

    Args:
        loop: the running loop.
        clock: monotonic time, the same as the gate's.
        path: of the gate's socket.
        number: of this worker.

    Attributes:
        up: a gate answers.
        mean_connections: of clients, over all workers.
        worst_lag_s: of the worker whose loop is the latest.
        on_view: called with each view of the gate and the replicas that it numbers.
        on_gather: returns what this worker says of itself, as `messages.Sheets` has it.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, clock: Clock, path: Path, number: int) -> None:
        self._loop = loop
        self._clock = clock
        self._path = path
        self._number = number
        self._link: Link | None = None
        self._lost = asyncio.Event()
        self._ids = itertools.count(1)
        self._waiting: dict[int, _Waiting] = {}
        self._permits: dict[int, RemotePermit] = {}
        self._leases: dict[int, RemoteLease] = {}
        self._roster: tuple[tuple[str, Replica], ...] = ()
        self._heard_s = clock.now_s()
        self._down_s = clock.now_s()
        self.up = False
        self.mean_connections = self.worst_lag_s = 0.0
        self.on_view: Callable[[tuple[tuple[str, Replica], ...], View], None] = lambda roster, view: None
        self.on_gather: Callable[[Kind], bytes] = lambda kind: b""

    def now_s(self) -> float:
        """Return monotonic seconds."""
        return self._clock.now_s()

    async def run(self) -> None:
        """Keep connected until cancelled."""
        try:
            while True:
                self._lost.clear()
                try:
                    await self._loop.create_unix_connection(
                        lambda: Link(self._loop, self._take, self._opened, self._closed), str(self._path)
                    )
                    await self._lost.wait()
                except OSError as error:
                    log.debug("no connection to the gate: %s", error)
                await asyncio.sleep(RECONNECT_S)
        finally:
            if self._link is not None:
                self.up = False
                self._link.close()

    def tick(self) -> None:
        """Notice a gate that hangs, and end waits for one that is gone; called ten times a second."""
        now_s = self._clock.now_s()
        if self._link is not None and now_s - self._heard_s > (SILENT_S if self.up else START_S):
            log.error("the gate says nothing; the connection to it is cut")
            self._link.cut()
            self._heard_s = now_s
        if not self.up:
            for waiting in list(self._waiting.values()):
                if now_s - max(waiting.since_s, self._down_s) >= WAIT_S and not waiting.turn.done():
                    waiting.turn.set_exception(_unavailable())

    # ports.Gate

    def at_once(self, call: Call, pool: str) -> RemotePermit | None:
        """Return None: whether there is a place is known elsewhere."""
        return None

    async def acquire(self, call: Call, pool: str) -> RemotePermit:
        """Take a place, or wait for one.

        Raises:
            Refused: as the gate says; `gate_unavailable` when there is none for 5 s.
        """
        number = next(self._ids)
        permit = RemotePermit(self, number, pool, call)
        answer = await self._ask(Ask(number, pool, need_of(call)))
        self._permits[number] = permit
        self._fill(permit, answer)
        return permit

    async def moved(self, permit: RemotePermit, pool: str) -> None:
        """Wait for a replica of another pool, for a permit.

        Raises:
            Refused: as `acquire`.
        """
        self._fill(permit, await self._ask(Move(next(self._ids), permit.id, pool)))

    # ports.Retries

    def note_call(self, pool: str, tenant: str) -> None:
        """Do nothing: the gate counts what it grants."""

    async def may_retry(self, pool: str, tenant: str) -> bool:
        """Ask for one more try; without a gate there is none."""
        try:
            allowed, _ = await self._ask(MayRetry(next(self._ids), pool, tenant))
        except Refused:
            return False
        return isinstance(allowed, Allowed) and allowed.allowed

    async def take(self, pool: str, call: Call, excluded: frozenset[str]) -> Lease | None:
        """Take a replica for one more try; None when there is none, or no gate."""
        try:
            answer = await self._ask(Again(next(self._ids), pool, need_of(call), tuple(excluded)))
        except Refused:
            return None
        return self._leased(answer, pool, call)

    async def page(self, kind: Kind) -> bytes | None:
        """Return what all processes say; None when there is no gate to ask within a second."""
        try:
            async with asyncio.timeout(PAGE_S):
                while not self.up:  # noqa: ASYNC110 - bounded, and only while a gate is started again
                    await asyncio.sleep(RECONNECT_S)
                answer, _ = await self._ask(Page(next(self._ids), kind))
        except (Refused, TimeoutError):
            return None
        return answer.body if isinstance(answer, PageIs) else None

    # what permits and leases tell

    def tell(self, message: Struct) -> None:
        """Send a message that is not answered; without a gate it is not sent, for the next one is told what is left."""
        if self._link is not None:
            self._link.send_later(message)

    def ended(self, lease: RemoteLease, report: Report) -> None:
        """A lease has ended."""
        if self._leases.pop(lease.id, None) is not None:
            self.tell(report)

    def released(self, permit: RemotePermit, release: Release) -> None:
        """A permit is given back."""
        if self._permits.pop(permit.id, None) is not None:
            self.tell(release)

    # the connection

    def _opened(self, link: Link) -> None:
        self._link = link
        self._heard_s = self._clock.now_s()
        permits = tuple(HeldPermit(p.id, p.pool, need_of(p.call)) for p in self._permits.values())
        leases = tuple(lease.held() for lease in self._leases.values())
        link.send(Joined(FORMAT, self._number, os.getpid(), permits, leases))
        for waiting in self._waiting.values():
            link.send(waiting.message)

    def _closed(self, link: Link) -> None:
        if self.up:
            log.warning("the gate is gone; running calls go on, new ones wait for it")
            self._down_s = self._clock.now_s()
        self._link = None
        self.up = False
        self._lost.set()

    def _take(self, data: bytes) -> None:
        message: FromGate = messages.from_gate(data)
        self._heard_s = self._clock.now_s()
        if isinstance(message, Granted | Allowed | PageIs):
            waiting = self._waiting.pop(message.id, None)
            if waiting is not None and not waiting.turn.done():
                place = message.place if isinstance(message, Granted) else None
                # By the roster of this moment: another one may come before anybody looks.
                waiting.turn.set_result((message, None if place is None else self._roster[place.replica][1]))
        elif isinstance(message, Turned):
            waiting = self._waiting.pop(message.id, None)
            if waiting is not None and not waiting.turn.done():
                refusal = Refused(message.code, message.message, retry_after_s=message.retry_after_s)
                waiting.turn.set_exception(refusal)
        elif isinstance(message, Roster):
            self._roster = message.replicas
            if not self.up:
                self.up = True
                log.info("the gate answers")
        elif isinstance(message, Gather):
            if self._link is not None:
                self._link.send(Sheets(message.round, message.kind, self.on_gather(message.kind)))
        else:
            self.mean_connections, self.worst_lag_s = message.mean_connections, message.lag_s
            self.on_view(self._roster, message)

    async def _ask(self, message: Ask | Move | Again | MayRetry | Page) -> _Answer:
        turn: asyncio.Future[_Answer] = self._loop.create_future()
        self._waiting[message.id] = _Waiting(turn, message, self._clock.now_s())
        if self._link is not None:
            self._link.send(message)
        try:
            return await turn
        except BaseException:
            # Unless the gate has refused it: nobody waits any more, and it may have been granted in this very moment.
            refused = turn.done() and not turn.cancelled() and isinstance(turn.exception(), Refused)
            if self._waiting.pop(message.id, None) is not None or not refused:
                self.tell(Gone(message.id))
            raise

    def _fill(self, permit: RemotePermit, answer: _Answer) -> None:
        granted = answer[0]
        if isinstance(granted, Granted):
            permit.value = granted.value
        permit.lease = self._leased(answer, permit.pool, permit.call)

    def _leased(self, answer: _Answer, pool: str, call: Call) -> RemoteLease | None:
        granted, replica = answer
        if not isinstance(granted, Granted) or granted.place is None or replica is None:
            return None
        lease = RemoteLease(self, granted.id, (pool, replica), call, granted.place)
        self._leases[granted.id] = lease
        return lease


def _unavailable() -> Refused:
    text = "the part of Forebay that lets calls in is being started again"
    return Refused("gate_unavailable", text, retry_after_s=_RETRY_AFTER_S)
