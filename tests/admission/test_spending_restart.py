"""What a month holds goes on over a restart: from the journal, and from snapshots."""

from datetime import UTC, datetime

import pytest
from admission.before_limits import MIDDLE_S, Limits, denied, taken
from hypothesis import given
from hypothesis import strategies as st

from forebay.admission.spending import Purse, Seed, Seeder, pack, price_of, unpack
from forebay.domain import Tenant
from forebay.policy import Price

JANUARY = 2027 * 12
# Ten minutes before February of 2027.
LATE_S = datetime(2027, 1, 31, 23, 50, tzinfo=UTC).timestamp()
PRICE = Price(input=2.0, output=6.0, cached_input=0.5)


def seed(*calls: tuple[str, int, int]) -> Seed:
    seeder = Seeder(MIDDLE_S, {"m": PRICE})
    for tenant, prompt, output in calls:
        seeder.add(tenant, "m", prompt, None, output)
    return seeder.seed()


def test_what_is_counted_before_the_seed_comes_is_neither_lost_nor_doubled() -> None:
    tenant = Tenant("a", tokens=100)
    limits = Limits(tenant)
    running = taken(limits.reserve(tenant, 20, 0.0))
    limits.settle(taken(limits.reserve(tenant, 10, 0.0)), 10, 0.0)
    limits.quota.restore(seed(("a", 40, 10), ("b", 5, 0)))
    limits.quota.restore(seed(("a", 40, 10)))
    assert limits.month(1.0) == (60, 0.00014) and limits.month(1.0, "b") == (5, 0.00001)
    denied(limits.reserve(tenant, 21, 1.0))
    limits.settle(running, 20, 2.0)
    assert limits.month(2.0)[0] == 80


def test_a_seed_of_a_month_that_is_over_stays_in_it() -> None:
    tenant = Tenant("a", tokens=100)
    limits = Limits(tenant, wall_s=LATE_S)
    limits.settle(taken(limits.reserve(tenant, 10, 0.0)), 10, 700.0)
    limits.quota.restore(Seed(JANUARY, {"a": (90, 0)}))
    assert limits.month(700.0) == (10, 0.0)


def test_a_seed_adds_to_the_months_that_a_purse_remembers() -> None:
    purse = Purse(JANUARY)
    purse.settle((0, 0), (5, 7))
    purse.turn(JANUARY + 1)
    purse.add(JANUARY, 90, 900)
    purse.turn(JANUARY)
    assert (purse.tokens, purse.nano) == (95, 907)


def test_a_seed_may_come_before_the_first_call_and_the_tenant() -> None:
    tenant = Tenant("a", tokens=100)
    limits = Limits()
    limits.quota.restore(seed(("a", 90, 10)))
    limits.follow(tenant)
    denied(limits.reserve(tenant, 1, 0.0))


def test_a_seeder_knows_its_month_and_its_bound() -> None:
    seeder = Seeder(LATE_S, {}, most_tenants=2)
    assert seeder.covers(LATE_S + 599.9) and not seeder.covers(LATE_S + 600.0)
    assert not seeder.covers(datetime(2026, 12, 31, 23, 59, tzinfo=UTC).timestamp())
    for tenant in ("a", "b", "c", "a"):
        seeder.add(tenant, "gone", 1, 1, 1)
    assert seeder.seed().spent == {"a": (4, 0), "b": (2, 0)} and seeder.left_out == 1


def test_a_snapshot_and_the_lines_after_it_make_the_month() -> None:
    tenant = Tenant("a")
    limits = Limits(tenant)
    assert limits.quota.snapshot(0.0, MIDDLE_S) is None, "what was spent before is not known yet"
    limits.quota.restore(seed(("a", 40, 10)))
    running = taken(limits.reserve(tenant, 500, 0.0))
    snapshot = limits.quota.snapshot(5.0, MIDDLE_S + 5.0)
    assert snapshot is not None and unpack(pack(snapshot)) == snapshot
    assert snapshot == Seed(JANUARY, {"a": (50, 140_000)}, MIDDLE_S + 5.0), "what runs is not spent"
    limits.settle(running, 7, 6.0)
    seeder = Seeder(MIDDLE_S + 60.0, {"m": PRICE}, snapshot)
    assert not seeder.covers(MIDDLE_S + 4.9) and seeder.covers(MIDDLE_S + 6.0)
    seeder.add("a", "m", 3, None, 4)
    assert seeder.seed() == Seed(JANUARY, {"a": (57, 170_000)}, MIDDLE_S + 5.0)
    old = Seeder(LATE_S + 700.0, {}, snapshot)
    assert old.seed().spent == {} and old.since_s == LATE_S + 600.0


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b"[1, {}]",
        b'[1, {"a": 5}, 0]',
        b'[1, {"a": [1.5, 0]}, 0]',
        b'[1, {"a": [-1, 0]}, 0]',
    ],
)
def test_what_is_no_snapshot_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="is no record of what was spent"):
        unpack(data)


CALLS = st.lists(
    st.tuples(
        st.sampled_from("ab"),
        st.sampled_from(("m", "free")),
        st.integers(0, 10_000),
        st.one_of(st.none(), st.integers(0, 10_000)),
        st.integers(0, 10_000),
    ),
    max_size=20,
)


@given(CALLS)
def test_a_restart_counts_what_was_counted_before_it(calls: list[tuple[str, str, int, int | None, int]]) -> None:
    tenants = {name: Tenant(name) for name in "ab"}
    before, after = Limits(*tenants.values()), Limits(*tenants.values())
    seeder = Seeder(MIDDLE_S, {"m": PRICE})
    for name, model, prompt, cached, output in calls:
        money = price_of(PRICE, prompt, cached, output) if model == "m" else 0.0
        call = taken(before.reserve(tenants[name], 5, 0.0))
        before.settle(call, prompt + output, 0.0, money)
        seeder.add(name, model, prompt, cached, output)
    after.quota.restore(seeder.seed())
    assert [after.month(0.0, name) for name in "ab"] == [before.month(0.0, name) for name in "ab"]
