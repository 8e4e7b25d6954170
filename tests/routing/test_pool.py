"""The choice of a replica, and the counts that it rests on."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routing.before_pool import Bench, call

from forebay.domain import FailureKind
from forebay.policy import BreakerPolicy
from forebay.routing.replica import Lease, ReplicaState


def test_equal_replicas_take_turns() -> None:
    bench = Bench()
    seen = []
    for _ in range(6):
        lease = bench.take()
        assert lease is not None
        seen.append(lease.state.replica.name)
        lease.report(None, answered=True)
    assert seen == ["a", "b", "c"] * 2


def test_the_least_prompt_work_times_the_calls_that_share_it_goes_first() -> None:
    bench = Bench()
    assert [bench.taken(tokens) for tokens in (100, 10, 50)] == ["a", "b", "c"]
    # 2 x 106, 2 x 16, 2 x 56.
    assert bench.taken(5) == "b"
    # 2 x 141, 3 x 56, 2 x 91.
    assert bench.taken(40) == "b"
    assert bench.taken(1) == "c"


def test_answers_that_are_being_written_count_as_well() -> None:
    bench = Bench("a", "b")
    for _ in range(5):
        bench.into("a", 100).first_token()
    bench.into("b", 300)
    # 6 x 101 against 2 x 401.
    assert bench.taken(100) == "a"
    # 7 x 201 against 2 x 401.
    assert bench.taken(100) == "b"


def test_an_excluded_replica_is_not_taken() -> None:
    bench = Bench()
    assert bench.taken(1, "a") == "b"
    assert bench.taken(1, "a", "b") == "c"
    assert bench.taken(1, "a", "b", "c") is None
    assert bench.taken(1, "unheard-of") == "a"


def test_a_drained_replica_gets_nothing_and_comes_back() -> None:
    bench = Bench(drained=frozenset(("a", "b")))
    assert [bench.taken() for _ in range(3)] == ["c"] * 3
    bench.follow()
    assert bench.taken() == "a"
    bench.follow(drained=frozenset("abc"))
    assert bench.taken() is None
    assert not bench.fleet.usable("main") > 0


def test_a_doubtful_replica_is_the_last_choice_but_a_choice() -> None:
    bench = Bench()
    bench.state("a").up = False
    bench.state("b").loading = True
    assert [bench.taken(1000) for _ in range(2)] == ["c", "c"]
    assert bench.taken(1, "c") == "a"
    assert bench.taken(1, "c") == "b"
    bench.state("a").up = True
    assert bench.taken() == "a"


def test_a_replica_that_was_never_polled_is_not_in_doubt() -> None:
    bench = Bench("a", "b")
    bench.state("b").up = True
    assert bench.state("a").up is None
    assert bench.taken() == "a"


def test_room_is_bounded_by_replica() -> None:
    bench = Bench("a", "b", max_in_flight=2)
    leases = [bench.take() for _ in range(4)]
    assert [lease is not None for lease in leases] == [True] * 4
    assert bench.take() is None
    assert leases[0] is not None
    leases[0].report(None, answered=True)
    assert bench.taken() == leases[0].state.replica.name
    assert bench.take() is None


def test_an_unknown_pool_has_nothing() -> None:
    bench = Bench()
    assert bench.fleet.take("other", call(1)) is None
    assert list(bench.fleet.states("other")) == []
    assert not bench.fleet.usable("other") > 0


def test_an_open_breaker_is_passed_over_then_probed_by_one() -> None:
    bench = Bench("a", "b", breaker=BreakerPolicy(failures=2, open_s=10))
    bench.fail("a", 2)
    assert [bench.taken() for _ in range(3)] == ["b"] * 3
    assert bench.fleet.usable("main") > 0
    bench.clock.advance(10.1)
    assert bench.taken() == "a", "the probe"
    assert bench.taken() == "b"
    assert bench.fleet.usable("main") > 0


def test_choosing_among_others_does_not_spend_the_probe() -> None:
    bench = Bench("a", "b", breaker=BreakerPolicy(failures=1, open_s=10))
    bench.fail("a")
    bench.clock.advance(10.1)
    assert bench.taken(1, "a") == "b"
    assert bench.taken() == "a"


def test_reports_reach_the_breaker() -> None:
    bench = Bench("a", breaker=BreakerPolicy(failures=2, open_s=10))
    bench.fail("a")
    lease = bench.take()
    assert lease is not None
    lease.report(None, answered=False)
    bench.fail("a")
    assert bench.take() is None, "a client that left is no success"
    bench.clock.advance(10.1)
    lease = bench.take()
    assert lease is not None
    lease.report(None, answered=True)
    bench.fail("a")
    assert bench.take() is not None, "a success forgets the failures before it"


def test_a_reload_keeps_what_is_known_of_replicas_that_stay() -> None:
    bench = Bench("a", "b", breaker=BreakerPolicy(failures=1, open_s=10))
    bench.fail("a")
    lease = bench.take(70)
    assert lease is not None
    bench.state("b").up = True
    bench.follow("b", "c", breaker=BreakerPolicy(failures=1, open_s=10))
    assert [state.replica.name for state in bench.fleet.states("main")] == ["b", "c"]
    state = bench.state("b")
    assert (state.in_flight, state.in_flight_tokens, state.up) == (1, 70, True)
    lease.report(None, answered=True)
    assert (state.in_flight, state.in_flight_tokens) == (0, 0)


def test_a_lease_on_a_replica_that_is_gone_ends_quietly() -> None:
    bench = Bench("a")
    lease = bench.take(5)
    assert lease is not None
    bench.follow("b")
    lease.report(FailureKind.RESET, answered=False)
    assert (lease.state.in_flight, lease.state.in_flight_tokens) == (0, 0)
    assert bench.taken() == "b"


def test_a_changed_breaker_policy_begins_anew() -> None:
    bench = Bench("a", breaker=BreakerPolicy(failures=1, open_s=1000))
    bench.fail("a")
    assert bench.take() is None
    bench.follow("a", breaker=BreakerPolicy(failures=2, open_s=1000))
    assert bench.take() is not None


def test_what_is_shown_names_the_load_and_no_credential() -> None:
    bench = Bench()
    bench.take(7)
    assert repr(bench.state("a")).startswith("a in_flight=1 tokens=7 ")


@settings(max_examples=50, deadline=None)
@given(st.data())
@pytest.mark.parametrize("max_in_flight", [None, 2])
def test_counts_come_back_to_zero_in_any_order(max_in_flight: int | None, data: st.DataObject) -> None:
    bench = Bench("a", "b", "c", max_in_flight=max_in_flight, breaker=BreakerPolicy(failures=3, open_s=1))
    seen: dict[int, ReplicaState] = {}
    leases: list[Lease] = []
    for _ in range(data.draw(st.integers(0, 30))):
        act = data.draw(st.sampled_from(["take", "take", "end", "reload", "wait"]))
        if act == "take":
            excluded = data.draw(st.frozensets(st.sampled_from("abc"), max_size=2))
            lease = bench.take(data.draw(st.integers(0, 1000)), *excluded)
            if lease is not None:
                assert lease.state.replica.name not in excluded
                leases.append(lease)
                seen[id(lease.state)] = lease.state
        elif act == "end" and leases:
            lease = leases.pop(data.draw(st.integers(0, len(leases) - 1)))
            failure = data.draw(st.none() | st.sampled_from(FailureKind))
            lease.report(failure, answered=data.draw(st.booleans()))
        elif act == "reload":
            names = data.draw(st.lists(st.sampled_from("abcd"), unique=True, min_size=1))
            bench.follow(*names, max_in_flight=max_in_flight, drained=data.draw(st.frozensets(st.sampled_from("abcd"))))
        else:
            bench.clock.advance(2)
        for state in seen.values():
            held = [lease for lease in leases if lease.state is state]
            assert state.in_flight == len(held)
            assert max_in_flight is None or state.in_flight <= max_in_flight
    for lease in leases:
        lease.report(None, answered=True)
    assert all((state.in_flight, state.in_flight_tokens) == (0, 0) for state in seen.values())
