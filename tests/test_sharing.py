"""Nodes that share limits: who gets how much while the store answers."""

import random
from collections.abc import Mapping

import pytest
from store.cluster import PERIOD, Cluster, Node, busy, tenant

from forebay.domain import Tenant
from forebay.policy import Policy


def test_alone_a_node_gets_everything_after_it_has_looked_for_others() -> None:
    cluster = Cluster("a", tenant(concurrency=8))
    assert not cluster["a"].call(), "nothing before others have had the time to show themselves"
    cluster.pass_s(4)
    assert cluster["a"].portion() == 8
    assert cluster["a"].sharing.describe()["joined"] is True


def test_a_busy_node_gets_what_the_other_leaves() -> None:
    cluster = Cluster("ab", tenant(concurrency=8))
    cluster.pass_s(4)
    assert [cluster[n].portion() for n in "ab"] == [4, 4]
    for _ in range(6):
        for _ in range(12):
            cluster["a"].call()
        cluster.pass_s(PERIOD)
    assert len(cluster["a"].running) == 8
    assert cluster["b"].portion() == 0


def test_what_is_asked_for_moves_only_when_it_has_been_given_up() -> None:
    cluster = Cluster("ab", tenant(concurrency=8))
    cluster.pass_s(4)
    for _ in range(10):
        for _ in range(12):
            cluster["a"].call()
        cluster.pass_s(PERIOD)
    for _ in range(10):
        cluster["b"].call()
        cluster["a"].call()
        cluster.pass_s(PERIOD)
        assert cluster.held <= 8
    assert not cluster["b"].running, "running calls are never taken away"
    cluster["a"].end(8)
    for _ in range(20):
        for _ in range(8):
            cluster["a"].call()
            cluster["b"].call()
        assert cluster.held <= 8
        cluster.pass_s(PERIOD)
        cluster["a"].end()
        cluster["b"].end()
    assert len(cluster["b"].running) >= 2


def test_a_node_that_joins_gets_its_part_and_the_sum_holds() -> None:
    cluster = Cluster("a", tenant(concurrency=8, requests_per_minute=60))
    cluster.pass_s(4)
    for _ in range(8):
        assert cluster["a"].call()
    b = cluster.add("b")
    for _ in range(8):
        b.call()
        assert cluster.held <= 8
        cluster.pass_s(PERIOD)
    cluster["a"].end(8)
    cluster.pass_s(2)
    assert cluster["a"].portion() + b.portion() == 8
    assert b.portion() >= 2


def test_a_node_has_joined_when_the_others_have_given_something_up() -> None:
    cluster = Cluster("a", tenant(concurrency=8))
    cluster.pass_s(4)
    b = cluster.add("b")
    b.round()
    assert (b.portion(), b.sharing.portions.joined) == (0, False)
    cluster.pass_s(1)
    assert (b.portion(), b.sharing.portions.joined) == (4, True)


def test_the_part_of_a_dead_node_comes_back_within_seconds() -> None:
    cluster = Cluster("ab", tenant(concurrency=8, requests_per_minute=600))
    cluster.pass_s(4)
    del cluster.nodes["b"]
    cluster.pass_s(3.5)
    assert cluster["a"].portion() == 8
    assert cluster["a"].portion("requests_per_minute") == 600


def test_what_a_dead_node_used_of_the_minute_counts_until_it_has_left_the_minute() -> None:
    cluster = Cluster("ab", tenant(requests_per_minute=100))
    cluster.pass_s(4)
    used = sum(cluster["b"].call() for _ in range(100))
    assert used == 50
    cluster.pass_s(1)
    del cluster.nodes["b"]
    cluster.pass_s(20)
    assert cluster["a"].portion("requests_per_minute") == 50
    cluster.pass_s(60)
    assert cluster["a"].portion("requests_per_minute") == 100


def used_in_any_minute(uses: list[tuple[float, int]]) -> int:
    return max((sum(w for at, w in uses if s - 60 < at <= s) for s, _ in uses), default=0)


@pytest.mark.parametrize("away", [False, True])
def test_skewed_demand_uses_the_whole_minute_and_no_more(away: bool) -> None:
    cluster = Cluster("ab", tenant(requests_per_minute=600))
    cluster.pass_s(4)
    rng = random.Random(7)
    uses: list[tuple[float, int]] = []
    for step in range(400):
        cluster.nodes["a"].store.away = cluster.nodes["b"].store.away = away and 150 < step < 250
        for name, calls in (("a", 9), ("b", 1)):
            for _ in range(rng.randint(0, 2 * calls)):
                if cluster[name].call():
                    uses.append((cluster.clock.now_s(), 1))
            cluster[name].end(99)
        cluster.pass_s(PERIOD)
    assert used_in_any_minute(uses) <= 600
    begun_s = uses[0][0] + 60
    if not away:
        late = [w for at, w in uses if begun_s <= at < begun_s + 120]
        assert sum(late) >= 0.95 * 1200


def test_tenants_beyond_those_that_share_have_even_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("forebay.portions.MAX_TENANTS", 1)
    cluster = Cluster("ab", tenant(concurrency=8))
    further = Tenant(name="further", concurrency=9)
    for node in cluster.nodes.values():
        node.quota.apply(Policy({}, {}, {b"k": cluster.tenant, b"f": further}))
    cluster.pass_s(5)
    parts = sorted(
        portion
        for node in cluster.nodes.values()
        for name, _, _, portion, _ in node.sharing.portions.shown()
        if name == "further"
    )
    assert parts == [4, 5]


def test_a_new_policy_keeps_portions_and_gives_new_tenants_an_even_part() -> None:
    cluster = Cluster("ab", tenant(concurrency=8))
    cluster.pass_s(4)
    a = busy(cluster, "a")
    before = a.portion()
    changed = Tenant(name="t", concurrency=6, requests_per_minute=60)
    a.quota.apply(Policy({}, {}, {b"k": changed, b"n": Tenant(name="new", concurrency=4)}))
    shown = {(name, limit): portion for name, limit, _, portion, _ in a.sharing.portions.shown()}
    assert shown == {
        ("t", "concurrency"): min(before, 6),
        ("t", "requests_per_minute"): 30,
        ("new", "concurrency"): 2,
    }


def test_two_processes_of_one_name_do_not_use_the_limit_twice() -> None:
    cluster = Cluster("a", tenant(concurrency=8))
    cluster.pass_s(4)
    twin = Node("a", cluster, 1)
    cluster.nodes["twin"] = twin
    cluster.pass_s(6)
    assert twin.sharing.describe()["node"] == cluster["a"].sharing.describe()["node"] == "a"
    assert sum(node.portion() for node in cluster.nodes.values()) == 8


def test_the_month_is_spent_once() -> None:
    cluster = Cluster("ab", Tenant(name="t", tokens=1000))
    cluster.pass_s(4)
    assert cluster["a"].call(600)
    cluster.pass_s(3)
    assert not cluster["b"].call(600), "what runs elsewhere counts"
    assert cluster["b"].call(300)
    cluster["a"].end()
    cluster["b"].end()
    cluster.pass_s(3)
    cluster.hashes.clear()
    cluster.pass_s(3)
    assert not cluster["a"].call(200), "what others told once is remembered when the store forgets it"
    assert cluster["a"].call(100)


def test_shown_is_plain_and_bounded() -> None:
    cluster = Cluster("a", tenant(concurrency=8, tokens_per_minute=1000))
    cluster.pass_s(4)
    cluster["a"].call(100)
    shown: Mapping[str, object] = cluster["a"].sharing.describe()
    assert shown["nodes"] == [cluster["a"].sharing.portions.node]
    assert shown["portions"] == [
        {"tenant": "t", "limit": "concurrency", "of": 8, "portion": 8, "used": 1},
        {"tenant": "t", "limit": "tokens_per_minute", "of": 1000, "portion": 1000, "used": 100},
    ]
