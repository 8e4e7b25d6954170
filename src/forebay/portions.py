"""This node's portions of the limits: the quota's accounts on one side, the claims in the shared store on the other.

Everything here is done at once, on the loop that serves the calls; `sharing` is who waits for the store.
"""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Final

from msgspec import Struct

from forebay.admission.quota import Account, Ceilings, Quota
from forebay.clock import Clock
from forebay.domain import Tenant
from forebay.store import shares
from forebay.store.records import MAX_TENANTS, Book, Claims, Month, Spent
from forebay.store.shares import KINDS, Need, Needs

NAMES: Final = ("concurrency", "requests_per_minute", "tokens_per_minute")
# Demand is remembered for some rounds, so that portions do not swing with every call.
_KEPT_RATIO: Final = 0.7
# What a node's running calls have reserved counts for others as long as it is heard of.
_RESERVED_MS: Final = 10_000


class Decided(Struct, frozen=True):
    """What was decided about a tenant.

    Attributes:
        account: of this node.
        tenant: with the limits that it was decided for.
        claims: to be written.
    """

    account: Account
    tenant: Tenant
    claims: Claims


class Portions:
    """Follows what is used, and confines the accounts.

    Args:
        quota: of this node.
        clock: for the windows of a minute.
        node: name of this node.
        least_nodes: that there are at least, by the configuration.

    Attributes:
        node: name of this node.
        nodes: that are known to be there, in order.
        joined: whether this node has its part; before, tenants with limits get nothing.
    """

    def __init__(self, quota: Quota, clock: Clock, node: str, least_nodes: int) -> None:
        self._quota = quota
        self._clock = clock
        self._least_nodes = least_nodes
        self._demand: dict[str, list[float]] = {}
        self._last: dict[str, Ceilings] = {}
        self.node = node
        self.nodes = [node]
        self.joined = False
        quota.sharing = self.of

    def of(self, tenant: Tenant) -> Ceilings:
        """Return what this node may use of a tenant's limits, as far as it is known: for a new policy."""
        known = self._last.get(tenant.name, (None, None, None))
        made: list[int | None] = []
        for limit, last in zip(limits_of(tenant), known, strict=True):
            if limit is None:
                made.append(None)
            elif last is not None:
                made.append(min(limit, last))
            else:
                made.append(self._even(limit) if self.joined else 0)
        return _three(made)

    def look(self) -> None:
        """Take over what has been asked for since the last time; called once in a round."""
        now_s = self._clock.now_s()
        demand: dict[str, list[float]] = {}
        for account in self._shared():
            name = account.tenant.name
            before = self._demand.get(name, [0.0, 0.0, 0.0])
            asked = account.asked(now_s)
            demand[name] = [max(new, _KEPT_RATIO * old) for new, old in zip(asked, before, strict=True)]
        self._demand = demand

    def decide(self, book: Book, *, rising: bool) -> Iterator[Decided]:
        """Decide on all tenants, one by one: ceilings that fall hold at once, others from `take` on."""
        for account in list(self._shared()):
            tenant = account.tenant
            claims = shares.claims(self._needs(account), self.node, tenant.name, book, rising=rising)
            # Before it is written: whether the store has taken it is not always learned.
            lower = _lower(claims, account.ceilings)
            account.confine(lower)
            self._last[tenant.name] = lower
            yield Decided(account, tenant, claims)

    def take(self, decided: list[Decided]) -> None:
        """Use what has been written; not where limits have changed meanwhile."""
        for one in decided:
            if one.account.tenant is one.tenant:
                ceilings = _three([None if claim is None else claim.ceiling for claim in one.claims])
            else:
                ceilings = _lower(one.claims, one.account.ceilings)
            one.account.confine(ceilings)
            self._last[one.tenant.name] = ceilings
        if len(self._last) > 2 * MAX_TENANTS:
            self._last = {one.tenant.name: one.account.ceilings for one in decided}
        self._the_rest()

    def endure(self, silent_s: float) -> None:
        """Go on without the store.

        Args:
            silent_s: seconds since it last answered.
        """
        for account in self._shared():
            made: list[int | None] = []
            last = self._last.get(account.tenant.name, (None, None, None))
            for kind, limit, known in zip(KINDS, limits_of(account.tenant), last, strict=True):
                if limit is None:
                    made.append(None)
                elif known is None:
                    made.append(self._even(limit))
                else:
                    made.append(shares.without_store(kind, min(limit, known), self._even(limit), silent_s))
            account.confine(_three(made))
        self._the_rest()

    def spent(self, now_ms: int) -> tuple[int, Month] | None:
        """Return the month and what this node has spent in it; None before that is known."""
        purses = self._quota.purses(self._clock.now_s(), self._clock.wall_s())
        if not purses:
            return None
        month = next(iter(purses.values())).month
        spent = {
            name: Spent(purse.tokens, purse.nano, purse.reserved_tokens, purse.reserved_nano)
            for name, purse in islice(purses.items(), MAX_TENANTS)
        }
        return month, Month(now_ms, spent)

    def spent_elsewhere(self, month: int, months: Mapping[str, Month], now_ms: int) -> None:
        """Count what other nodes have spent in a month."""
        sums: dict[str, tuple[int, int]] = {}
        for other in months.values():
            running = now_ms - other.at_ms <= _RESERVED_MS
            for name, spent in other.spent.items():
                tokens, nano = sums.get(name, (0, 0))
                tokens += spent.tokens + (spent.reserved_tokens if running else 0)
                nano += spent.nano + (spent.reserved_nano if running else 0)
                sums[name] = tokens, nano
        self._quota.elsewhere(month, sums)

    def shown(self) -> Iterator[tuple[str, str, int, int, int]]:
        """Yield tenant and name of each limit, the whole of it, this node's portion, and what counts of that."""
        now_s = self._clock.now_s()
        for account in self._quota.limited():
            uses = account.held, account.requests.at(now_s), account.tokens.at(now_s)
            rows = zip(NAMES, limits_of(account.tenant), account.ceilings, uses, strict=True)
            for name, limit, ceiling, used in rows:
                if limit is not None and ceiling is not None:
                    yield account.tenant.name, name, limit, ceiling, used

    def _needs(self, account: Account) -> Needs:
        demand = self._demand.get(account.tenant.name, [0.0, 0.0, 0.0])
        now_s = self._clock.now_s()
        used = (account.held, account.requests.at(now_s), account.tokens.at(now_s))
        fading = ((), account.requests.fading(), account.tokens.fading())
        made: list[Need | None] = []
        for place, (limit, ceiling) in enumerate(zip(limits_of(account.tenant), account.ceilings, strict=True)):
            if limit is None or ceiling is None:
                made.append(None)
            else:
                wanted = max(int(demand[place]), used[place] if place == 0 else 0)
                made.append(Need(limit, ceiling, max(0, used[place]), wanted, fading[place]))
        calls, requests, tokens = made
        return calls, requests, tokens

    def _shared(self) -> Iterator[Account]:
        return islice(self._quota.limited(), MAX_TENANTS)

    def _the_rest(self) -> None:
        """Give an even part to the tenants beyond those whose portions follow demand."""
        for account in islice(self._quota.limited(), MAX_TENANTS, None):
            account.confine(_three([limit and self._even(limit) for limit in limits_of(account.tenant)]))

    def _even(self, limit: int) -> int:
        return shares.even(limit, self.nodes, self.node, max(len(self.nodes), self._least_nodes))


def limits_of(tenant: Tenant) -> Ceilings:
    """Return a tenant's limits, of all nodes together."""
    return tenant.concurrency, tenant.requests_per_minute, tenant.tokens_per_minute


def _lower(claims: Claims, ceilings: Ceilings) -> Ceilings:
    """Return the ceilings in force, where a claim is below them that."""
    pairs = zip(claims, ceilings, strict=True)
    return _three([now if claim is None or now is None else min(now, claim.ceiling) for claim, now in pairs])


def _three(values: list[int | None]) -> Ceilings:
    calls, requests, tokens = values
    return calls, requests, tokens
