"""An inquest for tests in which nobody looks at an engine and nobody is suspected."""

from forebay.actions import Actions
from forebay.clock import ManualClock
from forebay.domain import Replica
from forebay.inquest import Inquest
from forebay.retrying import LocalRetries
from forebay.routing.budget import RetryBudgets
from forebay.routing.pool import Fleet


def inquest_of(fleet: Fleet, actions: Actions, clock: ManualClock) -> Inquest:
    """An inquest on a fleet whose engines are all well."""

    async def fetch(replica: Replica, path: str, timeout_s: float) -> tuple[int, bytes]:
        return 200, b""

    return Inquest(fleet, LocalRetries(fleet, RetryBudgets(clock.now_s)), actions, fetch, clock)
