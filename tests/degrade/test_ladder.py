"""The automaton of the ladder: up at once where calls suffer, down slowly, and no swinging; on time that it is told."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.degrade.ladder import CALM_S, MARGIN, PROVEN_S, QUIET_S, RELAPSED_S, TOP, Ladder, level_at
from forebay.degrade.pressure import Pain, Pressure
from forebay.domain import ABSENT, Signal
from forebay.policy import KV_RATIOS

WAITING: tuple[Pain, ...] = ("waiting",)
TICK_S = 0.5


def at(ratio: float | None, pains: tuple[Pain, ...] = WAITING, foreseen: float | None = None) -> Pressure:
    own = ABSENT if foreseen is None else Signal(foreseen, "estimated")
    return Pressure(ABSENT if ratio is None else Signal(ratio, "engine"), own, pains)


class Run:
    """A ladder and its time."""

    def __init__(self) -> None:
        self.ladder = Ladder()
        self.now_s = 1000.0
        self.changes: list[tuple[float, int]] = []

    def hold(self, pressure: Pressure, seconds: float) -> int:
        """Hold a pressure; return the level that it comes to."""
        for _ in range(round(seconds / TICK_S)):
            self.tick(pressure)
        return self.ladder.level

    def tick(self, pressure: Pressure) -> int:
        if self.ladder.update(pressure, KV_RATIOS, self.now_s):
            self.changes.append((self.now_s, self.ladder.level))
        self.now_s += TICK_S
        return self.ladder.level


@pytest.mark.parametrize(("ratio", "level"), [(0.849, 0), (0.85, 1), (0.92, 2), (0.969, 2), (0.97, 3), (1.3, 3)])
def test_it_rises_at_once_to_the_level_that_is_due(ratio: float, level: int) -> None:
    assert level_at(ratio, KV_RATIOS) == level
    assert Run().tick(at(ratio)) == level


def test_a_full_room_in_which_nobody_waits_is_health() -> None:
    run = Run()
    assert run.hold(at(0.95, ()), 3600) == 0
    assert run.hold(at(None), 600) == 0
    assert run.changes == []


def test_it_falls_one_level_after_thirty_seconds_below_the_margin() -> None:
    run = Run()
    assert run.tick(at(0.98)) == 3
    for level, threshold in ((2, 0.97), (1, 0.92), (0, 0.85)):
        low = at(threshold - MARGIN - 0.01)
        assert run.hold(low, CALM_S) == level + 1
        assert run.hold(low, 2 * TICK_S) == level
    assert "for 30 s" in run.ladder.reason


def test_within_the_margin_it_stays() -> None:
    run = Run()
    run.tick(at(0.93))
    assert run.hold(at(0.92 - MARGIN), 3600) == 2


def test_recovery_from_the_top_takes_less_than_two_minutes() -> None:
    run = Run()
    run.hold(at(0.99), 300)
    began_s = run.now_s
    while run.tick(at(0.5, ())):
        pass
    assert run.now_s - began_s <= 120


def test_own_reservations_raise_it_step_by_step() -> None:
    run = Run()
    assert run.tick(at(0.5, foreseen=0.99)) == 1
    assert run.hold(at(0.5, foreseen=0.99), PROVEN_S - TICK_S) == 1
    assert run.hold(at(0.5, foreseen=0.99), 2 * TICK_S) == 2
    assert run.hold(at(0.5, foreseen=0.99), PROVEN_S + TICK_S) == 3
    assert run.hold(at(0.5, foreseen=0.99), 600) == 3
    assert Run().tick(at(0.93, foreseen=0.99)) == 2


def test_silence_in_a_full_room_brings_it_down_and_a_relapse_keeps_it_up() -> None:
    run = Run()
    run.tick(at(0.88))
    assert run.hold(at(0.88, ()), QUIET_S) == 1
    assert run.hold(at(0.88, ()), 2 * TICK_S) == 0
    assert run.tick(at(0.88)) == 1
    assert run.hold(at(0.88, ()), RELAPSED_S - 2 * TICK_S) == 1
    assert run.hold(at(0.88, ()), 4 * TICK_S) == 0


@pytest.mark.parametrize("threshold", KV_RATIOS)
@pytest.mark.parametrize("waits", [1.0, 0.7])
def test_an_hour_around_a_threshold_brings_at_most_two_changes_in_ten_minutes(threshold: float, waits: float) -> None:
    rng = random.Random(threshold)
    run = Run()
    for _ in range(7200):
        run.tick(at(threshold + rng.uniform(-0.03, 0.03), WAITING if rng.random() < waits else ()))
    times = [at_s for at_s, _ in run.changes]
    assert max(sum(start <= t < start + 600 for t in times) for start in times) <= 2
    assert run.ladder.level == KV_RATIOS.index(threshold) + 1


pressures = st.builds(
    at,
    st.none() | st.floats(0, 1.2),
    st.sampled_from([(), WAITING, ("preemptions",), ("waiting", "first_token")]),
    st.none() | st.floats(0, 1.2),
)


@given(st.lists(st.tuples(pressures, st.floats(0.1, 40)), max_size=60))
def test_what_always_holds(steps: list[tuple[Pressure, float]]) -> None:
    ladder, twin, now_s, changed_s = Ladder(), Ladder(), 100.0, 0.0
    for pressure, passed_s in steps:
        now_s += passed_s
        before = ladder.level
        changed = ladder.update(pressure, KV_RATIOS, now_s)
        twin.update(pressure, KV_RATIOS, now_s)
        assert (twin.level, twin.reason) == (ladder.level, ladder.reason), "another gate decides the same"
        assert changed == (ladder.level != before) and 0 <= ladder.level <= TOP
        due = level_at(pressure.measured.value, KV_RATIOS) if pressure.pains else 0
        assert ladder.level >= due, "up at once"
        if ladder.level > before:
            assert pressure.pains and level_at(pressure.kv_ratio, KV_RATIOS) >= ladder.level
        if ladder.level < before:
            assert ladder.level == before - 1 and now_s - changed_s >= CALM_S
            ratio = pressure.kv_ratio
            assert not pressure.pains or ratio is None or ratio < KV_RATIOS[before - 1] - MARGIN
        changed_s = now_s if changed else changed_s


@given(st.lists(st.tuples(pressures, st.floats(0.1, 5)), max_size=40))
def test_it_always_comes_back(steps: list[tuple[Pressure, float]]) -> None:
    run = Run()
    for pressure, passed_s in steps:
        run.now_s += passed_s
        run.tick(pressure)
    assert run.hold(at(0.3, ()), 3 * (CALM_S + TICK_S) + TICK_S) == 0
