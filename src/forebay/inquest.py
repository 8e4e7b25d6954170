"""What follows the loss of a call: whether its engine died, who is suspected, whose turn it is, who is refused (T29).

Nothing here runs while all is well: `alert` is all that a call looks at. A call whose engine is lost under it is noted
here. One look at the replica's health tells a death from a loss. After a death the suspects are tried one after the
other on one replica, and a request that was there twice is quarantined. Features are the business of `cutoffs`.
"""

import asyncio
import logging
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from forebay.actions import Actions
from forebay.clock import Clock
from forebay.cutoffs import Cutoffs
from forebay.domain import FailureKind
from forebay.engines.contract import Fetch
from forebay.engines.registry import ENGINES
from forebay.errors import Refused
from forebay.policy import Policy
from forebay.ports import Lease, Record, Reply, Retries
from forebay.routing.attempts import End
from forebay.routing.docket import Docket
from forebay.routing.feature_breaker import Key, Suspected
from forebay.routing.features import mask_of
from forebay.routing.poison import INNOCENT_TOKENS, Entry, Flight, Judged
from forebay.routing.pool import Fleet
from forebay.routing.replica import ReplicaState
from forebay.routing.suspects import TRIAL_S, Trials, site_of
from forebay.traffic import Call
from forebay.upstream.deadlines import Sending
from forebay.upstream.relay import PING
from forebay.wire.members import Members

log = logging.getLogger(__name__)

SETTLE_S: Final = 0.02
"""Calls that are lost on a replica within this time are judged together."""
LOOK_TIMEOUT_S: Final = 0.5
ALIVE_S: Final = 1.0
"""A replica that has just answered its health path is not looked at again for so long."""
MAX_LOST: Final = 4096
LOST_S: Final = 600.0
"""How long it is remembered that a call was lost, if nothing is heard of it."""
STEP_S: Final = 0.05
NOBODY_S: Final = 1.0
"""A suspect that finds no replica to be tried on gives up after this long."""

# How the calls of a dead or hanging engine end. Not CONNECT: a call that found nobody cannot have killed him.
_LOSSES: Final = frozenset(
    (
        *(FailureKind.RESET, FailureKind.TRUNCATED, FailureKind.IN_BAND),
        *(FailureKind.BAD_ANSWER, FailureKind.STALL, FailureKind.FIRST_BYTE),
    )
)
_UNDO: Final = "ends by itself; an override `pardon` with this target ends it now"


class _Lost(Struct, frozen=True):
    """A call that was lost on a replica."""

    key: Key
    flight: Flight
    replica: str
    at_s: float


class _Trial(Struct, frozen=True):
    """A suspect that is being tried."""

    pool: str
    fingerprint: int
    record: Record


class Inquest:
    """Judges deaths and features; follows the policy.

    Attributes:
        alert: calls have to be looked at: somebody is suspected or quarantined, or a feature failed a while ago.
        quarantine: remembers requests.
        cutoffs: features that are cut off.
        deaths: of engines under calls, since the start.
    """

    def __init__(self, fleet: Fleet, retries: Retries, actions: Actions, fetch: Fetch, clock: Clock) -> None:
        self._fleet = fleet
        self._retries = retries
        self._actions = actions
        self._fetch = fetch
        self._clock = clock
        self._trials = Trials()
        self._running: dict[str, _Trial] = {}
        # Who has come through his trial and is still being answered, with the request's fingerprint.
        self._through: dict[str, int] = {}
        self._lost: dict[str, _Lost] = {}
        self._fresh: dict[str, list[_Lost]] = {}
        self._looks: dict[str, asyncio.Task[None]] = {}
        self._alive_s: dict[str, float] = {}
        self._docket = Docket()
        self.quarantine = self._docket.quarantine
        self.alert = False
        self.cutoffs = Cutoffs(fleet, retries, actions, clock)
        self.deaths = 0

    def apply(self, policy: Policy) -> None:
        """Follow a new policy: what is pardoned is forgotten, and goes free as long as the override holds."""
        for target in self._docket.pardon(policy.pardoned):
            self._actions.note(("", "poison", target), "pardoned", "an override")
        known = {state.replica.name for state in self._fleet.states()}
        self._alive_s = {name: at_s for name, at_s in self._alive_s.items() if name in known}

    def stop(self) -> None:
        """End the looks that are under way."""
        for look in self._looks.values():
            look.cancel()

    def tick(self) -> None:
        """See who has come through his trial, and whether calls have to be looked at; called ten times a second."""
        if not self.alert:
            return
        now_s = self._clock.now_s()
        for call_id, trial in list(self._running.items()):
            if self.quarantine.survived(trial.fingerprint, trial.record.output_events):
                del self._running[call_id]
                self._through[call_id] = trial.fingerprint
                self._trials.leave(trial.pool, call_id)
        while self._lost and now_s - next(iter(self._lost.values())).at_s > LOST_S:
            del self._lost[next(iter(self._lost))]
        self._docket.tick(now_s)
        self.cutoffs.tick()
        underway = bool(self._lost or self._running or self._through)
        self.alert = self._docket.accuses or self.cutoffs.watches or underway

    def admit(self, call: Call, members: Members, policy: Policy) -> None:
        """Turn away what is quarantined, or asks for what no replica gives, before it waits for a place.

        Raises:
            Refused: `request_quarantined`, `feature_unavailable`.
        """
        if self._docket.accuses:
            self._docket.check(self._docket.print_of(members), self._clock.now_s())
        if self.cutoffs.watches:
            self.cutoffs.admit(call, members, policy.models[call.model])

    async def placed(
        self, call: Call, sending: Sending, lease: Lease, used: frozenset[str], partners: tuple[Reply, Record]
    ) -> Lease | None:
        """Return the lease with which a call goes now; None when no replica serves what it asks for.

        A suspect waits for its turn, and goes where all suspects go. A call whose feature is cut off on the replica
        goes to another.

        Args:
            call: to be sent.
            sending: as it is sent.
            lease: that it has; given back when it gets another.
            used: replicas that it must not get again.
            partners: the client's side, and the record.

        Raises:
            Refused: `request_quarantined`, `no_engine`, `overloaded`.
        """
        held: Lease | None = lease
        try:
            if self._docket.accuses:
                if not self._is_free(sending):
                    lease.report(None, answered=False)
                    held = await self.trial(call, sending, partners) or await self._retries.take(
                        sending.pool, call, used
                    )
                elif call.call_id in self._lost:
                    held = await self._apart(call, sending, lease, used)
            if held is None or not self.cutoffs.watches:
                return held
            held = await self.cutoffs.served(call, sending, held, used)
        except (Refused, asyncio.CancelledError):
            held = None
            lease.report(None, answered=False)
            raise
        finally:
            if held is None:
                self._end_trial(call, sending.pool)
        return held

    async def trial(self, call: Call, sending: Sending, partners: tuple[Reply, Record]) -> Lease | None:
        """Let a suspect wait for its turn; return its lease on the replica where suspects go, None when it is free.

        Raises:
            Refused: `request_quarantined`, `no_engine`, `overloaded`.
        """
        if not self._docket.accuses or self._is_free(sending):
            return None
        lost = self._lost.get(call.call_id)
        since_s = self._clock.now_s() if lost is None else lost.flight.started_s
        if not self._trials.enter(sending.pool, call.call_id, since_s):
            raise Refused("overloaded", "too many calls wait to be tried again after engines died", retry_after_s=5)
        try:
            return await self._turn(call, sending, partners)
        finally:
            if call.call_id not in self._running:
                self._trials.leave(sending.pool, call.call_id)

    async def settled(self, call: Call, replica: str) -> None:
        """Wait until it is known whether a replica died, where that may make a call a suspect; half a second at most.

        Args:
            call: that was lost.
            replica: on which.
        """
        look, lost = self._looks.get(replica), self._lost.get(call.call_id)
        if look is None or lost is None:
            return
        known = self.quarantine.standing(lost.flight.fingerprint, self._clock.now_s()) != "free"
        if known or lost.flight.decoded_tokens <= INNOCENT_TOKENS:
            await asyncio.wait((look,), timeout=LOOK_TIMEOUT_S + 2 * SETTLE_S)

    def ended(self, call: Call, sending: Sending, lease: Lease, end: End) -> bool:
        """Hear how a try ended; return whether that is held against its replica.

        Called before the lease is given back, for every failure, and for every try while `alert`.
        """
        tried = self._end_trial(call, sending.pool)
        key = (sending.pool, call.endpoint.name, sending.rewriter.model)
        name, now_s = lease.replica.name, self._clock.now_s()
        if end.failure is None or not end.counted or end.failure is FailureKind.CONNECT:
            if end.well:
                lost = self._lost.pop(call.call_id, None)
                # It speaks for its request also where another client's call was lost with that.
                seen = tried if lost is None else lost.flight.fingerprint
                if seen is not None:
                    self.quarantine.answered(seen)
            if self.cutoffs.watches:
                self.cutoffs.tell(key, name, mask_of(sending.members, call.prompt_tokens), end.well)
            return end.counted
        self.alert = True
        mask = mask_of(sending.members, call.prompt_tokens)
        blamed = self.cutoffs.failed(key, name, mask)
        if end.failure in _LOSSES:
            seen = self._docket.print_of(sending.members)
            decoded = end.decoded_tokens if call.stream else _unseen_tokens(lease, now_s)
            flight = Flight(call.call_id, seen, mask, lease.started_s, decoded, end.place_tokens)
            self._lose(call, _Lost(key, flight, name, now_s))
        return not blamed

    def waiting(self) -> dict[str, int]:
        """Return how many suspects wait for their turn, by pool."""
        return self._trials.waiting()

    def entries(self) -> list[Entry]:
        """Return the requests that are suspected or quarantined."""
        return self.quarantine.entries(self._clock.now_s())

    def standings(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield how many requests are suspected, and quarantined, for the gauge."""
        quarantined, suspected = self.quarantine.counts()
        yield ("quarantined",), quarantined
        yield ("suspect",), suspected

    # deaths

    def _lose(self, call: Call, lost: _Lost) -> None:
        if len(self._lost) >= MAX_LOST:
            del self._lost[next(iter(self._lost))]
        self._lost.pop(call.call_id, None)
        self._lost[call.call_id] = lost
        if lost.at_s < self._alive_s.get(lost.replica, 0.0):
            return
        fresh = self._fresh.setdefault(lost.replica, [])
        if len(fresh) < MAX_LOST:
            fresh.append(lost)
        if lost.replica not in self._looks:
            state = next((s for s in self._fleet.states(lost.key[0]) if s.replica.name == lost.replica), None)
            if state is not None:
                work = self._look(state)
                self._looks[lost.replica] = asyncio.get_running_loop().create_task(work, name="look")

    async def _look(self, state: ReplicaState) -> None:
        """See whether a replica is dead, and judge those who were lost on it."""
        name = state.replica.name
        try:
            await asyncio.sleep(SETTLE_S)
            dead = await self._is_dead(state)
            lost = self._fresh.pop(name, [])
            if dead:
                self._judge(state, lost)
            else:
                self._alive_s[name] = self._clock.now_s() + ALIVE_S
        finally:
            self._fresh.pop(name, None)
            self._looks.pop(name, None)

    async def _is_dead(self, state: ReplicaState) -> bool:
        try:
            status, _ = await self._fetch(state.replica, ENGINES[state.pool.engine].health_path, LOOK_TIMEOUT_S)
        except OSError:
            return True
        return status >= 500

    def _judge(self, state: ReplicaState, lost: list[_Lost]) -> None:
        now_s = self._clock.now_s()
        state.up = False
        self.deaths += 1
        self._trials.died(state.pool.name)
        name = state.replica.name
        for each in lost:
            self.cutoffs.features.forgive(each.key, name, each.flight.features)
        judged = self.quarantine.died(name, [each.flight for each in lost], now_s)
        self._docket.accuses = self.alert = True
        guilty = [each for each in judged.values() if each.finding == "guilty"]
        accused = guilty or [each for each in judged.values() if each.finding == "suspect"]
        self._note_death(state, judged, accused)
        keys = {each.flight.call_id: each.key for each in lost}
        suspected = [
            Suspected(keys[each.flight.call_id], each.flight.features, each.flight.fingerprint) for each in accused
        ]
        self.cutoffs.crashed(suspected)

    def _note_death(self, state: ReplicaState, judged: dict[str, Judged], accused: list[Judged]) -> None:
        pool, name = state.pool.name, state.replica.name
        seen = f"{len(judged)} calls lost, {len(accused)} of them suspected or guilty"
        log.warning("replica %s died: %s", name, seen)
        self._actions.note((pool, "death", name), "died", seen)
        left_s = {entry.fingerprint: entry.left_s for entry in self.entries()}
        for target in sorted({f"{each.flight.fingerprint:016x}" for each in accused if each.finding == "guilty"}):
            log.warning("request %s is quarantined: engines died under it", target)
            reason = f"second death under it, of {name}"
            self._actions.note((pool, "poison", target), "quarantined", reason, left_s.get(target), _UNDO)

    # whose turn it is

    async def _turn(self, call: Call, sending: Sending, partners: tuple[Reply, Record]) -> Lease | None:
        """Wait for a suspect's turn, at most for as long as a first byte may take; None when it is free.

        Raises:
            Refused: `request_quarantined`, `no_engine`.
        """
        reply, record = partners
        pool, seen = sending.pool, self._docket.print_of(sending.members)
        waited_s = nobody_s = silent_s = 0.0
        begun = False
        while waited_s < sending.timeouts.first_byte_s and nobody_s < NOBODY_S and not reply.gone:
            if self._docket.check(seen, self._clock.now_s()) == "free":
                return None
            site = self._site(pool)
            nobody_s = 0.0 if site else nobody_s + STEP_S
            begun = begun or (bool(site) and self._trials.turn(pool, call.call_id, self._clock.now_s()))
            lease = await self._retries.take(pool, call, self._all_but(pool, site)) if begun and site else None
            if lease is not None:
                self._running[call.call_id] = _Trial(pool, seen, record)
                return lease
            await asyncio.sleep(STEP_S)
            waited_s += STEP_S
            silent_s += STEP_S
            if reply.started and sending.stream.ping_s and silent_s >= sending.stream.ping_s:
                silent_s = 0.0
                reply.write(PING)
        message = "an engine died while it worked on this call, and none could be found to try it again by itself"
        raise Refused("no_engine", message, retry_after_s=5)

    def _end_trial(self, call: Call, pool: str) -> int | None:
        """Let the next suspect go; return the fingerprint of a call that was tried."""
        trial = self._running.pop(call.call_id, None)
        if trial is None:
            return self._through.pop(call.call_id, None)
        self._trials.leave(pool, call.call_id)
        return trial.fingerprint

    def _is_free(self, sending: Sending) -> bool:
        seen = self._docket.print_of(sending.members)
        return self._docket.standing(seen, self._clock.now_s()) == "free"

    def _site(self, pool: str) -> str:
        now_s = self._clock.now_s()
        states = [state for state in self._fleet.states(pool) if state.usable(now_s) and state.up is not False]
        return site_of([state.replica.name for state in states])

    def _all_but(self, pool: str, site: str) -> frozenset[str]:
        return frozenset([state.replica.name for state in self._fleet.states(pool)]) - {site}

    async def _apart(self, call: Call, sending: Sending, lease: Lease, used: frozenset[str]) -> Lease:
        """Move an innocent away from where the suspects are tried, if there is another place."""
        site = self._site(sending.pool)
        busy = self._trials.waiting().get(sending.pool) or any(t.pool == sending.pool for t in self._running.values())
        if lease.replica.name != site or not busy:
            return lease
        other = await self._retries.take(sending.pool, call, used | {site})
        if other is None:
            return lease
        lease.report(None, answered=False)
        return other


def _unseen_tokens(lease: Lease, now_s: float) -> int:
    """Guess the tokens of an answer that comes as a whole: some once its prompt should be computed, many later."""
    if lease.prefilling:
        return 0
    return INNOCENT_TOKENS + 1 if now_s - lease.started_s > TRIAL_S else 1
