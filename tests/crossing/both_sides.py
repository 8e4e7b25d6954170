"""Workers and a gate in one loop, over a real Unix socket: the gate can die and another one come."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

from admission.before_gate import TENANT, Gateway, call, load_of, pool

from forebay.clock import ManualClock
from forebay.crossing.host import GateHost, Room
from forebay.crossing.mirror import follow
from forebay.crossing.remote import RECONNECT_S, RemoteGate, RemotePermit
from forebay.domain import Tenant
from forebay.handover import bound_unix_socket
from forebay.policy import Policy, Pool
from forebay.routing.budget import RetryBudgets
from forebay.routing.pool import Fleet

__all__ = ["TENANT", "Side", "Town", "call", "in_town", "pool", "reached"]


class Side(Gateway):
    """A gate and who serves it."""

    def __init__(self, town: "Town", *pools: Pool, tenant: Tenant) -> None:
        self.town = town
        super().__init__(*pools, tenant=tenant)
        self.clock = town.clock
        self.fleet = Fleet(town.clock)
        self.gate = type(self.gate)(town.clock, self.fleet)
        self.budgets = RetryBudgets(town.clock.now_s)
        self.host = GateHost(
            asyncio.get_running_loop(),
            Room(town.clock, self.gate, self.fleet, self.budgets),
            len(town.workers) or 1,
        )
        self.follow(*pools)

    def follow(self, *pools: Pool, **_: Any) -> None:
        policy = Policy({p.name: p for p in pools}, {}, {b"digest": self.tenant})
        listeners = [self.fleet, self.gate]
        if hasattr(self, "host"):
            listeners += [self.budgets, self.host]
        for listener in listeners:
            listener.apply(policy)

    async def listen(self) -> None:
        await self.host.listen(bound_unix_socket(self.town.path))


class Town:
    """Some workers before one gate after the other, on a clock that stands still."""

    def __init__(self, folder: Path, workers: int = 1) -> None:
        self.path = folder / "gate.sock"
        self.clock = ManualClock(100.0)
        self.workers: list[RemoteGate] = []
        self.tasks: list[asyncio.Task[Any]] = []
        self.copies: list[Fleet] = []
        self.count = workers
        self.side: Side

    async def open(self, *pools: Pool, tenant: Tenant = TENANT) -> Side:
        """Let a gate come, and the workers that are not there yet."""
        self.side = Side(self, *(pools or (pool(),)), tenant=tenant)
        await self.side.listen()
        while len(self.workers) < self.count:
            self._worker(pools or (pool(),))
        await reached(lambda: all(worker.up for worker in self.workers))
        await reached(lambda: len([g for g in self.side.host.guests if g.number is not None]) == self.count)
        self.side.host.tick()
        return self.side

    def _worker(self, pools: tuple[Pool, ...]) -> None:
        loop = asyncio.get_running_loop()
        worker = RemoteGate(loop, self.clock, self.path, len(self.workers))
        copy = Fleet(self.clock)
        copy.apply(Policy({p.name: p for p in pools}, {}, {}))

        def seen(roster: Any, view: Any) -> None:
            states = {(state.pool.name, state.replica.name): state for state in copy.states()}
            for (name, replica), standing in zip(roster, view.standings, strict=True):
                if (name, replica.name) in states:
                    follow(states[name, replica.name], standing)

        worker.on_view = seen
        self.workers.append(worker)
        self.copies.append(copy)
        self.tasks.append(loop.create_task(worker.run()))

    async def die(self) -> None:
        """The gate is killed."""
        self.side.host.close()
        await reached(lambda: not any(worker.up for worker in self.workers))

    async def kill_worker(self, number: int = 0) -> None:
        """A worker is killed: its connection ends, and nothing is said."""
        self.tasks[number].cancel()
        await reached(lambda: all(guest.number != number for guest in self.side.host.guests))

    def ask(self, count: int = 1, worker: int = 0, to: str = "main", **asked: Any) -> list[asyncio.Task[RemotePermit]]:
        """Let calls come."""
        loop, gate = asyncio.get_running_loop(), self.workers[worker]
        return [loop.create_task(gate.acquire(call(self.side.tenant, **asked), to)) for _ in range(count)]

    async def close(self) -> None:
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)
        self.side.host.close()
        await asyncio.sleep(2 * RECONNECT_S)

    def at_rest(self) -> bool:
        """Nothing is held, nothing waits, nothing runs."""
        waiting, held = self.side.gauges()
        loads = [load_of(state) for state in self.side.fleet.states()]
        return not any(waiting.values()) and not any(held.values()) and not any(map(any, loads))


async def reached(check: Callable[[], bool], within_s: float = 30.0) -> None:
    """Wait until something is so."""
    async with asyncio.timeout(within_s):
        while not check():
            await asyncio.sleep(0.001)


def in_town(
    workers: int = 1,
) -> Callable[[Callable[[Town], Coroutine[Any, Any, None]]], Callable[[Path], None]]:
    """Run a test with so many workers, in a loop of its own."""

    def decorated(test: Callable[[Town], Coroutine[Any, Any, None]]) -> Callable[[Path], None]:
        def run(tmp_path: Path) -> None:
            async def main() -> None:
                town = Town(tmp_path, workers)
                try:
                    await test(town)
                finally:
                    await town.close()

            asyncio.run(main())

        functools.update_wrapper(run, test)
        del run.__wrapped__  # type: ignore[attr-defined]  # pytest reads the fixtures from the signature
        return run

    return decorated
