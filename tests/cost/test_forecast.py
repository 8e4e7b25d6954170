"""The forecast of a month's bill: right where the days repeat, wide where little is known."""

import random
from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.cost.forecast import Forecast, forecast

# June of 2026 has 30 days and begins on a Monday.
JUNE = date(2026, 6, 1)
WORKDAYS = [10.0, 10.0, 10.0, 10.0, 10.0, 1.0, 1.0]


def work(first: date, days: int) -> list[float]:
    """What days cost when weekends are quiet."""
    return [WORKDAYS[(first + timedelta(days=place)).weekday()] for place in range(days)]


def test_before_a_week_a_day_is_the_mean_of_all() -> None:
    made = forecast([8.0, 12.0, 10.0, 10.0], date(2026, 6, 5), 0.0, 0.0)
    assert made.spent == 40.0 and made.expected == pytest.approx(40 + 26 * 10)
    assert made.low < made.expected < made.high


def test_after_a_week_a_day_is_like_its_like() -> None:
    made = forecast(work(JUNE, 7), date(2026, 6, 8), 0.0, 0.0)
    assert made.expected == pytest.approx(sum(work(JUNE, 30))), "a plain mean would say 222.9"
    assert made.high - made.expected > 10.0, "with one week, habit and chance cannot be told apart"


def test_with_weeks_that_repeat_the_band_closes() -> None:
    history = work(JUNE - timedelta(days=21), 21 + 14)
    made = forecast(history, date(2026, 6, 15), 0.0, 0.0)
    total = pytest.approx(sum(work(JUNE, 30)))
    assert (made.low, made.expected, made.high) == (total, total, total)
    assert made.spent == pytest.approx(sum(work(JUNE, 14))), "days before the month teach, and are not billed"


def test_today_counts_as_far_as_it_has_come() -> None:
    made = forecast([10.0] * 14, date(2026, 6, 15), 7.0, 0.25)
    assert made.spent == 147.0 and made.expected == pytest.approx(147 + 7.5 + 150)


def test_the_last_moment_of_a_month_is_no_forecast() -> None:
    made = forecast([3.0, 5.0] * 14 + [9.0], date(2026, 6, 30), 4.0, 1.0)
    assert made == Forecast(125.0, 125.0, 125.0, 125.0)


def test_the_first_day_of_all_has_only_its_own_pace() -> None:
    made = forecast([], JUNE, 2.0, 0.5)
    assert made.expected == pytest.approx(2 + 2 + 29 * 4)
    assert made.low == 2.0 < made.expected < made.high
    assert forecast([], JUNE, 0.0, 0.0) == Forecast(0.0, 0.0, 0.0, 0.0)


def test_old_days_are_not_looked_back_on() -> None:
    made = forecast([1000.0] * 300 + [1.0] * 56, JUNE, 0.0, 0.0)
    assert made == Forecast(0.0, 30.0, 30.0, 30.0)


@pytest.mark.parametrize(
    ("history", "spent_today", "passed_ratio"),
    [([-1.0], 0.0, 0.5), ([float("nan")], 0.0, 0.5), ([], float("inf"), 0.5), ([], 1.0, 1.5), ([], 1.0, -0.1)],
)
def test_what_is_no_cost_is_refused(history: list[float], spent_today: float, passed_ratio: float) -> None:
    with pytest.raises(ValueError, match="what a day cost|the part of today"):
        forecast(history, JUNE, spent_today, passed_ratio)


def test_the_band_holds_about_as_often_as_it_says() -> None:
    chance = random.Random(7)
    inside = 0
    for _ in range(300):
        days = [max(0.0, chance.gauss(WORKDAYS[place % 7] * 5, 4.0)) for place in range(28 + 30)]
        made = forecast(days[: 28 + 10], date(2026, 6, 11), 0.0, 0.0)
        inside += made.low <= sum(days[28:]) <= made.high
    assert 0.7 <= inside / 300 <= 0.9, "an 80 % band"


@given(
    st.lists(st.floats(0, 1e6), max_size=80),
    st.dates(date(2024, 1, 1), date(2030, 12, 31)),
    st.floats(0, 1e6),
    st.floats(0.001, 1),
)
def test_the_order_always_holds(history: list[float], today: date, spent_today: float, passed_ratio: float) -> None:
    made = forecast(history, today, spent_today, passed_ratio)
    assert 0.0 <= made.spent <= made.low <= made.expected * (1 + 1e-9)
    assert made.expected <= made.high
