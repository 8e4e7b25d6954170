"""The retry budget: a tenth of the calls and a small reserve, in any ten seconds."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.clock import ManualClock
from forebay.domain import Tenant
from forebay.policy import Policy, Pool
from forebay.routing.budget import FLOOR, MAX_TENANTS, RetryBudget, RetryBudgets


def policy(*pools: str, tenants: tuple[str, ...] = ()) -> Policy:
    return Policy(
        {name: Pool(name, "vllm", ()) for name in pools}, {}, {name.encode(): Tenant(name) for name in tenants}
    )


def budgets(*pools: str) -> tuple[RetryBudgets, ManualClock]:
    clock = ManualClock(1000.0)
    made = RetryBudgets(clock.now_s)
    made.apply(policy(*(pools or ("main",))))
    return made, clock


def taken(made: RetryBudgets, tries: int, pool: str = "main", tenant: str = "a") -> int:
    return sum(made.try_take(pool, tenant) for _ in range(tries))


def test_a_quiet_service_may_retry_a_little_and_again_ten_seconds_later() -> None:
    made, clock = budgets()
    assert taken(made, 50) == FLOOR
    clock.advance(9.9)
    assert taken(made, 50) == 0
    clock.advance(1.1)
    assert taken(made, 50) == FLOOR


def test_a_tenth_of_the_calls_on_top() -> None:
    made, clock = budgets()
    for _ in range(1009):
        made.note_call("main", "a")
    assert taken(made, 500) == FLOOR + 100
    clock.advance(20.0)
    assert taken(made, 500) == FLOOR, "calls of the past pay for nothing"


def test_calls_count_for_ten_seconds_at_most() -> None:
    made, clock = budgets()
    for _ in range(1000):
        made.note_call("main", "a")
    clock.advance(9.0)
    assert taken(made, 60) == 60
    clock.advance(1.5)
    assert taken(made, 60) == 0, "the calls are over, the retries that they paid for are not"
    clock.advance(9.5)
    assert taken(made, 60) == FLOOR


def test_a_retry_needs_room_in_both_budgets_and_takes_from_both_or_none() -> None:
    made, _ = budgets("main", "side")
    assert taken(made, 20, "main", "a") == FLOOR
    assert taken(made, 5, "side", "a") == 0, "the tenant has used its own up"
    assert taken(made, 5, "main", "b") == 0, "the pool has used its own up"
    assert taken(made, 20, "side", "b") == FLOOR, "what was denied was taken from nobody"
    assert dict(made.exhausted()) == {
        ("main", "pool"): 15,
        ("main", "tenant"): 0,
        ("side", "pool"): 10,
        ("side", "tenant"): 5,
        ("other", "pool"): 0,
        ("other", "tenant"): 0,
    }


def test_calls_of_one_tenant_do_not_pay_for_another() -> None:
    made, _ = budgets()
    for _ in range(1000):
        made.note_call("main", "busy")
    assert taken(made, 50, tenant="quiet") == FLOOR
    assert taken(made, 500, tenant="busy") == 100, "the pool has 110, of which the quiet one took 10"


def test_a_reload_keeps_counts_and_forgets_what_went() -> None:
    made, _ = budgets("main", "gone")
    assert taken(made, 20, "main", "a") == FLOOR
    made.apply(policy("main", tenants=("a",)))
    assert taken(made, 5, "main", "a") == 0
    made.apply(policy("main", "gone"))
    assert taken(made, 20, "gone", "a") == FLOOR, "a tenant outside of the policy was forgotten"
    assert dict(made.exhausted())["main", "pool"] == 15


def test_tenants_beyond_the_bound_and_unknown_pools_share() -> None:
    made, _ = budgets()
    for number in range(MAX_TENANTS):
        made.note_call("main", f"t{number}")
    assert len(made._tenants) == MAX_TENANTS
    assert taken(made, 20, tenant="x") + taken(made, 20, tenant="y") == FLOOR
    assert len(made._tenants) == MAX_TENANTS
    assert taken(made, 7, "nowhere", "t1") + taken(made, 7, "elsewhere", "t2") == FLOOR
    assert dict(made.exhausted())["other", "pool"] == 4


@pytest.mark.parametrize("back_s", [0.0, 3.0, 500.0])
def test_time_that_stands_or_goes_back_frees_nothing(back_s: float) -> None:
    budget = RetryBudget()
    for _ in range(FLOOR):
        assert budget.allows(600.0)
        budget.take()
    assert not budget.allows(600.0 - back_s)


HISTORY = st.lists(
    st.tuples(
        st.one_of(st.floats(0, 3, allow_nan=False), st.sampled_from((0.0, 9.5, 10.0, 30.0))),
        st.integers(0, 40),
        st.integers(0, 20),
    ),
    max_size=60,
)


@given(HISTORY, st.floats(0, 100, allow_nan=False))
def test_no_ten_seconds_before_a_retry_hold_more_than_they_may(
    history: list[tuple[float, int, int]], start_s: float
) -> None:
    budget = RetryBudget()
    now_s = start_s
    calls: list[float] = []
    retries: list[float] = []
    for pause_s, came, wanted in history:
        now_s += pause_s
        for _ in range(came):
            budget.note_call(now_s)
            calls.append(now_s)
        for _ in range(wanted):
            in_window = sum(now_s - at_s < 10.0 for at_s in calls)
            before = sum(now_s - at_s < 10.0 for at_s in retries)
            if budget.allows(now_s):
                budget.take()
                retries.append(now_s)
                assert before + 1 <= FLOOR + in_window / 10
            else:
                # It forgets calls a second early and retries a second late, no more than that.
                surely = sum(now_s - at_s < 9.0 for at_s in calls)
                perhaps = sum(now_s - at_s < 11.0 for at_s in retries)
                assert perhaps + 1 > FLOOR + surely // 10
