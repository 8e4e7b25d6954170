"""Limits of tenants: never passed, settled exactly, forgotten in time."""

from typing import Any

import pytest
from admission.before_limits import MIDDLE_S, Limits, denied, taken
from hypothesis import given
from hypothesis import strategies as st

from forebay.admission.quota import Account, Denied, Reservation, Window
from forebay.admission.spending import Ledger
from forebay.domain import Spend, Tenant
from forebay.errors import CODES


def test_case_051_a_burst_cannot_pass_the_cap() -> None:
    tenant = Tenant("a", tokens_per_minute=100)
    limits = Limits(tenant)
    got = [limits.reserve(tenant, 50, 10.0) for _ in range(50)]
    admitted = [one for one in got if isinstance(one, Reservation)]
    refused = [one for one in got if isinstance(one, Denied)]
    assert len(admitted) == 2
    assert {one.code for one in refused} == {"insufficient_quota"}
    assert all(one.retry_after_s is not None and 60 <= one.retry_after_s <= 61 for one in refused)
    for one in admitted:
        limits.settle(one, 12, 10.3)
    assert limits.minute("a", 10.3) == 24
    taken(limits.reserve(tenant, 50, 10.4))
    assert denied(limits.reserve(tenant, 27, 10.4)).code == "insufficient_quota"
    taken(limits.reserve(tenant, 26, 10.4))


def test_concurrency() -> None:
    tenant = Tenant("a", concurrency=2)
    limits = Limits(tenant)
    first, _ = taken(limits.reserve(tenant, 1, 0.0)), taken(limits.reserve(tenant, 1, 0.0))
    assert denied(limits.reserve(tenant, 1, 0.0)) == Denied("concurrency_limit", 1.0, "concurrency")
    limits.settle(first, None, 5.0)
    taken(limits.reserve(tenant, 1, 5.0))
    assert limits.held() == {"a": 2}


def test_requests_slide_out_of_the_minute_one_by_one() -> None:
    tenant = Tenant("a", requests_per_minute=3)
    limits = Limits(tenant)
    for now_s in (0.5, 20.5, 40.5):
        taken(limits.reserve(tenant, 0, now_s))
    refusal = denied(limits.reserve(tenant, 0, 50.5))
    assert refusal == Denied("requests_limit", 10.5, "requests"), "the first one leaves at 61"
    denied(limits.reserve(tenant, 0, 60.9))
    taken(limits.reserve(tenant, 0, 61.0))
    denied(limits.reserve(tenant, 0, 80.9))
    taken(limits.reserve(tenant, 0, 81.0))


def test_a_denied_call_is_counted_nowhere() -> None:
    tenant = Tenant("a", concurrency=5, requests_per_minute=2, tokens_per_minute=100)
    limits = Limits(tenant)
    assert denied(limits.reserve(tenant, 101, 0.0)).code == "insufficient_quota"
    taken(limits.reserve(tenant, 100, 0.0))
    denied(limits.reserve(tenant, 1, 0.0))
    taken(limits.reserve(tenant, 0, 0.0))
    assert denied(limits.reserve(tenant, 0, 0.0)).code == "requests_limit"
    assert limits.held() == {"a": 2}


@pytest.mark.parametrize(
    ("tenant", "code", "limit"),
    [
        (Tenant("a", concurrency=0), "concurrency_limit", "concurrency"),
        (Tenant("a", requests_per_minute=0), "requests_limit", "requests"),
        (Tenant("a", tokens_per_minute=9), "insufficient_quota", "tokens_minute"),
        (Tenant("a", tokens=9), "insufficient_quota", "tokens_month"),
    ],
)
def test_what_will_never_fit_gives_no_hope(tenant: Tenant, code: Any, limit: Any) -> None:
    assert Limits(tenant).reserve(tenant, 10, 0.0) == Denied(code, None, limit)
    assert code in CODES


def test_retry_after_is_the_time_at_which_it_fits() -> None:
    tenant = Tenant("a", tokens_per_minute=100)
    limits = Limits(tenant)
    for now_s in (0.0, 10.0, 20.0):
        limits.settle(taken(limits.reserve(tenant, 30, now_s)), 30, now_s)
    assert denied(limits.reserve(tenant, 70, 30.0)).retry_after_s == 41.0, "60 must leave: those of 0 and of 10"
    denied(limits.reserve(tenant, 70, 70.9))
    taken(limits.reserve(tenant, 70, 71.0))


def test_use_beyond_the_reservation_is_owed() -> None:
    tenant = Tenant("a", tokens_per_minute=100)
    limits = Limits(tenant)
    call = taken(limits.reserve(tenant, 10, 0.0))
    limits.settle(call, 150, 30.0)
    assert limits.minute("a", 30.0) == 150
    assert denied(limits.reserve(tenant, 1, 30.0)).retry_after_s == 61.0, "the excess counts from when it was known"


def test_a_refund_that_comes_after_the_window_changes_nothing() -> None:
    tenant = Tenant("a", tokens_per_minute=100)
    limits = Limits(tenant)
    call = taken(limits.reserve(tenant, 100, 0.0))
    later = taken(limits.reserve(tenant, 100, 61.0))
    limits.settle(call, 10, 62.0)
    assert limits.minute("a", 62.0) == 100
    limits.settle(later, None, 62.0)
    assert limits.minute("a", 62.0) == 100 and limits.held() == {"a": 0}


def test_settling_or_releasing_twice_changes_nothing() -> None:
    tenant = Tenant("a", concurrency=9, requests_per_minute=9, tokens_per_minute=100)
    limits = Limits(tenant)
    call = taken(limits.reserve(tenant, 50, 0.0))
    limits.settle(call, 20, 1.0)
    limits.settle(call, 0, 1.0)
    limits.release(call, 1.0)
    assert limits.minute("a", 1.0) == 20 and limits.held() == {"a": 0}


def test_a_released_call_never_was() -> None:
    tenant = Tenant("a", concurrency=1, requests_per_minute=1, tokens_per_minute=50)
    limits = Limits(tenant)
    for now_s in (0.0, 1.0, 2.0):
        limits.release(taken(limits.reserve(tenant, 50, now_s)), now_s + 0.5)
    assert limits.minute("a", 3.0) == 0 and limits.held() == {"a": 0}


def test_tenants_do_not_share() -> None:
    a, b = Tenant("a", concurrency=1), Tenant("b", concurrency=1)
    limits = Limits(a, b)
    taken(limits.reserve(a, 1, 0.0))
    taken(limits.reserve(b, 1, 0.0))


def test_a_reload_keeps_counters_and_takes_the_new_limits() -> None:
    tenant = Tenant("a", requests_per_minute=3)
    limits = Limits(tenant)
    for _ in range(3):
        taken(limits.reserve(tenant, 0, 0.0))
    limits.follow(Tenant("a", requests_per_minute=4))
    taken(limits.reserve(tenant, 0, 0.0))
    denied(limits.reserve(tenant, 0, 0.0))
    assert limits.held() == {"a": 4}


def test_a_tenant_that_left_is_forgotten_once_it_is_idle() -> None:
    tenant = Tenant("a", concurrency=1)
    limits = Limits(tenant)
    call = taken(limits.reserve(tenant, 1, 0.0))
    limits.follow()
    assert limits.held() == {"a": 1}
    limits.settle(call, 1, 1.0)
    limits.follow()
    assert limits.held() == {}


def test_limits_that_come_and_go_while_a_call_runs() -> None:
    free, bound = Tenant("a"), Tenant("a", tokens_per_minute=100)
    limits = Limits(free)
    uncounted = taken(limits.reserve(free, 80, 0.0))
    limits.follow(bound)
    limits.settle(uncounted, 10, 1.0)
    assert limits.minute("a", 1.0) == 0, "what was never counted cannot come back"
    counted = taken(limits.reserve(bound, 80, 1.0))
    limits.follow(free)
    limits.settle(counted, 10, 2.0)
    assert limits.minute("a", 2.0) == 10


def test_names_outside_of_the_policy_are_bounded() -> None:
    limits = Limits(Tenant("a"))
    for number in range(1000):
        taken(limits.reserve(Tenant(f"x{number}"), 1, 0.0))
    assert len(limits.held()) <= 1 + 64 + 1
    assert sum(limits.held().values()) == 1000
    assert limits.minute("nobody", 0.0) == 0


def test_time_that_stands_or_goes_back_frees_nothing() -> None:
    tenant = Tenant("a", requests_per_minute=1)
    limits = Limits(tenant)
    taken(limits.reserve(tenant, 0, 100.0))
    denied(limits.reserve(tenant, 0, 100.0))
    denied(limits.reserve(tenant, 0, 10.0))


def test_a_long_pause_empties_the_window() -> None:
    window = Window()
    window.advance(5)
    window.add(7, 5)
    window.advance(5 + 10_000)
    assert window.total == 0
    window.add(3, 5)
    assert window.total == 0, "its second has left the window"


# Steps of one random history: (pause in seconds, tokens reserved, what to settle: index and tokens used).
STEPS = st.lists(
    st.tuples(
        st.floats(0, 25, allow_nan=False),
        st.integers(0, 60),
        st.one_of(st.none(), st.tuples(st.integers(0, 50), st.integers(0, 60), st.booleans())),
    ),
    max_size=60,
)


@given(STEPS)
def test_no_minute_ever_holds_more_than_the_limits(steps: list[Any]) -> None:
    tenant = Tenant("a", concurrency=6, requests_per_minute=8, tokens_per_minute=150)
    limits = Limits(tenant)
    now_s = 0.0
    running: list[Reservation] = []
    admitted: list[tuple[float, Reservation]] = []
    charged: dict[int, int] = {}
    for pause_s, tokens, settle in steps:
        now_s += pause_s
        got = limits.reserve(tenant, tokens, now_s)
        if isinstance(got, Reservation):
            running.append(got)
            admitted.append((now_s, got))
            charged[id(got)] = tokens
        elif got.retry_after_s is not None and got.code != "concurrency_limit":
            assert 0 < got.retry_after_s <= 61
        if settle is not None and running:
            place, used, is_released = settle
            call = running.pop(place % len(running))
            if is_released:
                limits.release(call, now_s)
                admitted = [one for one in admitted if one[1] is not call]
            else:
                limits.settle(call, min(used, call.tokens), now_s)
                charged[id(call)] = min(used, call.tokens)
        recent = [one for at_s, one in admitted if now_s - at_s < 60]
        assert len(running) <= 6 and limits.held() == {"a": len(running)}
        assert len(recent) <= 8
        assert sum(charged[id(one)] for one in recent) <= limits.minute("a", now_s) <= 150
    for call in running:
        limits.settle(call, None, now_s)
    assert limits.held() == {"a": 0}
    assert limits.minute("a", now_s + 61) == 0, "refunds are conserved: nothing is left, nothing is owed"


@given(st.integers(1, 1000), st.floats(0, 500, allow_nan=False), st.integers(1, 1000))
def test_retry_after_is_kept(limit: int, now_s: float, tokens: int) -> None:
    tenant = Tenant("a", tokens_per_minute=limit)
    limits = Limits(tenant)
    taken(limits.reserve(tenant, limit, now_s))
    refusal = denied(limits.reserve(tenant, tokens, now_s))
    assert (refusal.retry_after_s is None) == (tokens > limit)
    if refusal.retry_after_s is not None:
        taken(limits.reserve(tenant, tokens, now_s + refusal.retry_after_s + 1e-6))


def test_a_call_that_goes_on_is_no_request_more() -> None:
    tenant = Tenant("a", requests_per_minute=1, tokens_per_minute=100)
    limits = Limits(tenant)
    taken(limits.reserve(tenant, 40, 0.0))
    on = Spend(20, 0.0, 0)
    first = taken(limits.quota.reserve(tenant, on, 1.0, MIDDLE_S))
    limits.release(first, 1.0)
    taken(limits.quota.reserve(tenant, on, 1.0, MIDDLE_S))
    assert denied(limits.reserve(tenant, 1, 2.0)).code == "requests_limit", "the release gave no request back"
    assert denied(limits.quota.reserve(tenant, Spend(41, 0.0, 0), 2.0, MIDDLE_S)).code == "insufficient_quota"
    taken(limits.quota.reserve(tenant, Spend(40, 0.0, 0), 2.0, MIDDLE_S))


def test_what_can_never_fit_is_not_told_as_wanted() -> None:
    tenant = Tenant("a", tokens_per_minute=100)
    account = Account(tenant, Ledger().purse("a"))
    account.confine((None, None, 40))
    never, later = account.denial(10**18, 0.0), account.denial(60, 0.0)
    assert never == Denied("insufficient_quota", None, "tokens_minute")
    assert later is not None and later.retry_after_s is not None
    assert account.asked(0.0) == (0, 0, 120), "only what fits once the share grows"
