"""At most half of a pool is out, and who comes back does so slowly: on the fleet, as calls meet it."""

from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routing.before_pool import Bench

from forebay.domain import FailureKind
from forebay.policy import BreakerPolicy
from forebay.routing.ejection import RAMP_S
from forebay.routing.replica import Lease
from forebay.routing.rotation import DOUBT_WEIGHT

EIGHT = tuple("abcdefgh")
BREAKER = BreakerPolicy(failures=2, open_s=1000)


def failed(bench: Bench, names: str, kind: FailureKind = FailureKind.RESET) -> None:
    """Open the breakers of some replicas."""
    for name in names:
        for _ in range(2):
            bench.into(name).report(kind, answered=False)


def fill(bench: Bench, calls: int) -> Counter[str]:
    """Send calls that do not end."""
    leases = [bench.take() for _ in range(calls)]
    return Counter(lease.replica.name for lease in leases if lease is not None)


def panics(bench: Bench) -> bool:
    return bench.fleet.rotations["main"].panic


def come_back(bench: Bench, name: str) -> None:
    """Let the probe of an open breaker go well."""
    bench.clock.advance(BREAKER.open_s + 0.1)
    bench.into(name).report(None, answered=True)
    assert bench.state(name).breaker.state == "closed"


@pytest.mark.parametrize("limit", [10, None], ids=["with a limit", "with no limit"])
def test_six_of_eight_failing_leave_more_than_two_to_serve(limit: int | None) -> None:
    bench = Bench(*EIGHT, breaker=BREAKER, max_in_flight=limit)
    failed(bench, "abcdef")
    assert panics(bench)
    assert bench.fleet.usable("main") == bench.fleet.rotations["main"].takers == 8
    assert set(fill(bench, 10)) == {"g", "h"}, "few calls need no doubtful replica"
    seen = fill(bench, 70)
    assert len(seen) >= 4, "half of the pool gets no call"
    assert limit is None or set(seen) == set(EIGHT)
    assert max(seen.values()) <= (10 if limit else 70 * 4 / 14 + 5)


def test_the_well_ones_bear_a_bounded_multiple_of_the_load_of_the_doubtful() -> None:
    bench = Bench(*EIGHT, breaker=BREAKER)
    failed(bench, "abcdef")
    seen = Counter[str]()
    for _ in range(280):
        lease = bench.take(1000)
        assert lease is not None
        lease.first_token()
        seen[lease.replica.name] += 1
    # The score of calls whose prompts are computed grows with their number alone: sixteen to one.
    assert seen["g"] + seen["h"] == pytest.approx(280 * 32 / 38, abs=8)


def test_half_of_eight_failing_are_out() -> None:
    bench = Bench(*EIGHT, breaker=BREAKER, max_in_flight=10)
    failed(bench, "abcd")
    assert not panics(bench)
    assert set(fill(bench, 80)) == set("efgh")
    assert bench.fleet.usable("main") == 4


@pytest.mark.parametrize("kind", [FailureKind.CONNECT, FailureKind.LOADING, FailureKind.CREDENTIAL])
def test_who_cannot_be_reached_or_refuses_us_is_out_in_any_case(kind: FailureKind) -> None:
    bench = Bench(*EIGHT, breaker=BREAKER, max_in_flight=10)
    for name in "abcdef":
        for _ in range(2 if kind is FailureKind.CONNECT else 1):
            bench.into(name).report(kind, answered=False)
    assert not panics(bench)
    assert set(fill(bench, 80)) == {"g", "h"}


def test_a_failing_one_that_is_then_found_gone_leaves() -> None:
    bench = Bench("a", "b", "c", breaker=BREAKER, max_in_flight=10)
    failed(bench, "ab")
    assert panics(bench)
    for name in "ab":
        bench.into(name).report(FailureKind.CONNECT, answered=False)
    bench.fleet.tick()
    assert not panics(bench)
    assert set(fill(bench, 30)) == {"c"}


def test_calls_and_health_poll_together_are_sure() -> None:
    bench = Bench(*EIGHT, breaker=BREAKER, max_in_flight=10)
    failed(bench, "abcdef")
    for name in "abcdef":
        bench.state(name).up = False
    bench.fleet.tick()
    assert not panics(bench)
    assert set(fill(bench, 80)) == {"g", "h"}


def test_a_failed_health_poll_alone_puts_nobody_out() -> None:
    bench = Bench("a", "b", breaker=BREAKER, max_in_flight=2)
    for name in "ab":
        bench.state(name).up = False
    bench.fleet.tick()
    assert sum(fill(bench, 4).values()) == 4


def test_a_drained_replica_is_never_kept() -> None:
    bench = Bench("a", "b", "c", breaker=BREAKER)
    failed(bench, "abc")
    bench.follow("a", "b", "c", breaker=BREAKER, drained=frozenset("a"))
    bench.fleet.tick()
    assert panics(bench)
    assert "a" not in fill(bench, 30)


def test_a_pool_of_one_never_panics() -> None:
    bench = Bench("a", breaker=BREAKER)
    failed(bench, "a")
    assert not panics(bench)
    assert bench.take() is None
    assert bench.fleet.usable("main") == 0


def test_a_call_that_panic_lets_through_is_no_probe() -> None:
    bench = Bench("a", "b", "c", breaker=BREAKER)
    failed(bench, "abc")
    until_s = bench.state("a").breaker.until_s
    for answered in (True, False):
        bench.into("a").report(None if answered else FailureKind.RESET, answered=answered)
        assert (bench.state("a").breaker.state, bench.state("a").breaker.until_s) == ("open", until_s)


def test_the_probe_of_a_doubtful_replica_is_not_put_off() -> None:
    bench = Bench("a", "b", "c", breaker=BREAKER)
    failed(bench, "ab")
    assert bench.state("a").weight == DOUBT_WEIGHT
    bench.clock.advance(BREAKER.open_s + 0.1)
    bench.fleet.tick()
    seen = [bench.taken() for _ in range(3)]
    assert sorted(str(name) for name in seen) == ["a", "b", "c"]
    assert bench.state("a").breaker.state == "half_open"


def test_panic_ends_when_the_judgement_is_well_again() -> None:
    bench = Bench("a", "b", "c", breaker=BREAKER)
    failed(bench, "ab")
    assert panics(bench)
    come_back(bench, "a")
    assert not panics(bench)
    assert bench.state("c").kept is bench.state("a").kept is False
    assert "b" not in fill(bench, 1)


def test_whoever_follows_hears_of_each_turn() -> None:
    bench = Bench("a", "b", breaker=BREAKER)
    turns: list[str] = []
    bench.fleet.on_turn = lambda state: turns.append(f"{state.replica.name} {state.breaker.state}")
    failed(bench, "a")
    come_back(bench, "a")
    assert turns == ["a open", "a closed"]


def share_of_a(bench: Bench, calls: int = 400) -> float:
    """The part of the load that `a` gets of calls whose prompts are computed."""
    leases: list[Lease] = []
    for _ in range(calls):
        lease = bench.take()
        assert lease is not None
        lease.first_token()
        leases.append(lease)
    share = Counter(lease.replica.name for lease in leases)["a"] / calls
    for lease in leases:
        lease.report(None, answered=True)
    return share


def test_the_share_of_who_comes_back_grows_and_is_whole_in_ten_seconds() -> None:
    bench = Bench("a", "b", breaker=BREAKER)
    failed(bench, "a")
    come_back(bench, "a")
    shares = []
    for _ in range(11):
        bench.fleet.tick()
        shares.append(share_of_a(bench))
        bench.clock.advance(RAMP_S / 10)
    # Without waiting prompts the score grows with the load, not its square: less than a tenth at first.
    assert shares[0] == pytest.approx(0.01, abs=0.01)
    assert shares == sorted(shares)
    assert shares[5] == pytest.approx(0.2, abs=0.02)
    assert shares[-1] == 0.5
    assert (bench.state("a").ramp, bench.state("a").back_s) == (1.0, None)


def test_the_hold_gives_a_returning_replica_part_of_its_slots() -> None:
    bench = Bench("a", "b", breaker=BREAKER, max_in_flight=100)
    failed(bench, "a")
    come_back(bench, "a")
    for seconds, most in ((0, 10), (4, 50), (5, 100)):
        bench.clock.advance(seconds)
        bench.fleet.tick()
        leases = [lease for _ in range(200) if (lease := bench.held()) is not None]
        assert sum(lease.replica.name == "a" for lease in leases) == pytest.approx(most, abs=10)
        assert sum(lease.replica.name == "b" for lease in leases) == 100
        for lease in leases:
            lease.report(None, answered=True)


def test_a_call_that_found_no_other_is_not_turned_away_by_the_ramp() -> None:
    bench = Bench("a", "b", breaker=BREAKER, max_in_flight=20)
    failed(bench, "a")
    come_back(bench, "a")
    assert sum(bench.taken(1, "b") == "a" for _ in range(20)) == 20


def test_a_replica_that_answers_its_poll_again_comes_back_slowly() -> None:
    bench = Bench("a", "b")
    for up in (None, False, True):
        assert bench.state("a").ramp == 1.0
        bench.state("a").up = up
        bench.fleet.tick()
    assert bench.state("a").ramp == 0.1
    bench.clock.advance(5)
    bench.fleet.tick()
    assert bench.state("a").ramp == 0.5


def test_a_first_answer_is_no_return() -> None:
    bench = Bench("a", "b")
    bench.state("a").up = True
    bench.fleet.tick()
    assert bench.state("a").ramp == 1.0


@pytest.mark.parametrize("names", ["a", "ab"])
def test_who_is_alone_or_comes_back_with_all_others_has_nobody_to_leave_the_load_to(names: str) -> None:
    bench = Bench(*names, breaker=BREAKER)
    for up in (False, True):
        for name in names:
            bench.state(name).up = up
        bench.fleet.tick()
    assert {bench.state(name).ramp for name in names} == {1.0}


def test_two_that_come_back_one_after_the_other() -> None:
    bench = Bench("a", "b")
    for name in "ab":
        bench.state(name).up = False
    bench.fleet.tick()
    bench.state("a").up = True
    bench.fleet.tick()
    bench.clock.advance(5)
    bench.state("b").up = True
    bench.fleet.tick()
    # Half a load and a tenth of one.
    assert (bench.state("a").ramp, bench.state("b").ramp) == (1.0, 0.2)


@settings(max_examples=60)
@given(st.lists(st.sampled_from([None, FailureKind.RESET, FailureKind.CONNECT]), min_size=2, max_size=8))
def test_in_any_pool_at_least_half_of_those_that_can_be_reached_may_get_calls(ends: list[FailureKind | None]) -> None:
    names = EIGHT[: len(ends)]
    bench = Bench(*names, breaker=BREAKER, max_in_flight=3)
    for name, end in zip(names, ends, strict=True):
        if end is not None:
            failed(bench, name, end)
    there = [name for name, end in zip(names, ends, strict=True) if end is not FailureKind.CONNECT]
    seen = fill(bench, 30)
    assert set(seen) <= set(there)
    assert len(there) < 2 or len(seen) >= len(there) / 2
