"""Room on the pools: places that running calls hold, and calls that wait for one, first come first served."""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator

from forebay.clock import Clock
from forebay.errors import Refused
from forebay.policy import Policy, Pool


class Places:
    """The places of all pools; follows the policy.

    A pool has room for `max_in_flight` calls on each replica that may serve; up to `queue_size` calls wait
    for it, in order, and are refused beyond.

    Args:
        clock: monotonic time.
        usable: how many replicas of a pool may serve now; all that are not drained when left out.
    """

    def __init__(self, clock: Clock, usable: Callable[[str], int] | None = None) -> None:
        self._clock = clock
        self._usable = usable
        self._pools: dict[str, Pool] = {}
        self._running: dict[str, int] = {}
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    def apply(self, policy: Policy) -> None:
        """Follow a new policy; calls in flight keep what they have, more room lets waiting calls in."""
        self._pools = policy.pools
        self.tick()

    def tick(self) -> None:
        """Let in who waits where replicas have come back; called ten times a second."""
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
        room = self._room(pool)
        return room is None or (self._running.get(pool, 0) < room and not self._waiting.get(pool))

    def _room(self, pool: str) -> int | None:
        """Return how many calls may run on a pool; None when there is nothing to wait for."""
        rule = self._pools.get(pool)
        if rule is None or rule.max_in_flight is None:
            return None
        usable = self._usable(pool) if self._usable is not None else len(rule.replicas) - len(rule.drained)
        # With no replica left a call is let through, to be refused at once and by name.
        return rule.max_in_flight * usable if usable else None

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
        room = self._room(pool)
        while queue and (room is None or self._running.get(pool, 0) < room):
            turn = queue.popleft()
            if not turn.done():
                self._running[pool] = self._running.get(pool, 0) + 1
                turn.set_result(None)
        if not queue:
            del self._waiting[pool]
