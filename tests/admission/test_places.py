"""Room follows the replicas that may serve, not those that are configured."""

import asyncio

import pytest

from forebay.admission.places import Places
from forebay.clock import ManualClock
from forebay.domain import Replica
from forebay.errors import Refused
from forebay.policy import Policy, Pool

POOL = Pool("main", "vllm", tuple(Replica(f"e:{n}", "e", n) for n in (1, 2)), max_in_flight=2, queue_size=1)


def test_an_ejected_replica_takes_its_places_with_it() -> None:
    async def run() -> None:
        usable = {"main": 1}
        places = Places(ManualClock(), lambda name: usable[name])
        places.apply(Policy({"main": POOL}, {}, {}))
        for _ in range(2):
            await places.enter("main", 60.0)
        waiting = asyncio.get_running_loop().create_task(places.enter("main", 60.0))
        await asyncio.sleep(0)
        assert dict(places.depths()) == {("main",): 1}
        with pytest.raises(Refused, match="queue is full"):
            await places.enter("main", 60.0)
        usable["main"] = 2
        places.tick()
        await waiting
        assert dict(places.depths()) == {("main",): 0}

    asyncio.run(run())


def test_with_no_replica_left_nobody_waits() -> None:
    async def run() -> None:
        places = Places(ManualClock(), lambda _: 0)
        places.apply(Policy({"main": POOL}, {}, {}))
        for _ in range(5):
            await asyncio.wait_for(places.enter("main", 60.0), 1)

    asyncio.run(run())
