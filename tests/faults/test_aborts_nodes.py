"""After a storm over two nodes of two workers nothing is held: not by them, not at the engines, not in their store."""

import os
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from faults.engines import Engines, LoopThread
from faults.storm import Storm, settings, start_engines
from faults.test_aborts import GAUGES
from gateway_process import Gateway, eventually
from real_redis import RealRedis

from forebay.store.contract import SHARES_KEY, Page
from forebay.store.records import book_of

pytestmark = pytest.mark.integration

NODES = ("n1", "n2")
LIMIT = 1  # of calls at once, for the tenant `one_at_once`


class Both:
    """Two nodes on one store, before engines that fail."""

    def __init__(self, engines: Engines, server: RealRedis, gateways: list[Gateway]) -> None:
        self.engines = engines
        self.server = server
        self.gateways = gateways

    def held(self) -> dict[str, float]:
        """What should be 0 when all calls have ended: gauges of all workers, calls at engines, claims in the store."""
        found = {
            f"{node} {gauge}": gateway.metric(f"forebay_{gauge}")
            for node, gateway in zip(NODES, self.gateways, strict=True)
            for gauge in GAUGES
        }
        found |= {name: self.engines.total(name) for name in ("sequences_active", "calls_open")}
        for name, (_, used, demand) in self.at_once().items():
            found |= {f"{name} used in the store": used, f"{name} wanted in the store": demand}
        return {name: value for name, value in found.items() if value}

    def at_once(self) -> dict[str, tuple[int, int, int]]:
        """What the store says of the limit of calls at once: ceiling, used and wanted by process."""
        with closing(self.server.client()) as client:
            fields = {name.decode(): text for name, text in client.hgetall(SHARES_KEY).items()}
        records = book_of(Page(0, fields)).records
        claims = {name: record.claims["one_at_once"][0] for name, record in records.items()}
        return {name: (claim.ceiling, claim.used, claim.demand) for name, claim in claims.items() if claim is not None}

    def calm(self) -> bool:
        time.sleep(0.1)
        return not self.held() and sum(ceiling for ceiling, _, _ in self.at_once().values()) <= LIMIT


@pytest.fixture
def both(tmp_path: Path, engines: Engines) -> Iterator[Both]:
    start_engines(engines)
    server = RealRedis(tmp_path)
    gateways: list[Gateway] = []
    try:
        for name in NODES:
            shared = {"node": name, "workers": 2, "store": {"url": server.url, "nodes": 2}}
            (tmp_path / name).mkdir()
            gateways.append(Gateway(tmp_path / name, {**settings(engines), **shared}, {}, ready=True))
        yield Both(engines, server, gateways)
    finally:
        for gateway in gateways:
            gateway.stop()
        server.stop()


def check(both: Both, thread: LoopThread, count: int) -> None:
    storm = Storm(thread, *(gateway.address for gateway in both.gateways))
    took_s = storm.run(count)
    print(f"\n{count} calls over two nodes in {took_s:.1f} s")
    for end, times in sorted(storm.seen.items()):
        print(f"{times:6} {end}")
    assert not storm.faults, storm.faults[:5]
    assert eventually(both.calm, 30), f"{both.held()}, {both.at_once()}"
    claims = both.at_once()
    print(f"held afterwards: {both.held()}; (portion, used, wanted) in the store: {claims}")
    assert len(claims) == len(NODES)
    assert not any("Traceback" in gateway.log for gateway in both.gateways)


def test_a_storm_over_two_nodes(both: Both, thread: LoopThread) -> None:
    check(both, thread, 600)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_many_aborts(both: Both, thread: LoopThread) -> None:
    check(both, thread, int(os.environ.get("FOREBAY_TEST_ABORTS", "10000")))
