"""Polling with a fake fetch: what is learned of a replica that comes up, and when it is asked again."""

import asyncio
import json
from typing import Any

from forebay.clock import ManualClock
from forebay.domain import Replica
from forebay.policy import EngineKind, Model, Policy, Pool
from forebay.polling import MAX_PROBES, Poller
from forebay.routing.pool import Fleet

CHAT: dict[str, Any] = {"properties": {"return_token_ids": {}}}
SCHEMA = {"components": {"schemas": {"ChatCompletionRequest": CHAT}}}
PAGES = {
    "/health": "",
    "/metrics": "",
    "/version": json.dumps({"version": "0.32.0"}),
    "/v1/models": json.dumps({"data": [{"id": "m", "owned_by": "vllm", "max_model_len": 4096}]}),
    "/openapi.json": json.dumps(SCHEMA),
}


class World:
    """A poller before one engine, some of whose pages have no answer in time for so many times."""

    def __init__(self, engine: EngineKind = "vllm", **slow: int) -> None:
        clock = ManualClock(100.0)
        self.fleet = Fleet(clock)
        pool = Pool("main", engine, (Replica("r", "h", 1),))
        self.fleet.apply(Policy({"main": pool}, {"m": Model("m", "main")}, {}))
        self.poller = Poller(self.fleet, self.fetch, clock)
        self.slow = slow
        self.down = False
        self.asked: list[str] = []

    async def fetch(self, replica: Replica, path: str, timeout_s: float) -> tuple[int, bytes]:
        self.asked.append(path)
        name = path[1:].partition(".")[0]
        if self.slow.get(name, 0):
            self.slow[name] -= 1
            raise TimeoutError
        if self.down:
            raise ConnectionRefusedError
        return (200, PAGES[path].encode()) if path in PAGES else (404, b"")

    def rounds(self, count: int) -> None:
        for _ in range(count):
            asyncio.run(self.poller.round())

    @property
    def probes(self) -> int:
        return self.asked.count("/version")

    @property
    def has_ids(self) -> bool:
        return self.fleet.token_ids("main")


def test_a_replica_that_comes_up_is_probed_once() -> None:
    world = World()
    world.rounds(4)
    assert (world.has_ids, world.probes) == (True, 1)


def test_a_schema_that_came_too_late_is_asked_for_again() -> None:
    # A real vLLM makes it when it is first asked, and its first probe found nothing until it was started anew.
    world = World(openapi=1)
    world.rounds(1)
    assert not world.has_ids
    world.rounds(3)
    assert (world.has_ids, world.probes) == (True, 2)


def test_a_replica_that_never_answers_all_is_left_alone_in_the_end() -> None:
    world = World(props=1000)
    world.rounds(MAX_PROBES + 5)
    assert (world.has_ids, world.probes) == (True, MAX_PROBES)


def test_it_is_probed_anew_when_it_comes_back() -> None:
    world = World()
    world.rounds(2)
    world.down = True
    world.rounds(2)
    world.down = False
    world.rounds(2)
    assert world.probes == 2


def test_an_engine_of_no_kind_is_never_probed() -> None:
    world = World("openai")
    world.rounds(3)
    assert world.probes == 0


def test_a_replica_that_left_the_fleet_is_forgotten() -> None:
    world = World(props=1000)
    world.rounds(1)
    world.fleet.apply(Policy({}, {}, {}))
    world.rounds(1)
    assert world.poller._unsure == {}
