"""Every call ends exactly once and everything comes back, whatever happens in whatever order."""

import math
from collections import Counter
from random import Random

from admission.before_gate import (
    KNOWN,
    LATENCY,
    Site,
    call,
    load_of,
    pool,
)
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.admission.gate import LocalPermit
from forebay.admission.queue import Waiting
from forebay.domain import FailureKind, Spend, Tenant
from forebay.errors import Refused
from forebay.policy import PROMPT, Admission, BreakerPolicy, Capacity
from forebay.routing.replica import ReplicaState


class Chaos:
    """Random acts on a gate and a fleet, and what must hold after each."""

    def __init__(self, seed: int) -> None:
        self.dice = Random(seed)
        self.admission = self.dice.choice((Admission(), LATENCY, Admission("latency", PROMPT)))
        self.site = Site(*self.pools(), tenant=Tenant("a", concurrency=12), admission=self.admission)
        self.tenants = (Tenant("a", concurrency=12), Tenant("b"), Tenant("c", high_share_ratio=1.0))
        self.running: list[LocalPermit] = []
        self.waiting: dict[int, tuple[Waiting, str]] = {}
        self.ends: Counter[int] = Counter()
        self.left = 0
        self.offered = 0
        self.seen: dict[int, ReplicaState] = {}

    def pools(self) -> list[object]:
        dice = self.dice
        made = []
        for name in ("main", "other"):
            if dice.random() < 0.9 or name == "other":
                replicas = dice.randint(1, 3)
                capacity = dice.choice((Capacity(), KNOWN, Capacity(None, 6000, 3), Capacity(500.0, 9000, 2)))
                made.append(
                    pool(
                        name,
                        room=dice.choice((None, 1, 2, 5)),
                        queue=dice.randint(0, 12),
                        replicas=replicas,
                        drained=dice.choice((0, 0, 1)),
                        breaker=BreakerPolicy(2, 3.0),
                        capacity=capacity,
                    )
                )
        return made

    def offer(self) -> None:
        number = self.offered
        self.offered += 1
        dice = self.dice
        one = call(
            dice.choice(self.tenants),
            dice.choice((1, 50, 700, 2048, 9000)),
            dice.choice((0, 20, 3000)),
            dice.choice(("high", "medium", "low")),
            self.site.clock.now_s() + dice.choice((0.5, 5.0, 600.0)),
            stream=dice.random() < 0.7,
        )

        def granted(permit: LocalPermit) -> None:
            self.ends[number] += 1
            self.waiting.pop(number, None)
            self.running.append(permit)

        def refused(refusal: Refused) -> None:
            self.ends[number] += 1
            self.waiting.pop(number, None)
            assert refusal.retry_after_s is None or refusal.retry_after_s >= 1

        name = dice.choice(("main", "main", "other"))
        waiting = self.site.gate.offer(one, name, granted, refused)
        assert (waiting is not None) == (not self.ends[number])
        if waiting is not None:
            self.waiting[number] = (waiting, name)

    def leave(self) -> None:
        if self.waiting:
            number = self.dice.choice(list(self.waiting))
            waiting, name = self.waiting.pop(number)
            self.ends[number] += 1
            self.site.gate.basin.leave(waiting, name)
            self.site.gate.basin.leave(waiting, name)

    def first_token(self) -> None:
        if self.running:
            lease = self.dice.choice(self.running).lease
            if lease is not None:
                lease.first_token()

    def report(self) -> None:
        """End a try with or without a failure, perhaps before the permit is released."""
        if self.running:
            permit = self.dice.choice(self.running)
            if permit.lease is not None:
                failure = self.dice.choice((None, None, FailureKind.RESET, FailureKind.CONNECT, FailureKind.LOADING))
                permit.lease.report(failure, answered=failure is None and self.dice.random() < 0.8, cached_tokens=0)

    def release(self) -> None:
        if self.running:
            permit = self.running.pop(self.dice.randrange(len(self.running)))
            if self.dice.random() < 0.1:
                permit.withdraw()
            permit.release(self.dice.choice((None, Spend(0), Spend(100))))
            permit.release(Spend(5))

    def pass_time(self) -> None:
        self.site.pass_time(self.dice.choice((0.0, 0.05, 0.3, 2.0, 40.0)))

    def follow(self) -> None:
        if self.dice.random() < 0.3:
            self.admission = self.dice.choice((Admission(), LATENCY))
            self.site.follow(*self.pools(), admission=self.admission)  # type: ignore[arg-type]

    def act(self) -> None:
        acts = (self.offer,) * 6 + (self.first_token,) * 3 + (self.release,) * 3
        acts += (self.leave, self.report, self.pass_time, self.follow)
        self.dice.choice(acts)()
        self.check()

    def check(self) -> None:
        for state in self.site.fleet.states():
            self.seen[id(state)] = state
        assert max(self.ends.values(), default=0) <= 1
        queues = dict(self.site.gate.basin.queues())
        assert sum(queue.size for queue in queues.values()) == len(self.waiting)
        assert sum(self.site.gauges()[1].values()) == len(self.waiting) + len(self.running)
        for state in self.seen.values():
            assert min(load_of(state)) >= 0
            assert state.long_prefills <= max(1, state.long_in_flight)
        for name in ("main", "other"):
            seen = self.site.fleet.outlook(name, 100, 1000.0, 5)
            assert math.isfinite(seen.drain_s) and math.isfinite(seen.alone_s)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32))
def test_every_call_ends_once_and_everything_comes_back(seed: int) -> None:
    chaos = Chaos(seed)
    for _ in range(120):
        chaos.act()
    # Waiting calls go in, leave by themselves or are refused; then all that run are released.
    for _ in range(200):
        while chaos.running:
            chaos.release()
        if not chaos.waiting:
            break
        chaos.site.pass_time(40.0)
        chaos.check()
    assert not chaos.waiting
    assert chaos.ends == Counter(range(chaos.offered))
    assert all(not any(load_of(state)) for state in chaos.seen.values())
    waiting, held = chaos.site.gauges()
    assert not any(waiting.values())
    assert not any(held.values())
    for _, queue in chaos.site.gate.basin.queues():
        assert not list(queue.waiting())
        assert not queue.tenants()
        assert not any(count for _, count in queue.depths())
