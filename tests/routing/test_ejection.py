"""How many may be out, how fast one comes back, and how often automata act."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.routing.ejection import (
    ACTION_EVERY_S,
    EXEMPT,
    MAX_POOLS,
    MAX_STANDING,
    RAMP_FLOOR_RATIO,
    RAMP_S,
    Action,
    Arbiter,
    Health,
    places,
    ramp_ratio,
    ramped_limit,
    ramped_score,
)


def pool(ill: int, well: int, gone: int = 0) -> list[Health]:
    return [
        *[Health(f"ill{n}", True) for n in range(ill)],
        *[Health(f"well{n}", False) for n in range(well)],
        *[Health(f"gone{n}", True, gone=True) for n in range(gone)],
    ]


@pytest.mark.parametrize(("ill", "well", "panic"), [(0, 8, False), (4, 4, False), (5, 3, True), (8, 0, True)])
def test_at_most_half_is_out_and_beyond_that_health_is_ignored(ill: int, well: int, panic: bool) -> None:
    decided = places(pool(ill, well))
    assert decided.panic is panic
    assert {decided.of[f"ill{n}"] for n in range(ill)} <= ({"doubt"} if panic else {"out"})
    assert all(decided.of[f"well{n}"] == "in" for n in range(well))


def test_who_is_gone_is_out_and_counts_for_nothing() -> None:
    decided = places(pool(1, 1, gone=6))
    assert not decided.panic and decided.of["ill0"] == "out"
    decided = places(pool(2, 1, gone=1))
    assert decided.panic and decided.of["gone0"] == "out" and decided.of["ill0"] == "doubt"
    assert set(places(pool(0, 0, gone=3)).of.values()) == {"out"}


def test_a_single_replica_has_nobody_to_protect() -> None:
    assert places(pool(1, 0)).of == {"ill0": "out"}
    assert places(pool(1, 0, gone=7)).of["ill0"] == "out"
    assert places([]).of == {}


@given(st.lists(st.tuples(st.booleans(), st.booleans()), max_size=12))
def test_of_any_pool(states: list[tuple[bool, bool]]) -> None:
    replicas = [Health(f"r{n}", ill, gone) for n, (ill, gone) in enumerate(states)]
    decided = places(replicas)
    there = [replica for replica in replicas if not replica.gone]
    out = [replica for replica in there if decided.of[replica.name] == "out"]
    assert decided.of.keys() == {replica.name for replica in replicas}
    assert len(there) == 1 or 2 * len(out) <= len(there)
    assert all(replica.ill for replica in out)
    for replica in replicas:
        if replica.gone:
            assert decided.of[replica.name] == "out"
        elif not replica.ill:
            assert decided.of[replica.name] == "in"


def test_the_share_grows_in_ten_seconds() -> None:
    assert [ramp_ratio(100.0, 100.0 + t) for t in (0.0, 0.5, 2.5, 5.0, 10.0, 99.0)] == [
        RAMP_FLOOR_RATIO, RAMP_FLOOR_RATIO, 0.25, 0.5, 1.0, 1.0,
    ]  # fmt: skip
    assert [ramped_limit(32, ratio) for ratio in (0.1, 0.5, 1.0)] == [3, 16, 32] and ramped_limit(2, 0.1) == 1


@given(st.floats(0.0, 1e6), st.floats(0.0, 100.0), st.floats(0.0, 100.0))
def test_the_ramp_never_falls(back_s: float, one: float, other: float) -> None:
    low, high = sorted((one, other))
    assert RAMP_FLOOR_RATIO <= ramp_ratio(back_s, back_s + low) <= ramp_ratio(back_s, back_s + high) <= 1.0


@pytest.mark.parametrize("at_s", [1.0, 3.0, 6.0, RAMP_S])
def test_under_load_a_returning_replica_gets_about_its_share(at_s: float) -> None:
    """Eight replicas, the choice as in the pool: the least of calls times their work."""
    draws, ratio = random.Random(4), ramp_ratio(0.0, at_s)
    held = [0] * 8
    given_to = [0] * 8
    for _ in range(20_000):
        scores = [(held[n] + 1) * (100.0 * held[n] + 100.0) for n in range(8)]
        scores[0] = ramped_score(scores[0], ratio)
        chosen = min(range(8), key=lambda n: (scores[n], draws.random()))
        held[chosen] += 1
        given_to[chosen] += 1
        if sum(held) > 240:
            ended = draws.choices(range(8), weights=held)[0]
            held[ended] -= 1
    share = given_to[0] / (sum(given_to[1:]) / 7)
    assert share == pytest.approx(ratio, abs=0.08)


def action(pool: str, kind: str, target: str, now_s: float, ttl_s: float = 600.0) -> Action:
    return Action(pool, kind, target, "because", now_s, now_s + ttl_s)


def test_one_action_a_minute_for_each_pool() -> None:
    arbiter = Arbiter()
    assert arbiter.may("p", "tenant", 0.0) and arbiter.take(action("p", "tenant", "t1", 0.0))
    assert not arbiter.may("p", "ladder", 59.9) and not arbiter.take(action("p", "ladder", "1", 59.9))
    assert arbiter.denied == 1
    assert arbiter.take(action("q", "tenant", "t1", 1.0)), "another pool"
    assert arbiter.take(action("p", "tenant", "t1", 2.0)), "the same again is no new one"
    assert arbiter.take(action("p", "ladder", "1", ACTION_EVERY_S))


@pytest.mark.parametrize("kind", sorted(EXEMPT))
def test_ejection_and_poison_neither_wait_nor_make_wait(kind: str) -> None:
    arbiter = Arbiter()
    assert arbiter.take(action("p", "tenant", "t1", 0.0))
    assert all(arbiter.take(action("p", kind, f"r{n}", 1.0)) for n in range(5))
    other = Arbiter()
    assert other.take(action("p", kind, "r", 0.0)) and other.take(action("p", "tenant", "t1", 1.0))


def test_every_action_ends_or_is_undone() -> None:
    arbiter = Arbiter()
    first = action("p", "tenant", "t1", 0.0, ttl_s=100.0)
    arbiter.take(first)
    assert arbiter.standing() == [first] and arbiter.ended(99.9) == []
    assert arbiter.ended(100.0) == [first] and arbiter.ended(100.0) == [] == arbiter.standing()
    second = action("p", "tenant", "t1", 200.0)
    assert arbiter.take(second) and arbiter.undo("p", "tenant", "t1") == second
    assert arbiter.undo("p", "tenant", "t1") is None
    assert not arbiter.may("p", "tenant", 201.0), "what was undone has had its turn"


def test_actions_and_pools_are_bounded() -> None:
    arbiter = Arbiter()
    taken = [arbiter.take(action(f"p{n}", "tenant", "t", 0.0)) for n in range(2 * MAX_POOLS)]
    assert taken.count(True) == MAX_POOLS
    assert arbiter.take(action("new", "tenant", "t", ACTION_EVERY_S)), "a minute later there is room"
    arbiter, now_s = Arbiter(), 0.0
    for number in range(2 * MAX_STANDING):
        now_s += ACTION_EVERY_S
        arbiter.take(action("p", "tenant", f"t{number}", now_s, ttl_s=1e9))
    assert len(arbiter.standing()) == MAX_STANDING
    assert arbiter.take(action("p", "eject", "r", now_s))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["p", "q"]),
            st.sampled_from(["tenant", "ladder", "eject", "poison"]),
            st.integers(0, 5),
            st.floats(0.0, 40.0),
        ),
        max_size=80,
    )
)
def test_of_any_history_the_minute_is_kept(asked: list[tuple[str, str, int, float]]) -> None:
    arbiter, now_s = Arbiter(), 0.0
    acted: dict[str, list[float]] = {"p": [], "q": []}
    for name, kind, target, pause_s in asked:
        now_s += pause_s
        arbiter.ended(now_s)
        known = {(a.pool, a.kind, a.target) for a in arbiter.standing()}
        taken = arbiter.take(action(name, kind, str(target), now_s, ttl_s=90.0))
        new = (name, kind, str(target)) not in known
        assert taken or (new and kind not in EXEMPT)
        if taken and new and kind not in EXEMPT:
            acted[name].append(now_s)
    for times in acted.values():
        assert all(later - earlier >= ACTION_EVERY_S - 1e-9 for earlier, later in zip(times, times[1:], strict=False))
