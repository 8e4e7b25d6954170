"""The queues of all pools: who goes in at once, who waits, who is refused, and who is next.

Synchronous and on an injected clock, so that the planner runs the same code on virtual time. A call goes in
when a replica can start it now; otherwise it waits here, where it can be ordered, and is told at once when
its wait cannot end well.
"""

import math
import zlib
from collections.abc import Callable, Iterator

from forebay.admission.claims import Claims
from forebay.admission.queue import OUTPUT_WEIGHT, Queue, Waiting, cost_of
from forebay.clock import Clock
from forebay.errors import Refused
from forebay.policy import Policy
from forebay.ports import Berths, Lease
from forebay.traffic import Call

# A target is given up when this much of it is foreseen to pass before the first token. Nobody is refused for its
# own size: a prompt that is late even alone may take this many times as long.
FEASIBLE_RATIO = 0.9
ALONE_RATIO = 1.5
# A short call is late from this part of its target on; more than one late call in twenty calls for the reserve (P95).
LATE_RATIO = 0.7
LATE_SHARE = 0.05
_LATE_WEIGHT = 0.02

Granted = Callable[[Waiting, Lease | None], None]
Turned = Callable[[Refused], None]


class Basin:
    """The queues; follows the policy.

    Args:
        clock: monotonic time.
        berths: room on the replicas.

    Attributes:
        claims: what tenants claim to be `high`.
    """

    def __init__(self, clock: Clock, berths: Berths) -> None:
        self._clock = clock
        self._berths = berths
        self.claims = Claims()
        self._queues: dict[str, Queue] = {}
        self._sizes: dict[str, int] = {}
        self._replicas: dict[str, int] = {}
        self._late_ratio: dict[str, float] = {}
        self._pumping: set[str] = set()
        berths.on_room = self.pump

    def apply(self, policy: Policy) -> None:
        """Follow a new policy; who waits goes on waiting, and more room lets them in."""
        self._sizes = {name: pool.queue_size for name, pool in policy.pools.items()}
        self._replicas = {name: len(pool.replicas) for name, pool in policy.pools.items()}
        for name in policy.pools:
            self._queues.setdefault(name, Queue(policy.admission))
        for queue in self._queues.values():
            queue.admission = policy.admission
        self.tick()
        for name, queue in list(self._queues.items()):
            if name not in policy.pools and not queue.size:
                del self._queues[name]
                self._late_ratio.pop(name, None)

    def at_once(self, call: Call, pool: str) -> tuple[bool, Lease | None]:
        """Say whether a call goes in without waiting, and where; no lease means that no replica is left to wait for."""
        queue = self._queues.get(pool)
        if queue is not None and queue.size:
            return False, None
        lease = self._berths.take(pool, call)
        return lease is not None or not self._berths.usable(pool), lease

    def wait(self, call: Call, pool: str, on_grant: Granted, on_refusal: Turned) -> Waiting:
        """Let a call wait; one of the two is called once, perhaps before this returns."""
        now_s = self._clock.now_s()
        queue = self._queues[pool]
        value = self.claims.grant(call, now_s)
        waiting = Waiting(call, value, self._berths.is_long(pool, call), queue.admission.classes[value], now_s)
        waiting.on_grant, waiting.on_refusal = on_grant, on_refusal
        refusal = self._infeasible(pool, queue, waiting) or self._overfull(pool, queue, waiting)
        if refusal is not None:
            on_refusal(refusal)
        else:
            queue.push(waiting)
            self.pump(pool)
        return waiting

    def leave(self, waiting: Waiting, pool: str) -> None:
        """Take out a call that nobody waits for any more; one that does not wait is left as it is."""
        if waiting.queued:
            self._queues[pool].remove(waiting)
            waiting.on_leave()

    def tick(self) -> None:
        """End waits that are over, and let in who waits where replicas have come back; ten times a second."""
        now_s = self._clock.now_s()
        for pool, queue in self._queues.items():
            self._follow_lateness(pool, queue)
            if queue.size:
                for waiting in queue.due(now_s):
                    self._expire(pool, queue, waiting)
                self.pump(pool)

    def pump(self, pool: str) -> bool:
        """Let in who is next while there is room; return whether short calls went in that the hold had kept waiting.

        A long prompt waits for its lane's turn and for the one before it, so more room in an engine's own queue would
        not have let it in sooner.
        """
        queue = self._queues.get(pool)
        if queue is None or not queue.size or pool in self._pumping:
            return False
        short = queue.short()
        self._pumping.add(pool)
        try:
            while queue.size and self._one(pool, queue):
                pass
        finally:
            self._pumping.remove(pool)
        return queue.short() < short

    def settle(self, call: Call, pool: str, used_tokens: int) -> None:
        """Correct what a call's tenant was charged when it went in from the queue; the prompt is used first."""
        queue = self._queues.get(pool)
        if queue is not None:
            prompt_tokens = min(call.prompt_tokens, used_tokens)
            cost_tokens = prompt_tokens + OUTPUT_WEIGHT * (used_tokens - prompt_tokens)
            queue.settle(call.tenant.name, cost_tokens - cost_of(call))

    def queue(self, pool: str) -> Queue | None:
        """Return the queue of a pool; None for a pool that is not there."""
        return self._queues.get(pool)

    def depths(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield the number of waiting calls of each pool, for the gauge."""
        for name, queue in self._queues.items():
            yield (name,), queue.size

    def queues(self) -> Iterator[tuple[str, Queue]]:
        """Yield the queues, for those who look at them."""
        yield from self._queues.items()

    def _infeasible(self, pool: str, queue: Queue, waiting: Waiting) -> Refused | None:
        """Refuse on arrival what cannot meet its target behind those that go before it (A5)."""
        if not queue.admission.refuses_early:
            return None
        ahead_tokens, ahead_calls = queue.ahead(waiting.value, waiting.long, waiting.call)
        seen = self._berths.outlook(pool, waiting.call.prompt_tokens, ahead_tokens, ahead_calls)
        if seen.first_token_s is None:
            return None
        allowed_s = waiting.target_s - waiting.arrived_s
        if seen.first_token_s <= max(FEASIBLE_RATIO * allowed_s, ALONE_RATIO * seen.alone_s):
            return None
        late_s = seen.first_token_s - FEASIBLE_RATIO * allowed_s
        return _overloaded(waiting.call, f"its first token is due in {allowed_s:g} s and would come later", late_s)

    def _hopeless(self, pool: str, queue: Queue, waiting: Waiting) -> Refused | None:
        """Refuse at the queue's head what can no longer meet its target: it would only delay others."""
        if not queue.admission.refuses_early:
            return None
        alone_s = self._berths.outlook(pool, waiting.call.prompt_tokens, 0.0, 0).alone_s
        waited_s = self._clock.now_s() - waiting.arrived_s
        allowed_s = waiting.target_s - waiting.arrived_s
        if waited_s + alone_s <= max(allowed_s, ALONE_RATIO * alone_s):
            return None
        return _overloaded(waiting.call, f"its first token was due in {allowed_s:g} s", self._drain_s(pool, queue))

    def _overfull(self, pool: str, queue: Queue, waiting: Waiting) -> Refused | None:
        """Refuse what the queue has no room for: the newcomer, or the last call of who has far more waiting."""
        if not queue.overfull(waiting.value, self._sizes.get(pool, 0)):
            return None
        wait_s = self._drain_s(pool, queue)
        text = "all engines are busy and the queue is full"
        other = queue.evictable(waiting.call.tenant.name, waiting.value)
        if other is None:
            return Refused("queue_full", text, retry_after_s=_retry_after_s(waiting.call, wait_s))
        queue.remove(other)
        other.on_refusal(Refused("queue_full", text, retry_after_s=_retry_after_s(other.call, wait_s)))
        return None

    def _expire(self, pool: str, queue: Queue, waiting: Waiting) -> None:
        """End a wait: `high` goes beyond the hold, where an engine's own queue is better than none (T32)."""
        if not waiting.queued:
            return
        lease = self._berths.take(pool, waiting.call, held=False) if waiting.value == "high" else None
        if lease is not None:
            self._let_in(pool, queue, waiting, lease)
            return
        queue.remove(waiting)
        wait_s = self._drain_s(pool, queue)
        text = "no engine became free in time"
        waiting.on_refusal(Refused("queue_timeout", text, retry_after_s=_retry_after_s(waiting.call, wait_s)))

    def _one(self, pool: str, queue: Queue) -> bool:
        """Decide on one waiting call; return whether another may be decided on."""
        heads = queue.heads()
        for waiting in heads:
            refusal = self._hopeless(pool, queue, waiting)
            if refusal is not None:
                queue.remove(waiting)
                waiting.on_refusal(refusal)
                return True
            lease = self._berths.take(pool, waiting.call)
            if lease is not None:
                self._let_in(pool, queue, waiting, lease)
                return True
            if not queue.may_pass(waiting):
                break
        if self._berths.usable(pool):
            return False
        # Nobody waits for a pool without a replica: the call is refused at once and by name.
        self._let_in(pool, queue, heads[0], None)
        return True

    def _let_in(self, pool: str, queue: Queue, waiting: Waiting, lease: Lease | None) -> None:
        queue.remove(waiting)
        queue.charge(waiting.call, waiting.value, waiting.long, self._clock.now_s())
        if queue.admission.short_reserve_ratio:
            self._note_lateness(pool, waiting)
        waiting.on_grant(waiting, lease)

    def _drain_s(self, pool: str, queue: Queue) -> float:
        tokens, calls = queue.ahead("low", long=True)
        return self._berths.outlook(pool, 1, tokens, calls).drain_s

    def _note_lateness(self, pool: str, waiting: Waiting) -> None:
        """Follow how many short calls are late, so that replicas can be kept for them."""
        if waiting.long:
            return
        alone_s = self._berths.outlook(pool, waiting.call.prompt_tokens, 0.0, 0).alone_s
        spent_s = self._clock.now_s() - waiting.arrived_s + alone_s
        late = spent_s > LATE_RATIO * (waiting.target_s - waiting.arrived_s)
        ratio = self._late_ratio.get(pool, 0.0)
        self._late_ratio[pool] = ratio + _LATE_WEIGHT * (late - ratio)

    def _follow_lateness(self, pool: str, queue: Queue) -> None:
        """Keep some replicas for short prompts while those are late; lend them out again when they are not."""
        wanted = queue.admission.short_reserve_ratio
        if not wanted:
            if self._late_ratio.pop(pool, None) is not None:
                self._berths.reserve(pool, 0)
            return
        if not queue.size:
            self._late_ratio[pool] = self._late_ratio.get(pool, 0.0) * (1.0 - _LATE_WEIGHT)
        late = self._late_ratio.get(pool, 0.0) > LATE_SHARE
        replicas = self._replicas.get(pool, 0)
        # One replica at least takes long prompts.
        self._berths.reserve(pool, min(replicas - 1, math.ceil(wanted * replicas)) if late else 0)


def _overloaded(call: Call, why: str, wait_s: float) -> Refused:
    text = f"the engines are overloaded: {why}; try again later, or send it as X-Request-Value: low"
    return Refused("overloaded", text, retry_after_s=_retry_after_s(call, wait_s))


def _retry_after_s(call: Call, wait_s: float) -> int:
    """Return whole seconds, at least one, up to a quarter more by tenant: not all come back at once (T77)."""
    jitter = zlib.crc32(call.tenant.name.encode()) % 64 / 256
    return max(1, math.ceil(wait_s * (1.0 + jitter)))
