"""Nodes that share limits, and a store that goes, hangs, forgets, or answers one of them only."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store.cluster import PERIOD, Cluster, busy, tenant


def test_the_store_goes_away_and_everybody_ends_with_an_even_part() -> None:
    cluster = Cluster("ab", tenant(concurrency=8))
    cluster.pass_s(4)
    for _ in range(6):
        for _ in range(12):
            cluster["a"].call()
        cluster["b"].call()
        cluster.pass_s(PERIOD)
        cluster["a"].end(8)
    before = cluster["a"].portion()
    assert before > 4
    for node in cluster.nodes.values():
        node.store.away = True
    cluster.pass_s(1.5)
    assert cluster["a"].portion() == before, "the last share holds at first"
    assert cluster["a"].sharing.state.startswith("down")
    cluster.pass_s(20)
    assert [cluster[n].portion() for n in "ab"] == [4, 4]
    for node in cluster.nodes.values():
        node.store.away = False
    cluster.pass_s(5)
    assert sum(cluster[n].portion() for n in "ab") == 8
    assert cluster["a"].sharing.state == "up"


@pytest.mark.parametrize("seconds", [3.0, 8.0, 20.0])
def test_a_node_that_alone_loses_the_store_passes_the_limit_by_its_lease_at_most(seconds: float) -> None:
    """The others cannot tell it from a dead node, whose part is theirs after 2 s."""
    cluster = Cluster("ab", tenant(concurrency=8))
    cluster.pass_s(4)
    a, b = busy(cluster, "a"), cluster["b"]
    lease = a.portion()
    a.store.away = True
    cluster.pass_s(seconds)
    a.end(8)
    for _ in range(12):
        a.call()
        b.call()
    assert a.portion() <= lease and (seconds < 10 or a.portion() == 4)
    assert 8 <= cluster.held <= 8 + a.portion()
    a.store.away = False
    a.end(8)
    b.end(8)
    cluster.pass_s(4)
    for _ in range(12):
        a.call()
        b.call()
    assert cluster.held <= 8


def test_a_store_that_was_away_from_the_start_costs_a_few_seconds() -> None:
    cluster = Cluster("ab", tenant(concurrency=8), nodes=2)
    for node in cluster.nodes.values():
        node.store.away = True
    cluster.pass_s(6)
    assert [cluster[n].portion() for n in "ab"] == [4, 4]
    for node in cluster.nodes.values():
        assert node.sharing.describe()["joined"] is True


def test_records_that_are_none_are_named_and_count_as_none(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster("a", tenant(concurrency=8))
    cluster.hashes["forebay:shares"] = {"b": b"garbage", "c": b'[1,{"t":[[-4],null,null]}]', ":clock": b"[]"}
    cluster.pass_s(8)
    shown = cluster["a"].sharing.describe()
    assert (cluster["a"].portion(), shown["state"], sorted(shown["broken"])) == (8, "up", ["b", "c"])
    assert len([r for r in caplog.records if "cannot be read" in r.message]) == 1


def test_a_store_that_goes_and_comes_is_logged_once_each_way(caplog: pytest.LogCaptureFixture) -> None:
    cluster = Cluster("a", tenant(concurrency=8))
    cluster.pass_s(4)
    cluster["a"].store.away = True
    cluster.pass_s(6)
    cluster["a"].store.away = False
    cluster.pass_s(2)
    said = [r for r in caplog.records if "does not answer" in r.message]
    assert len(said) == 1
    assert cluster["a"].sharing.failures >= 10


def assert_it_keeps_its_part(cluster: Cluster) -> None:
    """However often node `a` is called, it runs its four of eight."""
    for _ in range(4):
        for _ in range(9):
            cluster["a"].call()
        assert cluster.held <= 8
        cluster.clock.advance(PERIOD)
        cluster["a"].round()
    assert len(cluster["a"].running) == 4


def test_nothing_rises_right_after_the_store_has_lost_everything() -> None:
    cluster = Cluster("ab", tenant(concurrency=8))
    cluster.pass_s(4)
    for _ in range(4):
        assert cluster["b"].call()
    cluster.hashes.clear()
    assert_it_keeps_its_part(cluster)


def test_nothing_rises_right_after_the_store_was_frozen() -> None:
    cluster = Cluster("ab", tenant(concurrency=8))
    cluster.pass_s(4)
    for _ in range(4):
        assert cluster["b"].call()
    for node in cluster.nodes.values():
        node.store.away = True
    cluster.pass_s(5)
    for node in cluster.nodes.values():
        node.store.away = False
        node.store.catch_up()
    assert_it_keeps_its_part(cluster)


def test_a_ceiling_falls_before_it_is_known_that_the_store_has_taken_it() -> None:
    cluster = Cluster("ab", tenant(concurrency=8))
    cluster.pass_s(4)
    a, b = busy(cluster, "a"), cluster["b"]
    a.end(8)
    a.store.deaf = True
    for _ in range(4):
        for _ in range(9):
            b.call()
        cluster.clock.advance(0.2)
        a.round()
        b.round()
    assert len(b.running) >= 4
    for _ in range(9):
        a.call()
    assert cluster.held <= 8


steps = st.lists(
    st.tuples(
        st.sampled_from(["call", "end", "round", "wait", "away", "back", "deaf", "empty"]),
        st.sampled_from("abc"),
        st.integers(1, 6),
    ),
    max_size=120,
)


@settings(max_examples=150, deadline=None)
@given(steps, st.integers(3, 20))
def test_calls_at_once_never_pass_the_limit_while_the_store_is_there_or_gone_for_all(
    run: list[tuple[str, str, int]], limit: int
) -> None:
    """A store that is away is away for all, and no node waits longer between rounds than the slowest does."""
    cluster = Cluster("abc", tenant(concurrency=limit))
    cluster.pass_s(5)
    assert sum(node.portion() for node in cluster.nodes.values()) == limit
    for what, name, count in run:
        node = cluster[name]
        if what == "call":
            for _ in range(count):
                node.call()
        elif what == "end":
            node.end(count)
        elif what == "round":
            node.round()
        elif what == "wait":
            cluster.clock.advance(0.2)
            cluster.pass_s(PERIOD)
        elif what == "empty":
            cluster.hashes.clear()
        else:
            for each in cluster.nodes.values():
                each.store.away = what == "away"
                each.store.deaf = what == "deaf"
                if what != "away":
                    each.store.catch_up()
        assert cluster.held <= limit
        assert all(node.portion() >= 0 for node in cluster.nodes.values())
