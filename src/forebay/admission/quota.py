"""What each tenant may use: calls at once, requests and tokens in a minute. Pure, on the time it is told.

Tokens are reserved before a call and settled after it, so that calls that run at the same time cannot
all spend the same remainder. The minute slides in buckets of one second. An entry counts until the 60th
full second after its own has passed, so no window of 60 s ever holds more than the limit, and room comes
back at most one second late. Only a call that used more than it reserved can take the sum over the
limit; the excess is then owed by the calls that follow.
"""

from typing import Literal

from msgspec import Struct

from forebay.domain import Tenant
from forebay.policy import Policy

DenialCode = Literal["concurrency_limit", "requests_limit", "insufficient_quota"]

WINDOW_S = 60
_BUCKETS = WINDOW_S + 1
# When a running call will end is unknown; a second is the shortest pause that Retry-After can say.
_CONCURRENCY_RETRY_S = 1.0
# The policy bounds the tenants; names outside of it (the keyless tenant) get this many accounts more, and
# beyond those share one.
_OUTSIDE = 64
_SHARED = "other"
# The second of a reservation that no window counts: older than any window reaches.
_UNCOUNTED = -(1 << 62)


class Denied(Struct, frozen=True):
    """A call that may not run now.

    Attributes:
        code: which limit, as a code of `errors.CODES`.
        retry_after_s: after this many seconds it would fit if nothing else came; None means never.
    """

    code: DenialCode
    retry_after_s: float | None


class Reservation(Struct, eq=False):
    """What a call holds until it is settled or released, once.

    Attributes:
        account: of the tenant.
        tokens: reserved.
        second: the bucket that they are counted in; far in the past when the tenant had no limit.
        held: whether it is still to be given back.
    """

    account: "Account"
    tokens: int
    second: int
    held: bool = True


class Window:
    """A sum over a sliding minute.

    Attributes:
        total: of what counts now.
    """

    __slots__ = ("_buckets", "_second", "total")

    def __init__(self) -> None:
        self._buckets = [0] * _BUCKETS
        self._second = 0
        self.total = 0

    def advance(self, second: int) -> None:
        """Forget what is older than the window; a time before the latest changes nothing."""
        passed = second - self._second
        if passed <= 0:
            return
        if passed >= _BUCKETS:
            self._buckets = [0] * _BUCKETS
            self.total = 0
        else:
            for expired in range(self._second + 1, second + 1):
                place = expired % _BUCKETS
                self.total -= self._buckets[place]
                self._buckets[place] = 0
        self._second = second

    def add(self, amount: int, second: int) -> None:
        """Count an amount, negative to take it back, in its second; nothing if that has left the window."""
        if second > self._second - _BUCKETS:
            self._buckets[second % _BUCKETS] += amount
            self.total += amount

    def frees_s(self, amount: int, now_s: float) -> float:
        """Return after how many seconds at least this amount will have left the window.

        Args:
            amount: not more than `total`.
            now_s: the time that the window was advanced to.
        """
        freed = 0
        oldest = self._second - WINDOW_S
        for second in range(oldest, self._second + 1):
            freed += self._buckets[second % _BUCKETS]
            if freed >= amount:
                break
        return max(0.0, second + _BUCKETS - now_s)


class Account:
    """The counters of one tenant.

    Attributes:
        tenant: whose limits hold.
        held: calls in flight.
        limited: whether any limit is set.
    """

    __slots__ = ("held", "limited", "requests", "tenant", "tokens")

    def __init__(self, tenant: Tenant) -> None:
        self.held = 0
        self.requests = Window()
        self.tokens = Window()
        self.follow(tenant)

    def follow(self, tenant: Tenant) -> None:
        """Take the limits of a new policy; what is counted stays."""
        self.tenant = tenant
        limits = (tenant.concurrency, tenant.requests_per_minute, tenant.tokens_per_minute)
        self.limited = limits != (None, None, None)

    def denial(self, tokens: int, now_s: float) -> Denied | None:
        """Say which limit a call would pass, if any; changes nothing but the windows' time."""
        tenant = self.tenant
        if tenant.concurrency is not None and self.held >= tenant.concurrency:
            return Denied("concurrency_limit", _CONCURRENCY_RETRY_S if tenant.concurrency > 0 else None)
        second = int(now_s)
        self.requests.advance(second)
        self.tokens.advance(second)
        if tenant.requests_per_minute is not None and self.requests.total + 1 > tenant.requests_per_minute:
            return Denied("requests_limit", _retry_s(self.requests, 1, tenant.requests_per_minute, now_s))
        if tenant.tokens_per_minute is not None and self.tokens.total + tokens > tenant.tokens_per_minute:
            return Denied("insufficient_quota", _retry_s(self.tokens, tokens, tenant.tokens_per_minute, now_s))
        return None


class Quota:
    """The accounts of all tenants; follows the policy."""

    def __init__(self) -> None:
        self._accounts: dict[str, Account] = {}
        self._bound = _OUTSIDE

    def apply(self, policy: Policy) -> None:
        """Follow a new policy: tenants that stay keep their counters, idle ones that went are forgotten."""
        tenants = {tenant.name: tenant for tenant in policy.tenants.values()}
        self._bound = len(tenants) + _OUTSIDE
        kept = {name: account for name, account in self._accounts.items() if name in tenants or account.held}
        for name, tenant in tenants.items():
            if name in kept:
                kept[name].follow(tenant)
            else:
                kept[name] = Account(tenant)
        self._accounts = kept

    def reserve(self, tenant: Tenant, tokens: int, now_s: float) -> Reservation | Denied:
        """Take a place and tokens for a call, all or nothing; a denied call is counted nowhere.

        Args:
            tenant: who calls; the limits of the latest policy hold.
            tokens: that the call may use, prompt and output; not negative.
            now_s: monotonic seconds.
        """
        account = self._accounts.get(tenant.name)
        if account is None:
            account = self._outside(tenant)
        second = _UNCOUNTED
        if account.limited:
            denied = account.denial(tokens, now_s)
            if denied is not None:
                return denied
            second = int(now_s)
            account.requests.add(1, second)
            account.tokens.add(tokens, second)
        account.held += 1
        return Reservation(account, tokens, second)

    def settle(self, reservation: Reservation, actual_tokens: int | None, now_s: float) -> None:
        """Give the place back and count what was really used; a second time does nothing.

        What was not used comes back in the second in which it was reserved; what was used beyond the
        reservation counts from now on.

        Args:
            reservation: of the call.
            actual_tokens: used; None when unknown, which keeps what was reserved.
            now_s: monotonic seconds.
        """
        if not reservation.held:
            return
        reservation.held = False
        account = reservation.account
        account.held -= 1
        if actual_tokens is not None and reservation.second != _UNCOUNTED:
            excess = actual_tokens - reservation.tokens
            second = int(now_s)
            account.tokens.advance(second)
            account.tokens.add(excess, second if excess > 0 else reservation.second)

    def release(self, reservation: Reservation, now_s: float) -> None:
        """Undo a reservation whose call never ran: place, tokens and request; a second time does nothing."""
        if reservation.held and reservation.second != _UNCOUNTED:
            reservation.account.requests.advance(int(now_s))
            reservation.account.requests.add(-1, reservation.second)
        self.settle(reservation, 0, now_s)

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

    def _outside(self, tenant: Tenant) -> Account:
        name = tenant.name if len(self._accounts) < self._bound else _SHARED
        account = self._accounts.get(name)
        if account is None:
            account = self._accounts[name] = Account(tenant)
        return account


def _retry_s(window: Window, amount: int, limit: int, now_s: float) -> float | None:
    if amount > limit:
        return None
    return window.frees_s(window.total + amount - limit, now_s)
