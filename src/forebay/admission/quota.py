"""What each tenant may use: calls at once, requests and tokens in a minute, tokens and money in a month.

Pure, on the times that it is told. Tokens are reserved before a call and settled after it, so that calls
that run at the same time cannot all spend the same remainder. The minute slides in buckets of one second.
An entry counts until the 60th full second after its own has passed, so no window of 60 s ever holds more
than the limit, and room comes back at most one second late. Only a call that used more than it reserved can
take the sum over the limit; the excess is then owed by the calls that follow. `spending` keeps the month.

Where several nodes share limits, each has ceilings below them (`confine`) and says what it was `asked` for. Without
that the ceilings are the limits.
"""

from collections.abc import Callable, Iterator, Mapping
from typing import Literal

from msgspec import Struct

from forebay.admission.spending import Ledger, Purse, Seed, nano_of
from forebay.admission.window import Window
from forebay.domain import Spend, Tenant
from forebay.policy import Policy

DenialCode = Literal["concurrency_limit", "requests_limit", "insufficient_quota"]
Limit = Literal["concurrency", "requests", "tokens_minute", "tokens_month", "money_month"]

# When a running call will end is unknown; a second is the shortest pause that Retry-After can say.
_CONCURRENCY_RETRY_S = 1.0
_SHARE_RETRY_S = 1.0
# The policy bounds the tenants; names outside of it (the keyless tenant) get this many accounts more, and
# beyond those share one.
_OUTSIDE = 64
_SHARED = "other"
# The second of a reservation that no window counts: older than any window reaches.
_UNCOUNTED = -(1 << 62)

Ceilings = tuple[int | None, int | None, int | None]
"""Of calls at once, requests in a minute, tokens in a minute; None without such a limit."""


class Denied(Struct, frozen=True):
    """A call that may not run now.

    Attributes:
        code: which limit, as a code of `errors.CODES`.
        retry_after_s: after this many seconds it would fit if nothing else came; None means that waiting is of
            no use: it never fits, or the month's limit is reached.
        limit: which one exactly.
    """

    code: DenialCode
    retry_after_s: float | None
    limit: Limit


class Reservation(Struct, eq=False):
    """What a call holds until it is settled or released, once.

    Attributes:
        account: of the tenant.
        tokens: reserved.
        nano: money reserved, in billionths.
        second: the bucket that they are counted in; far in the past when the tenant had no limit.
        requests: of the minute.
        held: whether it is still to be given back.
    """

    account: "Account"
    tokens: int
    nano: int
    second: int
    requests: int = 1
    held: bool = True


class Account:
    """The counters of one tenant.

    Attributes:
        tenant: whose limits hold.
        purse: what it spends in a month; outlives the account.
        held: calls in flight.
        limited: whether calls at once or the minute are limited.
        monthly: whether the month is limited.
        ceilings: of this node; the tenant's limits where nobody shares them.
    """

    __slots__ = (
        "_calls", "_money_nano", "_refused", "_requests", "_tokens", "ceilings", "held", "limited", "monthly", "purse",
        "requests", "tenant", "tokens",
    )  # fmt: skip

    def __init__(self, tenant: Tenant, purse: Purse) -> None:
        self.purse = purse
        self.held = 0
        self.requests = Window()
        self.tokens = Window()
        self._refused = [0, 0, 0]
        self.follow(tenant)

    def follow(self, tenant: Tenant) -> None:
        """Take the limits of a new policy; what is counted stays."""
        self.tenant = tenant
        limits = (tenant.concurrency, tenant.requests_per_minute, tenant.tokens_per_minute)
        self.limited = limits != (None, None, None)
        self.confine(limits)
        self.monthly = tenant.tokens is not None or tenant.money is not None
        self._money_nano = None if tenant.money is None else nano_of(tenant.money)

    def confine(self, ceilings: Ceilings) -> None:
        """Let this node use no more than so much; None where there is no limit."""
        self.ceilings = ceilings
        self._calls, self._requests, self._tokens = ceilings

    def asked(self, now_s: float) -> tuple[int, int, int]:
        """Return the calls that wanted to run at once, and the requests and tokens that were wanted in a second.

        What was refused since the last time, about half a second, counts as wanted.
        """
        calls, requests, tokens = self._refused
        self._refused = [0, 0, 0]
        self.requests.advance(int(now_s))
        self.tokens.advance(int(now_s))
        return self.held + calls, self.requests.recent() + 2 * requests, self.tokens.recent() + 2 * tokens

    def month_denial(self, tokens: int, nano: int, month: int) -> Denied | None:
        """Say which limit of the month a call would pass, if any; running calls count with what they may use."""
        purse, limit = self.purse, self.tenant.tokens
        purse.turn(month)
        if limit is not None and purse.elsewhere_tokens + purse.tokens + purse.reserved_tokens + tokens > limit:
            return Denied("insufficient_quota", None, "tokens_month")
        limit = self._money_nano
        if limit is not None and purse.elsewhere_nano + purse.nano + purse.reserved_nano + nano > limit:
            return Denied("insufficient_quota", None, "money_month")
        return None

    def denial(self, tokens: int, now_s: float, requests: int = 1) -> Denied | None:
        """Say which limit at once or of the minute a call would pass, if any; moves the windows on."""
        ceiling = self._calls
        if ceiling is not None and self.held >= ceiling:
            self._refused[0] += 1
            wait_s = None if self.tenant.concurrency == 0 else _CONCURRENCY_RETRY_S
            return Denied("concurrency_limit", wait_s, "concurrency")
        second = int(now_s)
        self.requests.advance(second)
        self.tokens.advance(second)
        ceiling = self._requests
        if ceiling is not None and self.requests.total + requests > ceiling and requests:
            self._refused[1] += 1
            wait_s = _retry_s(self.requests, requests, ceiling, self.tenant.requests_per_minute, now_s)
            return Denied("requests_limit", wait_s, "requests")
        ceiling = self._tokens
        if ceiling is not None and self.tokens.total + tokens > ceiling:
            wait_s = _retry_s(self.tokens, tokens, ceiling, self.tenant.tokens_per_minute, now_s)
            if wait_s is not None:
                # What is above the tenant's own limit fits nowhere: told as wanted, it would take the others' share.
                self._refused[2] += tokens
            return Denied("insufficient_quota", wait_s, "tokens_minute")
        return None


class Quota:
    """The accounts of all tenants; follows the policy.

    Attributes:
        sharing: says what this node may use of a tenant's limits; None where no other node shares them.
    """

    def __init__(self) -> None:
        self.sharing: Callable[[Tenant], Ceilings] | None = None
        self._accounts: dict[str, Account] = {}
        self._bound = _OUTSIDE
        self._ledger = Ledger()
        self._calendar = self._ledger.calendar

    def apply(self, policy: Policy) -> None:
        """Follow a new policy: tenants that stay keep their counters, idle ones that went keep their month only."""
        tenants = {tenant.name: tenant for tenant in policy.tenants.values()}
        self._bound = len(tenants) + _OUTSIDE
        kept = {name: account for name, account in self._accounts.items() if name in tenants or account.held}
        for name, tenant in tenants.items():
            if name in kept:
                kept[name].follow(tenant)
            else:
                kept[name] = Account(tenant, self._ledger.purse(name))
            if self.sharing is not None and kept[name].limited:
                kept[name].confine(self.sharing(tenant))
        self._accounts = kept
        self._ledger.follow(kept.keys())

    def restore(self, seed: Seed) -> None:
        """Add what was spent before this process started; a second time does nothing."""
        self._ledger.restore(seed)

    def add(self, seed: Seed) -> None:
        """Add what another process has spent beside this one."""
        self._ledger.add(seed)

    def snapshot(self, now_s: float, wall_s: float) -> Seed | None:
        """Return what has been spent in this month, for the next process; None before `restore`."""
        return self._ledger.snapshot(now_s, wall_s)

    def reserve(self, tenant: Tenant, spend: Spend, now_s: float, wall_s: float) -> Reservation | Denied:
        """Take a place, tokens and money for a call, all or nothing; a denied call is counted nowhere.

        Args:
            tenant: who calls; the limits of the latest policy hold.
            spend: what the call may use; not negative.
            now_s: monotonic seconds.
            wall_s: seconds since the epoch.
        """
        account = self._accounts.get(tenant.name)
        if account is None:
            account = self._outside(tenant)
        tokens = spend.tokens
        nano = nano_of(spend.money)
        denied: Denied | None = None
        second = _UNCOUNTED
        if account.monthly:
            denied = account.month_denial(tokens, nano, self._calendar.month_at(now_s, wall_s))
        if account.limited and denied is None:
            denied = account.denial(tokens, now_s, spend.requests)
            second = int(now_s)
        if denied is not None:
            return denied
        if second != _UNCOUNTED:
            account.requests.add(spend.requests, second)
            account.tokens.add(tokens, second)
        account.purse.reserve(tokens, nano)
        account.held += 1
        return Reservation(account, tokens, nano, second, spend.requests)

    def settle(self, reservation: Reservation, used: Spend | None, now_s: float, wall_s: float) -> None:
        """Give the place back and count what was really used; a second time does nothing.

        What was not used comes back in the second in which it was reserved; what was used beyond the
        reservation counts from now on.

        Args:
            reservation: of the call.
            used: by it; None when unknown, which keeps what was reserved.
            now_s: monotonic seconds.
            wall_s: seconds since the epoch.
        """
        if used is None:
            self._give_back(reservation, reservation.tokens, reservation.nano, now_s, wall_s)
        else:
            self._give_back(reservation, max(0, used.tokens), nano_of(used.money), now_s, wall_s)

    def release(self, reservation: Reservation, now_s: float, wall_s: float) -> None:
        """Undo a reservation whose call never ran: place, request, tokens, money; a second time does nothing."""
        if reservation.held and reservation.second != _UNCOUNTED:
            reservation.account.requests.advance(int(now_s))
            reservation.account.requests.add(-reservation.requests, reservation.second)
        self._give_back(reservation, 0, 0, now_s, wall_s)

    def limited(self) -> Iterator[Account]:
        """Yield the accounts of tenants whose calls at once or minute are limited."""
        for account in self._accounts.values():
            if account.limited:
                yield account

    def purses(self, now_s: float, wall_s: float) -> dict[str, Purse] | None:
        """Return the purses of tenants whose month is limited; None until what was spent before has been added."""
        if self._ledger.snapshot(now_s, wall_s) is None:
            return None
        return {name: account.purse for name, account in self._accounts.items() if account.monthly}

    def elsewhere(self, month: int, spent: Mapping[str, tuple[int, int]]) -> None:
        """Note what other nodes have spent.

        Args:
            month: of the sums; of another than the present one they are ignored.
            spent: tokens and billionths of money by tenant.
        """
        for name, account in self._accounts.items():
            if account.monthly and account.purse.month == month:
                account.purse.elsewhere_tokens, account.purse.elsewhere_nano = spent.get(name, (0, 0))

    def held(self) -> dict[str, int]:
        """Return the number of calls in flight of each tenant."""
        return {name: account.held for name, account in self._accounts.items()}

    def used_tokens(self, tenant: str, now_s: float) -> int:
        """Return the tokens that count against a tenant's minute now, reserved ones included."""
        account = self._accounts.get(tenant)
        if account is None:
            return 0
        account.tokens.advance(int(now_s))
        return account.tokens.total

    def spent(self, now_s: float, wall_s: float) -> dict[str, Spend]:
        """Return what each tenant has spent in this month, without what its running calls have reserved."""
        return self._ledger.spent(now_s, wall_s)

    def _give_back(self, reservation: Reservation, tokens: int, nano: int, now_s: float, wall_s: float) -> None:
        if not reservation.held:
            return
        reservation.held = False
        account = reservation.account
        account.held -= 1
        excess = tokens - reservation.tokens
        if excess != 0 and reservation.second != _UNCOUNTED:
            second = int(now_s)
            account.tokens.advance(second)
            account.tokens.add(excess, second if excess > 0 else reservation.second)
        account.purse.turn(self._calendar.month_at(now_s, wall_s))
        account.purse.settle((reservation.tokens, reservation.nano), (tokens, nano))

    def _outside(self, tenant: Tenant) -> Account:
        name = tenant.name if len(self._accounts) < self._bound else _SHARED
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = Account(tenant, self._ledger.purse(name))
        return account


def _retry_s(window: Window, amount: int, ceiling: int, limit: int | None, now_s: float) -> float | None:
    """Say when a call would fit; None when it is more than the limit. A share that is too small may grow at once."""
    if limit is not None and amount > limit:
        return None
    over = window.total + amount - ceiling
    return window.frees_s(over, now_s) if over <= window.total else _SHARE_RETRY_S
