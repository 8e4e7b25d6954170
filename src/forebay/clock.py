"""Time, injected everywhere, so that every decision can be tested without waiting."""

import time
from datetime import UTC, datetime
from typing import Protocol


class Clock(Protocol):
    """What the product may know about time."""

    def now_s(self) -> float:
        """Return monotonic seconds; only differences mean anything."""
        ...

    def wall_s(self) -> float:
        """Return seconds since the Unix epoch; may step."""
        ...


class SystemClock:
    """The machine's own clock."""

    now_s = staticmethod(time.monotonic)  # noqa: TID251 - the one place that reads it
    wall_s = staticmethod(time.time)  # noqa: TID251 - the one place that reads it


class ManualClock:
    """A clock that stands still until it is told to move: for tests and for the planner."""

    def __init__(self, now_s: float = 0.0, wall_s: float = 1_800_000_000.0) -> None:
        self._now_s = now_s
        self._wall_s = wall_s

    def now_s(self) -> float:
        """Return the seconds it was moved to."""
        return self._now_s

    def wall_s(self) -> float:
        """Return the wall time it was moved to."""
        return self._wall_s

    def advance(self, seconds: float) -> None:
        """Move both readings forward.

        Args:
            seconds: how far, not negative.

        Raises:
            ValueError: seconds is negative.
        """
        if seconds < 0:
            raise ValueError(f"a clock cannot go back {seconds} s")
        self._now_s += seconds
        self._wall_s += seconds


def timestamp(wall_s: float) -> str:
    """Format seconds since the epoch as RFC 3339 in UTC with milliseconds."""
    moment = datetime.fromtimestamp(wall_s, UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1000:03d}Z"
