"""What tries teach about deadlines, and which tries have a learned one."""

from typing import Any

import pytest
from routing.before_pool import Bench
from upstream.engine_side import call_of, sending_of

from forebay.domain import FailureKind, Outcome
from forebay.policy import Timeouts
from forebay.routing.replica import Lease
from forebay.timing import Timing
from forebay.traffic import Call, Verdict, changed
from forebay.upstream.deadlines import Sending
from forebay.upstream.learned import Learned
from forebay.upstream.trial import Trial
from forebay.wire.endpoints import BY_PATH

OK = Verdict(True, Outcome.OK)
LATE = Verdict(False, Outcome.TIMEOUT, FailureKind.FIRST_BYTE)
LEFT = Verdict(False, Outcome.CLIENT_CLOSED)


class World:
    """A pool of some replicas, calls of one length, and a clock that stands still."""

    def __init__(self, *names: str, stream: bool = True, **timeouts: Any) -> None:
        self.bench = Bench(*(names or "ab"))
        self.timing = Timing(self.bench.fleet, self.bench.clock)
        self.bench.fleet.tick()
        self.sending = sending_of(timeouts=Timeouts(**{"first_byte_s": 60.0, "total_s": 600.0, **timeouts}))
        self.stream = stream

    def call(self) -> Call:
        return call_of(stream=self.stream)

    def lease(self) -> Lease:
        lease = self.bench.take()
        assert lease is not None
        return lease

    def end(
        self,
        taken_s: float,
        verdict: Verdict = OK,
        failure: FailureKind | None = None,
        call: Call | None = None,
        sending: Sending | None = None,
    ) -> None:
        """A try that ends after so long; one of a stream that goes well has its first token then."""
        lease = self.lease()
        call = call or self.call()
        lease.started_s -= taken_s
        if call.stream and verdict.committed:
            lease.first_token()
            self.bench.clock.advance(1.0)
        lease.report(failure, answered=failure is None)
        self.timing.ended(Trial(call, sending or self.sending, lease, verdict, failure))

    def learn(self, taken_s: float = 1.0, hours: int = 70) -> None:
        """Enough of such calls, for so long that the deadline comes down."""
        for _ in range(hours * 60):
            for _ in range(10):
                self.end(taken_s)
            self.bench.clock.advance(50.0)
            self.timing.tick()

    def rows(self) -> list[Learned]:
        return self.timing.learned.report()

    def limit_s(self, **changed: Any) -> float:
        lease = self.lease()
        terms = self.timing.terms(self.call(), self.sending, lease)
        lease.report(None, answered=False)
        return terms.learned_s


@pytest.mark.parametrize("stream", [True, False])
def test_a_first_try_moves_on_after_what_calls_of_its_kind_take(stream: bool) -> None:
    world = World(stream=stream)
    assert world.limit_s() == 0.0
    world.learn()
    assert world.limit_s() == 5.0, "the floor"
    (row,) = world.rows()
    assert row.kind == ("first_byte" if stream else "total")
    assert row.p95_s == pytest.approx(1.0, rel=0.1)


def test_it_is_never_above_the_configured_one() -> None:
    world = World(first_byte_s=4.0)
    world.learn()
    assert world.limit_s() == 0.0


@pytest.mark.parametrize("timeouts", [{"first_byte_for_whole": True}, {"total_s": 60.0}])
def test_the_ceiling_of_whole_answers(timeouts: dict[str, Any]) -> None:
    world = World(stream=False, **timeouts)
    world.learn(45.0)
    assert world.limit_s() == 0.0, "1.5 x P95 is above 60 s"


def test_who_has_nowhere_to_go_keeps_the_configured_one() -> None:
    alone = World("a")
    alone.learn()
    assert alone.limit_s() == 0.0
    world = World()
    world.learn()
    assert world.limit_s() == 5.0
    world.bench.follow("a", "b", drained=frozenset("b"))
    world.bench.fleet.tick()
    assert world.limit_s() == 0.0


def test_who_has_one_try_only_keeps_the_configured_one() -> None:
    world = World()
    world.learn()
    world.sending = changed(world.sending, max_attempts=1)
    assert world.limit_s() == 0.0


def test_it_can_be_switched_off() -> None:
    world = World(learned=False)
    world.learn(hours=2)
    assert world.rows() == []
    assert world.limit_s() == 0.0


def test_counting_tokens_is_no_sample() -> None:
    world = World(stream=False)
    world.end(0.01, call=changed(world.call(), endpoint=BY_PATH["/tokenize"]))
    assert world.rows() == []


@pytest.mark.parametrize(
    ("verdict", "failure", "ratio"),
    [
        (LATE, FailureKind.FIRST_BYTE, 1 / 200),
        (LEFT, None, 0.0),
        (Verdict(False, Outcome.ENGINE_ERROR, FailureKind.STATUS), FailureKind.STATUS, 0.0),
        (Verdict(False, Outcome.TIMEOUT, FailureKind.TOTAL), FailureKind.TOTAL, 1 / 200),
    ],
)
def test_tries_that_were_given_up_are_remembered_as_longer(
    verdict: Verdict, failure: FailureKind | None, ratio: float
) -> None:
    world = World()
    world.end(60.0, verdict, failure)
    (row,) = world.rows()
    assert (row.calls, row.timeout_ratio) == (1.0, ratio)


def test_a_deadline_of_the_calls_own_is_no_time_out() -> None:
    world = World(stream=False)
    verdict = Verdict(False, Outcome.TIMEOUT, FailureKind.TOTAL)
    world.end(3.0, verdict, FailureKind.TOTAL, call=call_of(stream=False, deadline_s=103.0))
    (row,) = world.rows()
    assert (row.calls, row.timeout_ratio) == (1.0, 0.0)


def test_an_engines_answer_to_a_bad_request_is_no_sample() -> None:
    world = World()
    world.end(0.01, Verdict(False, Outcome.ENGINE_ERROR, FailureKind.STATUS, 400), None)
    assert world.rows() == []


def test_time_outs_open_it_again() -> None:
    world = World()
    world.learn()
    for _ in range(3):
        world.end(5.0, LATE, FailureKind.FIRST_BYTE)
    assert world.limit_s() >= 10.0
    for _ in range(20):
        world.end(60.0, LATE, FailureKind.FIRST_BYTE)
    assert world.limit_s() == 0.0
