"""Limits of tenants on two clocks that run together, unless a test steps one of them."""

from forebay.admission.quota import Denied, Quota, Reservation
from forebay.domain import Spend, Tenant
from forebay.policy import Policy

# 2027-01-15, the middle of a month.
MIDDLE_S = 1_800_000_000.0


def policy(*tenants: Tenant) -> Policy:
    return Policy(pools={}, models={}, tenants={tenant.name.encode(): tenant for tenant in tenants})


def taken(got: Reservation | Denied) -> Reservation:
    assert isinstance(got, Reservation)
    return got


def denied(got: Reservation | Denied) -> Denied:
    assert isinstance(got, Denied)
    return got


class Limits:
    """A `Quota`, told the wall time `wall_s` later than the monotonic one."""

    def __init__(self, *tenants: Tenant, wall_s: float = MIDDLE_S) -> None:
        self.quota = Quota()
        self.wall_s = wall_s
        self.follow(*tenants)

    def follow(self, *tenants: Tenant) -> None:
        self.quota.apply(policy(*tenants))

    def reserve(self, tenant: Tenant, tokens: int, now_s: float, money: float = 0.0) -> Reservation | Denied:
        return self.quota.reserve(tenant, Spend(tokens, money), now_s, self.wall_s + now_s)

    def settle(self, call: Reservation, tokens: int | None, now_s: float, money: float = 0.0) -> None:
        used = None if tokens is None else Spend(tokens, money)
        self.quota.settle(call, used, now_s, self.wall_s + now_s)

    def release(self, call: Reservation, now_s: float) -> None:
        self.quota.release(call, now_s, self.wall_s + now_s)

    def held(self) -> dict[str, int]:
        return self.quota.held()

    def minute(self, tenant: str, now_s: float) -> int:
        return self.quota.used_tokens(tenant, now_s)

    def month(self, now_s: float, tenant: str = "a") -> tuple[int, float]:
        spent = self.quota.spent(now_s, self.wall_s + now_s)[tenant]
        return spent.tokens, spent.money
