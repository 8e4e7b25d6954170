"""One replica: what counts as its load, and whether it has room."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.clock import ManualClock
from forebay.domain import FailureKind, Replica, Tenant
from forebay.policy import Capacity, Pool
from forebay.routing.replica import Lease, ReplicaState
from forebay.traffic import Call, Work
from forebay.wire.endpoints import BY_PATH

CHAT = BY_PATH["/v1/chat/completions"]
KNOWN = Capacity(prefill_tokens_per_s=10_000.0)


class Berth:
    """A replica on a clock that stands still."""

    def __init__(self, capacity: Capacity = KNOWN, **pool: Any) -> None:
        self.clock = ManualClock(50.0)
        replica = Replica("a", "127.0.0.1", 1)
        self.rooms = 0
        made = Pool("main", "vllm", (replica,), capacity=capacity, **pool)
        self.state = ReplicaState(replica, made, self.clock.now_s, self.noted)

    def noted(self, state: ReplicaState) -> None:
        assert state is self.state
        self.rooms += 1

    def lease(
        self, tokens: int = 100, output: int = 0, *, cached: int = 0, long: bool = False, stream: bool = True
    ) -> Lease:
        call = Call("c", CHAT, "m", stream, False, Tenant("a"), tokens, output, (), 0.0, 1e9, work=Work(tokens, 1, 1))
        return Lease(self.state, call, cached, long, self.clock.now_s())

    def room(self, tokens: int = 100, uncached: int | None = None, *, long: bool = False) -> bool:
        return self.state.has_room(tokens, tokens if uncached is None else uncached, long, self.clock.now_s())

    def load(self) -> tuple[int, ...]:
        state = self.state
        return (
            state.in_flight,
            state.in_flight_tokens,
            state.unprefilled_tokens,
            state.long_prefills,
            state.long_in_flight,
            len(state.unseen),
        )


def test_a_lease_counts_until_it_is_reported_on_once() -> None:
    berth = Berth()
    lease = berth.lease(3000, 50, cached=500, long=True)
    assert berth.load() == (1, 3050, 2500, 1, 1, 0)
    lease.first_token()
    assert berth.load() == (1, 3050, 0, 0, 1, 0)
    lease.first_token()
    for _ in range(2):
        lease.report(None, answered=True)
    assert berth.load() == (0,) * 6
    lease.first_token()
    assert berth.load() == (0,) * 6
    assert berth.state.speed.samples == 1
    assert berth.rooms == 2


def test_a_try_that_ends_before_its_first_token_teaches_nothing() -> None:
    berth = Berth()
    berth.lease(long=True).report(FailureKind.RESET, answered=False)
    assert berth.load() == (0,) * 6
    assert berth.state.speed.samples == 0


def test_a_fully_cached_prompt_still_counts_as_something() -> None:
    berth = Berth()
    lease = berth.lease(1000, cached=1000)
    assert berth.load()[2] == 1
    lease.report(None, answered=True, cached_tokens=1000)
    assert berth.load() == (0,) * 6


@pytest.mark.parametrize(("answered", "cached", "moves"), [(True, 0, True), (True, None, False), (False, 0, False)])
def test_the_caches_are_judged_by_answers_that_count_them(answered: bool, cached: int | None, moves: bool) -> None:
    berth = Berth()
    before = berth.state.prefixes.trust_ratio
    berth.lease(2000, cached=500).report(None, answered=answered, cached_tokens=cached)
    assert (berth.state.prefixes.trust_ratio != before) == moves
    berth.lease(2000).report(None, answered=True, cached_tokens=0)
    assert (berth.state.prefixes.trust_ratio != before) == moves, "nothing was foreseen"


# room


def test_prompts_under_way_fill_the_depth_and_progress_empties_it() -> None:
    berth = Berth()
    assert berth.room(5000), "an idle engine takes anything"
    berth.lease(1500)
    # The depth is 0.2 s: 2,000 tokens.
    assert berth.room(500)
    assert not berth.room(501)
    assert berth.room(5000, uncached=500)
    berth.clock.advance(0.1)
    assert berth.room(1500)
    assert not berth.room(1501)
    berth.clock.advance(100.0)
    assert berth.room(1850)
    assert not berth.room(1851), "it has said nothing yet"


def test_progress_counts_from_the_last_first_token() -> None:
    berth = Berth()
    first = berth.lease(1000)
    berth.lease(1000)
    berth.clock.advance(0.1)
    first.first_token()
    assert berth.state.backlog_tokens(berth.clock.now_s()) == 1000
    berth.clock.advance(0.05)
    assert berth.state.backlog_tokens(berth.clock.now_s()) == pytest.approx(500)


def test_while_the_speed_is_unknown_the_depth_is_not() -> None:
    berth = Berth(Capacity())
    berth.lease(100_000)
    assert berth.room(100_000)


def test_slots_and_kv_room() -> None:
    berth = Berth(Capacity(kv_tokens=1000, streams=3))
    berth.lease(400, 100).first_token()
    assert berth.room(500)
    assert not berth.room(501)
    berth.lease(100).first_token()
    berth.lease(100).first_token()
    assert not berth.room(1)


def test_long_prompts_are_computed_one_at_a_time_and_leave_a_slot() -> None:
    berth = Berth(Capacity(streams=3))
    first = berth.lease(5000, long=True)
    assert not berth.room(5000, long=True)
    assert berth.room()
    first.first_token()
    assert berth.room(5000, long=True)
    berth.lease(5000, long=True).first_token()
    assert not berth.room(5000, long=True), "one slot is for short ones"
    assert berth.room()
    first.report(None, answered=True)
    assert berth.room(5000, long=True)


@pytest.mark.parametrize("limits", [{"capacity": Capacity(streams=1)}, {"max_in_flight": 1}])
def test_with_one_slot_long_prompts_may_have_it(limits: dict[str, Any]) -> None:
    assert Berth(**limits).room(5000, long=True)


def test_the_configured_limit_leaves_a_slot_to_short_ones_too() -> None:
    berth = Berth(Capacity(), max_in_flight=2)
    berth.lease(5000, long=True).first_token()
    assert not berth.room(5000, long=True)
    assert berth.room()


def test_a_reserved_replica_takes_no_long_prompt_even_when_idle() -> None:
    berth = Berth()
    berth.state.reserved = True
    assert not berth.room(5000, long=True)
    assert berth.room()
    berth.lease()
    assert not berth.room(5000, long=True)
    assert berth.room()


def test_telemetry_fills_in_what_is_not_declared() -> None:
    berth = Berth(Capacity(streams=4))
    berth.state.noted(8.0, 1000.0)
    assert (berth.state.slots, berth.state.kv_tokens) == (4, 1000)
    berth.state.noted(None, None)
    assert (berth.state.slots, berth.state.kv_tokens) == (4, 1000), "absent is not zero"
    berth.state.noted(0.0, 0.0)
    assert (berth.state.slots, berth.state.kv_tokens) == (4, 1000)


@pytest.mark.parametrize(
    ("max_in_flight", "streams", "limit"), [(None, None, None), (2, None, 2), (None, 3, 3), (5, 3, 3), (2, 3, 2)]
)
def test_the_limit_is_the_smaller_one(max_in_flight: int | None, streams: int | None, limit: int | None) -> None:
    berth = Berth(Capacity(streams=streams), max_in_flight=max_in_flight)
    assert berth.state.limit() == limit
    assert berth.state.has_slot()
    for _ in range(limit or 0):
        berth.lease()
    assert berth.state.has_slot() == (limit is None)


def test_how_long_calls_stay_is_followed() -> None:
    berth = Berth()
    for _ in range(50):
        lease = berth.lease()
        berth.clock.advance(2.0)
        lease.report(None, answered=True)
    assert berth.state.occupied_s == pytest.approx(2.0)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_counts_are_those_of_the_leases_that_are_held(data: st.DataObject) -> None:
    berth = Berth(data.draw(st.sampled_from((Capacity(), KNOWN, Capacity(kv_tokens=5000, streams=3)))))
    held: list[tuple[Lease, int, int, int, bool, bool]] = []
    begun: list[Lease] = []
    for _ in range(data.draw(st.integers(0, 40))):
        act = data.draw(st.sampled_from(("take", "take", "first", "report", "overdue", "wait")))
        if act == "take":
            tokens = data.draw(st.integers(1, 9000))
            output, cached = data.draw(st.integers(0, 900)), data.draw(st.integers(0, tokens))
            long, stream = data.draw(st.booleans()), data.draw(st.booleans())
            lease = berth.lease(tokens, output, cached=cached, long=long, stream=stream)
            held.append((lease, tokens + output, max(1, tokens - cached), cached, long, stream))
        elif act == "wait":
            berth.clock.advance(data.draw(st.sampled_from((0.0, 0.01, 1.0, 100.0))))
        elif held:
            place = data.draw(st.integers(0, len(held) - 1))
            lease = held[place][0]
            if act == "first":
                lease.first_token()
                begun.append(lease)
            elif act == "overdue":
                if lease.overdue(berth.clock.now_s()):
                    lease.prefilled()
                    begun.append(lease)
            else:
                failure = data.draw(st.none() | st.sampled_from(FailureKind))
                lease.report(failure, answered=data.draw(st.booleans()), cached_tokens=data.draw(st.integers(0, 9000)))
                lease.report(None, answered=True)
                held.pop(place)
        waiting = [entry for entry in held if not any(entry[0] is lease for lease in begun)]
        assert berth.load() == (
            len(held),
            sum(entry[1] for entry in held),
            sum(entry[2] for entry in waiting),
            sum(entry[4] for entry in waiting),
            sum(entry[4] for entry in held),
            sum(not entry[5] for entry in held),
        )
        assert 0.0 <= berth.state.backlog_tokens(berth.clock.now_s()) <= berth.state.unprefilled_tokens
    assert 0.0 < berth.state.prefixes.trust_ratio <= 1.0
