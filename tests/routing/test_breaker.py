"""The breaker's states, and what holds over any history."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from forebay.domain import FailureKind
from forebay.policy import BreakerPolicy
from forebay.routing.breaker import MAX_OPEN_S, Breaker

COUNTED = tuple(kind for kind in FailureKind if kind not in (FailureKind.LOADING, FailureKind.CREDENTIAL))


def opened(failures: int = 3, open_s: float = 10.0, now_s: float = 0.0) -> Breaker:
    breaker = Breaker(BreakerPolicy(failures, open_s))
    for _ in range(failures):
        breaker.failed(FailureKind.STALL, now_s)
    return breaker


def probe(breaker: Breaker, now_s: float) -> None:
    assert breaker.allows(now_s)
    breaker.begin(now_s)


@pytest.mark.parametrize("kind", COUNTED)
def test_it_opens_after_consecutive_failures(kind: FailureKind) -> None:
    breaker = Breaker(BreakerPolicy(3, 10.0))
    for _ in range(2):
        breaker.failed(kind, 1.0)
        assert breaker.allows(1.0)
    breaker.failed(kind, 1.0)
    assert (breaker.state, breaker.reason) == ("open", kind)
    assert not breaker.allows(10.9) and breaker.allows(11.0)


def test_a_success_in_between_begins_the_count_again() -> None:
    breaker = Breaker(BreakerPolicy(2, 10.0))
    for _ in range(10):
        breaker.failed(FailureKind.RESET, 0.0)
        breaker.succeeded(0.0)
    assert breaker.state == "closed" and str(breaker) == "closed"


def test_case_060_clients_that_leave_are_no_evidence() -> None:
    breaker = Breaker(BreakerPolicy(2, 10.0))
    breaker.failed(FailureKind.RESET, 0.0)
    for _ in range(20):
        breaker.begin(0.0)
        breaker.cancelled()
    assert breaker.state == "closed" and breaker.failures == 1
    breaker.failed(FailureKind.RESET, 0.0)
    assert breaker.state == "open", "leaving clients do not whitewash either"


def test_one_probe_at_a_time_and_success_closes() -> None:
    breaker = opened()
    probe(breaker, 10.0)
    assert breaker.state == "half_open" and not breaker.allows(10.0) and not breaker.allows(39.9)
    breaker.succeeded(11.0)
    assert breaker.state == "closed" and breaker.allows(11.0) and breaker.reason is None
    breaker.failed(FailureKind.STALL, 12.0)
    assert breaker.allows(12.0), "it takes three failures again"


def test_an_endless_probe_does_not_lock_the_replica_out() -> None:
    breaker = opened()
    probe(breaker, 10.0)
    assert breaker.allows(10.0 + MAX_OPEN_S)


def test_a_probe_whose_client_left_lets_the_next_one_in() -> None:
    breaker = opened()
    probe(breaker, 10.0)
    breaker.cancelled()
    probe(breaker, 10.0)
    assert not breaker.allows(10.0)


def test_open_times_double_up_to_half_a_minute() -> None:
    breaker, now_s, pauses = opened(), 0.0, []
    for _ in range(4):
        pauses.append(breaker.until_s - now_s)
        now_s = breaker.until_s
        probe(breaker, now_s)
        breaker.failed(FailureKind.CONNECT, now_s)
    assert pauses == [10.0, 20.0, 30.0, 30.0]
    now_s = breaker.until_s
    probe(breaker, now_s)
    breaker.succeeded(now_s)
    for _ in range(3):
        breaker.failed(FailureKind.CONNECT, now_s)
    assert breaker.until_s - now_s == 10.0, "a success forgives"


def test_a_longer_open_time_of_the_policy_stands() -> None:
    breaker = opened(open_s=60.0)
    assert breaker.until_s == 60.0
    probe(breaker, 60.0)
    breaker.failed(FailureKind.STALL, 61.0)
    assert breaker.until_s == 121.0


def test_stragglers_neither_lengthen_nor_close_it() -> None:
    breaker = opened()
    for _ in range(20):
        breaker.failed(FailureKind.FIRST_BYTE, 5.0)
    breaker.succeeded(6.0)
    breaker.cancelled()
    assert (breaker.state, breaker.until_s, breaker.reason) == ("open", 10.0, FailureKind.STALL)


def test_loading_opens_for_a_second_and_is_not_counted() -> None:
    breaker = Breaker(BreakerPolicy(2, 10.0))
    for now_s in range(20):
        probe(breaker, float(now_s))
        breaker.failed(FailureKind.LOADING, float(now_s))
        assert not breaker.allows(now_s + 0.9) and breaker.allows(now_s + 1.0)
        assert str(breaker) == "open (loading)" and breaker.failures == 0
    probe(breaker, 20.0)
    breaker.succeeded(20.0)
    assert breaker.state == "closed"


def test_loading_during_a_probe_does_not_double() -> None:
    breaker = opened()
    probe(breaker, 10.0)
    breaker.failed(FailureKind.LOADING, 10.0)
    probe(breaker, 11.0)
    breaker.failed(FailureKind.STALL, 11.0)
    assert breaker.until_s == 31.0


def test_a_refused_credential_opens_at_once() -> None:
    breaker = Breaker(BreakerPolicy(100, 1.0))
    breaker.failed(FailureKind.CREDENTIAL, 5.0)
    assert str(breaker) == "open (credential)"
    assert not breaker.allows(34.9) and breaker.allows(35.0)
    breaker.failed(FailureKind.CREDENTIAL, 20.0)
    assert breaker.until_s == 50.0, "it is still refused"


def test_it_prints_well() -> None:
    breaker = Breaker(BreakerPolicy(5, 10.0))
    breaker.failed(FailureKind.STALL, 0.0)
    assert str(breaker) == "closed (1 of 5: stall)"
    breaker = opened()
    assert str(breaker) == "open (stall)"
    assert repr(breaker) == "Breaker(open, reason=stall, failures=3, until_s=10.000, open_s=10)"
    breaker.begin(10.0)
    assert str(breaker) == "half_open (stall)"


@given(st.integers(1, 10), st.lists(st.booleans(), max_size=50))
def test_it_is_open_exactly_after_n_failures_in_a_row(failures: int, results: list[bool]) -> None:
    breaker = Breaker(BreakerPolicy(failures, 10.0))
    in_a_row = 0
    for is_success in results:
        if breaker.state == "open":
            break
        if is_success:
            breaker.succeeded(0.0)
        else:
            breaker.failed(FailureKind.RESET, 0.0)
        in_a_row = 0 if is_success else in_a_row + 1
        assert (breaker.state == "open") == (in_a_row >= failures)


class History(RuleBasedStateMachine):
    """Calls that start only when they may and end in any way, on a clock that goes on."""

    def __init__(self) -> None:
        super().__init__()
        self.breaker = Breaker(BreakerPolicy(3, 4.0))
        self.now_s = 0.0
        self.running = 0
        self.probes_since_s: list[float] = []

    @rule(seconds=st.sampled_from([0.0, 0.5, 1.0, 4.0, 8.0, 31.0]))
    def time_goes_on(self, seconds: float) -> None:
        self.now_s += seconds

    @rule()
    def a_call_comes(self) -> None:
        if self.breaker.allows(self.now_s):
            was_closed = self.breaker.state == "closed"
            self.breaker.begin(self.now_s)
            self.running += 1
            assert (self.breaker.state == "closed") == was_closed
            if not was_closed:
                assert not self.breaker.allows(self.now_s), "a second probe beside the first"

    @precondition(lambda self: self.running > 0)
    @rule(kind=st.sampled_from([None, *FailureKind]))
    def a_call_ends(self, kind: FailureKind | None) -> None:
        self.running -= 1
        before = self.breaker.state
        if kind is None:
            self.breaker.succeeded(self.now_s)
            assert self.breaker.state == ("open" if before == "open" else "closed")
        else:
            self.breaker.failed(kind, self.now_s)
            assert before == "closed" or self.breaker.state == "open"

    @precondition(lambda self: self.running > 0)
    @rule()
    def a_client_leaves(self) -> None:
        self.running -= 1
        before = self.breaker.state
        self.breaker.cancelled()
        assert self.breaker.state == ("closed" if before == "closed" else "open")

    @invariant()
    def it_never_locks_a_replica_out_for_long(self) -> None:
        assert self.breaker.allows(self.now_s + MAX_OPEN_S)

    @invariant()
    def it_says_why(self) -> None:
        assert self.breaker.state == "closed" or self.breaker.reason is not None
        assert str(self.breaker) and repr(self.breaker)


TestHistory = History.TestCase
