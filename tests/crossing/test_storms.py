"""Calls, cancellations and deaths in any order: limits hold at every moment, and at the end nothing is left."""

import asyncio
import random
from pathlib import Path

import pytest
from crossing.both_sides import Town, pool, reached

from forebay.crossing.remote import RemotePermit
from forebay.domain import FailureKind, Spend, Tenant

LIMIT, ROOM, WORKERS = 8, 3, 3


class Storm:
    """Random acts on a town.

    Attributes:
        held: permits that calls have.
    """

    def __init__(self, town: Town, seed: int) -> None:
        self._town = town
        self._chance = random.Random(seed)
        self._tasks: list[asyncio.Task[RemotePermit]] = []
        self._deaths = 0
        self.held: list[RemotePermit] = []

    async def open(self) -> None:
        """Let a gate come."""
        pools = pool(room=ROOM, replicas=2, queue=50), pool("other", room=2)
        self._side = await self._town.open(*pools, tenant=Tenant("a", concurrency=LIMIT))

    async def act(self) -> None:
        """Do one thing, and let others go on for a while."""
        chance, act = self._chance, self._chance.random()
        if act < 0.45:
            to, worker = chance.choice(["main", "main", "other"]), chance.randrange(WORKERS)
            self._tasks += self._town.ask(chance.randint(1, 3), worker=worker, to=to, tokens=chance.randint(1, 50))
        elif act < 0.6 and self._tasks:
            chance.choice(self._tasks).cancel()
        elif act < 0.9 and self.held:
            self._end(self.held.pop(chance.randrange(len(self.held))))
        elif act > 0.99 and self._deaths < 3:
            self._deaths += 1
            await self._town.die()
            await self.open()
        await asyncio.sleep(0 if chance.random() < 0.8 else 0.001)
        self._gather()

    def check(self) -> None:
        """No limit is passed; of those that were announced to a new gate none is counted twice."""
        waiting, permits = self._side.gauges()
        assert permits["a"] <= LIMIT, "more than the limit"
        loads = [state.in_flight for state in self._side.fleet.states()]
        assert all(0 <= load <= ROOM for load in loads), loads
        assert sum(loads) + sum(waiting.values()) <= LIMIT

    async def end(self) -> None:
        """Let all leave."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._gather()
        for permit in self.held:
            permit.release(None)

    def _gather(self) -> None:
        done = [task for task in self._tasks if task.done()]
        self._tasks = [task for task in self._tasks if not task.done()]
        self.held += [task.result() for task in done if not task.cancelled() and not task.exception()]

    def _end(self, permit: RemotePermit) -> None:
        chance = self._chance
        if permit.lease is not None and chance.random() < 0.7:
            lease, permit.lease = permit.lease, None
            lease.first_token()
            lease.report(chance.choice([None, FailureKind.STALL]), answered=chance.random() < 0.8)
        permit.release(Spend(chance.randint(0, 60)) if chance.random() < 0.8 else None)


async def storm(town: Town, seed: int) -> None:
    """Let one blow."""
    running = Storm(town, seed)
    await running.open()
    for _ in range(400):
        await running.act()
        running.check()
    await running.end()
    await reached(town.at_rest)


@pytest.mark.parametrize("seed", range(12))
def test_a_storm_leaves_nothing(tmp_path: Path, seed: int) -> None:
    async def main() -> None:
        town = Town(tmp_path, WORKERS)
        try:
            await storm(town, seed)
        finally:
            await town.close()

    asyncio.run(main())
