"""The gate inside one process: a tenant's limits first, then room on the pool, first come first served."""

import asyncio
from collections import deque
from collections.abc import Iterator

from forebay.admission.quota import Denied, Quota, Reservation
from forebay.clock import Clock
from forebay.errors import Refused
from forebay.policy import Policy, Pool
from forebay.traffic import Call

_DENIALS = {
    "concurrency_limit": "this key already has as many calls in flight as it may",
    "requests_limit": "this key has sent as many requests in a minute as it may",
    "insufficient_quota": "this key has used its tokens of this minute, or this call needs more than are left",
}


class LocalPermit:
    """A permit of the gate in this process; `release` gives it back once, later calls do nothing."""

    __slots__ = ("_deadline_s", "_gate", "_pool", "_reservation")

    def __init__(self, gate: "LocalGate", reservation: Reservation, pool: str, deadline_s: float) -> None:
        self._gate: LocalGate | None = gate
        self._reservation = reservation
        self._pool = pool
        self._deadline_s = deadline_s

    async def move(self, pool: str) -> None:
        """Leave the pool for a place on another, without being counted again by the tenant's limits.

        Raises:
            Refused: `queue_full`, `queue_timeout`; the permit then holds no place, and `release` is still due.
        """
        gate = self._gate
        if gate is None or pool == self._pool:
            return
        gate.leave(self._pool)
        self._pool = ""
        await gate.enter(pool, self._deadline_s)
        self._pool = pool

    def release(self, used_tokens: int | None) -> None:
        """Give the place back and settle the reserved tokens."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.give_back(self._reservation, self._pool, used_tokens)


class LocalGate:
    """Lets calls in; all of its state is in memory and follows the policy.

    A pool has room for `max_in_flight` calls on each of its replicas; up to `queue_size` calls wait for
    it, in order, and are refused beyond.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._quota = Quota()
        self._pools: dict[str, Pool] = {}
        self._running: dict[str, int] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    def apply(self, policy: Policy) -> None:
        """Follow a new policy; calls in flight keep what they have, more room lets waiting calls in."""
        self._quota.apply(policy)
        self._pools = policy.pools
        for name in list(self._waiting):
            self._admit_waiting(name)

    async def acquire(self, call: Call, pool: str) -> LocalPermit:
        """Take, or wait for, a place.

        Raises:
            Refused: `concurrency_limit`, `requests_limit`, `insufficient_quota`, `queue_full`.
        """
        tokens = call.prompt_tokens + call.output_tokens
        reservation = self._quota.reserve(call.tenant, tokens, self._clock.now_s())
        if isinstance(reservation, Denied):
            retry_after_s = reservation.retry_after_s
            raise Refused(
                reservation.code,
                _DENIALS[reservation.code],
                retry_after_s=None if retry_after_s is None else max(1, round(retry_after_s + 0.5)),
            )
        try:
            await self.enter(pool, call.deadline_s)
        except BaseException:
            self._quota.release(reservation, self._clock.now_s())
            raise
        return LocalPermit(self, reservation, pool, call.deadline_s)

    def give_back(self, reservation: Reservation, pool: str, used_tokens: int | None) -> None:
        """Settle what a call used and free its place."""
        self._quota.settle(reservation, used_tokens, self._clock.now_s())
        self.leave(pool)

    async def enter(self, pool: str, deadline_s: float) -> None:
        """Take a place on a pool, or wait for it.

        Args:
            pool: its name.
            deadline_s: monotonic seconds after which nobody waits any more.

        Raises:
            Refused: `queue_full`, `queue_timeout`.
        """
        if self._has_room(pool):
            self._running[pool] = self._running.get(pool, 0) + 1
        else:
            await self._wait(pool, deadline_s)

    def leave(self, pool: str) -> None:
        """Free a place on a pool; the next waiting call gets it."""
        if not pool:
            return
        self._running[pool] -= 1
        if pool in self._waiting:
            self._admit_waiting(pool)

    def queue_depths(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield the number of waiting calls of each pool, for the gauge."""
        for name in self._pools:
            yield (name,), len(self._waiting.get(name, ()))

    def permits_held(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield the permits that each tenant holds, for the gauge."""
        for name, held in self._quota.held().items():
            yield (name,), held

    def _has_room(self, pool: str) -> bool:
        rule = self._pools.get(pool)
        if rule is None or rule.max_in_flight is None:
            return True
        room = rule.max_in_flight * (len(rule.replicas) - len(rule.drained))
        return self._running.get(pool, 0) < room and not self._waiting.get(pool)

    async def _wait(self, pool: str, deadline_s: float) -> None:
        queue = self._waiting.setdefault(pool, deque())
        if len(queue) >= self._pools[pool].queue_size:
            raise Refused("queue_full", "all engines are busy and the queue is full", retry_after_s=1)
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        queue.append(turn)
        try:
            async with asyncio.timeout(deadline_s - self._clock.now_s()):
                await turn
        except (TimeoutError, asyncio.CancelledError) as ended:
            if turn.done() and not turn.cancelled():
                # The place was granted in the same moment: hand it on.
                self.leave(pool)
            elif turn in queue:
                queue.remove(turn)
            if isinstance(ended, TimeoutError):
                raise Refused("queue_timeout", "no engine became free in time", retry_after_s=1) from None
            raise

    def _admit_waiting(self, pool: str) -> None:
        queue = self._waiting[pool]
        rule = self._pools.get(pool)
        room = None
        if rule is not None and rule.max_in_flight is not None:
            room = rule.max_in_flight * (len(rule.replicas) - len(rule.drained))
        while queue and (room is None or self._running.get(pool, 0) < room):
            turn = queue.popleft()
            if not turn.done():
                self._running[pool] = self._running.get(pool, 0) + 1
                turn.set_result(None)
        if not queue:
            del self._waiting[pool]
