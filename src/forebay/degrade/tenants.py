"""A tenant whose traffic goes bad moves to a degrade pool, and comes back by itself (D3, T78).

Pure, on the time it is told. Calls are counted in strata: the same replica, the same length (log2 of the prompt),
the same ten seconds. In each stratum a tenant is compared with the others who were there: if badness hit
everybody alike, his bad calls would be a random draw from all of the stratum. Summed over the strata of the last
five minutes this is the exact form of the Mantel-Haenszel test, one-sided. Its tail is bounded from above by the
binomial tail with the same mean (a hypergeometric variable is a sum of independent trials, Vatutin and Mikhailov
1982; of all such sums the binomial has the heaviest tail, Hoeffding 1956), so no approximation has to hold.

A slow engine, a bad replica or a bad minute is shared by all in the stratum and accuses nobody; a tenant who
was alone there has nobody to be compared with and is not judged by it.

While moved, one call in twenty still goes home as a probe, is judged in the same way, and decides about the return.
"""

import math
from collections import deque
from typing import Final, Literal

from msgspec import Struct

SLICE_S: Final = 10.0
WINDOW_SLICES: Final = 30
MIN_CALLS: Final = 20
"""Of the tenant, in strata where others were."""
MIN_EXCESS_RATIO: Final = 0.1
"""So much more of his calls must be bad than of the others'; less is not worth a move."""
MAX_CHANCE: Final = 1e-6
"""Of an accusation in one look. There are 259,200 looks in a month: 0.26 false moves a tenant-month at the most."""

TTL_S: Final = 600.0
MAX_TTL_S: Final = 6.0 * TTL_S
PROBE_EVERY: Final = 20
"""One call of so many is a probe."""
PROBE_GAP_S: Final = 2.0
"""At the most one probe in this time, whatever the tenant sends."""
PROBES: Final = 10
"""Judged probes that decide before the time is up."""
FEW_PROBES: Final = 3
"""Judged probes without which the end of the time decides: he returns."""
FORGIVEN_S: Final = 3600.0
"""After so long at home the next move is a first one again."""

MAX_TENANTS: Final = 1024
"""Tenants that are judged; those beyond count among the others."""
MAX_STRATA: Final = 1024
"""Replicas times lengths in one slice; calls of those beyond are not counted."""
_OTHER: Final = ""

Direction = Literal["moved", "returned", "kept"]


class Change(Struct, frozen=True):
    """A decision, for the timeline.

    Attributes:
        tenant: his name.
        direction: `moved` to the degrade pool, `returned`, or `kept` there for longer.
        reason: what was seen.
        until_s: monotonic seconds at which it is looked at again; 0 when he is at home.
    """

    tenant: str
    direction: Direction
    reason: str
    until_s: float = 0.0


class Shown(Struct, frozen=True):
    """A moved tenant, to be shown; calls are his probes that could be judged."""

    tenant: str
    reason: str
    left_s: float
    calls: int
    bad: int
    expected_bad: float


def tail(calls: int, bad: int, mean: float) -> float:
    """Return an upper bound of the probability of so many bad calls, when only so many are expected.

    Args:
        calls: compared ones.
        bad: of them.
        mean: bad ones that are expected, if badness hits everybody alike.
    """
    if bad < mean + 1.0 or calls <= 0:
        # The binomial bound holds from the mean + 1 on; below, nothing is said.
        return 1.0
    ratio = min(1.0, max(0.0, mean / calls))
    if ratio <= 0.0:
        return 0.0
    if ratio >= 1.0:
        return 1.0
    log_ratio, log_rest = math.log(ratio), math.log1p(-ratio)
    log_term = math.lgamma(calls + 1) - math.lgamma(bad + 1) - math.lgamma(calls - bad + 1)
    term = math.exp(log_term + bad * log_ratio + (calls - bad) * log_rest)
    total, odds = term, ratio / (1.0 - ratio)
    for k in range(bad, calls):
        term *= (calls - k) / (k + 1) * odds
        total += term
        if term < 1e-9 * total:
            break
    return min(1.0, total)


class _Stratum:
    """Calls on one replica, of one length, in one slice of time."""

    __slots__ = ("bad", "calls", "tenants")

    def __init__(self) -> None:
        self.calls = 0
        self.bad = 0
        # Calls and bad calls of each tenant.
        self.tenants: dict[str, list[int]] = {}


class _Sums:
    """What a tenant's calls add up to, where others were."""

    __slots__ = ("bad", "calls", "mean")

    def __init__(self) -> None:
        self.calls = 0
        self.bad = 0
        self.mean = 0.0


class _Tenant:
    """What is known of one tenant."""

    __slots__ = ("calls", "home_s", "moved_s", "moves", "next_probe_s", "reason", "slices", "sums", "until_s")

    def __init__(self) -> None:
        # Of the window; of a moved tenant since he was moved, at most `MAX_TTL_S`.
        self.slices: deque[tuple[int, int, int, float]] = deque()
        self.sums = _Sums()
        self.reason = ""
        self.until_s = 0.0
        self.moves = 0
        self.home_s = 0.0
        self.moved_s = 0.0
        self.calls = 0
        self.next_probe_s = 0.0

    def add(self, number: int, calls: int, bad: int, mean: float) -> None:
        self.slices.append((number, calls, bad, mean))
        sums = self.sums
        sums.calls += calls
        sums.bad += bad
        sums.mean += mean

    def drop(self, before: int) -> None:
        """Forget the slices before a number."""
        sums = self.sums
        while self.slices and self.slices[0][0] < before:
            _, calls, bad, mean = self.slices.popleft()
            sums.calls -= calls
            sums.bad -= bad
            sums.mean -= mean
        if not self.slices:
            self.reset()

    def reset(self) -> None:
        """Begin to count anew."""
        self.slices.clear()
        self.sums = _Sums()


class Tenants:
    """Watches the tenants of one home pool, and says where their calls go.

    Args:
        ttl_s: of a first move; the longest one is six times this.
    """

    __slots__ = ("_moved", "_number", "_slice_end_s", "_strata", "_tenants", "_ttl_s")

    def __init__(self, ttl_s: float = TTL_S) -> None:
        self._ttl_s = ttl_s
        self._strata: dict[tuple[str, int], _Stratum] = {}
        self._tenants: dict[str, _Tenant] = {}
        self._moved: dict[str, _Tenant] = {}
        self._number = 0
        self._slice_end_s = 0.0

    def note(self, tenant: str, replica: str, prompt_tokens: int, started_s: float, bad: bool) -> None:
        """Count a call that has ended on a replica of the home pool.

        Not to be told: calls whose client left, refusals, 4xx, and calls lost in the death of a replica.

        Args:
            tenant: whose.
            replica: that ran it.
            prompt_tokens: uncached.
            started_s: monotonic seconds at which it was sent; what was sent before a move says nothing of after it.
            bad: it met a time-out or an error of the engine.
        """
        if self._moved and (moved := self._moved.get(tenant)) is not None and started_s < moved.moved_s:
            return
        key = (replica, prompt_tokens.bit_length())
        stratum = self._strata.get(key)
        if stratum is None:
            if len(self._strata) >= MAX_STRATA:
                return
            stratum = self._strata[key] = _Stratum()
        stratum.calls += 1
        stratum.bad += bad
        row = stratum.tenants.get(tenant)
        if row is None:
            row = self._row(stratum, tenant)
        row[0] += 1
        row[1] += bad

    def goes_home(self, tenant: str, now_s: float) -> bool:
        """Say where a new call of a tenant goes: True for its own pool, False for the degrade pool.

        Args:
            tenant: whose.
            now_s: monotonic seconds.
        """
        if not self._moved:
            return True
        seen = self._moved.get(tenant)
        if seen is None:
            return True
        seen.calls += 1
        if seen.calls < PROBE_EVERY or now_s < seen.next_probe_s:
            return False
        seen.calls = 0
        seen.next_probe_s = now_s + PROBE_GAP_S
        return True

    def tick(self, now_s: float) -> list[Change]:
        """Close the slice when its time is up, and decide; called about once a second.

        Args:
            now_s: monotonic seconds.

        Returns:
            What is proposed or has changed. A move is a proposal, until `move` is called: the arbiter may forbid it.
        """
        if now_s < self._slice_end_s:
            return []
        self._slice_end_s = now_s + SLICE_S
        self._close_slice()
        changes: list[Change] = []
        for name, seen in list(self._tenants.items()):
            if name in self._moved:
                change = self._reviewed(name, seen, now_s)
            else:
                seen.drop(self._number - WINDOW_SLICES)
                change = self._accused(name, seen, now_s)
            if change is not None:
                changes.append(change)
        return changes

    def move(self, change: Change, now_s: float) -> None:
        """Carry a proposed move out.

        Args:
            change: of `tick`.
            now_s: monotonic seconds.
        """
        seen = self._tenants.get(change.tenant)
        if seen is None or change.direction != "moved":
            return
        seen.moves = 1 if now_s - seen.home_s > FORGIVEN_S else seen.moves + 1
        seen.moved_s = now_s
        seen.until_s = change.until_s
        seen.reason = change.reason
        seen.calls = 0
        seen.reset()
        self._moved[change.tenant] = seen

    def release(self, tenant: str, now_s: float) -> bool:
        """Bring a tenant home, as an operator wishes; return whether he was moved."""
        seen = self._moved.pop(tenant, None)
        if seen is not None:
            seen.home_s = now_s
            seen.reset()
        return seen is not None

    def shown(self, now_s: float) -> list[Shown]:
        """Return the moved tenants, to be shown."""
        return [
            Shown(name, seen.reason, max(0.0, seen.until_s - now_s), seen.sums.calls, seen.sums.bad, seen.sums.mean)
            for name, seen in self._moved.items()
        ]

    def _row(self, stratum: _Stratum, tenant: str) -> list[int]:
        if tenant not in self._tenants:
            if len(self._tenants) >= MAX_TENANTS:
                return stratum.tenants.setdefault(_OTHER, [0, 0])
            self._tenants[tenant] = _Tenant()
        row = stratum.tenants[tenant] = [0, 0]
        return row

    def _close_slice(self) -> None:
        """Turn the strata into sums: for each tenant the calls he had among others, and what was to be expected."""
        strata, self._strata = self._strata, {}
        slices: dict[str, _Sums] = {}
        for stratum in strata.values():
            if len(stratum.tenants) < 2:
                continue
            ratio = stratum.bad / stratum.calls
            for name, (calls, bad) in stratum.tenants.items():
                sums = slices.get(name)
                if sums is None:
                    sums = slices[name] = _Sums()
                sums.calls += calls
                sums.bad += bad
                sums.mean += calls * ratio
        self._number += 1
        for name, sums in slices.items():
            if name != _OTHER:
                self._tenants[name].add(self._number, sums.calls, sums.bad, sums.mean)
        if len(self._tenants) >= MAX_TENANTS:
            self._tenants = {name: seen for name, seen in self._tenants.items() if seen.slices or name in self._moved}

    def _accused(self, name: str, seen: _Tenant, now_s: float) -> Change | None:
        sums = seen.sums
        excess = sums.bad - sums.mean
        if sums.calls < MIN_CALLS or excess < MIN_EXCESS_RATIO * sums.calls:
            return None
        if tail(sums.calls, sums.bad, sums.mean) > MAX_CHANCE:
            return None
        moves = 0 if now_s - seen.home_s > FORGIVEN_S else seen.moves
        until_s = now_s + self._stay_s(moves)
        reason = f"{sums.bad} of {sums.calls} calls bad, {sums.mean:.1f} expected beside the others"
        return Change(name, "moved", reason, until_s)

    def _reviewed(self, name: str, seen: _Tenant, now_s: float) -> Change | None:
        """Decide about a moved tenant by his probes."""
        sums = seen.sums
        # One bad probe more than the others' is chance; a tenth of the probes is what he was not moved for.
        well = sums.bad - sums.mean <= max(1.0, MIN_EXCESS_RATIO * sums.calls)
        if sums.calls >= PROBES and well:
            return self._returned(name, seen, now_s, f"{sums.calls} probes went as those of the others")
        if now_s < seen.until_s:
            return None
        if sums.calls < FEW_PROBES or well:
            return self._returned(name, seen, now_s, "the time is up and nothing speaks against it")
        seen.moves += 1
        seen.until_s = now_s + self._stay_s(seen.moves - 1)
        reason = f"{sums.bad} of {sums.calls} probes bad, {sums.mean:.1f} expected beside the others"
        seen.reset()
        return Change(name, "kept", reason, seen.until_s)

    def _stay_s(self, earlier: int) -> float:
        return self._ttl_s * min(MAX_TTL_S / TTL_S, 2.0 ** min(earlier, 10))

    def _returned(self, name: str, seen: _Tenant, now_s: float, reason: str) -> Change:
        self.release(name, now_s)
        return Change(name, "returned", reason)
