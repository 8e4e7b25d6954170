"""What each tenant spends in a calendar month (UTC): tokens and money. Pure, on the times it is told.

A call is reserved when it goes in and settled when it ends. It counts in the month in which it ends, like
its line in the journal, so that what a restart reads there is what was counted before. Only a clock that goes
back to a month can take that month over its limit, by what runs at that moment. Money is summed in whole
billionths of the currency: a sum of floats would drift with every refund.
"""

import math
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from typing import Final

import msgspec
from msgspec import Struct

from forebay.domain import Spend
from forebay.policy import Price

_PER_TOKENS: Final = 1_000_000.0
_NANO: Final = 1_000_000_000.0
# The wall clock against the monotonic one: more than this apart is a step (a slewed clock moves 0.5 ms/s).
STEP_S: Final = 2.0
# So long a step of the wall clock is not believed. A wrong clock is mostly set right within minutes; a
# right one (the machine slept over the end of a month) may wait for its new month.
DOUBT_S: Final = 3600.0
# Months that a purse remembers besides its own, so that a clock which comes back finds its counts.
_MONTHS: Final = 3
# Tenants that left the policy keep their month, for they may come back; beyond so many the oldest go.
_DEPARTED: Final = 1024


def price_of(price: Price, prompt_tokens: int, cached_tokens: int | None, output_tokens: int) -> float:
    """Return the money that a call costs.

    Args:
        price: for a million tokens; cached ones cost as much as others when it does not say.
        prompt_tokens: cached ones included.
        cached_tokens: that needed no work; None when unknown, which is taken for none.
        output_tokens: completion.
    """
    fresh = prompt_tokens
    money = output_tokens * price.output
    if cached_tokens is not None and price.cached_input is not None and cached_tokens > 0:
        # An engine that says that more was cached than there was must not make the call cheaper than free.
        cached = min(cached_tokens, prompt_tokens)
        fresh -= cached
        money += cached * price.cached_input
    return (money + fresh * price.input) / _PER_TOKENS


def nano_of(money: float) -> int:
    """Return money in whole billionths; what is negative or no number is nothing."""
    return int(money * _NANO + 0.5) if money > 0.0 else 0


def money_of(nano: int) -> float:
    """Return billionths as money."""
    return nano / _NANO


def month_of(wall_s: float) -> int:
    """Return the number of the month of a wall time, UTC: months since the year 0."""
    moment = datetime.fromtimestamp(wall_s, UTC)
    return moment.year * 12 + moment.month - 1


def _begin_s(month: int) -> float:
    return datetime(month // 12, month % 12 + 1, 1, tzinfo=UTC).timestamp()


class Calendar:
    """Which month it is, by a wall clock that may step.

    A step of more than 2 s against the monotonic clock is believed only once it has lasted an hour; until
    then time runs on from before it. So a clock that is wrong for some minutes changes no month.

    Attributes:
        month: the latest answer; 0 before the first.
    """

    __slots__ = ("_begin_s", "_end_s", "_offset_s", "_stepped_s", "month")

    def __init__(self) -> None:
        self.month = 0
        self._begin_s = 0.0
        self._end_s = 0.0
        self._offset_s = 0.0
        self._stepped_s = math.inf

    def month_at(self, now_s: float, wall_s: float) -> int:
        """Return the month.

        Args:
            now_s: monotonic seconds.
            wall_s: seconds since the epoch, as the clock says.
        """
        offset_s = wall_s - now_s
        if -STEP_S <= offset_s - self._offset_s <= STEP_S or self.month == 0:
            self._offset_s = offset_s
            self._stepped_s = math.inf
        else:
            wall_s = self._believed(now_s, wall_s)
        if wall_s < self._begin_s or wall_s >= self._end_s:
            self.month = month_of(wall_s)
            self._begin_s = _begin_s(self.month)
            self._end_s = _begin_s(self.month + 1)
        return self.month

    def _believed(self, now_s: float, wall_s: float) -> float:
        """Return the wall time that counts while the clock stands elsewhere than expected."""
        self._stepped_s = min(self._stepped_s, now_s)
        if now_s - self._stepped_s < DOUBT_S:
            return now_s + self._offset_s
        self._offset_s = wall_s - now_s
        self._stepped_s = math.inf
        return wall_s


class Purse:
    """What one tenant has spent in a month, and what its running calls may still spend.

    Attributes:
        month: which one.
        tokens: spent in it.
        nano: money spent in it, in billionths.
        reserved_tokens: of running calls.
        reserved_nano: of running calls, in billionths.
        elsewhere_tokens: spent in it on other nodes, as far as known.
        elsewhere_nano: the same of money, in billionths.
    """

    __slots__ = (
        "_kept", "elsewhere_nano", "elsewhere_tokens", "month", "nano", "reserved_nano", "reserved_tokens", "tokens",
    )  # fmt: skip

    def __init__(self, month: int) -> None:
        self.month = month
        self.tokens = 0
        self.nano = 0
        self.reserved_tokens = 0
        self.reserved_nano = 0
        self.elsewhere_tokens = 0
        self.elsewhere_nano = 0
        self._kept: dict[int, tuple[int, int]] = {}

    def turn(self, month: int) -> None:
        """Go to a month: one that it was in before goes on as it was left, a later one begins empty.

        An earlier month that it does not know begins with what the present one holds: whoever has spent it
        all cannot spend it again because a clock went back.
        """
        if month == self.month:
            return
        present = (self.tokens, self.nano)
        known = self._kept.pop(month, None)
        if known is None:
            known = (0, 0) if month > self.month else present
        self._keep(self.month, present)
        self.month = month
        self.tokens, self.nano = known
        self.elsewhere_tokens = self.elsewhere_nano = 0

    def reserve(self, tokens: int, nano: int) -> None:
        """Set aside what a call may spend."""
        self.reserved_tokens += tokens
        self.reserved_nano += nano

    def settle(self, reserved: tuple[int, int], used: tuple[int, int]) -> None:
        """Count what a call used instead of what was set aside for it; tokens and billionths, not negative."""
        self.reserved_tokens -= reserved[0]
        self.reserved_nano -= reserved[1]
        self.tokens += used[0]
        self.nano += used[1]

    def add(self, month: int, tokens: int, nano: int) -> None:
        """Count what was spent before this process started."""
        if month == self.month:
            self.tokens += tokens
            self.nano += nano
        else:
            known_tokens, known_nano = self._kept.pop(month, (0, 0))
            self._keep(month, (known_tokens + tokens, known_nano + nano))

    def _keep(self, month: int, counts: tuple[int, int]) -> None:
        self._kept[month] = counts
        if len(self._kept) > _MONTHS:
            # The one that it has been out of for the longest.
            del self._kept[next(iter(self._kept))]


class Seed(Struct, frozen=True):
    """What was spent in a month until some moment.

    Attributes:
        month: by `month_of`.
        spent: tokens and billionths of money, by tenant.
        until_s: seconds since the epoch; what ended later is not in it.
    """

    month: int
    spent: dict[str, tuple[int, int]]
    until_s: float = 0.0


def pack(seed: Seed) -> bytes:
    """Write a seed as JSON, for a file that outlives the process."""
    return msgspec.json.encode((seed.month, seed.spent, seed.until_s))


def unpack(data: bytes) -> Seed:
    """Read what `pack` wrote.

    Raises:
        ValueError: it is nothing of the kind.
    """
    try:
        month, spent, until_s = msgspec.json.decode(data, type=tuple[int, dict[str, tuple[int, int]], float])
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"is no record of what was spent: {error}") from None
    if any(tokens < 0 or nano < 0 for tokens, nano in spent.values()):
        raise ValueError("is no record of what was spent: it holds negative amounts")
    return Seed(month, spent, until_s)


class Seeder:
    """Adds up what earlier processes have spent in this month: for a thread of its own.

    It begins with the latest snapshot, if that is of this month, and is fed the later `close` lines of the
    journal that counted anything (those with `total_tokens`). Calls of this process are no part of it, for
    they are in its purses already.

    Args:
        wall_s: a time within the month.
        prices: by model. The live ones: budgets follow today's price, and a model without one costs nothing.
        snapshot: by `Quota.snapshot` of an earlier process; None without one. The journal alone may not reach
            back to the beginning of the month.
        most_tenants: are kept apart; calls of further ones are left out.

    Attributes:
        since_s: lines from this wall time on are wanted.
        left_out: calls of tenants beyond the bound.
    """

    def __init__(
        self, wall_s: float, prices: Mapping[str, Price], snapshot: Seed | None = None, most_tenants: int = 65_536
    ) -> None:
        self._month = month_of(wall_s)
        self._end_s = _begin_s(self._month + 1)
        self._prices = prices
        self._most_tenants = most_tenants
        self._spent: dict[str, tuple[int, int]] = {}
        self.since_s = _begin_s(self._month)
        self.left_out = 0
        if snapshot is not None and snapshot.month == self._month:
            self._spent = dict(snapshot.spent)
            self.since_s = max(self.since_s, snapshot.until_s)

    def covers(self, wall_s: float) -> bool:
        """Say whether a line of this time is wanted."""
        return self.since_s <= wall_s < self._end_s

    def add(self, tenant: str, model: str, input_tokens: int, cached_tokens: int | None, output_tokens: int) -> None:
        """Count one call.

        Args:
            tenant: its name.
            model: that answered.
            input_tokens: of the prompt, cached ones included.
            cached_tokens: None when unknown.
            output_tokens: completion.
        """
        known = self._spent.get(tenant)
        if known is None:
            if len(self._spent) >= self._most_tenants:
                self.left_out += 1
                return
            known = (0, 0)
        price = self._prices.get(model)
        nano = 0 if price is None else nano_of(price_of(price, input_tokens, cached_tokens, output_tokens))
        self._spent[tenant] = (known[0] + input_tokens + output_tokens, known[1] + nano)

    def seed(self) -> Seed:
        """Return the sums, to be given to `Quota.restore` in the data plane's thread."""
        return Seed(self._month, dict(self._spent), self.since_s)


class Ledger:
    """The purses of all tenants.

    Attributes:
        calendar: says which month it is.
    """

    def __init__(self) -> None:
        self.calendar = Calendar()
        self._purses: dict[str, Purse] = {}
        self._is_restored = False

    def purse(self, tenant: str) -> Purse:
        """Return the purse of a tenant: the one that it had before, or an empty one."""
        purse = self._purses.get(tenant)
        if purse is None:
            purse = self._purses[tenant] = Purse(self.calendar.month)
        return purse

    def follow(self, tenants: Collection[str]) -> None:
        """Forget the oldest of those who are no longer there, beyond 1,024 of them."""
        departed = [name for name in self._purses if name not in tenants]
        for name in departed[: max(0, len(departed) - _DEPARTED)]:
            del self._purses[name]

    def restore(self, seed: Seed) -> None:
        """Add what was spent before this process started; a second time does nothing."""
        if self._is_restored:
            return
        self._is_restored = True
        self.add(seed)

    def add(self, seed: Seed) -> None:
        """Add what was spent elsewhere."""
        for name, (tokens, nano) in seed.spent.items():
            self.purse(name).add(seed.month, tokens, nano)

    def snapshot(self, now_s: float, wall_s: float) -> Seed | None:
        """Return what has been spent in this month; None before `restore`, for it would be less than the truth."""
        if not self._is_restored:
            return None
        month = self._turn(now_s, wall_s)
        spent = {name: (purse.tokens, purse.nano) for name, purse in self._purses.items()}
        return Seed(month, spent, wall_s)

    def spent(self, now_s: float, wall_s: float) -> dict[str, Spend]:
        """Return what each tenant has spent in this month, without what running calls have reserved."""
        self._turn(now_s, wall_s)
        return {name: Spend(purse.tokens, money_of(purse.nano)) for name, purse in self._purses.items()}

    def _turn(self, now_s: float, wall_s: float) -> int:
        month = self.calendar.month_at(now_s, wall_s)
        for purse in self._purses.values():
            purse.turn(month)
        return month
