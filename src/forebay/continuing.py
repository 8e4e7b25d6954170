"""After an engine has died in the middle of an answer: the answer goes on with another one, unseen by the client."""

import asyncio
from collections.abc import Awaitable, Callable
from heapq import heapify, heappop, heappush

from msgspec.structs import replace

from forebay.domain import FailureKind, Outcome
from forebay.errors import Refused
from forebay.inquest import Inquest
from forebay.ports import Lease, Record, Reply, Retries
from forebay.resuming import Resuming
from forebay.routing import attempts
from forebay.routing.pool import Fleet
from forebay.traffic import Call, Verdict, changed
from forebay.upstream.continuation.edits import closing
from forebay.upstream.continuation.reasons import Reason
from forebay.upstream.continuation.shapes import shape_of
from forebay.upstream.continuation.thread import Thread
from forebay.upstream.continuation.told import Finish, Leg
from forebay.upstream.deadlines import Sending
from forebay.upstream.relay import EVENT_STREAM, PING, QUIET_PING
from forebay.wire import facts, sse
from forebay.wire.members import read_members
from forebay.wire.resumed import Claim

# What transcripts and the bodies to be sent again may take together; the largest are given up beyond (T30).
MAX_HELD_BYTES = 268_435_456
# Of a pool's prefill, that answers which go on may take; the first of them goes in any case (T30).
SHARE_RATIO = 0.2
SHARE_TIME_S = 2.0
MAX_UNKNOWN = 8
# A pool whose other replicas are gone gets so long for the one that died to come back.
RETURN_S = 1.0
# How often a pool is looked at that has no room, or nobody, for an answer that is to go on.
LOOK_S = 0.05
_OVER = (Outcome.OK, Outcome.CLIENT_CLOSED)
_NONE: frozenset[str] = frozenset()

Count = Callable[[str, bytes, str, frozenset[str]], Awaitable[int | None]]
"""Have a text counted: (pool, the model's name as JSON, text, replicas not to ask) -> tokens, None if nobody can."""
Attempt = Callable[[Call, Sending, Lease, Reply, Record], Awaitable[tuple[Verdict, FailureKind | None]]]


class Continuer:
    """Lets answers go on; one for all pools.

    Attributes:
        inquest: knows who may go on, and where.
        moved: legs that were begun, by pool.
        lost: broken answers that could not go on, by reason.
    """

    def __init__(self, fleet: Fleet, retries: Retries, resuming: Resuming, inquest: Inquest, count: Count) -> None:
        self._fleet = fleet
        self._count = count
        self._retries = retries
        self._resuming = resuming
        self.inquest = inquest
        self._threads: dict[Thread, int] = {}
        self._turns: dict[str, _Turns] = {}
        self.moved: dict[str, int] = {}
        self.lost: dict[str, int] = dict.fromkeys(Reason, 0)

    def follow(self, call: Call, sending: Sending) -> Sending:
        """Follow the answer to a call, where it could go on; `leave` is due for the thread of what is returned."""
        if sending.plan is None:
            return sending
        follower = Thread(sending.plan, call.endpoint.shape)
        self._threads[follower] = len(sending.body)
        return changed(sending, thread=follower)

    def offer(self, call: Call, claim: Claim, sending: Sending) -> bytes:
        """Let a client come back for an answer where it could go on; return the header line that says so."""
        reason = Reason.NO_IDS if sending.thread is not None else self._why_not(call, sending)
        return self._resuming.offer(call, claim, sending, reason)

    def leave(self, sending: Sending) -> None:
        """Forget an answer that has ended."""
        if sending.thread is not None:
            self._threads.pop(sending.thread, None)

    def tick(self) -> None:
        """Keep the memory of all transcripts within its bound; called ten times a second."""
        held = sum(size + follower.held_bytes for follower, size in self._threads.items())
        if held <= MAX_HELD_BYTES:
            return
        for follower in sorted(self._threads, key=lambda t: t.held_bytes, reverse=True):
            held -= follower.held_bytes
            follower.forget(Reason.ANSWER_TOO_LONG)
            if held <= MAX_HELD_BYTES:
                return

    async def take_up(
        self, call: Call, sending: Sending, lease: Lease, attempt: Attempt, partners: tuple[Reply, Record]
    ) -> Verdict:
        """Let an answer go on that another call began, whose client has come back for the rest.

        Args:
            call: has what the client has.
            sending: as for a whole answer.
            lease: the replica for the first leg.
            attempt: runs one leg.
            partners: the client's side and the record.

        Raises:
            Refused: `resume_used`, `resume_mismatch`.
        """
        (reply, record), follower, shown = partners, sending.thread, call.shown
        verdict: Verdict | None = None
        try:
            if shown is None or follower is None:
                raise Refused("resume_mismatch", f"the answer cannot go on here ({self._why_not(call, sending)})")
            leg = await self._recounted(self._resuming.rejoin(call, shown, sending), follower, call, sending, _NONE)
            if isinstance(leg, Finish):
                verdict = _end(leg, follower, call, sending, reply, record)
                return verdict
            follower.on_joined = _Joined(None, follower, lease, reply, record)
            verdict, _ = await attempt(call, changed(sending, body=leg.body), lease, reply, record)
            if verdict.outcome not in _OVER and not reply.gone:
                verdict = await self.go_on(call, sending, (verdict, lease.replica.name), attempt, partners)
            return verdict
        finally:
            lease.report(None, answered=False)
            if shown is not None and not _came_of_it(verdict, follower):
                self._resuming.give_back(shown)

    async def go_on(
        self, call: Call, sending: Sending, died: tuple[Verdict, str], attempt: Attempt, partners: tuple[Reply, Record]
    ) -> Verdict:
        """Let an answer go on until it is complete, or cannot.

        Args:
            call: whose answer it is.
            sending: of the first leg; has a thread.
            died: how the latest leg ended, and on which replica.
            attempt: runs one leg.
            partners: the client's side and the record.
        """
        (verdict, name), (reply, record) = died, partners
        follower, dead = sending.thread, frozenset((name,))
        while verdict.outcome not in _OVER and not reply.gone:
            if follower is None:
                return self._lost(verdict, self._why_not(call, sending))
            leg = self._next(follower, sending, verdict)
            if leg is None:
                return self._lost(verdict, follower.given_up or Reason.UNREADABLE)
            leg = await self._recounted(leg, follower, call, sending, dead)
            if isinstance(leg, Finish):
                return _end(leg, follower, call, sending, reply, record)
            turns = self._turns.setdefault(sending.pool, _Turns())
            longer = changed(call, prompt_tokens=call.prompt_tokens + follower.told.tokens)
            await self.inquest.settled(call, name)
            try:
                lease = await self.inquest.trial(longer, sending, partners) if self.inquest.alert else None
                if lease is None:
                    await self._turn(turns, follower, longer.prompt_tokens, sending, reply)
                    lease = await self._berth(longer, sending, dead, reply)
                if lease is None:
                    return self._lost(verdict, Reason.NO_ENGINE)
                follower.on_joined = _Joined(turns, follower, lease, reply, record)
                record.continued += 1
                self.moved[sending.pool] = self.moved.get(sending.pool, 0) + 1
                verdict, failure = await attempt(call, changed(sending, body=leg.body), lease, reply, record)
            except Refused as refusal:
                quarantined = refusal.code == "request_quarantined"
                return self._lost(verdict, Reason.QUARANTINED if quarantined else Reason.NO_ENGINE)
            finally:
                turns.leave(follower)
            name = lease.replica.name
            if failure is not None and not follower.at_seam:
                dead |= {name}
        return verdict

    def _next(self, follower: Thread, sending: Sending, verdict: Verdict) -> Leg | Finish | None:
        """Decide what follows."""
        failure = attempts.failure_of(verdict)
        return follower.next(
            sending.body,
            failure or FailureKind.STATUS,
            refused=failure is None and verdict.answer is not None,
            overflow=attempts.is_context_overflow(verdict),
        )

    async def _recounted(
        self, leg: Leg | Finish, follower: Thread, call: Call, sending: Sending, dead: frozenset[str]
    ) -> Leg | Finish:
        """Have an engine count what was told of an answer without ids, where its limit or its usage hangs on it.

        Without a count the events stand for tokens, which may be more.
        """
        if not isinstance(leg, Leg) or not leg.kept or follower.told.counted:
            return leg
        if call.max_tokens is None and not leg.wants_usage:
            return leg
        model = read_members(sending.body).text_of("model") or b'""'
        tokens = await self._count(sending.pool, model, leg.kept, dead)
        return leg if tokens is None else follower.recounted(leg, sending.body, tokens)

    def _lost(self, verdict: Verdict, reason: Reason) -> Verdict:
        """Count an answer that cannot go on, and say why; what an engine said of a leg's request is left out."""
        self.lost[reason] += 1
        message = f"{verdict.message or 'the engine failed'}; the answer could not go on elsewhere: {reason}"
        return changed(verdict, answer=None, message=message)

    def _why_not(self, call: Call, sending: Sending) -> Reason:
        """Say why the answer to a request is not followed."""
        state = next(self._fleet.states(sending.pool), None)
        if state is None:
            return Reason.NO_ENGINE
        ids = self._fleet.token_ids(sending.pool)
        plan = shape_of(read_members(sending.body), call.endpoint.shape, call.stream, state.pool.engine, ids)
        return plan if isinstance(plan, Reason) else Reason.NO_IDS

    async def _turn(self, turns: "_Turns", follower: Thread, tokens: int, sending: Sending, reply: Reply) -> None:
        """Wait for the answer's turn, as long as a first byte may take; from then on it goes without one."""
        turn = turns.enter(follower, tokens, self._room_tokens(sending.pool))
        left_s = sending.timeouts.first_byte_s
        while not turn.done() and left_s > 0.0:
            step_s = min(left_s, sending.stream.ping_s or left_s)
            await asyncio.wait((turn,), timeout=step_s)
            left_s -= step_s
            if not turn.done() and sending.stream.ping_s:
                _ping(sending, reply)
        if not turn.done():
            turns.leave(follower)

    async def _berth(self, call: Call, sending: Sending, dead: frozenset[str], reply: Reply) -> Lease | None:
        """Take a replica that has not died under the answer, else one that may be back; None when nobody is left.

        As long as a first byte may take, it waits for one that is well and has no room, or is on trial.
        """
        waited_s = silent_s = 0.0
        while True:
            others = self._others(sending.pool, dead)
            excluded = dead if others or waited_s < RETURN_S else _NONE
            lease = await self._retries.take(sending.pool, call, excluded)
            if lease is not None or waited_s >= (sending.timeouts.first_byte_s if others else RETURN_S):
                return lease
            await asyncio.sleep(LOOK_S)
            waited_s += LOOK_S
            silent_s += LOOK_S
            if sending.stream.ping_s and silent_s >= sending.stream.ping_s:
                silent_s = 0.0
                _ping(sending, reply)

    def _others(self, pool: str, dead: frozenset[str]) -> bool:
        """Say whether a pool has a replica beside some that is usable, or on trial: then one call runs there now.

        A real engine that has just come back takes a whole answer to show that it is well.
        """
        for state in self._fleet.states(pool):
            on_trial = state.breaker.state == "half_open" and not state.drained
            if state.replica.name not in dead and (on_trial or state.usable(state.now_s())):
                return True
        return False

    def _room_tokens(self, pool: str) -> float | None:
        """Return how many prompt tokens of answers that go on may be under way; None while no speed is known."""
        speeds = [state.speed.tokens_per_s for state in self._fleet.states(pool) if state.speed.known]
        return SHARE_RATIO * SHARE_TIME_S * sum(speeds) if speeds else None


class _Turns:
    """Who of a pool's broken answers goes next: those of which the client has the most."""

    def __init__(self) -> None:
        self._running: dict[Thread, int] = {}
        self._waiting: list[tuple[int, int, Thread, int, asyncio.Future[None]]] = []
        self._sequence = 0
        self._room_tokens: float | None = None

    def enter(self, follower: Thread, tokens: int, room_tokens: float | None) -> "asyncio.Future[None]":
        """Return what is done when the answer may go on."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._room_tokens = room_tokens
        self._sequence += 1
        heappush(self._waiting, (-follower.told.tokens, self._sequence, follower, tokens, turn))
        self._admit()
        return turn

    def leave(self, follower: Thread) -> None:
        """Let the next one go on, whether the answer had its turn or still waits; a second time changes nothing."""
        if self._running.pop(follower, None) is None:
            waiting = [entry for entry in self._waiting if entry[2] is not follower]
            if len(waiting) == len(self._waiting):
                return
            self._waiting = waiting
            heapify(waiting)
        self._admit()

    def _admit(self) -> None:
        while self._waiting:
            _, _, follower, tokens, turn = self._waiting[0]
            if not self._fits(tokens):
                return
            heappop(self._waiting)
            self._running[follower] = tokens
            turn.set_result(None)

    def _fits(self, tokens: int) -> bool:
        if not self._running:
            return True
        if self._room_tokens is None:
            return len(self._running) < MAX_UNKNOWN
        return sum(self._running.values()) + tokens <= self._room_tokens


class _Joined:
    """Told when the first text of a leg goes to the client: its prompt is computed, which makes room for the next."""

    def __init__(self, turns: _Turns | None, follower: Thread, lease: Lease, reply: Reply, record: Record) -> None:
        self._turns = turns
        self._follower = follower
        self._lease = lease
        self._reply = reply
        self._record = record

    def __call__(self) -> None:
        if self._turns is not None:
            self._turns.leave(self._follower)
        _begin(self._reply)
        self._record.first_token()
        self._lease.first_token()


def _begin(reply: Reply) -> None:
    """Send the head of an answer that another call began, unless that has been done."""
    if not reply.started:
        reply.head(200, (EVENT_STREAM,), None)


def _ping(sending: Sending, reply: Reply) -> None:
    """Keep the client company."""
    _begin(reply)
    stamped = sending.thread is not None and sending.thread.stamp is not None
    reply.write(QUIET_PING if stamped else PING)


def _came_of_it(verdict: Verdict | None, follower: Thread | None) -> bool:
    """Say whether a client that came back was given something: the end, or ids of its own."""
    if verdict is not None and verdict.outcome is Outcome.OK:
        return True
    return follower is not None and follower.stamp is not None and follower.stamp.given > 0


def _end(finish: Finish, follower: Thread, call: Call, sending: Sending, reply: Reply, record: Record) -> Verdict:
    """End an answer of which nothing is left to say."""
    usage, shown = finish.usage, call.shown
    prompt_tokens = call.prompt_tokens - (0 if shown is None else shown.tokens)
    record.usage = usage if usage.prompt_tokens else replace(usage, prompt_tokens=prompt_tokens, estimated=True)
    shape = call.endpoint.shape
    events = closing(replace(finish, usage=record.usage), follower.told.head, shape)
    _begin(reply)
    # The finish reason itself may be with the client already.
    for event in events[1:] if shown is not None and shown.finished else events:
        reply.write(sending.rewriter.event(event, facts.read_event(event, shape, opening=True)))
    reply.write(sse.render(sse.Event(sse.DONE)))
    reply.end()
    return Verdict(True, Outcome.OK)
