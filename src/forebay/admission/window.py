"""A sum over a sliding minute, in buckets of one second. Pure, on the times that it is told."""

from typing import Final

WINDOW_S: Final = 60
_BUCKETS: Final = WINDOW_S + 1
# What was asked for lately is told as a rate over so many seconds, and what fades in slices of this length.
_RECENT_S: Final = 2
_FADE_S: Final = 10


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

    def at(self, now_s: float) -> int:
        """Move the window on, and return what counts."""
        self.advance(int(now_s))
        return self.total

    def recent(self) -> int:
        """Return what is counted in a second, of late."""
        return sum(self._buckets[(self._second - back) % _BUCKETS] for back in range(_RECENT_S)) // _RECENT_S

    def fading(self) -> tuple[int, ...]:
        """Return what of the total will count no longer after one, two, ... times ten seconds."""
        if not self.total:
            return ()
        parts = [0] * (WINDOW_S // _FADE_S + 1)
        for second in range(self._second - WINDOW_S, self._second + 1):
            parts[(second + WINDOW_S - self._second) // _FADE_S] += self._buckets[second % _BUCKETS]
        return tuple(max(0, part) for part in parts)

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
