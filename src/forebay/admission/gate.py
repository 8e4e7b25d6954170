"""The gate inside one process: a tenant's limits first, then a replica, at once or in turn."""

import asyncio
from collections.abc import Callable, Iterator

from forebay.admission.basin import Basin
from forebay.admission.queue import Waiting
from forebay.admission.quota import Denied, Quota, Reservation
from forebay.clock import Clock
from forebay.domain import Spend, Value
from forebay.errors import Refused
from forebay.policy import Policy
from forebay.ports import Berths, Lease
from forebay.traffic import Call

_DENIALS = {
    "concurrency": "this key already has as many calls in flight as it may",
    "requests": "this key has sent as many requests in a minute as it may",
    "tokens_minute": "this key has used its tokens of this minute, or this call needs more than are left",
    "tokens_month": "this key has used its tokens of this month, or this call needs more than are left",
    "money_month": "this key has used its money of this month, or this call needs more than is left",
}


class LocalPermit:
    """A permit of the gate in this process; `release` gives it back once, later calls do nothing.

    Attributes:
        pool: whose.
        lease: the replica for the first try there; None when no replica is usable.
        value: what the call is treated as.
        charged: the tenant has been charged for it in the pool's queue.
    """

    __slots__ = ("_call", "_gate", "_reservation", "charged", "lease", "pool", "value")

    def __init__(self, gate: "LocalGate", call: Call, reservation: Reservation, pool: str) -> None:
        self._gate: LocalGate | None = gate
        self._call = call
        self._reservation = reservation
        self.charged = False
        self.pool = pool
        self.lease: Lease | None = None
        self.value: Value = call.value

    async def move(self, pool: str) -> None:
        """Wait for a replica of another pool, without being counted again by the tenant's limits.

        Raises:
            Refused: `queue_full`, `queue_timeout`, `overloaded`; `release` is still due.
        """
        gate = self._gate
        if gate is None:
            return
        self._uncharge(gate)
        self.give_back()
        self.pool = pool
        await gate.enter(self._call, self)

    def release(self, used: Spend | None) -> None:
        """Give everything back and settle what was reserved."""
        gate, self._gate = self._gate, None
        if gate is not None:
            self.give_back()
            gate.settle(self._call, self._reservation, used, self.pool if self.charged else "")

    def withdraw(self) -> None:
        """Give everything back as if the call had never come: it got no replica."""
        gate, self._gate = self._gate, None
        if gate is not None:
            self._uncharge(gate)
            self.give_back()
            gate.forget(self._reservation)

    def _uncharge(self, gate: "LocalGate") -> None:
        """Take back what its tenant was charged in the queue of a pool that served it nothing."""
        if self.charged:
            self.charged = False
            gate.basin.settle(self._call, self.pool, 0)

    def give_back(self) -> None:
        """End the lease; one whose try has ended has been reported on and takes no notice."""
        lease, self.lease = self.lease, None
        if lease is not None:
            lease.report(None, answered=False)


class LocalGate:
    """Lets calls in; all of its state is in memory and follows the policy.

    Args:
        clock: monotonic and wall time.
        berths: room on the replicas.

    Attributes:
        quota: the limits of the tenants.
        basin: the queues of the pools.
    """

    def __init__(self, clock: Clock, berths: Berths) -> None:
        self._clock = clock
        self.quota = Quota()
        self.basin = Basin(clock, berths)

    def apply(self, policy: Policy) -> None:
        """Follow a new policy; calls in flight keep what they have, more room lets waiting calls in."""
        self.quota.apply(policy)
        self.basin.apply(policy)

    def at_once(self, call: Call, pool: str) -> LocalPermit | None:
        """Take a place if there is one without waiting: the common case, with no coroutine.

        Raises:
            Refused: `concurrency_limit`, `requests_limit`, `insufficient_quota`, `quota_exhausted`.
        """
        permit = self._admitted(call, pool)
        at_once, permit.lease = self.basin.at_once(call, pool)
        if at_once:
            return permit
        permit.withdraw()
        return None

    def adopt(self, call: Call, pool: str) -> LocalPermit | None:
        """Count a call that runs already, let in by an earlier gate; None when its tenant's limits have no room."""
        try:
            return self._admitted(call, pool)
        except Refused:
            return None

    async def acquire(self, call: Call, pool: str) -> LocalPermit:
        """Take a place, or wait for one.

        Raises:
            Refused: as `at_once`, and `queue_full`, `queue_timeout`, `overloaded`.
        """
        permit = self._admitted(call, pool)
        try:
            await self.enter(call, permit)
        except BaseException:
            permit.withdraw()
            raise
        return permit

    async def enter(self, call: Call, permit: LocalPermit) -> None:
        """Give a permit a replica of its pool, as soon as it is the call's turn.

        Raises:
            Refused: `queue_full`, `queue_timeout`, `overloaded`.
        """
        at_once, permit.lease = self.basin.at_once(call, permit.pool)
        if at_once:
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def refused(refusal: Refused) -> None:
            if not turn.done():
                turn.set_exception(refusal)

        waiting = self._wait(call, permit, lambda: None if turn.done() else turn.set_result(None), refused)
        try:
            await turn
        except asyncio.CancelledError:
            self.basin.leave(waiting, permit.pool)
            permit.give_back()
            raise

    def offer(
        self, call: Call, pool: str, on_grant: Callable[[LocalPermit], None], on_refusal: Callable[[Refused], None]
    ) -> Waiting | None:
        """Take a place for a call, or let it wait, without a loop; one of the two is called once, at once or later.

        Returns:
            The call that waits, for `basin.leave`; None when it is decided already.
        """
        try:
            permit = self._admitted(call, pool)
        except Refused as refusal:
            on_refusal(refusal)
            return None
        at_once, permit.lease = self.basin.at_once(call, pool)
        if at_once:
            on_grant(permit)
            return None

        def refused(refusal: Refused) -> None:
            permit.withdraw()
            on_refusal(refusal)

        waiting = self._wait(call, permit, lambda: on_grant(permit), refused)
        waiting.on_leave = permit.withdraw
        return waiting if waiting.queued else None

    def tick(self) -> None:
        """See `Basin.tick`."""
        self.basin.tick()

    def settle(self, call: Call, reservation: Reservation, used: Spend | None, charged_pool: str) -> None:
        """Settle what a call used, with its tenant's limits and in the order of the queue."""
        self.quota.settle(reservation, used, self._clock.now_s(), self._clock.wall_s())
        if charged_pool and used is not None:
            self.basin.settle(call, charged_pool, used.tokens)

    def forget(self, reservation: Reservation) -> None:
        """Undo the reservation of a call that never ran."""
        self.quota.release(reservation, self._clock.now_s(), self._clock.wall_s())

    def permits_held(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield the permits that each tenant holds, for the gauge."""
        for name, held in self.quota.held().items():
            yield (name,), held

    def _admitted(self, call: Call, pool: str) -> LocalPermit:
        """Reserve what a call may use, or refuse it by its tenant's limits."""
        spend = Spend(call.prompt_tokens + call.bound_tokens, call.money)
        if call.resumed:
            spend = Spend(call.bound_tokens, call.money, 0)
        reservation = self.quota.reserve(call.tenant, spend, self._clock.now_s(), self._clock.wall_s())
        if isinstance(reservation, Denied):
            wait_s = reservation.retry_after_s
            text = _DENIALS[reservation.limit]
            if wait_s is None and reservation.code == "insufficient_quota":
                raise Refused("quota_exhausted", text)
            raise Refused(reservation.code, text, retry_after_s=None if wait_s is None else max(1, round(wait_s + 0.5)))
        return LocalPermit(self, call, reservation, pool)

    def _wait(
        self, call: Call, permit: LocalPermit, on_grant: Callable[[], None], on_refusal: Callable[[Refused], None]
    ) -> Waiting:
        """Put a call into the queue of its permit's pool."""

        def granted(waiting: Waiting, lease: Lease | None) -> None:
            permit.lease, permit.value, permit.charged = lease, waiting.value, True
            on_grant()

        return self.basin.wait(call, permit.pool, granted, on_refusal)
