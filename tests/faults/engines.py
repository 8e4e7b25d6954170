"""Simulated engines in a thread with an event loop of its own, so that tests stay synchronous."""

import asyncio
import threading
import time
from collections.abc import Coroutine, Iterator
from types import TracebackType
from typing import Any, Self, TypeVar

import uvloop
from gateway_process import Document

from forebay.clock import SystemClock
from forebay.engines.sim import SimServer, SimSpec, serve
from forebay.engines.sim.faults import AnyAction

T = TypeVar("T")

QUICK = SimSpec(iteration_base_ms=1, ms_per_prefill_token=0, ms_per_decode_seq=0, models=("m",))


class LoopThread:
    """A thread that runs coroutines; a context manager."""

    def __init__(self) -> None:
        self.loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.run(self._cancel_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(5)
        self.loop.close()

    def run(self, work: Coroutine[Any, Any, T], within_s: float = 60.0) -> T:
        """Run a coroutine in the thread and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(within_s)

    async def _cancel_all(self) -> None:
        others = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class Engines:
    """Simulated engines by the name of their pool, all in one loop thread."""

    def __init__(self, thread: LoopThread) -> None:
        self._thread = thread
        self._by_pool: dict[str, list[SimServer]] = {}
        self._started_s: dict[SimServer, float] = {}

    def start(self, pool: str, *faults: AnyAction, spec: SimSpec = QUICK) -> SimServer:
        """Start one more engine of a pool."""
        server = self._thread.run(serve(spec, "127.0.0.1", 0, SystemClock()))
        server.set_faults(*faults)
        self._started_s[server] = time.monotonic()
        self._by_pool.setdefault(pool, []).append(server)
        return server

    def stop(self) -> None:
        """Stop all."""
        for server in self:
            self._thread.run(server.close())

    def __iter__(self) -> Iterator[SimServer]:
        return (server for servers in self._by_pool.values() for server in servers)

    def of(self, pool: str) -> list[SimServer]:
        """The engines of a pool, in the order of their start."""
        return self._by_pool[pool]

    def pools(self, **settings: Document) -> dict[str, Document]:
        """The section `pools` of a configuration; further settings by pool."""
        return {
            pool: {"engine": "vllm", "replicas": [{"url": s.base_url} for s in servers], **settings.get(pool, {})}
            for pool, servers in self._by_pool.items()
        }

    def models(self) -> dict[str, Document]:
        """The section `models`: one for each pool, with its name; every engine calls its own `m`."""
        return {pool: {"pool": pool, "upstream_model": "m"} for pool in self._by_pool}

    def total(self, figure: str) -> int:
        """The sum of a figure of `stats()` over all engines."""
        return sum(server.stats()[figure] for server in self)

    def arrivals(self) -> list[tuple[float, str]]:
        """Every try that reached an engine: when, in monotonic seconds (give or take some ms), and its call's id."""
        return [
            (self._started_s[server] + seen.arrived_s, value)
            for server in self
            for seen in server.log.entries()
            for name, value in seen.headers
            if seen.attempt and name.lower() == "x-request-id"
        ]
