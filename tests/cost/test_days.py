"""What each day has cost, told by the growing sum of the month: it always adds up."""

from datetime import date, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.cost.days import MAX_TENANTS, Bill, Days, unpack

JUNE = date(2026, 6, 1)


def bill(days: Days, today: date, passed_ratio: float = 1.0, tenant: str = "a") -> Bill:
    return dict(days.bills(today, passed_ratio))[tenant]


def lived(costs: list[int], first: date = JUNE) -> tuple[Days, date]:
    """Days that were looked at, each at its end; the sum begins anew with each month."""
    days, total, today = Days(), 0, first
    days.note({"a": (0, 0)}, first, 0.0)
    for place, cost in enumerate(costs):
        today = first + timedelta(days=place)
        total = cost if today.day == 1 else total + cost
        days.note({"a": (total, total * 10**9)}, today, 1.0)
    return days, today


def test_a_day_costs_what_the_sum_has_grown_by() -> None:
    days, today = lived([5, 7, 9])
    made = bill(days, today)
    assert (made.tokens.spent, made.money.spent) == (21.0, 21.0)
    # Three days of 7 on the average, and 27 to come.
    assert made.tokens.expected == pytest.approx(21 + 27 * 6)
    assert made.tokens.low < made.tokens.expected < made.tokens.high


def test_the_days_of_last_month_teach_and_are_not_billed() -> None:
    days, today = lived([10] * 45)
    made = bill(days, today)
    assert today == date(2026, 7, 15) and made.tokens.spent == 150.0
    assert made.tokens.expected == pytest.approx(310.0) == made.tokens.high


def test_a_day_that_nobody_looked_at_counts_with_the_next() -> None:
    days, _ = lived([10, 10])
    days.note({"a": (50, 0)}, date(2026, 6, 5), 1.0)
    assert bill(days, date(2026, 6, 5)).tokens.spent == 50.0


def test_what_was_spent_before_anybody_looked_is_spread() -> None:
    days = Days()
    days.note({"a": (140, 0)}, date(2026, 6, 15), 0.0)
    made = bill(days, date(2026, 6, 15), 0.0)
    assert made.tokens.spent == 140.0 and made.tokens.expected == pytest.approx(300.0)


def test_a_tenant_that_begins_today_has_only_its_own_pace() -> None:
    days, today = lived([10] * 14)
    days.note({"a": (140, 0), "new": (6, 0)}, today, 0.5)
    made = bill(days, today, 0.5, "new")
    assert made.tokens.spent == 6.0 and made.tokens.expected == pytest.approx(6 + 6 + 16 * 12)


def test_those_that_spend_the_most_are_foreseen() -> None:
    days = Days()
    many = {f"t{place}": (place, place) for place in range(MAX_TENANTS + 5)}
    days.note(many, JUNE, 0.5)
    made = dict(days.bills(JUNE, 0.5))
    assert len(made) == MAX_TENANTS and "t4" not in made and "t5" in made
    # One that comes in later has not spent all of it today.
    days.note({**many, "t0": (3000, 3000)}, date(2026, 6, 11), 0.0)
    made = dict(days.bills(date(2026, 6, 11), 0.0))
    assert made["t0"].tokens.spent == 3000.0 and made["t0"].tokens.expected == pytest.approx(9000.0)


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=120), st.integers(0, 400))
def test_the_days_of_the_month_add_up_to_its_sum(costs: list[int], shift: int) -> None:
    days, today = lived(costs, JUNE + timedelta(days=shift))
    made = bill(days, today)
    assert made.tokens.spent == sum(costs[max(0, len(costs) - today.day) :])
    again = unpack(days.pack())
    assert bill(again, today) == made
    assert len(days.pack()) < 8000


@pytest.mark.parametrize("text", [b"", b"{}", b"[true]", b'[true,{"a":{"7":[1,-2]}}]', b'[true,{"a":{"x":[1,2]}}]'])
def test_what_is_no_record_is_refused(text: bytes) -> None:
    with pytest.raises(ValueError, match="is no record of days"):
        unpack(text)


def test_a_clock_that_went_back_leaves_no_days_of_the_future() -> None:
    days, _ = lived([10] * 5)
    days.note({"a": (50, 0)}, date(2026, 6, 3), 1.0)
    assert bill(days, date(2026, 6, 3)).tokens.spent == 50.0
