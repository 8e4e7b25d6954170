"""Tokens and money of a month: reserved before, settled after, whatever clocks, reloads and restarts do."""

from collections import Counter
from datetime import UTC, datetime
from typing import Any

import pytest
from admission.before_limits import MIDDLE_S, Limits, denied, taken
from hypothesis import given
from hypothesis import strategies as st

from forebay.admission.quota import Denied, Reservation
from forebay.admission.spending import (
    Calendar,
    Ledger,
    Purse,
    month_of,
    nano_of,
    price_of,
)
from forebay.domain import Spend, Tenant
from forebay.policy import Price

HOUR_S = 3600.0
DAY_S = 24 * HOUR_S
JANUARY = 2027 * 12
# Ten minutes before February of 2027.
LATE_S = datetime(2027, 1, 31, 23, 50, tzinfo=UTC).timestamp()
PRICE = Price(input=2.0, output=6.0, cached_input=0.5)


@pytest.mark.parametrize(
    ("price", "tokens", "money"),
    [
        (PRICE, (1_000_000, None, 0), 2.0),
        (PRICE, (1_000_000, 0, 500_000), 5.0),
        (PRICE, (1_000_000, 400_000, 0), 1.4),
        (Price(input=2.0), (1_000_000, 400_000, 9), 2.0),
        (Price(input=2.0, cached_input=0.0), (10, 10, 0), 0.0),
        (PRICE, (10, 99, 0), 5e-6),
        (PRICE, (10, -5, 0), 2e-5),
        (Price(), (10, 5, 10), 0.0),
    ],
)
def test_what_a_call_costs(price: Price, tokens: tuple[int, int | None, int], money: float) -> None:
    assert price_of(price, *tokens) == pytest.approx(money, rel=1e-12)


def test_a_burst_cannot_pass_the_money_of_a_month() -> None:
    tenant = Tenant("a", money=1.0)
    limits = Limits(tenant)
    got = [limits.reserve(tenant, 10, 0.0, 0.3) for _ in range(50)]
    refused = {(one.code, one.limit, one.retry_after_s) for one in got if isinstance(one, Denied)}
    admitted = [one for one in got if isinstance(one, Reservation)]
    assert refused == {("insufficient_quota", "money_month", None)} and len(admitted) == 3
    assert limits.month(0.0) == (0, 0.0), "what is only reserved is not spent"
    for one in admitted:
        limits.settle(one, 10, 0.5, 0.1)
    assert limits.month(0.5) == (30, 0.3), "three times 0.1 is 0.3: money is not summed in floats"
    taken(limits.reserve(tenant, 1, 0.5, 0.7))
    assert denied(limits.reserve(tenant, 1, 0.5, 1e-9)).limit == "money_month"
    taken(limits.reserve(tenant, 10**9, 0.5, 0.0))


def test_a_burst_cannot_pass_the_tokens_of_a_month() -> None:
    tenant = Tenant("a", tokens=100, requests_per_minute=3)
    limits = Limits(tenant)
    calls = [taken(limits.reserve(tenant, 50, 0.0)) for _ in range(2)]
    assert denied(limits.reserve(tenant, 1, 0.0)) == Denied("insufficient_quota", None, "tokens_month")
    for call in calls:
        limits.settle(call, 12, 0.3)
    taken(limits.reserve(tenant, 76, 0.3))
    assert denied(limits.reserve(tenant, 1, 90.0)).limit == "tokens_month", "a denied call took none of the requests"


def test_an_aborted_call_pays_for_what_it_got_and_a_released_one_for_nothing() -> None:
    tenant = Tenant("a", tokens=1000, money=1.0)
    limits = Limits(tenant)
    aborted, unknown, never = (taken(limits.reserve(tenant, 100, 0.0, 0.2)) for _ in range(3))
    limits.settle(aborted, 13, 1.0, 0.02)
    limits.settle(unknown, None, 1.0)
    limits.release(never, 1.0)
    for again in (aborted, unknown, never):
        limits.settle(again, 500, 2.0, 0.5)
        limits.release(again, 2.0)
    assert limits.month(2.0) == (113, 0.22)


def test_use_beyond_the_reservation_counts_and_closes_the_month() -> None:
    tenant = Tenant("a", money=1.0)
    limits = Limits(tenant)
    limits.settle(taken(limits.reserve(tenant, 10, 0.0, 0.5)), 40, 1.0, 2.0)
    assert limits.month(1.0) == (40, 2.0)
    denied(limits.reserve(tenant, 0, 1.0, 0.0))


def test_what_an_engine_counts_below_nothing_is_nothing() -> None:
    tenant = Tenant("a", tokens=10, money=1.0)
    limits = Limits(tenant)
    for used in (-50, -1):
        limits.settle(taken(limits.reserve(tenant, 5, 0.0, 0.5)), used, 0.0, float(used))
    assert limits.month(0.0) == (0, 0.0)
    assert nano_of(float("nan")) == 0


def test_a_new_month_begins_empty_but_for_the_calls_that_run() -> None:
    tenant = Tenant("a", tokens=100)
    limits = Limits(tenant, wall_s=LATE_S)
    limits.settle(taken(limits.reserve(tenant, 60, 0.0)), 60, 0.0)
    running = taken(limits.reserve(tenant, 40, 500.0))
    denied(limits.reserve(tenant, 1, 599.9))
    assert denied(limits.reserve(tenant, 61, 600.0)).limit == "tokens_month", "the running one still holds 40"
    taken(limits.reserve(tenant, 60, 600.0))
    limits.settle(running, 30, 601.0)
    assert limits.month(601.0) == (30, 0.0), "it counts in the month in which it ended"


def test_a_reload_keeps_the_month_and_takes_the_new_limits() -> None:
    free, bound = Tenant("a"), Tenant("a", tokens=100, money=1.0)
    limits = Limits(free)
    limits.settle(taken(limits.reserve(free, 90, 0.0, 0.9)), 90, 0.0, 0.9)
    running = taken(limits.reserve(free, 5, 0.0, 0.05))
    limits.follow(bound)
    assert denied(limits.reserve(bound, 6, 0.0)).limit == "tokens_month", "counted while there was no limit"
    assert denied(limits.reserve(bound, 5, 0.0, 0.06)).limit == "money_month"
    limits.settle(running, 0, 1.0)
    taken(limits.reserve(bound, 10, 1.0, 0.1))


def test_a_tenant_that_comes_back_finds_its_month() -> None:
    tenant = Tenant("a", tokens=100)
    limits = Limits(tenant)
    limits.settle(taken(limits.reserve(tenant, 100, 0.0)), 100, 0.0)
    limits.follow()
    limits.follow(tenant)
    denied(limits.reserve(tenant, 1, 10.0))


def test_tenants_that_went_are_bounded() -> None:
    ledger = Ledger()
    for number in range(3000):
        ledger.purse(f"t{number}")
    ledger.follow({"t0", "t1"})
    kept = ledger.spent(0.0, MIDDLE_S)
    assert len(kept) == 2 + 1024 and {"t0", "t1", "t2999"} < kept.keys() and "t2" not in kept


# The wall clock.


@pytest.mark.parametrize(
    ("text", "month"),
    [("2027-01-01T00:00:00", 0), ("2027-01-31T23:59:59.999", 0), ("2027-02-01T00:00:00", 1), ("2026-12-31T23:59", -1)],
)
def test_months_begin_at_midnight_utc(text: str, month: int) -> None:
    wall_s = datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    assert month_of(wall_s) == JANUARY + month == Calendar().month_at(5.0, wall_s)


def test_an_hour_forward_over_the_end_of_a_month_and_back_changes_nothing() -> None:
    tenant = Tenant("a", tokens=100)
    limits = Limits(tenant, wall_s=LATE_S)
    limits.settle(taken(limits.reserve(tenant, 100, 0.0)), 100, 0.0)
    limits.wall_s += HOUR_S
    for now_s in (1.0, 100.0, 400.0):
        denied(limits.reserve(tenant, 1, now_s))
    limits.wall_s -= HOUR_S
    denied(limits.reserve(tenant, 1, 401.0))
    assert limits.month(402.0) == (100, 0.0)
    taken(limits.reserve(tenant, 100, 600.0))


def test_a_step_that_lasts_is_believed_and_coming_back_finds_both_months_as_they_were() -> None:
    tenant = Tenant("a", tokens=100)
    limits = Limits(tenant)
    limits.settle(taken(limits.reserve(tenant, 100, 0.0)), 100, 0.0)
    limits.wall_s += 30 * DAY_S
    denied(limits.reserve(tenant, 1, 10.0))
    denied(limits.reserve(tenant, 1, 10.0 + HOUR_S - 1.0))
    limits.settle(taken(limits.reserve(tenant, 70, 10.0 + HOUR_S)), 70, 10.0 + HOUR_S)
    limits.wall_s -= 30 * DAY_S
    denied(limits.reserve(tenant, 31, 2 * HOUR_S))
    denied(limits.reserve(tenant, 1, 4 * HOUR_S))
    assert limits.month(4 * HOUR_S) == (100, 0.0)
    assert limits.month(20 * DAY_S) == (70, 0.0)


def test_a_clock_that_goes_back_over_the_end_of_a_month_opens_nothing() -> None:
    tenant = Tenant("a", tokens=100)
    limits = Limits(tenant, wall_s=LATE_S + 700.0)
    limits.settle(taken(limits.reserve(tenant, 100, 0.0)), 100, 0.0)
    limits.wall_s -= 3 * HOUR_S
    for now_s in (1.0, HOUR_S, 1.5 * HOUR_S):
        denied(limits.reserve(tenant, 1, now_s))
    assert limits.month(1.5 * HOUR_S) == (100, 0.0)
    denied(limits.reserve(tenant, 1, 4 * HOUR_S))
    assert limits.month(4 * HOUR_S) == (100, 0.0), "February still holds its own"


def test_a_machine_that_starts_with_a_mad_clock_is_not_stuck_in_its_month() -> None:
    tenant = Tenant("a", tokens=100)
    limits = Limits(tenant, wall_s=4_000_000_000.0)
    limits.settle(taken(limits.reserve(tenant, 100, 0.0)), 100, 0.0)
    limits.wall_s = MIDDLE_S
    denied(limits.reserve(tenant, 1, 1.0))
    denied(limits.reserve(tenant, 1, 1.0 + HOUR_S))
    taken(limits.reserve(tenant, 100, 20 * DAY_S))


def test_a_clock_that_is_slewed_is_followed() -> None:
    calendar = Calendar()
    wall_s = LATE_S
    months = [calendar.month_at(float(second), wall_s + second * 1.5) for second in range(500)]
    assert months.index(JANUARY + 1) == 400, "600 s of its own, though the other clock says 400"


def test_a_purse_remembers_a_few_months_only() -> None:
    purse = Purse(1)
    for month in range(2, 50):
        purse.add(month, 1, 1)
        purse.turn(month)
    assert len(purse._kept) == 3


# Random histories against a model that keeps every call for ever.

# (pause, tokens, thousandths of money, what to end: index, tokens used or None, released, a reload)
STEPS = st.lists(
    st.tuples(
        st.sampled_from((0.0, 1.0, 61.0, HOUR_S, DAY_S, 11 * DAY_S)),
        st.integers(0, 60),
        st.integers(0, 400),
        st.one_of(st.none(), st.tuples(st.integers(0, 50), st.one_of(st.none(), st.integers(0, 90)), st.booleans())),
        st.sampled_from(("", "", "tighter", "gone")),
    ),
    max_size=50,
)


class Model:
    """Every call that ended, by month, and every one that runs; nothing is forgotten."""

    def __init__(self) -> None:
        self.running: dict[int, tuple[int, int]] = {}
        self.tokens: Counter[int] = Counter()
        self.thousandths: Counter[int] = Counter()

    def fits(self, tenant: Tenant, month: int, tokens: int, thousandths: int) -> bool:
        assert tenant.tokens is not None and tenant.money is not None
        held = self.running.values()
        return (
            self.tokens[month] + sum(one[0] for one in held) + tokens <= tenant.tokens
            and self.thousandths[month] + sum(one[1] for one in held) + thousandths <= tenant.money * 1000
        )

    def end(self, call: Reservation, month: int, tokens: int, thousandths: int) -> None:
        del self.running[id(call)]
        self.tokens[month] += tokens
        self.thousandths[month] += thousandths


@given(STEPS)
def test_months_against_a_model_that_forgets_nothing(steps: list[Any]) -> None:
    wide, tight = Tenant("a", tokens=200, money=1.0), Tenant("a", tokens=100, money=0.5)
    limits, model, tenant = Limits(wide), Model(), wide
    now_s = 0.0
    calls: list[Reservation] = []
    for pause_s, tokens, thousandths, end, reload in steps:
        now_s += pause_s
        month = month_of(MIDDLE_S + now_s)
        if reload == "gone":
            limits.follow()
        tenant = tight if reload == "tighter" else wide
        limits.follow(tenant)
        got = limits.reserve(tenant, tokens, now_s, thousandths / 1000)
        assert isinstance(got, Reservation) == model.fits(tenant, month, tokens, thousandths)
        if isinstance(got, Reservation):
            calls.append(got)
            model.running[id(got)] = (tokens, thousandths)
        if end is not None and calls:
            place, used, is_released = end
            call = calls.pop(place % len(calls))
            if is_released:
                limits.release(call, now_s)
                model.end(call, month, 0, 0)
            elif used is None:
                limits.settle(call, None, now_s)
                model.end(call, month, *model.running[id(call)])
            else:
                limits.settle(call, used, now_s, used / 1000)
                model.end(call, month, used, used)
        assert limits.month(now_s) == (model.tokens[month], model.thousandths[month] / 1000)
        assert min(limits.month(now_s)) >= 0


@given(
    st.lists(
        st.tuples(
            st.sampled_from((1.0, 700.0, 2 * HOUR_S, DAY_S)),
            st.sampled_from((0.0, 0.0, HOUR_S, -HOUR_S, 3 * DAY_S, -3 * DAY_S)),
            st.integers(0, 60),
        ),
        max_size=60,
    )
)
def test_no_clock_lets_a_month_be_spent_twice(steps: list[tuple[float, float, int]]) -> None:
    tenant = Tenant("a", tokens=100)
    limits = Limits(tenant, wall_s=LATE_S)
    now_s = moved_s = 0.0
    spent: Counter[int] = Counter()
    for pause_s, step_s, tokens in steps:
        now_s += pause_s
        # Within the two months around the start.
        moved_s += step_s if abs(moved_s + now_s + step_s) < 20 * DAY_S else 0.0
        if now_s > 20 * DAY_S:
            break
        limits.wall_s = LATE_S + moved_s
        call = limits.reserve(tenant, tokens, now_s)
        month = limits.quota._calendar.month_at(now_s, limits.wall_s + now_s)
        if isinstance(call, Reservation):
            limits.settle(call, None, now_s)
            spent[month] += tokens
        assert spent[month] <= limits.month(now_s)[0] <= 100, "no count is lost, and no month is opened again"


def test_what_a_tenant_spent_is_shown_without_limits_too() -> None:
    tenant = Tenant("a")
    limits = Limits(tenant)
    limits.settle(taken(limits.reserve(tenant, 10, 0.0, 0.5)), 7, 0.0, 0.25)
    assert limits.quota.spent(0.0, MIDDLE_S) == {"a": Spend(7, 0.25)}
