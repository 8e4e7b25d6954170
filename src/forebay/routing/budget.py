"""How many retries there may be: at most a tenth of the calls, so that a struggling pool is not finished off.

Pure, on the time it is told. The idea is that of Finagle's RetryBudget: calls fill a budget that retries are
taken from, with a small reserve for quiet times. Here both are counted over the same sliding 10 s, in buckets
of one second: calls in the latest ten, retries in the latest eleven. So whenever a retry is let through, the
10 s before it hold no more than `FLOOR` retries and a tenth of the calls in the same 10 s.
"""

from collections.abc import Callable, Iterator
from typing import Final

from forebay.policy import Policy

WINDOW_S: Final = 10
CALLS_PER_RETRY: Final = 10
FLOOR: Final = 10
"""Retries in 10 s that need no calls: a quiet service may still retry."""

# Tenants that have a budget of their own; those beyond share one.
MAX_TENANTS: Final = 1024
_BUCKETS: Final = WINDOW_S + 1
_OTHER: Final = "other"
_SCOPES: Final = ("pool", "tenant")


class RetryBudget:
    """Calls and retries of one pool, or of one tenant, in the latest seconds."""

    __slots__ = ("_calls", "_calls_in", "_retries", "_retries_in", "_second")

    def __init__(self) -> None:
        self._calls = [0] * _BUCKETS
        self._retries = [0] * _BUCKETS
        self._calls_in = 0
        self._retries_in = 0
        self._second = 0

    def note_call(self, now_s: float) -> None:
        """Count the first try of a call."""
        self._advance(int(now_s))
        self._calls[self._second % _BUCKETS] += 1
        self._calls_in += 1

    def allows(self, now_s: float) -> bool:
        """Say whether one more retry fits; changes only the window's time.

        Args:
            now_s: monotonic seconds; a time before the latest counts as the latest.
        """
        self._advance(int(now_s))
        # The oldest bucket may reach back further than the window: its retries count, its calls do not.
        calls = self._calls_in - self._calls[(self._second + 1) % _BUCKETS]
        return (self._retries_in + 1 - FLOOR) * CALLS_PER_RETRY <= calls

    def take(self) -> None:
        """Count the retry that `allows` has just let through."""
        self._retries[self._second % _BUCKETS] += 1
        self._retries_in += 1

    def _advance(self, second: int) -> None:
        passed = second - self._second
        if passed <= 0:
            return
        if passed >= _BUCKETS:
            self._calls = [0] * _BUCKETS
            self._retries = [0] * _BUCKETS
            self._calls_in = 0
            self._retries_in = 0
        else:
            for expired in range(self._second + 1, second + 1):
                place = expired % _BUCKETS
                self._calls_in -= self._calls[place]
                self._retries_in -= self._retries[place]
                self._calls[place] = 0
                self._retries[place] = 0
        self._second = second


class RetryBudgets:
    """The budgets of all pools and tenants; a retry needs room in both.

    Follows the policy. Tenants beyond 1,024 share one budget; pools that no policy has named do as well.

    Args:
        now_s: monotonic seconds.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._pools: dict[str, RetryBudget] = {}
        self._tenants: dict[str, RetryBudget] = {}
        self._other_pools = RetryBudget()
        self._other_tenants = RetryBudget()
        self._denied: dict[tuple[str, str], int] = {}

    def apply(self, policy: Policy) -> None:
        """Follow a new policy: what stays keeps its counts, what went is forgotten."""
        self._pools = {name: self._pools.get(name) or RetryBudget() for name in policy.pools}
        names = {tenant.name for tenant in policy.tenants.values()}
        self._tenants = {name: budget for name, budget in self._tenants.items() if name in names}
        self._denied = {
            (pool, scope): self._denied.get((pool, scope), 0) for pool in (*policy.pools, _OTHER) for scope in _SCOPES
        }

    def note_call(self, pool: str, tenant: str) -> None:
        """Count the first try of a call on a pool."""
        now_s = self._now_s()
        self._pools.get(pool, self._other_pools).note_call(now_s)
        self._of(tenant).note_call(now_s)

    def try_take(self, pool: str, tenant: str) -> bool:
        """Take a retry from the pool's budget and from the tenant's: from both, or from neither."""
        now_s = self._now_s()
        of_pool = self._pools.get(pool, self._other_pools)
        of_tenant = self._of(tenant)
        if not of_pool.allows(now_s):
            self._deny(pool, "pool")
            return False
        if not of_tenant.allows(now_s):
            self._deny(pool, "tenant")
            return False
        of_pool.take()
        of_tenant.take()
        return True

    def exhausted(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """Return the retries that were not allowed, by pool and by whose budget was used up, for the metric."""
        return iter(self._denied.items())

    def _of(self, tenant: str) -> RetryBudget:
        budget = self._tenants.get(tenant)
        if budget is None:
            if len(self._tenants) >= MAX_TENANTS:
                return self._other_tenants
            budget = self._tenants[tenant] = RetryBudget()
        return budget

    def _deny(self, pool: str, scope: str) -> None:
        labels = (pool if pool in self._pools else _OTHER, scope)
        self._denied[labels] = self._denied.get(labels, 0) + 1
