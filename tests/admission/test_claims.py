"""How much of a tenant's traffic may be `high` while calls wait."""

import pytest
from admission.before_gate import call
from hypothesis import given
from hypothesis import strategies as st

from forebay.admission.claims import ALLOWANCE_TOKENS, MAX_TENANTS, TIME_S, Claims
from forebay.domain import Tenant, Value

SHARED = Tenant("a", high_share_ratio=0.3)


def test_a_few_tokens_may_all_be_high() -> None:
    claims = Claims()
    got = [claims.grant(call(SHARED, 1024, value="high"), 0.0) for _ in range(5)]
    assert got == ["high"] * 4 + ["medium"]
    assert claims.lowered == 1


def test_what_is_not_high_is_left_as_it_is_and_makes_room_for_high() -> None:
    claims = Claims()
    for value in ("medium", "low"):
        assert claims.grant(call(SHARED, 50_000, value=value), 0.0) == value
    # 0.3 of 100,000 and its own.
    assert claims.grant(call(SHARED, 40_000, value="high"), 0.0) == "high"
    assert claims.grant(call(SHARED, 40_000, value="high"), 0.0) == "medium"
    assert claims.lowered == 1


def test_claims_are_forgotten() -> None:
    claims = Claims()
    assert claims.grant(call(SHARED, 4096, value="high"), 0.0) == "high"
    assert claims.grant(call(SHARED, 4096, value="high"), 1.0) == "medium"
    assert claims.grant(call(SHARED, 1024, value="high"), TIME_S * 2) == "high"


def test_whoever_may_be_all_high_is() -> None:
    claims = Claims()
    trusted = Tenant("a", high_share_ratio=1.0)
    assert {claims.grant(call(trusted, 10**6, value="high"), 0.0) for _ in range(50)} == {"high"}
    assert claims.lowered == 0


def test_one_tenant_takes_nothing_from_another() -> None:
    claims = Claims()
    for _ in range(50):
        claims.grant(call(SHARED, 4096, value="high"), 0.0)
    assert claims.grant(call(Tenant("b"), 4096, value="high"), 0.0) == "high"


def test_the_number_of_accounts_is_bounded_and_the_least_recent_is_forgotten() -> None:
    claims = Claims()
    for number in range(MAX_TENANTS):
        claims.grant(call(Tenant(f"t{number}"), 4096, value="high"), 1.0)
    claims.grant(call(Tenant("t0"), 1, value="low"), 1.0)
    claims.grant(call(Tenant("one more"), 1, value="low"), 1.0)
    assert len(claims._accounts) == MAX_TENANTS
    assert claims.grant(call(Tenant("t0"), 4096, value="high"), 1.0) == "medium", "it is remembered"
    assert claims.grant(call(Tenant("t1"), 4096, value="high"), 1.0) == "high", "it begins anew"


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
@given(calls=st.lists(st.tuples(st.sampled_from(("high", "medium", "low")), st.integers(1, 5000)), max_size=60))
def test_no_more_than_the_share_beyond_the_allowance(share: float, calls: list[tuple[Value, int]]) -> None:
    claims = Claims()
    tenant = Tenant("a", high_share_ratio=share)
    high = total = 0
    for value, tokens in calls:
        total += tokens
        got = claims.grant(call(tenant, tokens, value=value), 5.0)
        assert got == value or (value, got) == ("high", "medium"), "nothing is raised"
        high += tokens if got == "high" else 0
        assert high <= max(ALLOWANCE_TOKENS, share * total) + 1e-6
