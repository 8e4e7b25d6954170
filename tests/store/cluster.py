"""Nodes that share limits through a store in memory, on one virtual clock; everything at once, no tasks."""

import asyncio

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


def busy(cluster: Cluster, name: str) -> Node:
    """Give a node more calls than it may run, until it has all of the limit but what others use."""
    node = cluster[name]
    for _ in range(8):
        for _ in range(12):
            node.call()
        cluster.pass_s(PERIOD)
        node.end(2)
    return node
