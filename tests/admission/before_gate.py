"""A gate on a clock that stands still, and the calls that stand before it."""

import asyncio
import functools
from collections.abc import Callable, Coroutine
from typing import Any

from forebay.admission.gate import LocalGate, LocalPermit
from forebay.clock import ManualClock
from forebay.domain import Replica, Tenant
from forebay.policy import Policy, Pool
from forebay.traffic import Call
from forebay.wire.endpoints import BY_PATH

TENANT = Tenant("a")
CHAT = BY_PATH["/v1/chat/completions"]


def call(tenant: Tenant = TENANT, tokens: int = 10) -> Call:
    return Call("c", CHAT, "m", True, False, tenant, tokens, 0, (), 0.0, 600.0)


def pool(name: str = "main", *, room: int | None = 1, queue: int = 10, replicas: int = 1, drained: int = 0) -> Pool:
    made = tuple(Replica(f"r{i}", "127.0.0.1", 1) for i in range(replicas))
    return Pool(name, "vllm", made, room, queue, drained=frozenset(r.name for r in made[:drained]))


class Gateway:
    """A gate on a clock that stands still, and the calls that stand before it."""

    def __init__(self, *pools: Pool, tenant: Tenant = TENANT) -> None:
        self.clock = ManualClock(100.0)
        self.gate = LocalGate(self.clock)
        self.tenant = tenant
        self.tasks: list[asyncio.Task[LocalPermit]] = []
        self.follow(*(pools or (pool(),)))

    def follow(self, *pools: Pool) -> None:
        self.gate.apply(Policy({p.name: p for p in pools}, {}, {b"digest": self.tenant}))

    def come(self, to: str = "main") -> asyncio.Task[LocalPermit]:
        task = asyncio.get_running_loop().create_task(self.gate.acquire(call(self.tenant), to))
        self.tasks.append(task)
        return task

    async def come_all(self, count: int, to: str = "main") -> list[asyncio.Task[LocalPermit]]:
        tasks = [self.come(to) for _ in range(count)]
        await settle()
        return tasks

    def gauges(self) -> tuple[dict[str, float], dict[str, float]]:
        """Waiting calls by pool, held permits by tenant."""
        waiting = {labels[0]: value for labels, value in self.gate.places.depths()}
        return waiting, {labels[0]: value for labels, value in self.gate.permits_held()}


async def settle() -> None:
    """Let every task go as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


def alone(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run a test in a loop of its own."""

    @functools.wraps(test)
    def run(*args: Any, **named: Any) -> None:
        asyncio.run(test(*args, **named))

    return run


def inside(tasks: list[asyncio.Task[LocalPermit]]) -> list[bool]:
    return [task.done() and not task.cancelled() and task.exception() is None for task in tasks]
