"""What was let in from a queue lately: by class, and how fast. Pure, on the time it is told."""

import math

from forebay.domain import VALUES, Value

# Shares and pace are kept over about this long.
SHARE_TIME_S = 10.0
# A pace is told from at least so much time in which calls waited.
MIN_PACE_S = 1.0


class Pace:
    """How fast a pool takes calls from its queue, over the time in which calls wait; idle time tells nothing of it.

    Attributes:
        tokens_per_s: cost of the calls in a second; low until calls have waited for `MIN_PACE_S`.
    """

    __slots__ = ("_since_s", "_span_s", "_tokens", "tokens_per_s")

    def __init__(self) -> None:
        self._since_s = self._span_s = self._tokens = self.tokens_per_s = 0.0

    def begin(self, now_s: float) -> float:
        """Note that a call waits and none did before; return the seconds since the last one went in."""
        idle_s = max(0.0, now_s - self._since_s)
        self._since_s = now_s
        return idle_s

    def add(self, tokens: float, now_s: float) -> None:
        """Count a call that went in."""
        passed_s = max(0.0, now_s - self._since_s)
        self._since_s = now_s
        kept = math.exp(-passed_s / SHARE_TIME_S)
        self._span_s = self._span_s * kept + passed_s
        self._tokens = self._tokens * kept + tokens
        self.tokens_per_s = self._tokens / max(MIN_PACE_S, self._span_s)


class Served:
    """Tokens that were let into one lane lately, by class, forgotten with a time constant.

    What goes in while nobody of a class waits gives that class no claim: a share is owed to those who wait. Each lane
    keeps its own account, or short calls of a class would use up the part of its long ones.

    Attributes:
        by_value: of each class.
        beside: of all, while calls of a class waited.
    """

    __slots__ = ("_at_s", "beside", "by_value")

    def __init__(self) -> None:
        self._at_s = 0.0
        self.by_value: dict[Value, float] = dict.fromkeys(VALUES, 0.0)
        self.beside: dict[Value, float] = dict.fromkeys(VALUES, 0.0)

    def add(self, tokens: float, value: Value, counts: dict[Value, int], now_s: float) -> None:
        """Count a call that went in before so many that still wait."""
        kept = math.exp((self._at_s - now_s) / SHARE_TIME_S)
        self._at_s = now_s
        for name in VALUES:
            waits = name == value or counts[name]
            self.beside[name] = self.beside[name] * kept + (tokens if waits else 0.0)
            self.by_value[name] = self.by_value[name] * kept + (tokens if name == value else 0.0)

    def lacking(self, value: Value, share_ratio: float) -> float:
        """Return the tokens by which a class is behind its share."""
        return share_ratio * self.beside[value] - self.by_value[value]
