"""Nodes that share limits through a store in memory, on one virtual clock: what holds whatever happens."""

import asyncio
import random
from collections.abc import Mapping

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store.virtual_store import VirtualStore

from forebay.admission.quota import Denied, Quota, Reservation
from forebay.admission.spending import Seed
from forebay.clock import ManualClock
from forebay.config.joint import Joint
from forebay.domain import Spend, Tenant
from forebay.policy import Policy
from forebay.sharing import PERIOD_S, Sharing

PERIOD = PERIOD_S


def tenant(**limits: int) -> Tenant:
    return Tenant(name="t", **limits)  # type: ignore[arg-type]


class Node:
    """One gateway's quota and its part in what is shared; everything at once, no tasks."""

    def __init__(self, name: str, cluster: "Cluster", nodes: int) -> None:
        self.name = name
        self.clock = cluster.clock
        self.store = VirtualStore(cluster.hashes, cluster.clock)
        self.quota = Quota()
        self.sharing = Sharing(self.store, Joint("redis://x", name, nodes), self.quota, cluster.clock)
        self.quota.apply(Policy({}, {}, {b"k": cluster.tenant}))
        self.running: list[Reservation] = []
        self.quota.restore(cluster.seed)

    def call(self, tokens: int = 1) -> bool:
        got = self.quota.reserve(Tenant(name="t"), Spend(tokens), self.clock.now_s(), self.clock.wall_s())
        if isinstance(got, Denied):
            return False
        self.running.append(got)
        return True

    def end(self, count: int = 1) -> None:
        for _ in range(min(count, len(self.running))):
            reservation = self.running.pop(0)
            self.quota.settle(reservation, None, self.clock.now_s(), self.clock.wall_s())

    def round(self) -> bool:
        return asyncio.run(self.sharing.round())

    def portion(self, limit: str = "concurrency") -> int:
        return next(portion for _, name, _, portion, _ in self.sharing.portions.shown() if name == limit)


class Cluster:
    """Nodes, one store, one clock."""

    def __init__(self, names: str, whole: Tenant, *, nodes: int = 1) -> None:
        self.clock = ManualClock(now_s=1000.0)
        self.hashes: dict[str, dict[str, bytes]] = {}
        self.tenant = whole
        self.seed = Seed(0, {})
        self.nodes = {name: Node(name, self, nodes) for name in names}

    def __getitem__(self, name: str) -> Node:
        return self.nodes[name]

    def pass_s(self, seconds: float) -> None:
        """Let the time pass with a round of each node in each period."""
        for _ in range(round(seconds / PERIOD)):
            self.clock.advance(PERIOD / 2)
            for node in self.nodes.values():
                node.round()
            self.clock.advance(PERIOD / 2)

    @property
    def held(self) -> int:
        return sum(len(node.running) for node in self.nodes.values())

    def add(self, name: str) -> Node:
        self.nodes[name] = Node(name, self, 1)
        return self.nodes[name]


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


def test_a_store_that_was_away_from_the_start_costs_a_few_seconds() -> None:
    cluster = Cluster("ab", tenant(concurrency=8), nodes=2)
    for node in cluster.nodes.values():
        node.store.away = True
    cluster.pass_s(6)
    assert [cluster[n].portion() for n in "ab"] == [4, 4]
    for node in cluster.nodes.values():
        assert node.sharing.describe()["joined"] is True


def test_two_processes_of_one_name_do_not_use_the_limit_twice() -> None:
    cluster = Cluster("a", tenant(concurrency=8))
    cluster.pass_s(4)
    twin = Node("a", cluster, 1)
    cluster.nodes["twin"] = twin
    cluster.pass_s(6)
    assert twin.sharing.describe()["node"] == cluster["a"].sharing.describe()["node"] == "a"
    assert sum(node.portion() for node in cluster.nodes.values()) == 8


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


def busy(cluster: Cluster, name: str) -> Node:
    """Give a node more calls than it may run, until it has all of the limit but what others use."""
    node = cluster[name]
    for _ in range(8):
        for _ in range(12):
            node.call()
        cluster.pass_s(PERIOD)
        node.end(2)
    return node


def test_nothing_rises_right_after_the_store_has_lost_everything() -> None:
    cluster = Cluster("ab", tenant(concurrency=8))
    cluster.pass_s(4)
    for _ in range(4):
        assert cluster["b"].call()
    cluster.hashes.clear()
    for _ in range(4):
        for _ in range(9):
            cluster["a"].call()
        assert cluster.held <= 8
        cluster.clock.advance(PERIOD)
        cluster["a"].round()
    assert len(cluster["a"].running) == 4


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
    for _ in range(4):
        for _ in range(9):
            cluster["a"].call()
        assert cluster.held <= 8
        cluster.clock.advance(PERIOD)
        cluster["a"].round()
    assert len(cluster["a"].running) == 4


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
