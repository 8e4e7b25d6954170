"""Further tries of calls where the gate is in this process: the budgets and the replicas are asked directly."""

from forebay.ports import Lease
from forebay.routing.budget import RetryBudgets
from forebay.routing.pool import Fleet
from forebay.traffic import Call


class LocalRetries:
    """See `ports.Retries`.

    Args:
        fleet: the replicas.
        budgets: how many tries may be repeated.
    """

    def __init__(self, fleet: Fleet, budgets: RetryBudgets) -> None:
        self._fleet = fleet
        self._budgets = budgets

    def note_call(self, pool: str, tenant: str) -> None:
        """Count the first try of a call on a pool: it fills the budgets."""
        self._budgets.note_call(pool, tenant)

    async def may_retry(self, pool: str, tenant: str) -> bool:
        """Take one more try from the budgets, if they allow it."""
        return self._budgets.try_take(pool, tenant)

    async def take(self, pool: str, call: Call, excluded: frozenset[str]) -> Lease | None:
        """Take a replica for one more try, beyond the hold; None when there is none."""
        return self._fleet.take(pool, call, excluded, held=False)
