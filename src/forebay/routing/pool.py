"""The replicas of all pools: the choice among them, and what a call may expect of them."""

import math
from collections.abc import Callable, Iterator

from forebay.clock import Clock
from forebay.domain import Replica
from forebay.policy import Admission, Policy, Pool
from forebay.ports import Outlook
from forebay.routing.breaker import Breaker
from forebay.routing.replica import Lease, ReplicaState
from forebay.traffic import Call

_NONE: frozenset[str] = frozenset()
UNKNOWN = Outlook()


class Fleet:
    """All replicas of all pools; follows the policy.

    Attributes:
        on_room: called with a pool's name when one of its replicas may take more than before; returns whether
            calls waited for it.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._states: dict[str, dict[str, ReplicaState]] = {}
        self._admission = Admission()
        self._turn = 0
        self.on_room: Callable[[str], bool] | None = None

    def apply(self, policy: Policy) -> None:
        """Follow a new policy: new replicas come in, gone ones only finish what they have."""
        states: dict[str, dict[str, ReplicaState]] = {}
        for pool in policy.pools.values():
            old = self._states.get(pool.name, {})
            states[pool.name] = {r.name: self._kept(old.get(r.name), r, pool) for r in pool.replicas}
        self._states = states
        self._admission = policy.admission

    def states(self, pool: str | None = None) -> Iterator[ReplicaState]:
        """Yield the replicas of one pool, or of all."""
        for name, replicas in self._states.items():
            if pool is None or name == pool:
                yield from replicas.values()

    def is_long(self, pool: str, call: Call) -> bool:
        """Say whether a call takes the long lane of a pool: by the part of its prompt that no replica has cached."""
        limit = self._admission.long_prompt_tokens
        if call.prompt_tokens < limit:
            return False
        cached = max((s.prefixes.cached_tokens(call.work.blocks) for s in self.states(pool)), default=0)
        return call.prompt_tokens - cached >= limit

    def take(self, pool: str, call: Call, excluded: frozenset[str] = _NONE, *, held: bool = True) -> Lease | None:
        """Take the best replica that may get the call now; None when there is none.

        The best one has the least prompt work to do times the calls that share it (LMetric: no knobs, and
        a replica that has the prompt's beginning cached has less to do), among those that seem well.

        Args:
            pool: its name.
            call: to be sent.
            excluded: names of replicas that this call must not get again.
            held: obey the hold, which keeps the queue here; False obeys health and the configured limit alone.
        """
        now_s = self._clock.now_s()
        blocks, prompt_tokens = call.work.blocks, call.prompt_tokens
        tokens, long_tokens = prompt_tokens + call.output_tokens, self._admission.long_prompt_tokens
        best: ReplicaState | None = None
        best_doubt, best_score, best_foreseen = False, 0.0, 0
        for name, state in self._states.get(pool, {}).items():
            if name in excluded or not state.may_take(now_s):
                continue
            foreseen = state.prefixes.cached_tokens(blocks) if blocks else 0
            uncached = prompt_tokens - foreseen
            if held and not state.has_room(tokens, uncached, uncached >= long_tokens, now_s):
                continue
            doubt = state.loading or state.up is False
            work = state.unprefilled_tokens + uncached + 1
            score = (state.in_flight + 1) * work * state.slowness
            if (
                best is None
                or (doubt, score) < (best_doubt, best_score)
                or (doubt == best_doubt and score == best_score and state.turn < best.turn)
            ):
                best, best_doubt, best_score, best_foreseen = state, doubt, score, foreseen
        if best is None:
            return None
        self._turn += 1
        best.turn = self._turn
        best.breaker.begin(now_s)
        if blocks:
            best.prefixes.add(blocks)
        return Lease(best, call, best_foreseen, prompt_tokens - best_foreseen >= long_tokens, now_s)

    def tick(self) -> None:
        """Count prompts of whole answers as computed when their time is over, and compare speeds; 10 times a second."""
        now_s = self._clock.now_s()
        for replicas in self._states.values():
            fastest = max((state.speed.tokens_per_s for state in replicas.values()), default=0.0)
            for state in replicas.values():
                # In steps of two: equal machines that only measure a little differently still take turns.
                known = state.speed.known and fastest > 0.0
                state.slowness = 2.0 ** round(math.log2(fastest / state.speed.tokens_per_s)) if known else 1.0
        for state in self.states():
            for lease in state.unseen:
                if lease.overdue(now_s):
                    lease.prefilled()
                    state.progress_s = now_s

    def usable(self, pool: str) -> int:
        """Return how many replicas of a pool may be used now."""
        now_s = self._clock.now_s()
        return sum(s.usable(now_s) for s in self.states(pool))

    def reserve(self, pool: str, count: int) -> None:
        """Keep so many replicas of a pool free of long prompts, but never all: those that have the fewest now."""
        now_s = self._clock.now_s()
        for state in self.states(pool):
            state.reserved = state.reserved and state.usable(now_s)
        states = [s for s in self.states(pool) if s.usable(now_s)]
        states.sort(key=lambda s: (s.long_in_flight, not s.reserved))
        for place, state in enumerate(states):
            state.reserved = place < min(count, len(states) - 1)

    def outlook(self, pool: str, prompt_tokens: int, ahead_tokens: float, ahead_calls: int) -> Outlook:
        """Foresee the first token of a call that would come behind others in the queue (scheduling by prefill work).

        Args:
            pool: its name.
            prompt_tokens: of the call, uncached.
            ahead_tokens: prompt tokens of those that wait before it.
            ahead_calls: their number.
        """
        now_s = self._clock.now_s()
        states = [s for s in self.states(pool) if s.usable(now_s)]
        if not states or not all(s.speed.known for s in states):
            return UNKNOWN
        queue_s = ahead_tokens / sum(s.speed.tokens_per_s for s in states)
        backlog_s = min(s.backlog_tokens(now_s) / s.speed.tokens_per_s for s in states)
        alone_s = min(s.speed.predict_s(prompt_tokens) for s in states)
        wait_s = max(queue_s + backlog_s, _slot_wait_s(states, ahead_calls))
        return Outlook(wait_s + alone_s, alone_s, wait_s)

    def _room(self, state: ReplicaState) -> None:
        dry = not state.unprefilled_tokens and state.has_slot()
        if self.on_room is not None and self.on_room(state.pool.name) and dry:
            state.depth.ran_dry()

    def _kept(self, old: ReplicaState | None, replica: Replica, pool: Pool) -> ReplicaState:
        state = old if old is not None else ReplicaState(replica, pool, self._clock.now_s, self._room)
        if state.pool.breaker != pool.breaker:
            state.breaker = Breaker(pool.breaker)
        if state.pool.capacity != pool.capacity:
            state.speed.declare(pool.capacity)
            state.slots, state.kv_tokens = pool.capacity.streams, pool.capacity.kv_tokens
        state.replica, state.pool, state.drained = replica, pool, replica.name in pool.drained
        return state


def _slot_wait_s(states: list[ReplicaState], ahead_calls: int) -> float:
    """Return the seconds until a slot is free behind so many calls; 0 where slots have no number."""
    free, rate = 0, 0.0
    for state in states:
        limit = state.limit()
        if limit is None:
            return 0.0
        free += max(0, limit - state.in_flight)
        if state.occupied_s:
            rate += limit / state.occupied_s
    short = ahead_calls + 1 - free
    return short / rate if short > 0 and rate else 0.0
