"""The shared store is stopped or hangs under calls and 50 streams, and no client notices."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults.conftest import Field
from gateway_process import eventually
from real_redis import RealRedis

pytestmark = pytest.mark.integration

CALM_S = 2.0
FAULT_S = 4.0


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealRedis]:
    folder = tmp_path / "redis"
    folder.mkdir()
    running = RealRedis(folder)
    yield running
    running.thaw()
    running.stop()


def test_a_take_over_has_its_part_before_it_takes_calls(field: Field, server: RealRedis) -> None:
    tenants = [{"name": "a", "keys": ["key-A"], "limits": {"concurrency": 200, "requests_per_minute": 1_000_000}}]
    gateway = field.start({**field.settings, "tenants": tenants, "store": {"url": server.url}})
    with field.load(gateway.address) as load:
        time.sleep(CALM_S)
        old = gateway.replaced()
        try:
            assert old.wait(20) == 0
        finally:
            old.kill()
        time.sleep(CALM_S)
    load.stop()
    assert not load.failures, load.failures[:5]


@pytest.mark.parametrize("how", ["stopped", "frozen"])
def test_the_store_goes_and_comes_under_calls_and_streams(field: Field, server: RealRedis, how: str) -> None:
    begin, end = (server.stop, server.start) if how == "stopped" else (server.freeze, server.thaw)
    limits = {"concurrency": 1000, "requests_per_minute": 1_000_000, "tokens_per_minute": 100_000_000, "tokens": 10**12}
    tenants = [{"name": "a", "keys": ["key-A"], "limits": limits}]
    gateway = field.start({**field.settings, "tenants": tenants, "store": {"url": server.url}})
    with field.load(gateway.address, rate_per_s=60, streams=50) as load:
        time.sleep(CALM_S)
        with load.fault(f"store {how}"):
            begin()
            assert eventually(lambda: gateway.metric("forebay_store_up") == 0, 30)
            time.sleep(FAULT_S)
            end()
        assert eventually(lambda: gateway.metric("forebay_store_up") == 1, 30)
        time.sleep(CALM_S)
    load.stop()
    load.assert_unharmed(slowest_s=3.5)
    assert {row["outcome"] for row in gateway.rows(load.asked, within_s=30)} == {"ok"}
    gateway.common_ending("small")
