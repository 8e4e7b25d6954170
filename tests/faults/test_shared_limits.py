"""Two gateways on one real Redis: limits in sum, and a Redis that is stopped, frozen or empty, under load."""

import asyncio
import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest
from cases.rawhttp import chat, request_bytes
from faults.client import Link
from faults.engines import LoopThread
from faults.mortals import Sim
from gateway_process import Document, Gateway, eventually
from real_redis import RealRedis

pytestmark = pytest.mark.integration

LIMIT = 8


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealRedis]:
    running = RealRedis(tmp_path)
    yield running
    running.thaw()
    running.stop()


@pytest.fixture
def sim() -> Iterator[Sim]:
    started = Sim()
    started.wait()
    yield started
    started.stop()


class Pair(NamedTuple):
    """Two gateways on one store, in front of one engine."""

    sim: Sim
    server: RealRedis
    gateways: tuple[Gateway, Gateway]

    def portions(self, limit: str) -> list[float]:
        """What each may use of a limit of tenant `a`."""
        return [g.metric("forebay_limit_portion", tenant="a", limit=limit) for g in self.gateways]

    def most_at_once(self) -> int:
        """How many calls the engine ran at the same time, by its own log."""
        changes: list[tuple[float, int]] = []
        for entry in self.sim.steer("log")["requests"]:
            if entry["attempt"]:
                ended_s = entry["disconnected_s"] or entry["ended_s"]
                changes += [(entry["arrived_s"], 1), (float("inf") if ended_s is None else ended_s, -1)]
        most = running = 0
        for _, change in sorted(changes):
            running += change
            most = max(most, running)
        return most


def settings_for(sim: Sim, server: RealRedis, node: str, workers: int, **limits: int) -> Document:
    return {
        "workers": workers,
        "node": node,
        "store": {"url": server.url},
        "pools": {"main": {"engine": "vllm", "replicas": [{"url": sim.url}]}},
        "models": {"m": {"pool": "main"}},
        "tenants": [{"name": "a", "keys": ["key-A"], "limits": limits}, {"name": "b", "keys": ["key-B"]}],
    }


@pytest.fixture
def pair(tmp_path: Path, sim: Sim, server: RealRedis) -> Iterator[Callable[..., Pair]]:
    started: list[Gateway] = []

    def start(workers: int = 1, **limits: int) -> Pair:
        for node in ("n1", "n2"):
            folder = tmp_path / node
            folder.mkdir()
            started.append(Gateway(folder, settings_for(sim, server, node, workers, **limits), {}, ready=True))
        assert eventually(lambda: all(g.metric("forebay_nodes") == 2 for g in started), 30)
        return Pair(sim, server, (started[0], started[1]))

    yield start
    codes = [gateway.stop() for gateway in started]
    for gateway in started:
        print(f"a gateway's log:\n{gateway.log[-2000:]}")
        assert "Traceback" not in gateway.log
    assert set(codes) <= {0, -signal.SIGKILL}


class Callers:
    """Clients that call one gateway after the other has answered; a context manager.

    Attributes:
        statuses: of the answers that came, by the gateway's place.
        slowest_s: of an answer that was no stream of tokens: refusals.
        lost: calls without an answer.
    """

    def __init__(self, thread: LoopThread, pair: Pair, each: tuple[int, int], *, tokens: int = 12) -> None:
        self._thread = thread
        self._pair = pair
        self._each = each
        self._tokens = tokens
        self._over = False
        self.statuses: tuple[list[int], list[int]] = ([], [])
        self.slowest_s = 0.0
        self.lost = 0

    def __enter__(self) -> "Callers":
        self._running = asyncio.run_coroutine_threadsafe(self._run(), self._thread.loop)
        return self

    def __exit__(self, *_: object) -> None:
        self._over = True
        self._running.result(60)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for place, count in enumerate(self._each):
                for _ in range(count):
                    group.create_task(self._caller(place))

    async def _caller(self, place: int) -> None:
        body = chat("m", stream=True, max_tokens=self._tokens)
        request = request_bytes("POST", "/v1/chat/completions", body)
        while not self._over:
            try:
                link = await Link.open(self._pair.gateways[place].address)
            except OSError:
                await asyncio.sleep(0.1)
                continue
            try:
                timed = await link.ask(request)
            except (OSError, ConnectionError, ValueError, AssertionError):
                self.lost += 1
                await asyncio.sleep(0.05)
                continue
            finally:
                link.close()
            self.statuses[place].append(timed.response.status)
            if timed.response.status == 429:
                self.slowest_s = max(self.slowest_s, timed.response.elapsed_s)
                await asyncio.sleep(0.05)


def assert_only_served_or_limited(callers: Callers) -> None:
    assert callers.lost == 0
    assert set(callers.statuses[0]) | set(callers.statuses[1]) <= {200, 429}


@pytest.mark.parametrize("workers", [1, 2])
def test_eight_at_once_on_two_nodes_are_eight_in_sum(
    pair: Callable[..., Pair], thread: LoopThread, workers: int
) -> None:
    both = pair(workers, concurrency=LIMIT)
    with Callers(thread, both, (12, 12)) as callers:
        time.sleep(5)
    assert_only_served_or_limited(callers)
    assert both.most_at_once() == LIMIT
    assert min(callers.statuses[0].count(200), callers.statuses[1].count(200)) > 0
    assert all(eventually(gateway.idle, 30) for gateway in both.gateways)


def test_the_busy_node_gets_what_the_other_leaves_and_all_of_it_when_that_dies(
    pair: Callable[..., Pair], thread: LoopThread
) -> None:
    both = pair(concurrency=LIMIT)
    with Callers(thread, both, (12, 1)) as callers:
        assert eventually(lambda: both.portions("concurrency")[0] >= 6, 30), both.portions("concurrency")
        os.killpg(both.gateways[1].process.pid, signal.SIGKILL)
        both.gateways[1].process.wait()
        one = both.gateways[0]
        whole = {"tenant": "a", "limit": "concurrency"}
        assert eventually(lambda: one.metric("forebay_limit_portion", **whole) == LIMIT, 30)
        assert one.metric("forebay_nodes") == 1
        time.sleep(1)
    assert set(callers.statuses[0]) <= {200, 429}
    assert both.most_at_once() == LIMIT


def outage(pair: Pair, callers: Callers, begin: Callable[[], None], end: Callable[[], None]) -> None:
    """The store goes under load and comes back; nothing fails, and no more run at once than may."""
    time.sleep(2)
    begin()
    down = [lambda g=g: g.metric("forebay_store_up") == 0 for g in pair.gateways]
    assert all(eventually(each, 30) for each in down)
    served = [statuses.count(200) for statuses in callers.statuses]
    time.sleep(4)
    for gateway in pair.gateways:
        # Of several workers none knows: their gate does, and its status and metrics say it.
        assert json.loads(gateway.get("/health/live")[1]).get("store", "down: ").startswith("down: ")
        assert gateway.get("/health/ready")[0] == 200
    assert all(now.count(200) > before for now, before in zip(callers.statuses, served, strict=True))
    end()
    assert all(eventually(lambda g=g: g.metric("forebay_store_up") == 1, 30) for g in pair.gateways)
    time.sleep(4)


@pytest.mark.parametrize(("how", "workers"), [("stopped", 1), ("frozen", 1), ("frozen", 2)])
def test_the_store_goes_under_load(pair: Callable[..., Pair], thread: LoopThread, how: str, workers: int) -> None:
    both = pair(workers, concurrency=LIMIT)
    server = both.server
    begin, end = (server.stop, server.start) if how == "stopped" else (server.freeze, server.thaw)
    with Callers(thread, both, (10, 4)) as callers:
        outage(both, callers, begin, end)
    assert_only_served_or_limited(callers)
    assert both.most_at_once() <= LIMIT
    for gateway in both.gateways:
        assert len([line for line in gateway.log.splitlines() if " ERROR forebay.sharing " in line]) == 1
        assert server.url not in gateway.log


def test_requests_of_a_minute_are_counted_over_both_nodes(pair: Callable[..., Pair], thread: LoopThread) -> None:
    both = pair(requests_per_minute=60)
    with Callers(thread, both, (6, 2), tokens=2) as callers:
        assert eventually(lambda: sum(s.count(200) for s in callers.statuses) >= 57, 30)
        time.sleep(3)
    assert_only_served_or_limited(callers)
    assert 57 <= sum(s.count(200) for s in callers.statuses) <= 60


def test_garbage_in_the_store_is_said_and_harms_nobody(pair: Callable[..., Pair], thread: LoopThread) -> None:
    both = pair(concurrency=LIMIT)
    with closing(both.server.client()) as client:
        client.delete("forebay:shares")
        client.set("forebay:shares", "not a hash")
        with Callers(thread, both, (4, 4)) as callers:
            assert eventually(lambda: all(g.metric("forebay_store_up") == 0 for g in both.gateways), 30)
            time.sleep(1)
            assert json.loads(both.gateways[0].get("/health/live")[1])["store"] == "down: it answers WRONGTYPE"
            client.delete("forebay:shares")
            assert eventually(lambda: all(g.metric("forebay_store_up") == 1 for g in both.gateways), 30)
    assert_only_served_or_limited(callers)
    assert both.most_at_once() <= LIMIT
