"""Bad tenants: who is accused, who is not, and what the others feel; simulated, with no clock but the told one."""

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.degrade.tenants import (
    MAX_CHANCE,
    MAX_STRATA,
    MAX_TENANTS,
    MAX_TTL_S,
    PROBE_EVERY,
    SLICE_S,
    TTL_S,
    Change,
    Tenants,
    tail,
)


class World:
    """Tenants who send calls to one pool; whoever is proposed is moved."""

    def __init__(self, seed: int = 1) -> None:
        self.random = random.Random(seed)
        self.tenants = Tenants()
        self.now_s = 0.0
        self.changes: list[Change] = []

    def slice(self, ends: list[tuple[str, str, int, float]]) -> None:
        """Let ten seconds pass, with calls: tenant, replica, tokens, probability that it goes bad."""
        for name, replica, tokens, chance in ends:
            if self.tenants.goes_home(name, self.now_s):
                self.tenants.note(name, replica, tokens, self.now_s, self.random.random() < chance)
        self.now_s += SLICE_S
        for change in self.tenants.tick(self.now_s):
            self.changes.append(change)
            self.tenants.move(change, self.now_s)

    def calls(self, chances: dict[str, float], each: int = 2) -> list[tuple[str, str, int, float]]:
        return [
            (name, self.random.choice("AB"), self.random.choice((100, 3000)), chance)
            for name, chance in chances.items()
            for _ in range(each)
        ]

    def directions(self, tenant: str) -> list[str]:
        return [change.direction for change in self.changes if change.tenant == tenant]

    def directions_of_all(self, direction: str) -> list[Change]:
        return [change for change in self.changes if change.direction == direction]


def well(count: int = 20, chance: float = 0.01) -> dict[str, float]:
    return {f"t{number}": chance for number in range(count)}


def test_a_bad_tenant_is_moved_within_a_minute_and_nobody_else() -> None:
    world = World()
    for _ in range(12):
        world.slice(world.calls(well()))
    assert world.changes == []
    begun_s = world.now_s
    for _ in range(12):
        world.slice(world.calls({**well(), "bad": 0.6}, each=4))
    assert {change.tenant for change in world.changes} == {"bad"}
    assert world.changes[0].direction == "moved" and "calls bad" in world.changes[0].reason
    (shown,) = world.tenants.shown(world.now_s)
    assert shown.tenant == "bad" and 0.0 < shown.left_s <= TTL_S
    assert begun_s + TTL_S <= world.changes[0].until_s <= begun_s + 60.0 + TTL_S


@pytest.mark.parametrize("chance", [0.05, 0.5, 1.0])
def test_an_engine_that_is_slow_for_everybody_moves_nobody(chance: float) -> None:
    world = World()
    for number in range(360):
        # All well, and all bad now and then.
        world.slice(world.calls(well(chance=chance if number % 3 == 0 else 0.0)))
    assert world.changes == []


def test_a_bad_replica_or_length_accuses_nobody_who_happens_to_use_it() -> None:
    world = World()
    for _ in range(120):
        ends = [("alone", "A", 100, 0.7) for _ in range(9)]
        ends += [(f"t{n}", "A", 100, 0.7) for n in range(2)] + [(f"t{n}", "B", 100, 0.0) for n in range(30)]
        ends += [("long", "B", 50_000, 0.7) for _ in range(9)] + [(f"t{n}", "B", 50_000, 0.7) for n in range(2)]
        world.slice(ends)
    assert world.changes == []


def test_bad_seconds_accuse_nobody_who_happens_to_send_then() -> None:
    world = World()
    for number in range(360):
        chance = 0.8 if number % 6 == 0 else 0.0
        # The burst comes only while the engine is bad; over the window its rate is far above that of the others.
        burst = [("burst", "A", 100, chance)] * (20 if chance else 0)
        world.slice(burst + [(f"t{n}", "A", 100, chance) for n in range(10)])
    assert world.changes == []


def test_who_is_alone_is_not_judged() -> None:
    world = World()
    for _ in range(60):
        world.slice([("only", "A", 100, 0.9)] * 10)
    assert world.changes == []


def test_calls_that_nobody_can_be_compared_with_do_not_speak_for_him() -> None:
    world = World()
    for _ in range(12):
        world.slice([*[("bad", "own", 100, 0.0)] * 100, *world.calls({**well(), "bad": 0.9}, each=4)])
    assert world.directions("bad")[:1] == ["moved"]


def test_too_few_calls_and_too_little_harm_are_no_reason() -> None:
    world = World()
    for _ in range(29):
        world.slice([*world.calls(well(chance=0.0)), *([("rare", "A", 100, 1.0)] if world.now_s < 190.0 else [])])
    assert world.changes == [], "nineteen bad calls"
    for _ in range(60):
        world.slice([*[(f"t{n}", "A", 100, 0.0) for n in range(300)], *[("little", "A", 100, 0.05)] * 50])
    assert world.changes == [], "five in a hundred is not worth a move"


def test_he_returns_by_his_probes_when_he_is_well_again() -> None:
    world = World()
    while not world.changes:
        world.slice(world.calls({**well(), "bad": 0.8}, each=5))
    moved_s = world.now_s
    for _ in range(59):
        world.slice([*world.calls({**well(), "bad": 0.0}, each=40)])
        if len(world.changes) > 1:
            break
    assert world.directions("bad") == ["moved", "returned"]
    assert world.now_s - moved_s < TTL_S, "before his time was up"
    assert world.tenants.goes_home("bad", world.now_s) and world.tenants.shown(world.now_s) == []


def test_while_he_stays_bad_he_is_kept_for_longer_and_longer() -> None:
    world = World()
    for _ in range(2 * 360):
        world.slice(world.calls({**well(), "bad": 0.8}, each=20))
    directions = world.directions("bad")
    assert directions[0] == "moved" and set(directions[1:]) == {"kept"}
    lengths = [after.until_s - before.until_s for before, after in itertools.pairwise(world.changes)]
    assert lengths == sorted(lengths) and lengths[-1] > lengths[0] >= TTL_S and max(lengths) <= MAX_TTL_S + SLICE_S


def test_who_sends_too_little_to_be_judged_returns_when_his_time_is_up() -> None:
    world = World()
    while not world.changes:
        world.slice(world.calls({**well(), "bad": 0.8}, each=5))
    for _ in range(61):
        world.slice(world.calls(well()))
    assert world.directions("bad") == ["moved", "returned"]


def test_one_call_in_twenty_is_a_probe_and_one_in_two_seconds_at_most() -> None:
    tenants = Tenants()
    assert tenants.goes_home("bad", 0.0)
    world = World()
    while not world.changes:
        world.slice(world.calls({**well(), "bad": 0.8}, each=5))
    homeward = sum(world.tenants.goes_home("bad", world.now_s + second) for second in range(0, 2000, 5))
    assert homeward == 400 // PROBE_EVERY
    at_s = world.now_s + 5000.0
    assert sum(world.tenants.goes_home("bad", at_s + 0.001 * n) for n in range(10_000)) == 5
    assert all(world.tenants.goes_home(name, at_s) for name in well())


def test_calls_sent_before_the_move_do_not_count_as_probes() -> None:
    world = World()
    while not world.changes:
        world.slice(world.calls({**well(), "bad": 0.8}, each=5))
    for _ in range(50):
        world.tenants.note("bad", "A", 100, world.now_s - 1.0, bad=True)
    world.slice(world.calls(well()))
    assert world.tenants.shown(world.now_s)[0].calls == 0


def test_an_operator_brings_him_home() -> None:
    world = World()
    while not world.changes:
        world.slice(world.calls({**well(), "bad": 0.8}, each=5))
    assert world.tenants.release("bad", world.now_s) and not world.tenants.release("bad", world.now_s)
    assert world.tenants.goes_home("bad", world.now_s)


def test_a_move_that_is_not_carried_out_is_proposed_again() -> None:
    world = World()
    for _ in range(12):
        for name, replica, tokens, chance in world.calls({**well(), "bad": 0.8}, each=5):
            world.tenants.note(name, replica, tokens, world.now_s, world.random.random() < chance)
        world.now_s += SLICE_S
        world.changes += world.tenants.tick(world.now_s)
    assert len(world.changes) > 3 and set(world.directions("bad")) == {"moved"}
    assert world.tenants.goes_home("bad", world.now_s)


@pytest.mark.parametrize("seed", range(3))
def test_clean_traffic_moves_less_than_one_tenant_a_month(seed: int) -> None:
    """A tenant-month (40 for 18 hours) of clean and of bad slices for all, with bursts of single tenants."""
    world = World(seed)
    names = [f"t{number}" for number in range(40)]
    for _ in range(18 * 360):
        trouble = world.random.choice((0.0, 0.0, 0.002, 0.02, 0.3))
        some = world.random.sample(names, 20)
        world.slice(
            [(n, world.random.choice("AB"), 100, trouble) for n in some for _ in range(world.random.choice((1, 1, 6)))]
        )
    assert len(world.directions_of_all("moved")) <= 1


def test_the_bound_of_false_moves_follows_from_the_test() -> None:
    looks_a_month = 30 * 86_400 / SLICE_S
    assert looks_a_month * MAX_CHANCE <= 1.0


class Coupled:
    """A pool of 100 slots: calls that hang take places, and the fuller it is the more calls time out."""

    def __init__(self, watch: bool) -> None:
        self.world = World(5)
        self.watch = watch
        self.bad = 0
        self.calls = 0

    def run(self, slices: int, *, hangs: float) -> float:
        """Return the part of the calls of the 99 that went bad."""
        self.bad = self.calls = 0
        for _ in range(slices):
            world = self.world
            sent = [(f"t{n}", 1) for n in range(99)] + [("t99", 6)]
            home = [
                (n, c) for n, c in sent for _ in range(c) if not self.watch or world.tenants.goes_home(n, world.now_s)
            ]
            # A call takes a second of a slot, one that hangs thirty; ten seconds have 300 of them.
            used = sum(1.0 + (29.0 * hangs if name == "t99" else 0.0) for name, _ in home)
            chance = min(0.5, 0.002 + max(0.0, used - 240.0) / 300.0)
            for name, _ in home:
                bad = world.random.random() < (max(chance, hangs) if name == "t99" else chance)
                if name != "t99":
                    self.bad += bad
                    self.calls += 1
                world.tenants.note(name, "A", 100, world.now_s, bad)
            world.now_s += SLICE_S
            for change in world.tenants.tick(world.now_s):
                world.changes.append(change)
                if self.watch:
                    world.tenants.move(change, world.now_s)
        return self.bad / self.calls


def test_one_bad_tenant_of_a_hundred_changes_nothing_for_the_others() -> None:
    quiet = Coupled(watch=True).run(720, hangs=0.0)
    watched, bare = Coupled(watch=True), Coupled(watch=False)
    harmed = bare.run(720, hangs=0.9)
    spared = watched.run(720, hangs=0.9)
    assert harmed - quiet > 0.05, "without the move the others would feel it"
    assert abs(spared - quiet) <= 0.01
    assert {change.tenant for change in watched.world.changes} == {"t99"}


def test_bounds_of_tenants_and_strata() -> None:
    tenants = Tenants()
    for number in range(2 * MAX_TENANTS):
        tenants.note(f"t{number}", "A", 100, 0.0, bad=False)
    tenants.tick(0.0)
    for number in range(2 * MAX_STRATA):
        tenants.note("t", f"r{number}", 100, 0.0, bad=False)
    assert len(tenants._strata) <= MAX_STRATA and len(tenants._tenants) <= MAX_TENANTS
    tenants.tick(SLICE_S)
    for number in range(40):
        tenants.tick(SLICE_S * (number + 2))
    assert len(tenants._tenants) < MAX_TENANTS, "who is not heard of any more makes room"


def exactly(draws: int, calls: int, bad_in_all: int) -> list[float]:
    """Return the probabilities of 0, 1, ... bad calls among those drawn from a stratum."""
    ways = math.comb(calls, draws)
    return [math.comb(bad_in_all, k) * math.comb(calls - bad_in_all, draws - k) / ways for k in range(draws + 1)]


def summed(one: list[float], other: list[float]) -> list[float]:
    sums = [0.0] * (len(one) + len(other) - 1)
    for i, p in enumerate(one):
        for j, q in enumerate(other):
            sums[i + j] += p * q
    return sums


@st.composite
def strata(draw: st.DrawFn) -> tuple[int, int, int]:
    calls = draw(st.integers(2, 60))
    return draw(st.integers(1, calls)), calls, draw(st.integers(0, calls))


@given(st.lists(strata(), min_size=1, max_size=3))
@settings(max_examples=150, deadline=None)
def test_the_tail_is_never_below_the_exact_one(parts: list[tuple[int, int, int]]) -> None:
    chances = [1.0]
    for part in parts:
        chances = summed(chances, exactly(*part))
    draws = sum(part[0] for part in parts)
    mean = sum(drawn * bad / calls for drawn, calls, bad in parts)
    for bad in range(draws + 1):
        assert tail(draws, bad, mean) >= sum(chances[bad:]) * (1.0 - 1e-6) - 1e-12


@given(st.integers(1, 400), st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_the_tail_is_a_probability_and_falls(calls: int, ratio: float, mean_ratio: float) -> None:
    bad = int(ratio * calls)
    here = tail(calls, bad, mean_ratio * calls)
    assert 0.0 <= here <= 1.0
    if bad < calls:
        assert tail(calls, bad + 1, mean_ratio * calls) <= here + 1e-9


@given(
    st.lists(
        st.tuples(st.sampled_from("abcdef"), st.sampled_from("AB"), st.integers(0, 5000), st.booleans()), max_size=400
    ),
    st.integers(1, 12),
)
@settings(max_examples=60, deadline=None)
def test_sums_always_agree_with_what_is_remembered(ends: list[tuple[str, str, int, bool]], each: int) -> None:
    tenants, now_s = Tenants(), 0.0
    for number, (name, replica, tokens, bad) in enumerate(ends * 5):
        tenants.note(name, replica, tokens, now_s, bad)
        if number % each == 0:
            now_s += SLICE_S
            for change in tenants.tick(now_s):
                tenants.move(change, now_s)
            for seen in tenants._tenants.values():
                assert seen.sums.calls == sum(part[1] for part in seen.slices)
                assert seen.sums.bad == sum(part[2] for part in seen.slices)
                assert seen.sums.mean == pytest.approx(sum(part[3] for part in seen.slices), abs=1e-6)
