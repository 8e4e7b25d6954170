"""Deadlines learned from what calls really take, never tighter than that allows (S6, T14).

Pure, on the time it is told. Per model and log2 of the uncached prompt, streams and whole answers apart: of a
stream the time to its first byte, of a whole answer its total time. The advised deadline is 1.5 times the 95th
percentile. What makes such a deadline a death spiral is that it cuts its own sample short: so a call that timed
out, or whose client left, counts as one that took longer than it was given (the product-limit estimator of Kaplan
and Meier 1958, on logarithmic buckets that forget), and where the sample does not reach to a percentile, that is
taken as unknown and the deadline opens.

A deadline falls by at most 10 % an hour, only where fewer than one call in a thousand times out, and never below
the 99.9th percentile. It opens at once: as soon as the advice is above it, twofold when one call in a hundred times
out, and altogether when five do. Its floor is 5 s, its ceiling is the configured deadline, which also holds where
nothing is known.
"""

import math
from math import log2
from typing import Final, Literal

from msgspec import Struct

ADVISED_QUANTILE: Final = 0.95
ADVISED_FACTOR: Final = 1.5
TAIL_QUANTILE: Final = 0.999
FLOOR_S: Final = 5.0
TIGHTEN_PER_HOUR: Final = 0.9
MAX_TIMEOUT_RATIO: Final = 0.001
"""Of the calls that are remembered, so that the deadline may still tighten."""
OPENING_TIMEOUTS: Final = 3
OPENING_RATIO: Final = 0.01
"""So many time-outs at the deadline in force, and such a part of the latest calls, open it twofold."""
FLOOD_RATIO: Final = 0.05
"""Such a part opens it altogether."""
RECENT_CALLS: Final = 200.0
"""The latest calls: a running mean over about so many."""
MIN_CALLS: Final = 200.0
"""Remembered, before anything is advised."""
HALF_LIFE_S: Final = 3600.0
REVIEW_S: Final = 10.0
REVIEWS_PER_TICK: Final = 8
MAX_KEYS: Final = 256
"""Models, kinds and lengths; calls of those beyond keep the configured deadline."""

_AT_LIMIT: Final = 0.9
_STEPS: Final = 8  # buckets to an octave: 9 % wide
_SHORTEST_S: Final = 0.25
_FIRST: Final = 2 * _STEPS + 1  # the bucket of a second, less the octaves below it
_BUCKETS: Final = 13 * _STEPS + 1
"""Up to 2,048 s."""

End = Literal["done", "timeout", "left"]
Trend = Literal["unknown", "open", "tightening", "held", "opening"]
_Key = tuple[str, bool, int]


class Learned(Struct, frozen=True):
    """One learned deadline, to be shown.

    Attributes:
        model: its name.
        kind: `first_byte` of streams, or `total` of whole answers.
        below_tokens: uncached prompts shorter than this.
        calls: that are remembered; older ones count less.
        timeout_ratio: part of the latest calls that timed out.
        p95_s: 95th percentile with time-outs counted as longer; None while the sample does not reach that far.
        advised_s: what the deadline is on its way to; None while nothing is advised.
        limit_s: the deadline in force; None when it is the configured one.
        trend: what was done with it last.
    """

    model: str
    kind: Literal["first_byte", "total"]
    below_tokens: int
    calls: float
    timeout_ratio: float
    p95_s: float | None
    advised_s: float | None
    limit_s: float | None
    trend: Trend


class Durations:
    """How long calls took: a histogram with censored ones, in which older calls count less."""

    __slots__ = ("_censored", "_ended", "calls")

    def __init__(self) -> None:
        self._ended = [0.0] * _BUCKETS
        self._censored = [0.0] * _BUCKETS
        self.calls = 0.0

    def add(self, taken_s: float, ended: bool) -> None:
        """Count a call.

        Args:
            taken_s: until it ended, or until nobody waited any more.
            ended: False when it would have taken longer.
        """
        place = int(_STEPS * log2(taken_s) + _FIRST) if taken_s > _SHORTEST_S else 0
        if place >= _BUCKETS:
            place = _BUCKETS - 1
        if ended:
            self._ended[place] += 1.0
        else:
            self._censored[place] += 1.0
        self.calls += 1.0

    def fade(self, ratio: float) -> None:
        """Let everything so far count for a part of what it did."""
        self._ended = [count * ratio for count in self._ended]
        self._censored = [count * ratio for count in self._censored]
        self.calls *= ratio

    def quantiles(self, ratios: tuple[float, ...]) -> list[float | None]:
        """Return the seconds within which such parts of all calls end; None where the sample does not tell.

        The upper edge of the bucket is given: at most 9 % too much. A call counts as at risk in the whole of its
        bucket, also if it was given up there.

        Args:
            ratios: ascending, each below 1.
        """
        found: list[float | None] = []
        at_risk, left = self.calls, 1.0
        place = 0
        for ratio in ratios:
            # Products of fractions end a rounding error beside the part that they stand for.
            while left > 1.0 - ratio + 1e-9 and place < _BUCKETS:
                if at_risk > 1e-9:
                    left *= max(0.0, 1.0 - self._ended[place] / at_risk)
                at_risk -= self._ended[place] + self._censored[place]
                place += 1
            known = left <= 1.0 - ratio + 1e-9
            found.append(_SHORTEST_S * 2.0 ** ((place - 1) / _STEPS) if known else None)
        return found


class _Limit:
    """One learned deadline; `limit_s` is infinite while the configured one is in force."""

    __slots__ = (
        "advised_s", "configured_s", "durations", "late", "limit_s", "p95_s", "reviewed_s", "timeout_ratio", "timeouts",
        "trend",
    )  # fmt: skip

    def __init__(self, configured_s: float) -> None:
        self.durations = Durations()
        self.configured_s = configured_s
        self.limit_s = math.inf
        self.advised_s: float | None = None
        self.p95_s: float | None = None
        self.reviewed_s = -math.inf
        self.timeout_ratio = 0.0
        # Time-outs at the deadline in force, and all that are remembered.
        self.timeouts = 0
        self.late = 0.0
        self.trend: Trend = "unknown"

    def note(self, taken_s: float, end: End) -> None:
        self.durations.add(taken_s, end == "done")
        if end == "timeout":
            self.timeout_ratio += (1.0 - self.timeout_ratio) / RECENT_CALLS
            # Those that were sent before the latest opening still end at the deadline they had.
            self.timeouts += taken_s >= _AT_LIMIT * self.limit_s
            self.late += 1.0
            if self.timeout_ratio >= FLOOD_RATIO and self.limit_s < math.inf:
                self.open(math.inf)
            elif self.timeouts >= OPENING_TIMEOUTS and self.timeout_ratio >= OPENING_RATIO:
                self.open(2.0 * self.limit_s)
        elif end == "done" and self.timeout_ratio:
            self.timeout_ratio -= self.timeout_ratio / RECENT_CALLS

    def open(self, limit_s: float) -> None:
        """Open it up to a value, or altogether if that is the configured one."""
        self.timeouts = 0
        self.trend = "opening"
        self.limit_s = limit_s if limit_s < self.configured_s else math.inf

    def review(self, now_s: float) -> None:
        """Forget a little, see what is advised, and go there: up at once, down slowly."""
        passed_s = min(now_s - self.reviewed_s, HALF_LIFE_S * 100.0)
        if passed_s > 0.0 and self.reviewed_s > -math.inf:
            ratio = 0.5 ** (passed_s / HALF_LIFE_S)
            self.durations.fade(ratio)
            self.late *= ratio
        step_s = min(passed_s, 6.0 * REVIEW_S)
        self.reviewed_s = now_s
        if self.durations.calls < MIN_CALLS:
            self.limit_s, self.advised_s, self.p95_s, self.trend = math.inf, None, None, "unknown"
            return
        self.p95_s, tail_s = self.durations.quantiles((ADVISED_QUANTILE, TAIL_QUANTILE))
        if self.p95_s is None:
            self.advised_s = None
            if self.timeouts and self.limit_s < math.inf:
                self.open(2.0 * self.limit_s)
            return
        self.advised_s = max(FLOOR_S, ADVISED_FACTOR * self.p95_s, 0.0 if tail_s is None else tail_s)
        # Where the tail is unknown, calls were given up before it: the deadline may be what cut it off.
        may_tighten = tail_s is not None and self.late < MAX_TIMEOUT_RATIO * self.durations.calls
        self._approach(self.advised_s, step_s, may_tighten)

    def _approach(self, advised_s: float, step_s: float, may_tighten: bool) -> None:
        if advised_s > min(self.limit_s, self.configured_s):
            if self.limit_s < math.inf:
                self.open(advised_s)
            else:
                self.trend = "open"
        elif not may_tighten:
            self.trend = "held"
        else:
            slowest_s = min(self.limit_s, self.configured_s) * TIGHTEN_PER_HOUR ** (step_s / 3600.0)
            self.trend = "held" if advised_s >= slowest_s else "tightening"
            self.limit_s = max(advised_s, slowest_s)


class LearnedTimeouts:
    """The learned deadlines of all models; at 256 keys, new ones keep the configured deadline.

    Args:
        now_s: monotonic seconds at the start.
    """

    __slots__ = ("_due", "_limits", "_round_s")

    def __init__(self, now_s: float = 0.0) -> None:
        self._limits: dict[_Key, _Limit] = {}
        self._due: list[_Key] = []
        self._round_s = now_s

    def limit_s(self, model: str, streamed: bool, uncached_tokens: int, configured_s: float) -> float:
        """Return the deadline of a call: of the first byte if it is streamed, of the whole answer otherwise.

        Args:
            model: that answers.
            streamed: the client asked for a stream.
            uncached_tokens: of the prompt.
            configured_s: the ceiling, and what holds while nothing is known.
        """
        limit = self._limits.get((model, streamed, uncached_tokens.bit_length()))
        if limit is None:
            return configured_s
        limit.configured_s = configured_s
        return limit.limit_s if limit.limit_s < configured_s else configured_s

    def note(
        self, model: str, streamed: bool, uncached_tokens: int, configured_s: float, taken_s: float, end: End
    ) -> None:
        """Learn how long a call took.

        Args:
            model: that answered.
            streamed: the client asked for a stream.
            uncached_tokens: of the prompt.
            configured_s: the deadline as configured.
            taken_s: to the first byte of a stream or the end of a whole answer; until the call was given up otherwise.
            end: `done`; `timeout` when this deadline was over; `left` when the client went, or the try failed, before.
        """
        key = (model, streamed, uncached_tokens.bit_length())
        limit = self._limits.get(key)
        if limit is None:
            if len(self._limits) >= MAX_KEYS:
                return
            limit = self._limits[key] = _Limit(configured_s)
        limit.note(taken_s, end)

    def tick(self, now_s: float) -> None:
        """Review a few deadlines whose turn it is; each comes about every 10 s if this is called 10 times a second.

        Args:
            now_s: monotonic seconds.
        """
        if not self._due and now_s >= self._round_s:
            self._round_s = now_s + REVIEW_S
            self._due = list(self._limits)
        for _ in range(min(REVIEWS_PER_TICK, len(self._due))):
            key = self._due.pop()
            limit = self._limits[key]
            limit.review(now_s)
            if limit.durations.calls < 0.5:
                del self._limits[key]

    def report(self) -> list[Learned]:
        """Return all learned deadlines, to be shown; at most 256."""
        return [
            Learned(
                model,
                "first_byte" if streamed else "total",
                1 << length,
                round(limit.durations.calls, 1),
                round(limit.timeout_ratio, 5),
                limit.p95_s,
                limit.advised_s,
                limit.limit_s if limit.limit_s < limit.configured_s else None,
                limit.trend,
            )
            for (model, streamed, length), limit in self._limits.items()
        ]
