"""The replicas of all pools: the choice among them, and what a call may expect of them."""

import math
from collections.abc import Callable, Iterator

from forebay.clock import Clock
from forebay.domain import Replica
from forebay.policy import Admission, Policy, Pool
from forebay.ports import Outlook
from forebay.routing.breaker import Breaker
from forebay.routing.capacity import long_from_tokens
from forebay.routing.errands import Errands
from forebay.routing.outlook import foresee
from forebay.routing.replica import Lease, ReplicaState
from forebay.routing.rotation import Rotation, arrange
from forebay.traffic import Call

# Part of the target of `high` from which on a replica counts as busy for its short calls.
FREE_RATIO = 0.5
_NONE: frozenset[str] = frozenset()


class Fleet:
    """All replicas of all pools; follows the policy.

    Attributes:
        on_room: called with a pool's name when one of its replicas may take more than before; returns whether
            short calls went in that waited for it.
        on_turn: called with a replica whose breaker has opened or closed.
        rotations: by pool, who takes part there.
        errands: what Forebay itself asks the replicas for.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._states: dict[str, dict[str, ReplicaState]] = {}
        self._admission = Admission()
        # By pool, from how many tokens on a prompt is long because of the time that it takes; 0 while unknown.
        self._slow_tokens: dict[str, int] = {}
        self._turn = 0
        self.on_room: Callable[[str], bool] | None = None
        self.on_turn: Callable[[ReplicaState], None] | None = None
        self.rotations: dict[str, Rotation] = {}
        self.errands = Errands()

    def apply(self, policy: Policy) -> None:
        """Follow a new policy: new replicas come in, gone ones only finish what they have."""
        states: dict[str, dict[str, ReplicaState]] = {}
        for pool in policy.pools.values():
            old = self._states.get(pool.name, {})
            states[pool.name] = {r.name: self._kept(old.get(r.name), r, pool) for r in pool.replicas}
        self._states = states
        self.errands.keep(frozenset([name for replicas in states.values() for name in replicas]))
        self._slow_tokens = {name: self._slow_tokens.get(name, 0) for name in states}
        self._admission = policy.admission

    def states(self, pool: str | None = None) -> Iterator[ReplicaState]:
        """Yield the replicas of one pool, or of all."""
        for name, replicas in self._states.items():
            if pool is None or name == pool:
                yield from replicas.values()

    def long_tokens(self, pool: str) -> int:
        """Return from how many uncached tokens on a prompt takes the long lane of a pool; fewer on slow engines."""
        most = self._admission.long_prompt_tokens
        return min(most, self._slow_tokens.get(pool) or most)

    def is_long(self, pool: str, call: Call) -> bool:
        """Say whether a call takes the long lane of a pool: by the part of its prompt that no replica has cached."""
        limit = self.long_tokens(pool)
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
        tokens, long_tokens = prompt_tokens + call.output_tokens, self.long_tokens(pool)
        most_s = self._most_s(pool, now_s) if held and prompt_tokens >= long_tokens else math.inf
        best: ReplicaState | None = None
        best_doubt, best_score, best_foreseen = False, 0.0, 0
        for name, state in self._states.get(pool, {}).items():
            if name in excluded or not state.may_take(now_s):
                continue
            foreseen = state.prefixes.cached_tokens(blocks) if blocks else 0
            uncached = prompt_tokens - foreseen
            if held and not state.has_room(tokens, uncached, uncached >= long_tokens, now_s):
                continue
            if uncached >= long_tokens and state.speed.known and uncached > most_s * state.speed.tokens_per_s:
                continue
            doubt = state.loading or state.up is False
            work = state.unprefilled_tokens + uncached + 1
            score = (state.in_flight + 1) * work * state.weight
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

    def adopt(self, pool: str, replica: str, call: Call, foreseen_tokens: int) -> Lease | None:
        """Count a try that runs already, by the word of whoever sent it; None when the replica is not known here.

        Args:
            pool: its name.
            replica: its name.
            call: whose try it is.
            foreseen_tokens: of its prompt, in the engine's cache.
        """
        state = self._states.get(pool, {}).get(replica)
        if state is None:
            return None
        long = call.prompt_tokens - foreseen_tokens >= self.long_tokens(pool)
        return Lease(state, call, foreseen_tokens, long, self._clock.now_s())

    def tick(self) -> None:
        """Count prompts of whole answers as computed when it is time, and see who takes part; 10 times a second."""
        now_s = self._clock.now_s()
        self.rotations = {name: arrange(replicas.values(), now_s) for name, replicas in self._states.items()}
        for name, replicas in self._states.items():
            fastest = max([state.speed.likely_tokens_per_s for state in replicas.values()], default=0.0)
            self._slow_tokens[name] = long_from_tokens(self._slow_tokens[name], fastest)
        for state in self.states():
            for lease in state.unseen:
                if lease.overdue(now_s):
                    lease.prefilled()
                    state.progress_s = now_s

    def token_ids(self, pool: str) -> bool:
        """Say whether a pool's replicas can send token ids, so that an answer can go on exactly on any of them.

        One that is not up does not count: it takes calls only when nobody else can, and is probed as it comes up.
        """
        able = False
        for state in self.states(pool):
            if state.token_ids:
                able = True
            elif state.up is not False:
                return False
        return able

    def context_tokens(self, pool: str) -> int | None:
        """Return the longest prompt and answer that a replica of a pool takes; None while unknown."""
        return max([s.context_tokens for s in self.states(pool) if s.context_tokens is not None], default=None)

    def _most_s(self, pool: str, now_s: float) -> float:
        """Return how long a long prompt may be computed for: not long where it would leave no replica to the others.

        An engine computes prompts one after the other, so when all compute long ones a call of `high` is late wherever
        it goes. The last replica that is free takes only what is computed within half of the target of `high`.
        """
        within_s = FREE_RATIO * self._admission.classes["high"].target_s
        states = [state for state in self.states(pool) if state.usable(now_s)]
        free = sum([s.backlog_tokens(now_s) <= within_s * s.speed.tokens_per_s for s in states])
        return within_s if free < 2 and len(states) > 2 else math.inf

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
        return foresee(states, now_s, prompt_tokens, ahead_tokens, ahead_calls)

    def _room(self, state: ReplicaState) -> None:
        dry = not state.unprefilled_tokens and state.has_slot()
        if self.on_room is not None and self.on_room(state.pool.name) and dry:
            state.depth.ran_dry()

    def _turned(self, state: ReplicaState) -> None:
        pool = state.pool.name
        self.rotations[pool] = arrange(self._states.get(pool, {}).values(), self._clock.now_s())
        if self.on_turn is not None:
            self.on_turn(state)

    def _kept(self, old: ReplicaState | None, replica: Replica, pool: Pool) -> ReplicaState:
        state = old if old is not None else ReplicaState(replica, pool, self._clock.now_s, self._room, self._turned)
        if state.pool.breaker != pool.breaker:
            state.breaker = Breaker(pool.breaker)
        if state.pool.capacity != pool.capacity:
            state.speed.declare(pool.capacity)
            state.slots, state.kv_tokens = pool.capacity.streams, pool.capacity.kv_tokens
        state.replica, state.pool, state.drained = replica, pool, replica.name in pool.drained
        return state
