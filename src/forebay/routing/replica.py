"""One replica: its load, its speed, its health, and whether it may take one more call."""

import logging
from collections.abc import Callable

from forebay.domain import FailureKind, Replica
from forebay.policy import Pool
from forebay.routing.breaker import Breaker
from forebay.routing.capacity import Depth, Speed
from forebay.routing.ejection import ramped_limit
from forebay.routing.prefixes import Prefixes
from forebay.traffic import Call

log = logging.getLogger(__name__)

# An answer that is not streamed shows no first token; with no speed known its prompt counts as computed after this.
_UNSEEN_PREFILL_S = 5.0


def _nobody(state: "ReplicaState") -> None:
    """Nobody follows the breaker."""


class ReplicaState:
    """What is known of one replica; survives reloads as long as the replica is configured.

    Attributes:
        in_flight: tries that run on it.
        in_flight_tokens: their estimated prompt and output tokens: what they hold of its KV room.
        reserved_tokens: the same without what was cached of the prompts.
        polled_reserved_tokens: what that was when the telemetry was read last.
        unprefilled_tokens: uncached prompt tokens sent whose first token has not come.
        long_prefills: long prompts among them.
        long_in_flight: calls with a long prompt that run on it.
        up: what the last health poll said; None before the first. A doubt, never a reason to stop dispatch.
        loading: the engine says that its model is not loaded yet.
        back_s: monotonic seconds at which it came back; None while it is wholly there.
        was_down: it has not answered its health poll since it last did.
        kept: it takes part although its breaker is open (`rotation`).
        ramp: part of a full load that it may have while it comes back.
        weight: its score is multiplied by this.
        slowness: how many times slower than the fastest of its pool, 1 while unknown.
        reserved: it takes no long prompts for now.
        room_ratio: part of its room that it may use; less than 1 while it has been given too much.
        slots: calls that the engine runs at once, as its telemetry said last; None when it has no such number.
        kv_tokens: KV room, likewise.
        token_ids: its streams can carry token ids; found by a probe, False until then.
        context_tokens: longest prompt and answer together, as a probe has found; None until then.
        telemetry: the engine's own account of its load.
        polled_at_s: monotonic seconds of the last telemetry; None without one.
        occupied_s: running mean of how long a call stays.
        now_s: the clock.
        on_room: called when it may take more than before.
        on_turn: called when its breaker has opened or closed.
    """

    __slots__ = (
        "back_s", "breaker", "context_tokens", "depth", "drained", "in_flight", "in_flight_tokens", "kept",
        "kv_tokens", "loading", "long_in_flight", "long_prefills", "now_s", "occupied_s", "on_room", "on_turn",
        "polled_at_s", "polled_reserved_tokens", "pool", "prefixes", "progress_s", "ramp", "replica", "reserved",
        "reserved_tokens", "room_ratio", "slots", "slowness", "speed", "telemetry", "token_ids", "turn",
        "unprefilled_tokens", "unseen", "up", "was_down", "weight",
    )  # fmt: skip

    def __init__(
        self,
        replica: Replica,
        pool: Pool,
        now_s: Callable[[], float],
        on_room: Callable[["ReplicaState"], None],
        on_turn: Callable[["ReplicaState"], None] = _nobody,
    ) -> None:
        self.now_s = now_s
        self.on_room = on_room
        self.on_turn = on_turn
        self.replica = replica
        self.pool = pool
        self.breaker = Breaker(pool.breaker)
        self.speed = Speed(pool.capacity)
        self.depth = Depth()
        self.prefixes = Prefixes()
        self.drained = False
        self.in_flight = 0
        self.in_flight_tokens = 0
        self.reserved_tokens = self.polled_reserved_tokens = 0
        self.unprefilled_tokens = 0
        self.long_prefills = 0
        self.long_in_flight = 0
        self.up: bool | None = None
        self.loading = False
        self.reserved = False
        self.back_s: float | None = None
        self.was_down = self.kept = False
        self.ramp = self.weight = self.slowness = self.room_ratio = 1.0
        self.slots: int | None = pool.capacity.streams
        self.kv_tokens: int | None = pool.capacity.kv_tokens
        self.token_ids = False
        self.context_tokens: int | None = None
        self.telemetry: object | None = None
        self.polled_at_s: float | None = None
        self.occupied_s = 0.0
        # Since when the engine has worked on the prompts that are under way.
        self.progress_s = 0.0
        # Calls whose first token nobody will see, because their answer comes as a whole.
        self.unseen: dict[Lease, None] = {}
        self.turn = 0

    def noted(self, slots: float | None, kv_tokens: float | None) -> None:
        """Take what the engine's telemetry says of its room; what is declared goes before, and absent is never zero."""
        declared = self.pool.capacity
        self.polled_reserved_tokens = self.reserved_tokens
        if declared.streams is None and slots:
            self.slots = int(slots)
        if declared.kv_tokens is None and kv_tokens:
            self.kv_tokens = int(kv_tokens)

    def usable(self, now_s: float) -> bool:
        """Say whether it gets calls at all now."""
        return not self.drained and (self.breaker.allows(now_s) or self.kept)

    def may_take(self, now_s: float) -> bool:
        """Say whether it may get one more call as far as health and the configured limit go."""
        limit = self.pool.max_in_flight
        if self.drained or (limit is not None and self.in_flight >= limit):
            return False
        return self.breaker.allows(now_s) or self.kept

    def has_room(self, tokens: int, uncached_tokens: int, long: bool, now_s: float) -> bool:
        """Say whether it can start one more call now, so that the call need not wait here (A4).

        Args:
            tokens: prompt and output tokens of the call.
            uncached_tokens: of its prompt.
            long: it takes the long lane.
            now_s: monotonic seconds.
        """
        if not self.in_flight:
            return not (long and self.reserved)
        slots, kv_tokens = self.slots, self.kv_tokens
        if slots is not None and self.in_flight >= slots * self.room_ratio:
            return False
        if self.ramp < 1.0 and not self._ramp_leaves_room():
            return False
        if kv_tokens is not None and self.in_flight_tokens + tokens > kv_tokens * self.room_ratio:
            return False
        if long and not self._takes_long():
            return False
        if not self.unprefilled_tokens or self.speed.tokens_per_s <= 0.0:
            return True
        return self.backlog_tokens(now_s) + uncached_tokens <= self.depth.tokens(self.speed)

    def _ramp_leaves_room(self) -> bool:
        limit = self.limit()
        return limit is None or self.in_flight < ramped_limit(limit, self.ramp)

    def _takes_long(self) -> bool:
        """Say whether one more long prompt may come: one at a time is computed, and short ones keep a slot (T76)."""
        if self.reserved or self.long_prefills > 0:
            return False
        slots = self.limit()
        return slots is None or self.long_in_flight < max(1, slots - 1)

    def backlog_tokens(self, now_s: float) -> float:
        """Return the prompt tokens still to be computed, with the progress since the last first token taken off."""
        waiting = self.unprefilled_tokens
        if waiting <= 0:
            return 0.0
        done = self.speed.tokens_per_s * (now_s - self.progress_s)
        return max(0.1 * waiting, waiting - done)

    def limit(self) -> int | None:
        """Return how many calls it runs at once; None when nothing says so."""
        limits = [limit for limit in (self.pool.max_in_flight, self.slots) if limit is not None]
        return min(limits) if limits else None

    def has_slot(self) -> bool:
        """Say whether its number of calls leaves room for one more."""
        limit = self.limit()
        return limit is None or self.in_flight < limit

    def __repr__(self) -> str:
        """Show what the choice depends on."""
        return f"{self.replica.name} in_flight={self.in_flight} tokens={self.in_flight_tokens} {self.breaker!r}"


class Lease:
    """A try's place on a replica: counts as its load until it is reported on, once.

    Attributes:
        state: of the replica.
        uncached_tokens: of the prompt, as foreseen.
        started_s: monotonic seconds at which it was taken.
        first_token_s: monotonic seconds of a stream's first token; None before.
        prefilling: its prompt is still to be computed, as far as one can see.
    """

    __slots__ = ("_ahead_tokens", "_foreseen", "_held", "_long", "_reserved_tokens", "_streams", "_tokens",
                 "first_token_s", "prefilling", "started_s", "state", "uncached_tokens")  # fmt: skip

    def __init__(self, state: ReplicaState, call: Call, foreseen_tokens: int, long: bool, now_s: float) -> None:
        self.state = state
        self._foreseen = foreseen_tokens
        self._tokens = call.prompt_tokens + call.output_tokens
        self.uncached_tokens = uncached = max(1, call.prompt_tokens - foreseen_tokens)
        self._long = long
        self._streams = call.stream
        self.started_s = now_s
        self.first_token_s: float | None = None
        self._held = self.prefilling = True
        if not state.unprefilled_tokens:
            state.progress_s = now_s
        self._ahead_tokens = state.backlog_tokens(now_s)
        state.in_flight += 1
        state.in_flight_tokens += self._tokens
        self._reserved_tokens = uncached + call.output_tokens
        state.reserved_tokens += self._reserved_tokens
        state.unprefilled_tokens += uncached
        state.long_prefills += long
        state.long_in_flight += long
        state.depth.dispatched()
        if not self._streams:
            state.unseen[self] = None

    @property
    def replica(self) -> Replica:
        """Which one."""
        return self.state.replica

    def first_token(self) -> None:
        """Tell that a stream's first token came: the time it took teaches the replica's speed."""
        if self.prefilling:
            state = self.state
            self.first_token_s = now_s = state.now_s()
            self.prefilled()
            state.progress_s = now_s
            state.speed.observe(self._ahead_tokens + self.uncached_tokens, now_s - self.started_s)
            state.on_room(state)

    def prefilled(self) -> None:
        """Count the prompt as computed."""
        self.prefilling = False
        self.state.unprefilled_tokens -= self.uncached_tokens
        self.state.long_prefills -= self._long

    def overdue(self, now_s: float) -> bool:
        """Say whether the prompt of an answer that is not streamed should be computed by now, and is not counted so."""
        if not self.prefilling:
            return False
        speed = self.state.speed
        foreseen_s = speed.predict_s(self._ahead_tokens + self.uncached_tokens) if speed.known else _UNSEEN_PREFILL_S
        return now_s - self.started_s > foreseen_s

    def report(
        self, failure: FailureKind | None, *, answered: bool, cached_tokens: int | None = None, again: bool = False
    ) -> None:
        """Tell how the try ended: its load is taken off, and the breaker learns; a second time changes nothing.

        Args:
            failure: the engine's fault, or None.
            answered: the engine answered as it should; False with no failure means that nobody waited any more.
            cached_tokens: of the prompt, as the engine counted them.
            again: the call may be tried once more, and takes its place before those that wait: they are let in when
                the next place is free, or with the next tick.
        """
        if not self._held:
            return
        state = self.state
        now_s = state.now_s()
        self._leave(now_s)
        breaker = state.breaker
        before = breaker.state
        if failure is not None:
            breaker.failed(failure, now_s)
        elif answered:
            breaker.succeeded(now_s)
            if self._foreseen and cached_tokens is not None:
                state.prefixes.learn(self._foreseen, cached_tokens)
        else:
            breaker.cancelled()
        if breaker.state != before:
            log.warning("replica %s: breaker %s, %s", state.replica.name, breaker.state, breaker.reason or "well")
            if breaker.state == "closed":
                state.back_s = now_s
            state.on_turn(state)
        if not again:
            state.on_room(state)

    def _leave(self, now_s: float) -> None:
        self._held = False
        if self.prefilling:
            self.prefilled()
        state = self.state
        state.in_flight -= 1
        state.in_flight_tokens -= self._tokens
        state.reserved_tokens -= self._reserved_tokens
        state.long_in_flight -= self._long
        taken_s = now_s - self.started_s
        state.occupied_s += (taken_s - state.occupied_s) * (0.1 if state.occupied_s else 1.0)
        if not self._streams:
            del state.unseen[self]
