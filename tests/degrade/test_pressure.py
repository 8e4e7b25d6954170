"""KV room and suffering from signals with their ages: absent is never zero, stale is never evidence."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.degrade.pressure import (
    STALE_S,
    EngineWatch,
    Lasting,
    Load,
    Pressure,
    is_fresh,
    measured,
    pool_pressure,
    reserved,
)
from forebay.domain import ABSENT, Signal

ROOM = 1000


def said(ratio: float, age_s: float = 0.0) -> Signal:
    return Signal(ratio, "engine", age_s)


def load(usage: Signal = ABSENT, room: int | None = ROOM, now: int = 0, polled: int = 0) -> Load:
    return Load(usage, room, now, polled)


def test_what_was_sent_since_the_reading_counts_and_what_has_ended_does_not() -> None:
    assert measured(load(said(0.5), now=300, polled=100)).value == pytest.approx(0.7)
    assert measured(load(said(0.5), now=100, polled=300)).value == pytest.approx(0.3)
    assert measured(load(said(0.1), now=0, polled=900)).value == 0.0
    assert measured(load(said(0.5), room=None, now=300)).value == 0.5


def test_an_absent_or_stale_reading_is_no_evidence() -> None:
    assert measured(load()) == ABSENT
    assert measured(load(said(0.99, STALE_S + 0.1), now=500)) == ABSENT
    assert is_fresh(said(0.99, STALE_S)) and not is_fresh(ABSENT)
    assert reserved(load(room=None, now=500)) == ABSENT
    assert pool_pressure([load(room=None)], ("waiting",)).kv_ratio is None
    assert pool_pressure([], ()).kv_ratio is None


def test_own_calls_say_what_an_engine_does_not() -> None:
    pressure = pool_pressure([load(now=900)], ())
    assert (pressure.measured, pressure.reserved) == (ABSENT, Signal(0.9, "estimated"))
    assert pressure.kv_ratio == 0.9
    assert Pressure(said(0.95), Signal(0.4, "estimated")).kv_ratio == 0.95


def test_a_call_that_waits_for_room_counts_as_well() -> None:
    assert reserved(Load(ABSENT, ROOM, 700, 0, next_tokens=400)).value == pytest.approx(1.1)
    assert measured(Load(said(0.7), ROOM, 700, 700, next_tokens=400)).value == pytest.approx(0.7)


def test_a_pool_is_the_mean_of_its_replicas_by_the_size_of_their_rooms() -> None:
    loads = [load(said(1.0, 3.0), room=3000), load(said(0.2, 1.0), room=1000)]
    assert pool_pressure(loads, ()).measured == Signal(pytest.approx(0.8), "engine", 3.0)  # type: ignore[arg-type]
    unequal = [load(said(1.0), room=3000), load(said(0.2), room=None)]
    assert pool_pressure(unequal, ()).measured.value == pytest.approx(0.6)
    one_silent = [load(said(0.9)), load()]
    assert pool_pressure(one_silent, ()).measured.value == 0.9


def test_waiting_inside_an_engine_counts_after_two_seconds_and_only_while_it_is_known() -> None:
    watch = EngineWatch()
    watch.read(3, None, 10.0)
    assert watch.pains(10.0) == ()
    watch.read(3, None, 10.0)
    watch.read(1, None, 12.1)
    assert watch.pains(12.2) == ("waiting",)
    assert watch.pains(12.2 + STALE_S) == ()
    watch.read(0, None, 14.0)
    assert watch.pains(14.0) == ()


def test_a_gap_between_readings_proves_nothing() -> None:
    watch = EngineWatch()
    watch.read(3, 5.0, 10.0)
    watch.read(3, 9.0, 10.0 + STALE_S + 1)
    assert watch.pains(10.0 + STALE_S + 1) == ()


def test_preemptions_that_rise() -> None:
    watch = EngineWatch()
    for at_s, count, pains in (
        (0, 5, ()),
        (2, 5, ()),
        (4, 6, ("preemptions",)),
        (6, 6, ()),
        (8, 0, ()),
        (10, None, ()),
    ):
        watch.read(None, count, float(at_s))
        assert watch.pains(float(at_s)) == pains


@given(st.lists(st.tuples(st.floats(0, 5), st.booleans()), max_size=30))
def test_lasting_is_the_time_since_it_began(steps: list[tuple[float, bool]]) -> None:
    lasting, now_s, since_s = Lasting(), 0.0, None
    for passed_s, holds in steps:
        now_s += passed_s
        since_s = (now_s if since_s is None else since_s) if holds else None
        assert lasting.for_s(holds, now_s) == (0.0 if since_s is None else now_s - since_s)
