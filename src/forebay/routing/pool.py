"""The replicas of all pools: their load, their health, and the choice among them."""

import logging
from collections.abc import Iterator

from forebay.clock import Clock
from forebay.domain import FailureKind, Replica
from forebay.policy import Policy, Pool
from forebay.routing.breaker import Breaker

log = logging.getLogger(__name__)


class ReplicaState:
    """What is known of one replica; survives reloads as long as the replica is configured.

    Attributes:
        in_flight: tries that run on it.
        in_flight_tokens: their estimated prompt and output tokens.
        up: what the last health poll said; None before the first. A doubt, never a reason to stop dispatch.
        loading: the engine says that its model is not loaded yet.
        telemetry: the engine's own account of its load.
        polled_at_s: monotonic seconds of the last telemetry; None without one.
    """

    __slots__ = ("breaker", "drained", "in_flight", "in_flight_tokens", "loading", "polled_at_s", "pool", "replica",
                 "telemetry", "turn", "up")  # fmt: skip

    def __init__(self, replica: Replica, pool: Pool) -> None:
        self.replica = replica
        self.pool = pool
        self.breaker = Breaker(pool.breaker)
        self.drained = False
        self.in_flight = 0
        self.in_flight_tokens = 0
        self.up: bool | None = None
        self.loading = False
        self.telemetry: object | None = None
        self.polled_at_s: float | None = None
        self.turn = 0

    @property
    def rank(self) -> tuple[bool, int, int]:
        """Order of choice: well before doubtful, little before much, longest unused before others."""
        return self.loading or self.up is False, self.in_flight_tokens, self.turn

    def may_take(self, now_s: float) -> bool:
        """Say whether it may get one more call."""
        limit = self.pool.max_in_flight
        return not self.drained and (limit is None or self.in_flight < limit) and self.breaker.allows(now_s)

    def __repr__(self) -> str:
        """Show what the choice depends on."""
        return f"{self.replica.name} in_flight={self.in_flight} tokens={self.in_flight_tokens} {self.breaker!r}"


class Lease:
    """A try's place on a replica: counts its load until `end` is called, once."""

    __slots__ = ("_tokens", "state")

    def __init__(self, state: ReplicaState, tokens: int) -> None:
        self.state = state
        self._tokens = tokens
        state.in_flight += 1
        state.in_flight_tokens += tokens

    def end(self) -> None:
        """Take the load off."""
        self.state.in_flight -= 1
        self.state.in_flight_tokens -= self._tokens


class Fleet:
    """All replicas of all pools; follows the policy."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._states: dict[str, dict[str, ReplicaState]] = {}
        self._turn = 0

    def apply(self, policy: Policy) -> None:
        """Follow a new policy: new replicas come in, gone ones only finish what they have."""
        states: dict[str, dict[str, ReplicaState]] = {}
        for pool in policy.pools.values():
            old = self._states.get(pool.name, {})
            states[pool.name] = {r.name: _kept(old.get(r.name), r, pool) for r in pool.replicas}
        self._states = states

    def states(self, pool: str | None = None) -> Iterator[ReplicaState]:
        """Yield the replicas of one pool, or of all."""
        for name, replicas in self._states.items():
            if pool is None or name == pool:
                yield from replicas.values()

    def choose(self, pool: str, tokens: int, excluded: frozenset[str]) -> Lease | None:
        """Take the replica with the least tokens in flight among those that may be used.

        Args:
            pool: its name.
            tokens: estimated prompt and output tokens of the call.
            excluded: names of replicas that this call must not get again.
        """
        now_s = self._clock.now_s()
        best: ReplicaState | None = None
        for name, state in self._states.get(pool, {}).items():
            if name not in excluded and state.may_take(now_s) and (best is None or state.rank < best.rank):
                best = state
        if best is None:
            return None
        self._turn += 1
        best.turn = self._turn
        best.breaker.begin(now_s)
        return Lease(best, tokens)

    def report(self, lease: Lease, failure: FailureKind | None, *, answered: bool) -> None:
        """Tell a replica's breaker how a try ended.

        Args:
            lease: of the try; ended here.
            failure: the engine's fault, or None.
            answered: the engine answered as it should; False with no failure means that the client left.
        """
        lease.end()
        breaker, now_s = lease.state.breaker, self._clock.now_s()
        before = breaker.state
        if failure is not None:
            breaker.failed(failure, now_s)
        elif answered:
            breaker.succeeded(now_s)
        else:
            breaker.cancelled()
        if breaker.state != before:
            log.warning("replica %s: breaker %s, %s", lease.state.replica.name, breaker.state, breaker.reason or "well")

    def usable(self, pool: str) -> int:
        """Return how many replicas of a pool may be used now."""
        now_s = self._clock.now_s()
        return sum(not s.drained and s.breaker.allows(now_s) for s in self.states(pool))


def _kept(old: ReplicaState | None, replica: Replica, pool: Pool) -> ReplicaState:
    state = old if old is not None else ReplicaState(replica, pool)
    if state.pool.breaker != pool.breaker:
        state.breaker = Breaker(pool.breaker)
    state.replica, state.pool, state.drained = replica, pool, replica.name in pool.drained
    return state
