"""Breakers keyed by what a request asks for: a feature that fails is cut off, other traffic stays up (A7).

Pure, on the time it is told. A key is (replica or pool, endpoint, model), and under it one feature of the
call: its length (log2 of its prompt), tools, guided output, vision, stream, LoRA. Calls are counted by the
combination of their features, one count a call; which feature is to blame is only worked out when one fails.

- *Errors*: a feature opens when more than half of at least 20 of its calls fail while those without it do
  not. One that nobody is without cannot be told from the engine itself: that is the replica's breaker's.
- *Deaths*: a feature opens when suspects of several engine deaths had it and that is no chance. With a share
  `s` of the traffic and `k` suspects, one of them has it by chance with 1 - (1 - s)^k; over all deaths that
  must fall below 1 %. A fingerprint that kills twice is counted once: it is the request, not its feature.

Open, it lets one probe through once its time is up; each failure of a probe doubles the time.
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Final, Literal

from msgspec import Struct

MIN_CALLS: Final = 20
"""Of a feature, before it opens."""
MIN_OTHERS: Final = 10
"""Calls without it, to compare."""
HINT_CALLS: Final = 5
"""Of a feature, before its failures are no longer held against the replica."""
OPEN_S: Final = 30.0
MAX_OPEN_S: Final = 600.0
CRASH_OPEN_S: Final = 600.0
MAX_CRASH_OPEN_S: Final = 3600.0
HALF_WINDOW_S: Final = 60.0
"""Calls count for one to two of these."""
CRASH_WINDOW_S: Final = 1800.0
MAX_CHANCE: Final = 0.01
MIN_CRASHES: Final = 2
PROBE_S: Final = 60.0
"""A probe that is still running after this long no longer keeps the next one out."""

MAX_KEYS: Final = 256
MAX_COMBINATIONS: Final = 64
"""Of features under one key; calls of a combination beyond are not counted."""
MAX_CRASHES: Final = 16

_FLAGS: Final = ("tools", "guided", "vision", "stream", "lora")
_LENGTHS: Final = 20
_LENGTH_BIT: Final = len(_FLAGS)

Key = tuple[str, str, str]
"""Replica or pool, endpoint, model."""


def mask_of(tokens: int, *, tools: bool, guided: bool, vision: bool, stream: bool, lora: bool) -> int:
    """Return the features of a call as one number: a bit for each.

    Args:
        tokens: of its prompt.
        tools: it has tools.
        guided: its output is bound to a schema or grammar.
        vision: it has pictures.
        stream: its answer is streamed.
        lora: it asks for an adapter.
    """
    flags = tools | guided << 1 | vision << 2 | stream << 3 | lora << 4
    return flags | 1 << (_LENGTH_BIT + min(_LENGTHS, tokens.bit_length()))


def name_of(bit: int) -> str:
    """Return the name of one feature, such as `vision` or `prompt < 4096`."""
    place = bit.bit_length() - 1
    if place < _LENGTH_BIT:
        return _FLAGS[place]
    length = place - _LENGTH_BIT
    return f"prompt < {1 << length}" if length < _LENGTHS else f"prompt >= {1 << (_LENGTHS - 1)}"


class Blame(Struct, frozen=True):
    """The feature that a failure is held against, instead of the replica.

    Attributes:
        feature: its name.
        opened: it has just been cut off.
    """

    feature: str
    opened: bool


class Shown(Struct, frozen=True):
    """One feature that is cut off, to be shown; calls and failures are those it was cut off for."""

    place: str
    endpoint: str
    model: str
    feature: str
    state: Literal["open", "half_open"]
    reason: str
    left_s: float


class _Tally:
    """Calls of one combination of features, in the running half of the window and in the one before."""

    __slots__ = ("calls", "failures", "old_calls", "old_failures")

    def __init__(self) -> None:
        self.calls = self.failures = self.old_calls = self.old_failures = 0


class _Cut:
    """A feature that is cut off."""

    __slots__ = ("open_s", "longest_s", "probe_s", "reason", "until_s")

    def __init__(self, open_s: float, longest_s: float, reason: str, now_s: float) -> None:
        self.open_s = open_s
        self.longest_s = longest_s
        self.reason = reason
        self.until_s = now_s + open_s
        self.probe_s: float | None = None

    def admits(self, now_s: float) -> bool:
        if self.probe_s is not None:
            return now_s >= self.probe_s + PROBE_S
        return now_s >= self.until_s

    def failed(self, now_s: float) -> None:
        self.open_s = min(self.longest_s, 2 * self.open_s)
        self.until_s = now_s + self.open_s
        self.probe_s = None


class _Crash(Struct, frozen=True):
    at_s: float
    suspects: tuple[tuple[int, int], ...]


class _Scope:
    """What is counted under one key."""

    __slots__ = ("crashes", "cuts", "tallies", "turned_s")

    def __init__(self, now_s: float) -> None:
        self.tallies: dict[int, _Tally] = {}
        self.cuts: dict[int, _Cut] = {}
        self.crashes: deque[_Crash] = deque(maxlen=MAX_CRASHES)
        self.turned_s = now_s

    def tally(self, mask: int, now_s: float) -> _Tally | None:
        if now_s - self.turned_s >= HALF_WINDOW_S:
            self._turn(now_s)
        tally = self.tallies.get(mask)
        if tally is None and len(self.tallies) < MAX_COMBINATIONS:
            tally = self.tallies[mask] = _Tally()
        return tally

    def counts(self, bit: int) -> tuple[int, int, int, int]:
        """Return calls and failures with a feature, then without it."""
        calls = failures = other_calls = other_failures = 0
        for mask, tally in self.tallies.items():
            if mask & bit:
                calls += tally.calls + tally.old_calls
                failures += tally.failures + tally.old_failures
            else:
                other_calls += tally.calls + tally.old_calls
                other_failures += tally.failures + tally.old_failures
        return calls, failures, other_calls, other_failures

    def forget(self, bit: int) -> None:
        """Drop the calls of a feature, so that they are not held against the others that they have."""
        self.tallies = {mask: tally for mask, tally in self.tallies.items() if not mask & bit}
        self.crashes = deque(
            [crash for crash in self.crashes if not any(mask & bit for mask, _ in crash.suspects)], MAX_CRASHES
        )

    def _turn(self, now_s: float) -> None:
        lapsed = now_s - self.turned_s >= 2 * HALF_WINDOW_S
        self.turned_s = now_s
        kept: dict[int, _Tally] = {}
        for mask, tally in self.tallies.items():
            tally.old_calls, tally.old_failures = (0, 0) if lapsed else (tally.calls, tally.failures)
            tally.calls = tally.failures = 0
            if tally.old_calls:
                kept[mask] = tally
        self.tallies = kept


class FeatureBreakers:
    """All features of all keys; at 256 keys those that are idle are forgotten, and new ones are not counted.

    Attributes:
        opened: how often one was cut off, since the start.
    """

    __slots__ = ("_cut", "_full_until_s", "_scopes", "opened")

    def __init__(self) -> None:
        self._scopes: dict[Key, _Scope] = {}
        # Those scopes that have something cut off: nearly always none.
        self._cut: dict[Key, _Scope] = {}
        self._full_until_s = 0.0
        self.opened = 0

    def refuses(self, key: Key, mask: int, now_s: float) -> str:
        """Say which feature of a call is cut off; empty when it may go, as a probe if need be.

        Args:
            key: where it would go.
            mask: its features.
            now_s: monotonic seconds.
        """
        if not self._cut:
            return ""
        scope = self._cut.get(key)
        if scope is None:
            return ""
        cuts = [(bit, cut) for bit, cut in scope.cuts.items() if mask & bit]
        for bit, cut in cuts:
            if not cut.admits(now_s):
                return name_of(bit)
        for _, cut in cuts:
            cut.probe_s = now_s
        return ""

    def answered(self, key: Key, mask: int, now_s: float) -> None:
        """Count a call that was answered as it should be."""
        scope = self._scopes.get(key) or self._scope(key, now_s)
        if scope is None:
            return
        tally = scope.tally(mask, now_s)
        if tally is not None:
            tally.calls += 1
        if scope.cuts:
            for bit in [bit for bit, cut in scope.cuts.items() if mask & bit and cut.probe_s is not None]:
                self._close(key, scope, bit)

    def cancelled(self, key: Key, mask: int) -> None:
        """Tell that a call ended without a verdict: if it was a probe, the next one may go."""
        scope = self._cut.get(key)
        if scope is not None:
            for bit, cut in scope.cuts.items():
                if mask & bit:
                    cut.probe_s = None

    def failed(self, key: Key, mask: int, now_s: float) -> Blame | None:
        """Count a call that failed by the engine's fault, and say whether a feature is to blame.

        Args:
            key: where it ran.
            mask: its features.
            now_s: monotonic seconds.

        Returns:
            The feature, if its calls fail and the others do not; then the replica's breaker should not count it.
        """
        scope = self._scope(key, now_s)
        if scope is None:
            return None
        tally = scope.tally(mask, now_s)
        if tally is not None:
            tally.calls += 1
            tally.failures += 1
        blamed = _probe_failed(scope, mask, now_s)
        if blamed:
            return Blame(name_of(blamed), False)
        return self._weigh(key, scope, mask, now_s)

    def crashed(self, key: Key, suspects: Sequence[tuple[int, int]], now_s: float) -> str:
        """Tell that an engine died; return the feature that is cut off for it, or an empty text.

        Args:
            key: where it was.
            suspects: features and fingerprint of each; of the guilty alone if one was found.
            now_s: monotonic seconds.
        """
        scope = self._scope(key, now_s)
        if scope is None:
            return ""
        for mask, _ in suspects:
            _probe_failed(scope, mask, now_s)
        scope.crashes.append(_Crash(now_s, tuple(suspects)))
        chances = [(_chance(scope, bit, now_s), bit) for bit in _bits_of(suspects) if bit not in scope.cuts]
        chance, bit = min(chances, default=(1.0, 0))
        if chance > MAX_CHANCE:
            return ""
        self._open(key, scope, bit, _Cut(CRASH_OPEN_S, MAX_CRASH_OPEN_S, "engines died of it", now_s))
        return name_of(bit)

    def restore(self, key: Key, feature: str) -> bool:
        """Let a feature in again, as an operator wishes; return whether it was cut off."""
        scope = self._cut.get(key)
        for bit in [] if scope is None else [bit for bit in scope.cuts if name_of(bit) == feature]:
            self._close(key, self._cut[key], bit)
            return True
        return False

    def shown(self, now_s: float) -> list[Shown]:
        """Return what is cut off, to be shown."""
        return [
            Shown(
                *key,
                name_of(bit),
                "open" if cut.probe_s is None else "half_open",
                cut.reason,
                max(0.0, cut.until_s - now_s),
            )
            for key, scope in self._cut.items()
            for bit, cut in scope.cuts.items()
        ]

    def _weigh(self, key: Key, scope: _Scope, mask: int, now_s: float) -> Blame | None:
        """Find the feature of a failed call that fails the most while calls without it do not."""
        worst, worst_ratio, worst_calls = 0, 0.5, 0
        for bit in _bits(mask):
            calls, failures, others, other_failures = scope.counts(bit)
            ratio = failures / calls if calls else 0.0
            well = others >= MIN_OTHERS and other_failures < 0.5 * ratio * others
            if calls >= HINT_CALLS and well and ratio > worst_ratio and bit not in scope.cuts:
                worst, worst_ratio, worst_calls = bit, ratio, calls
        if not worst:
            return None
        if worst_calls < MIN_CALLS:
            return Blame(name_of(worst), False)
        reason = f"{worst_ratio:.0%} of {worst_calls} calls failed"
        self._open(key, scope, worst, _Cut(OPEN_S, MAX_OPEN_S, reason, now_s))
        return Blame(name_of(worst), True)

    def _open(self, key: Key, scope: _Scope, bit: int, cut: _Cut) -> None:
        scope.forget(bit)
        scope.cuts[bit] = cut
        self._cut[key] = scope
        self.opened += 1

    def _close(self, key: Key, scope: _Scope, bit: int) -> None:
        del scope.cuts[bit]
        if not scope.cuts:
            del self._cut[key]

    def _scope(self, key: Key, now_s: float) -> _Scope | None:
        scope = self._scopes.get(key)
        if scope is None:
            if len(self._scopes) >= MAX_KEYS and now_s >= self._full_until_s:
                self._full_until_s = now_s + HALF_WINDOW_S
                self._scopes = {
                    known: old
                    for known, old in self._scopes.items()
                    if old.cuts or now_s - old.turned_s < 2 * HALF_WINDOW_S
                }
            if len(self._scopes) < MAX_KEYS:
                scope = self._scopes[key] = _Scope(now_s)
        return scope


def _probe_failed(scope: _Scope, mask: int, now_s: float) -> int:
    """Open what a failed call was the probe of; return one of its features that is cut off, or 0."""
    blamed = 0
    for bit, cut in scope.cuts.items():
        if mask & bit:
            blamed = bit
            if cut.probe_s is not None:
                cut.failed(now_s)
    return blamed


def _chance(scope: _Scope, bit: int, now_s: float) -> float:
    """Return the probability that so many of the deaths have suspects with a feature by chance.

    At most: the product of the chances of these deaths, times the ways to choose them among all.
    """
    calls, _, others, _ = scope.counts(bit)
    share = (calls + 1) / (calls + others + 2)
    seen: set[int] = set()
    deaths, having, chance = 0, 0, 1.0
    for crash in scope.crashes:
        if now_s - crash.at_s > CRASH_WINDOW_S:
            continue
        suspects = {suspect for mask, suspect in crash.suspects if mask & bit}
        if suspects and suspects <= seen:
            continue
        deaths += 1
        if suspects:
            seen |= suspects
            having += 1
            chance *= -math.expm1(len(crash.suspects) * math.log1p(-share))
    return chance * math.comb(deaths, having) if having >= MIN_CRASHES else 1.0


def _bits(mask: int) -> Iterator[int]:
    while mask:
        bit = mask & -mask
        yield bit
        mask ^= bit


def _bits_of(suspects: Sequence[tuple[int, int]]) -> Iterator[int]:
    together = 0
    for mask, _ in suspects:
        together |= mask
    return _bits(together)
