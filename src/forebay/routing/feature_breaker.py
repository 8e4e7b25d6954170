"""Breakers keyed by what a request asks for: a feature that fails is cut off, other traffic stays up (A7).

Pure, on the time it is told. What is counted belongs to a pool, an endpoint and a model; under it a feature is cut off
on one replica, or on all of the pool.

- *Failures*: a feature is cut off on a replica when more than half of at least 10 of its calls there fail while those
  without it do not; on the whole pool when that is so of four fifths of all its calls, on two replicas or more. One
  that nobody is without cannot be told from the engine itself: that is the replica's breaker's.
- *Deaths*: a feature is cut off on the pool when suspects of several engine deaths had it and that is hardly chance.
  With a share `s` of the traffic and `k` suspects, one of them has it by chance with 1 - (1 - s)^k. A request that
  kills twice is counted once: it is the request, not its feature.

Cut off, it lets one probe through once its time is up; each failure of a probe doubles the time. A cut that
nobody probes is forgotten half an hour later. Calls are counted only for two minutes after a failure, so that engines
that are well cost nothing.
"""

import math
from collections import deque
from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

from forebay.routing.features import FEATURES, places_of

MIN_CALLS: Final = 10
"""Of a feature, before it is cut off."""
MIN_OTHERS: Final = 10
"""Calls without it, to compare."""
HINT_CALLS: Final = 3
"""Of a feature, before its failures are no longer held against the replica."""
FAILING_RATIO: Final = 0.5
POOL_RATIO: Final = 0.8
OPEN_S: Final = 30.0
MAX_OPEN_S: Final = 600.0
CRASH_OPEN_S: Final = 600.0
MAX_CRASH_OPEN_S: Final = 3600.0
HALF_WINDOW_S: Final = 60.0
"""Calls count for one to two of these."""
CRASH_WINDOW_S: Final = 1800.0
MAX_CHANCE: Final = 0.05
PROBE_S: Final = 60.0
"""A probe that is still running after this long no longer keeps the next one out."""
IDLE_S: Final = 1800.0
"""A cut is forgotten when its time has been up for so long, and nobody has probed it."""

MAX_KEYS: Final = 256
MAX_CRASHES: Final = 16

Key = tuple[str, str, str]
"""Pool, endpoint, model."""
ALL: Final = ""
"""Stands for all replicas of a pool."""


class Suspected(Struct, frozen=True):
    """A call that may have killed its engine; of the guilty alone if one was found.

    Attributes:
        key: where it belongs.
        mask: its features.
        fingerprint: its request's.
    """

    key: Key
    mask: int
    fingerprint: int


class Shown(Struct, frozen=True):
    """One feature that is cut off, to be shown; an empty replica stands for all of the pool."""

    pool: str
    endpoint: str
    model: str
    replica: str
    feature: str
    state: Literal["open", "half_open"]
    reason: str
    left_s: float


class _Counts:
    """Calls and failures: of each feature, and of all calls in the last place."""

    __slots__ = ("calls", "failures")

    def __init__(self) -> None:
        self.calls = [0] * (len(FEATURES) + 1)
        self.failures = [0] * (len(FEATURES) + 1)

    def note(self, mask: int, failed: bool) -> None:
        for place in (*places_of(mask), -1):
            self.calls[place] += 1
            self.failures[place] += failed

    def add(self, other: "_Counts") -> None:
        self.calls = [a + b for a, b in zip(self.calls, other.calls, strict=True)]
        self.failures = [a + b for a, b in zip(self.failures, other.failures, strict=True)]

    def blames(self, place: int) -> float:
        """Return the part of a feature's calls that failed, where those without it went well; else 0."""
        calls, failures = self.calls[place], self.failures[place]
        others, other_failures = self.calls[-1] - calls, self.failures[-1] - failures
        ratio = failures / calls if calls else 0.0
        well = others >= MIN_OTHERS and other_failures < 0.5 * ratio * others
        return ratio if well else 0.0


class _Cut:
    """A feature that is cut off."""

    __slots__ = ("longest_s", "open_s", "probe_s", "reason", "until_s")

    def __init__(self, open_s: float, longest_s: float, reason: str, now_s: float) -> None:
        self.open_s = open_s
        self.longest_s = longest_s
        self.reason = reason
        self.until_s = now_s + open_s
        self.probe_s: float | None = None

    def admits(self, now_s: float) -> bool:
        return now_s >= (self.until_s if self.probe_s is None else self.probe_s + PROBE_S)

    def failed(self, now_s: float) -> None:
        self.open_s = min(self.longest_s, 2 * self.open_s)
        self.until_s = now_s + self.open_s
        self.probe_s = None

    def is_idle(self, now_s: float) -> bool:
        probed_s = self.until_s if self.probe_s is None else self.probe_s + PROBE_S
        return now_s >= max(self.until_s, probed_s) + IDLE_S


class _Scope:
    """What is counted under one key: by replica, in the running half of the window and in the one before."""

    __slots__ = ("before", "crashes", "cuts", "now", "turned_s")

    def __init__(self, now_s: float) -> None:
        self.now: dict[str, _Counts] = {}
        self.before: dict[str, _Counts] = {}
        self.turned_s = now_s
        self.cuts: dict[tuple[str, int], _Cut] = {}
        self.crashes: deque[tuple[float, tuple[Suspected, ...]]] = deque(maxlen=MAX_CRASHES)

    def note(self, replica: str, mask: int, failed: bool, now_s: float) -> None:
        if now_s - self.turned_s >= HALF_WINDOW_S:
            self.before = self.now if now_s - self.turned_s < 2 * HALF_WINDOW_S else {}
            self.now, self.turned_s = {}, now_s
        counts = self.now.get(replica)
        if counts is None:
            counts = self.now[replica] = _Counts()
        counts.note(mask, failed)

    def counts(self, replica: str) -> _Counts:
        """Return what is counted of one replica, or of all."""
        together = _Counts()
        for half in (self.now, self.before):
            for name, counts in half.items():
                if replica in (ALL, name):
                    together.add(counts)
        return together

    def failing(self, place: int) -> int:
        """Return on how many replicas a feature fails."""
        names = {*self.now, *self.before}
        return sum(self.counts(name).failures[place] > 0 for name in names)

    def of(self, replica: str, mask: int) -> list[_Cut]:
        """Return what is cut off of a call that would go to a replica."""
        return [cut for (where, place), cut in self.cuts.items() if mask >> place & 1 and where in (ALL, replica)]


class FeatureBreakers:
    """All features of all keys; at 256 keys those that are idle are forgotten, and new ones are not counted.

    Attributes:
        opened: how often one was cut off, since the start.
        watching_s: monotonic seconds until which calls are counted.
    """

    __slots__ = ("_scopes", "opened", "watching_s")

    def __init__(self) -> None:
        self._scopes: dict[Key, _Scope] = {}
        self.opened = 0
        self.watching_s = 0.0

    def watches(self, now_s: float) -> bool:
        """Say whether calls have to be told of: something is cut off, or has failed a while ago."""
        return now_s < self.watching_s or any(scope.cuts for scope in self._scopes.values())

    def expire(self, now_s: float) -> list[tuple[Key, str]]:
        """Forget what is cut off though nobody has asked for it in a long time; return the features."""
        expired: list[tuple[Key, str]] = []
        for key, scope in self._scopes.items():
            idle = [each for each, cut in scope.cuts.items() if cut.is_idle(now_s)]
            for each in idle:
                del scope.cuts[each]
                expired.append((key, FEATURES[each[1]]))
        return expired

    def refuses(self, key: Key, replica: str, mask: int, now_s: float) -> str:
        """Say which feature of a call is cut off; empty when it may go. Changes nothing.

        Args:
            key: where it belongs.
            replica: where it would go; `ALL` asks about the whole pool.
            mask: its features.
            now_s: monotonic seconds.
        """
        scope = self._scopes.get(key)
        if scope is None or not scope.cuts:
            return ""
        for (where, place), cut in scope.cuts.items():
            if mask >> place & 1 and where in (ALL, replica) and not cut.admits(now_s):
                return FEATURES[place]
        return ""

    def begins(self, key: Key, replica: str, mask: int, now_s: float) -> None:
        """Tell that a call goes to a replica: of what is cut off there it is the probe."""
        scope = self._scopes.get(key)
        for cut in scope.of(replica, mask) if scope is not None else ():
            cut.probe_s = now_s

    def answered(self, key: Key, replica: str, mask: int, now_s: float) -> list[str]:
        """Count a call that was answered as it should be; return the features that are let in again for it."""
        scope = self._scopes.get(key)
        if scope is None:
            return []
        scope.note(replica, mask, False, now_s)
        back = [each for each, cut in scope.cuts.items() if _is_probe(each, cut, replica, mask)]
        for each in back:
            del scope.cuts[each]
        return [FEATURES[place] for _, place in back]

    def cancelled(self, key: Key, replica: str, mask: int) -> None:
        """Tell that a call ended without a verdict: if it was a probe, the next one may go."""
        scope = self._scopes.get(key)
        for cut in scope.of(replica, mask) if scope is not None else ():
            cut.probe_s = None

    def failed(self, key: Key, replica: str, mask: int, now_s: float) -> str:
        """Count a call that failed by the engine's fault; return the feature that is to blame, or an empty text.

        A failure with a feature to blame is not to be held against the replica.

        Args:
            key: where it belongs.
            replica: where it ran.
            mask: its features.
            now_s: monotonic seconds.
        """
        self.watching_s = now_s + 2 * HALF_WINDOW_S
        scope = self._scope(key, now_s)
        if scope is None:
            return ""
        scope.note(replica, mask, True, now_s)
        blamed = _probe_failed(scope, replica, mask, now_s)
        return FEATURES[blamed] if blamed is not None else self._weigh(scope, replica, mask, now_s)

    def forgive(self, key: Key, replica: str, mask: int) -> None:
        """Take a failure back, though not the call: its engine had died, which says nothing about what it asked."""
        scope = self._scopes.get(key)
        counts = None if scope is None else scope.now.get(replica)
        if counts is not None:
            for place in (*places_of(mask), -1):
                counts.failures[place] = max(0, counts.failures[place] - 1)

    def crashed(self, suspected: Sequence[Suspected], now_s: float) -> list[tuple[Key, str]]:
        """Tell that an engine died; return the features that are cut off for it.

        Args:
            suspected: the suspects; of the guilty alone if one was found.
            now_s: monotonic seconds.
        """
        self.watching_s = now_s + 2 * HALF_WINDOW_S
        opened: list[tuple[Key, str]] = []
        for key in {each.key for each in suspected}:
            scope = self._scope(key, now_s)
            if scope is None:
                continue
            mine = tuple([each for each in suspected if each.key == key])
            for each in mine:
                _probe_failed(scope, ALL, each.mask, now_s)
            scope.crashes.append((now_s, mine))
            places = [p for p in range(len(FEATURES)) if (ALL, p) not in scope.cuts]
            chance, place = min([(_chance(scope, p, now_s), p) for p in places], default=(1.0, 0))
            if chance <= MAX_CHANCE:
                self._open(scope, ALL, place, _Cut(CRASH_OPEN_S, MAX_CRASH_OPEN_S, "engines died of it", now_s))
                opened.append((key, FEATURES[place]))
        return opened

    def shown(self, now_s: float) -> list[Shown]:
        """Return what is cut off, to be shown."""
        return [
            Shown(
                *key,
                replica,
                FEATURES[place],
                "open" if cut.probe_s is None else "half_open",
                cut.reason,
                max(0.0, cut.until_s - now_s),
            )
            for key, scope in self._scopes.items()
            for (replica, place), cut in scope.cuts.items()
        ]

    def _weigh(self, scope: _Scope, replica: str, mask: int, now_s: float) -> str:
        """Find the feature of a failed call that fails the most while calls without it do not."""
        here, everywhere = scope.counts(replica), scope.counts(ALL)
        ratio, place = max([(here.blames(p), p) for p in places_of(mask)], default=(0.0, 0))
        pool_ratio, pool_place = max([(everywhere.blames(p), p) for p in places_of(mask)], default=(0.0, 0))
        if pool_ratio > POOL_RATIO and everywhere.calls[pool_place] >= MIN_CALLS and scope.failing(pool_place) > 1:
            ratio, place, replica, here = pool_ratio, pool_place, ALL, everywhere
        if ratio <= FAILING_RATIO or here.calls[place] < HINT_CALLS:
            return ""
        if here.calls[place] >= MIN_CALLS:
            reason = f"{ratio:.0%} of {here.calls[place]} calls failed"
            self._open(scope, replica, place, _Cut(OPEN_S, MAX_OPEN_S, reason, now_s))
        return FEATURES[place]

    def _open(self, scope: _Scope, replica: str, place: int, cut: _Cut) -> None:
        scope.cuts[(replica, place)] = cut
        # The calls that it failed for must not be held against the other features that they have.
        scope.now, scope.before = {}, {}
        self.opened += 1

    def _scope(self, key: Key, now_s: float) -> _Scope | None:
        scope = self._scopes.get(key)
        if scope is None:
            if len(self._scopes) >= MAX_KEYS:
                since_s = now_s - 2 * HALF_WINDOW_S
                self._scopes = {k: s for k, s in self._scopes.items() if s.cuts or s.crashes or s.turned_s > since_s}
            if len(self._scopes) < MAX_KEYS:
                scope = self._scopes[key] = _Scope(now_s)
        return scope


def _is_probe(each: tuple[str, int], cut: _Cut, replica: str, mask: int) -> bool:
    where, place = each
    return cut.probe_s is not None and bool(mask >> place & 1) and where in (ALL, replica)


def _probe_failed(scope: _Scope, replica: str, mask: int, now_s: float) -> int | None:
    """Open again what a failed call was the probe of; return one of its features that is cut off."""
    blamed = None
    for (where, place), cut in scope.cuts.items():
        if mask >> place & 1 and where in (ALL, replica):
            blamed = place
            if cut.probe_s is not None:
                cut.failed(now_s)
    return blamed


def _chance(scope: _Scope, place: int, now_s: float) -> float:
    """Return the probability that so many of the deaths have suspects with a feature by chance.

    At most: the product of the chances of these deaths, times the ways to choose them among all.
    """
    counts = scope.counts(ALL)
    share = (counts.calls[place] + 1) / (counts.calls[-1] + 2)
    seen: set[int] = set()
    deaths, having, chance = 0, 0, 1.0
    for at_s, suspected in scope.crashes:
        if now_s - at_s > CRASH_WINDOW_S:
            continue
        with_it = {each.fingerprint for each in suspected if each.mask >> place & 1}
        if with_it and with_it <= seen:
            continue
        deaths += 1
        if with_it:
            seen |= with_it
            having += 1
            chance *= -math.expm1(len(suspected) * math.log1p(-share))
    return chance * math.comb(deaths, having) if having > 1 else 1.0
