"""A gate before a fleet on a clock that stands still, the calls before it, and engines on virtual time behind it."""

import asyncio
import functools
from collections import Counter
from collections.abc import Callable, Coroutine
from heapq import heappop, heappush
from typing import Any

from forebay.admission.gate import LocalGate, LocalPermit
from forebay.admission.queue import Queue, Waiting
from forebay.clock import ManualClock
from forebay.domain import Replica, Spend, Tenant, Value
from forebay.errors import Refused
from forebay.policy import PROMPT, Admission, Capacity, Policy, Pool
from forebay.routing.pool import Fleet
from forebay.routing.replica import ReplicaState
from forebay.traffic import Call, Work
from forebay.wire.endpoints import BY_PATH

TENANT = Tenant("a")
CHAT = BY_PATH["/v1/chat/completions"]
START_S = 100.0
TICK_S = 0.1
PATIENT_ADMISSION = Admission()
LONG_TOKENS = 8000
LATENCY = Admission("latency", PROMPT, refuses_early=True, short_reserve_ratio=0.25)
KNOWN = Capacity(prefill_tokens_per_s=10_000.0)


def call(
    tenant: Tenant | str = TENANT,
    tokens: int = 10,
    output: int = 0,
    value: Value = "medium",
    deadline_s: float = 1e6,
    *,
    stream: bool = True,
) -> Call:
    if isinstance(tenant, str):
        tenant = Tenant(tenant, high_share_ratio=1.0)
    work = Work(tokens, output, output)
    return Call("c", CHAT, "m", stream, False, tenant, tokens, output, (), 0.0, deadline_s, value, work)


def pool(
    name: str = "main", *, room: int | None = 1, queue: int = 10, replicas: int = 1, drained: int = 0, **more: Any
) -> Pool:
    made = tuple(Replica(f"r{i}", "127.0.0.1", 1) for i in range(replicas))
    return Pool(name, "vllm", made, room, queue, drained=frozenset(r.name for r in made[:drained]), **more)


class Gateway:
    """A gate on a clock that stands still, and the calls that stand before it."""

    def __init__(self, *pools: Pool, tenant: Tenant = TENANT, admission: Admission = PATIENT_ADMISSION) -> None:
        self.clock = ManualClock(START_S)
        self.fleet = Fleet(self.clock)
        self.gate = LocalGate(self.clock, self.fleet)
        self.tenant = tenant
        self.tasks: list[asyncio.Task[LocalPermit]] = []
        self.follow(*(pools or (pool(),)), admission=admission)

    def follow(self, *pools: Pool, admission: Admission = PATIENT_ADMISSION) -> None:
        policy = Policy({p.name: p for p in pools}, {}, {b"digest": self.tenant}, admission=admission)
        self.fleet.apply(policy)
        self.gate.apply(policy)

    def come(self, to: str = "main", **asked: Any) -> asyncio.Task[LocalPermit]:
        task = asyncio.get_running_loop().create_task(self.gate.acquire(call(self.tenant, **asked), to))
        self.tasks.append(task)
        return task

    async def come_all(self, count: int, to: str = "main") -> list[asyncio.Task[LocalPermit]]:
        tasks = [self.come(to) for _ in range(count)]
        await settle()
        return tasks

    def gauges(self) -> tuple[dict[str, float], dict[str, float]]:
        """Waiting calls by pool, held permits by tenant."""
        waiting = {labels[0]: value for labels, value in self.gate.basin.depths()}
        return waiting, {labels[0]: value for labels, value in self.gate.permits_held()}

    def queue(self, name: str = "main") -> Queue:
        return dict(self.gate.basin.queues())[name]

    def load(self) -> list[tuple[int, ...]]:
        """All that counts on the replicas; zeros when nothing runs."""
        return [load_of(state) for state in self.fleet.states()]

    def pass_time(self, seconds: float) -> None:
        """Let time pass with a tick at its end."""
        self.clock.advance(seconds)
        self.fleet.tick()
        self.gate.tick()


def load_of(state: ReplicaState) -> tuple[int, ...]:
    return (
        state.in_flight,
        state.in_flight_tokens,
        state.unprefilled_tokens,
        state.long_prefills,
        state.long_in_flight,
        len(state.unseen),
    )


class Site(Gateway):
    """Engines on virtual time behind a gate: each computes prompts one after the other at its own speed.

    Args:
        tokens_per_s: prompt tokens that an engine computes in a second.
        answer_s: from the first token to the last.
    """

    def __init__(self, *pools: Pool, tokens_per_s: float = 10_000.0, answer_s: float = 0.5, **more: Any) -> None:
        super().__init__(*pools, **more)
        self._tokens_per_s = tokens_per_s
        self._answer_s = answer_s
        self._busy_until_s: dict[str, float] = {}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = 0
        self._tick_s = START_S + TICK_S
        self.granted: list[tuple[float, Call]] = []
        self.first: list[tuple[float, Call]] = []
        self.refused: list[tuple[Call, Refused]] = []
        self.ended = 0
        self.offered = 0
        self.most_long_prefills = 0

    def at(self, at_s: float, act: Callable[[], object]) -> None:
        """Plan something, in seconds from the start."""
        self._numbers += 1
        heappush(self._events, (START_S + at_s, self._numbers, act))

    def every(self, period_s: float, begin_s: float, end_s: float, make: Callable[[], Call]) -> None:
        for number in range(int((end_s - begin_s) / period_s)):
            self.at(begin_s + number * period_s, lambda: self.offer(make()))

    def offer(self, *calls: Call) -> list[Waiting | None]:
        self.offered += len(calls)
        return [
            self.gate.offer(
                one,
                "main",
                functools.partial(self._let_in, one),
                lambda refusal, one=one: self.refused.append((one, refusal)),
            )
            for one in calls
        ]

    def run(self, until_s: float) -> None:
        """Let virtual time pass, to so many seconds from the start."""
        until_s += START_S
        while min(self._tick_s, self._events[0][0] if self._events else self._tick_s) <= until_s:
            if self._events and self._events[0][0] <= self._tick_s:
                at_s, _, act = heappop(self._events)
                self.clock.advance(max(0.0, at_s - self.clock.now_s()))
                act()
            else:
                self.pass_time(max(0.0, self._tick_s - self.clock.now_s()))
                self._tick_s += TICK_S
            self.most_long_prefills = max(
                self.most_long_prefills, *(state.long_prefills for state in self.fleet.states())
            )
        self.clock.advance(max(0.0, until_s - self.clock.now_s()))

    def waits(self, tenant: str) -> list[float]:
        """Seconds from 0 until the first tokens of a tenant's calls that came at 0, in order."""
        return [at_s - START_S for at_s, one in self.first if one.tenant.name == tenant]

    def order(self) -> str:
        """Return the names of the tenants in the order in which their calls went in."""
        return "".join(one.tenant.name for _, one in self.granted)

    def _let_in(self, one: Call, permit: LocalPermit) -> None:
        self.granted.append((self.clock.now_s(), one))
        lease = permit.lease
        assert lease is not None
        name = lease.replica.name
        begin_s = max(self.clock.now_s(), self._busy_until_s.get(name, 0.0))
        end_s = self._busy_until_s[name] = begin_s + one.prompt_tokens / self._tokens_per_s

        def first_token() -> None:
            self.first.append((self.clock.now_s(), one))
            lease.first_token()

        def last_token() -> None:
            lease.report(None, answered=True)
            permit.release(Spend(one.prompt_tokens + one.work.likely_output_tokens))
            self.ended += 1

        self.at(end_s - START_S, first_token)
        self.at(end_s - START_S + self._answer_s, last_token)


def codes(site: Site) -> Counter[str]:
    return Counter(refusal.code for _, refusal in site.refused)


def tenants(site: Site) -> tuple[Counter[str], Counter[str]]:
    """Calls that went in and calls that were refused, by tenant."""
    return (
        Counter(one.tenant.name for _, one in site.granted),
        Counter(one.tenant.name for one, _ in site.refused),
    )


def at_rest(site: Site) -> None:
    assert site.offered == site.ended + len(site.refused)
    assert all(not any(load) for load in site.load())
    assert all(not waiting for waiting in site.gauges()[0].values())
    assert all(not held for held in site.gauges()[1].values())


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
