"""Room on the pools: places that running calls hold, and calls that wait for one, first come first served."""

import asyncio
from collections import deque
from collections.abc import Iterator

from forebay.clock import Clock
from forebay.errors import Refused
from forebay.policy import Policy, Pool


class Places:
    """The places of all pools; follows the policy.

    A pool has room for `max_in_flight` calls on each of its replicas; up to `queue_size` calls wait for
    it, in order, and are refused beyond.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._pools: dict[str, Pool] = {}
        self._running: dict[str, int] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    def apply(self, policy: Policy) -> None:
        """Follow a new policy; calls in flight keep what they have, more room lets waiting calls in."""
        self._pools = policy.pools
        for name in list(self._waiting):
            self._admit_waiting(name)

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

    def depths(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield the number of waiting calls of each pool, for the gauge."""
        for name in self._pools:
            yield (name,), len(self._waiting.get(name, ()))

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
