"""The part of an event loop that timers need, on a clock that the test moves."""

import heapq
from collections.abc import Callable
from typing import Any

from forebay.clock import ManualClock


class Timer:
    """One callback that is due at some time."""

    def __init__(self, due_s: float, order: int, call: Callable[[], Any]) -> None:
        self.due_s = due_s
        self.order = order
        self.call = call
        self.cancelled = False

    def __lt__(self, other: "Timer") -> bool:
        return (self.due_s, self.order) < (other.due_s, other.order)

    def cancel(self) -> None:
        self.cancelled = True


class ManualLoop:
    """Runs timers in order; `late_s` is how much later than due each of them is called."""

    def __init__(self, clock: ManualClock, late_s: float = 0.0) -> None:
        self.clock = clock
        self.late_s = late_s
        self._timers: list[Timer] = []
        self._order = 0

    def call_later(self, delay_s: float, callback: Callable[..., Any], *args: Any) -> Timer:
        self._order += 1
        timer = Timer(self.clock.now_s() + delay_s, self._order, lambda: callback(*args))
        heapq.heappush(self._timers, timer)
        return timer

    def call_soon(self, callback: Callable[..., Any], *args: Any) -> Timer:
        return self.call_later(0.0, callback, *args)

    def run(self, seconds: float) -> None:
        """Let so much time pass."""
        end_s = self.clock.now_s() + seconds
        while self._timers and self._timers[0].due_s <= end_s:
            timer = heapq.heappop(self._timers)
            if not timer.cancelled:
                late_s = self.late_s if timer.due_s > self.clock.now_s() else 0.0
                self.clock.advance(max(0.0, timer.due_s + late_s - self.clock.now_s()))
                timer.call()
        self.clock.advance(max(0.0, end_s - self.clock.now_s()))
