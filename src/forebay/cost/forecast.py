"""What this month's bill will come to, from what each day has cost so far; pure.

The expectation of a day is the mean of its like: of the same day of the week once there are seven days to
look back on, of all days before that. The band is a normal one of 80 %: the scatter of the days to come, and
how little is known of their mean (a textbook prediction interval for a sum of independent days).
"""

import math
from calendar import monthrange
from collections.abc import Sequence
from datetime import date, timedelta
from typing import Final

from msgspec import Struct

WEEK: Final = 7
LOOK_BACK_DAYS: Final = 56
"""Older days say nothing of this month's habits; the days of the month itself always count in its sum."""

_BAND: Final = 1.2816
"""Standard deviations on either side that hold 80 % of a normal distribution."""


class Forecast(Struct, frozen=True):
    """What a month will have cost at its end.

    Attributes:
        spent: so far.
        low: with 10 % probability it will be less.
        expected: the best guess.
        high: with 10 % probability it will be more.
    """

    spent: float
    low: float
    expected: float
    high: float


def forecast(history: Sequence[float], today: date, spent_today: float, passed_ratio: float) -> Forecast:
    """Forecast the month of today.

    Args:
        history: what whole days cost, one after the other, the last one being yesterday. It may begin before the
            month; when it begins within it, nothing was spent before.
        today: in UTC, like the months of the limits.
        spent_today: so far.
        passed_ratio: part of today that has passed, 0 to 1.

    Raises:
        ValueError: a cost is negative or no number, or the part lies outside of 0 to 1.
    """
    if not all(math.isfinite(cost) and cost >= 0.0 for cost in (*history, spent_today)):
        raise ValueError("what a day cost is a number that is not negative")
    if not 0.0 <= passed_ratio <= 1.0:
        raise ValueError(f"the part of today that has passed lies between 0 and 1, not at {passed_ratio}")
    of_month = history[max(0, len(history) - (today.day - 1)) :]
    spent = math.fsum(of_month) + spent_today
    habits = _Habits(history[-LOOK_BACK_DAYS:], today, spent_today, passed_ratio)
    days_left = _days_left(today, passed_ratio)
    to_come = math.fsum(days * habits.mean(weekday) for weekday, days in enumerate(days_left))
    margin = _BAND * math.sqrt(habits.variance(days_left))
    return Forecast(spent, spent + max(0.0, to_come - margin), spent + to_come, spent + to_come + margin)


def _days_left(today: date, passed_ratio: float) -> list[float]:
    """Return how many days of the month are to come by day of the week, Monday first; today in part."""
    days_left = [0.0] * WEEK
    days_left[today.weekday()] = 1.0 - passed_ratio
    for ahead in range(1, monthrange(today.year, today.month)[1] - today.day + 1):
        days_left[(today.weekday() + ahead) % WEEK] += 1.0
    return days_left


class _Habits:
    """What a day costs, as far as the past tells."""

    def __init__(self, days: Sequence[float], today: date, spent_today: float, passed_ratio: float) -> None:
        first = today - timedelta(days=len(days))
        self._weekly = len(days) >= WEEK
        self._like: list[list[float]] = [[] for _ in range(WEEK)]
        for place, cost in enumerate(days):
            self._like[(first.weekday() + place) % WEEK if self._weekly else 0].append(cost)
        # On the first day of all there is nothing but its own pace.
        pace = spent_today / passed_ratio if passed_ratio > 0.0 else 0.0
        self._means = [math.fsum(costs) / len(costs) if costs else pace for costs in self._like]
        self._variance_of_day = self._scatter(days)

    def mean(self, weekday: int) -> float:
        """Return the expectation of a whole day; Monday is 0."""
        return self._means[weekday if self._weekly else 0]

    def variance(self, days_left: Sequence[float]) -> float:
        """Return the variance of what the days to come will cost together."""
        if not self._weekly:
            days_left = [sum(days_left)]
        # Each day scatters by itself, but all days of a kind share the error of their mean.
        return self._variance_of_day * math.fsum(
            days + days * days / max(1, len(costs)) for days, costs in zip(days_left, self._like, strict=False)
        )

    def _scatter(self, days: Sequence[float]) -> float:
        """Return the variance of one day around its expectation.

        With a single week behind, habit and chance cannot be told apart: all of it counts as chance. With a
        single day, the scatter is taken to be as large as the day itself.
        """
        if len(days) < 2:
            return self._means[0] ** 2
        if len(days) < 2 * WEEK:
            mean = math.fsum(days) / len(days)
            return math.fsum((cost - mean) ** 2 for cost in days) / (len(days) - 1)
        squares = ((cost - mean) ** 2 for costs, mean in zip(self._like, self._means, strict=True) for cost in costs)
        return math.fsum(squares) / (len(days) - WEEK)
