"""The gate inside one process: a tenant's limits first, then room on the pool, first come first served."""

from collections.abc import Callable, Iterator

from forebay.admission.places import Places
from forebay.admission.quota import Denied, Quota, Reservation
from forebay.clock import Clock
from forebay.errors import Refused
from forebay.policy import Policy
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
        gate.places.leave(self._pool)
        self._pool = ""
        await gate.places.enter(pool, self._deadline_s)
        self._pool = pool

    def release(self, used_tokens: int | None) -> None:
        """Give the place back and settle the reserved tokens."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.give_back(self._reservation, self._pool, used_tokens)


class LocalGate:
    """Lets calls in; all of its state is in memory and follows the policy.

    Attributes:
        places: room on the pools, and who waits for it; `usable` is explained there.
    """

    def __init__(self, clock: Clock, usable: Callable[[str], int] | None = None) -> None:
        self._clock = clock
        self._quota = Quota()
        self.places = Places(clock, usable)

    def apply(self, policy: Policy) -> None:
        """Follow a new policy; calls in flight keep what they have, more room lets waiting calls in."""
        self._quota.apply(policy)
        self.places.apply(policy)

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
            await self.places.enter(pool, call.deadline_s)
        except BaseException:
            self._quota.release(reservation, self._clock.now_s())
            raise
        return LocalPermit(self, reservation, pool, call.deadline_s)

    def give_back(self, reservation: Reservation, pool: str, used_tokens: int | None) -> None:
        """Settle what a call used and free its place."""
        self._quota.settle(reservation, used_tokens, self._clock.now_s())
        self.places.leave(pool)

    def permits_held(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield the permits that each tenant holds, for the gauge."""
        for name, held in self._quota.held().items():
            yield (name,), held
