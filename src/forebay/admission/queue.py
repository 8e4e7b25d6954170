"""Who goes next: the calls that wait for one pool, in order. Pure, on the time it is told.

There are two lanes, for short and for long prompts, so that a long prompt that cannot start hides no short
one, until as much has passed it as its lane's share allows. In a lane, classes come first (each at least its
guaranteed share of tokens, beyond that the highest), then tenants (the one that has been served the least
tokens: virtual token counters, Sheng et al., arXiv:2401.00588; who comes back keeps a little credit), then
calls by deadline with a boost for small ones (gamma-Boost, Yu and Scully, arXiv:2404.08826). Starvation is
bounded by the shares: a lane or class that waits gets its part of the tokens, never more by waiting longer.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush

from forebay.admission.served import Pace, Served
from forebay.domain import VALUES, Value
from forebay.errors import Refused
from forebay.policy import Admission, ClassPolicy
from forebay.ports import Lease
from forebay.traffic import Call

# Who comes back has at most so many seconds of the pool's service to spare: enough not to queue behind one who floods.
CREDIT_S = 1.0
MAX_COUNTERS = 2048
# An output token costs an engine about as much as two of a prompt (VTC's weights).
OUTPUT_WEIGHT = 2.0
# How full the queue may be for a class: the least worth is turned away first.
CEILING_RATIO: dict[Value, float] = {"high": 1.0, "medium": 0.9, "low": 0.6}
_MAX_BOOST_RATIO = 4.0


class Waiting:
    """A call in the queue.

    Attributes:
        call: what waits.
        value: what it is treated as.
        long: it is in the long lane.
        cost_tokens: what its tenant is charged when it goes.
        arrived_s: monotonic seconds.
        number: its place among all that came to the queue.
        until_s: when its wait ends.
        target_s: when its first token is due.
        queued: it waits.
        on_grant: called once with it and the lease that it gets; None means that no replica is left to wait for.
        on_refusal: called once instead.
        on_leave: called once instead, when it left by itself.
    """

    __slots__ = ("arrived_s", "call", "cost_tokens", "key_s", "long", "number", "on_grant", "on_leave", "on_refusal",
                 "queued", "target_s", "until_s", "value")  # fmt: skip

    def __init__(self, call: Call, value: Value, long: bool, rule: ClassPolicy, now_s: float) -> None:
        self.call = call
        self.value: Value = value
        self.long = long
        self.cost_tokens = cost_of(call)
        self.arrived_s = now_s
        target_s = rule.long_target_s if long else rule.target_s
        # A long prompt may wait longer in the same proportion as its target is later.
        wait_s = rule.max_wait_s * (target_s / rule.target_s)
        self.until_s = min(now_s + wait_s, call.deadline_s)
        self.target_s = now_s + target_s
        self.key_s = min(self.target_s, call.deadline_s) - _boost_s(self.cost_tokens, rule.target_s)
        self.queued = False
        self.number = 0
        self.on_grant: Callable[[Waiting, Lease | None], None] = _nobody
        self.on_refusal: Callable[[Refused], None] = _nobody
        self.on_leave: Callable[[], None] = _nobody

    def __lt__(self, other: "Waiting") -> bool:
        """Order by what is due first; ties go by arrival."""
        if self.key_s != other.key_s:
            return self.key_s < other.key_s
        return self.number < other.number


def _nobody(*_: object) -> None:
    """Stand in for a listener that is not there yet."""


def cost_of(call: Call) -> float:
    """Return what a call costs its tenant, in tokens of prompt."""
    return call.prompt_tokens + OUTPUT_WEIGHT * call.work.likely_output_tokens


def _boost_s(cost_tokens: float, target_s: float) -> float:
    """Return by how much a call of this size may overtake: -ln(1 - e^-x) targets, at most four.

    x is the size relative to 2,048 tokens. The boost is finite, so nobody is overtaken for ever.
    """
    size = max(1e-3, cost_tokens / 2048.0)
    return target_s * min(_MAX_BOOST_RATIO, -math.log(-math.expm1(-size)))


class _Heap:
    """The waiting calls of one tenant in one class of a lane; those that left are dropped when they come up."""

    __slots__ = ("calls", "cost_tokens", "live", "tokens")

    def __init__(self) -> None:
        self.calls: list[Waiting] = []
        self.live = 0
        self.tokens = 0
        self.cost_tokens = 0.0

    def tidy(self) -> None:
        """Drop those that left from the front, and all of them when they are the most."""
        calls = self.calls
        if len(calls) > 2 * self.live + 64:
            calls[:] = sorted(waiting for waiting in calls if waiting.queued)
        while calls and not calls[0].queued:
            heappop(calls)


class Lane:
    """The waiting calls of one lane, by class and tenant.

    Attributes:
        counts: calls by class.
        served: what was let in lately.
    """

    __slots__ = ("_heaps", "counts", "served")

    def __init__(self) -> None:
        self._heaps: dict[Value, dict[str, _Heap]] = {value: {} for value in VALUES}
        self.counts: dict[Value, int] = dict.fromkeys(VALUES, 0)
        self.served = Served()

    def push(self, waiting: Waiting) -> None:
        """Add a call."""
        heap = self._heaps[waiting.value].setdefault(waiting.call.tenant.name, _Heap())
        heappush(heap.calls, waiting)
        heap.live += 1
        heap.tokens += waiting.call.prompt_tokens
        heap.cost_tokens += waiting.cost_tokens
        waiting.queued = True
        self.counts[waiting.value] += 1

    def leave(self, waiting: Waiting) -> None:
        """Take a call out."""
        waiting.queued = False
        self.counts[waiting.value] -= 1
        heaps = self._heaps[waiting.value]
        heap = heaps[waiting.call.tenant.name]
        heap.live -= 1
        heap.tokens -= waiting.call.prompt_tokens
        heap.cost_tokens -= waiting.cost_tokens
        heap.tidy()
        if not heap.calls:
            del heaps[waiting.call.tenant.name]

    def tenants(self, value: Value) -> Iterable[str]:
        """Return the tenants whose calls of this class wait here."""
        return self._heaps[value].keys()

    def first(self, value: Value, tenant: str) -> Waiting:
        """Return the next call of a tenant that waits here."""
        return self._heaps[value][tenant].calls[0]

    def loads(self, value: Value) -> Iterable[tuple[str, int, float, int]]:
        """Return the prompt tokens, the cost and the number of the waiting calls of a class, by tenant."""
        return [(name, heap.tokens, heap.cost_tokens, heap.live) for name, heap in self._heaps[value].items()]

    def waiting(self, value: Value, tenant: str) -> list[Waiting]:
        """Return all calls of a tenant in a class, in no order."""
        heap = self._heaps[value].get(tenant)
        return [] if heap is None else [waiting for waiting in heap.calls if waiting.queued]


class Queue:
    """The calls that wait for one pool.

    Attributes:
        size: how many wait.
    """

    def __init__(self, admission: Admission) -> None:
        self.admission = admission
        self.size = 0
        self._lanes = (Lane(), Lane())
        self._counters: dict[str, float] = {}
        self._waiting: dict[str, int] = {}
        self._last = ""
        # Virtual time: where the least served of those who wait has been. Never goes back, or credits would add up.
        self._passed = 0.0
        self._pace = Pace()
        self._pushed = 0
        # Cost of the short calls that go before the long lane's next turn; below 0 its turn has come.
        self._before_long = 0.0

    def push(self, waiting: Waiting) -> None:
        """Let a call wait."""
        tenant = waiting.call.tenant.name
        if not self.size:
            # While nobody is kept waiting all have what they want: they come back with the same credit.
            idle_s = min(CREDIT_S, self._pace.begin(waiting.arrived_s))
            self._passed = self._now_passed() + idle_s * self._pace.tokens_per_s
        if tenant not in self._waiting:
            self._lift(tenant)
        self._waiting[tenant] = self._waiting.get(tenant, 0) + 1
        self._pushed += 1
        waiting.number = self._pushed
        self._lanes[waiting.long].push(waiting)
        self.size += 1

    def remove(self, waiting: Waiting) -> None:
        """Take a call out, whatever the reason; a second time changes nothing."""
        if not waiting.queued:
            return
        self._lanes[waiting.long].leave(waiting)
        self.size -= 1
        tenant = waiting.call.tenant.name
        self._waiting[tenant] -= 1
        if not self._waiting[tenant]:
            del self._waiting[tenant]
            self._last = tenant

    def short(self) -> int:
        """Return how many wait in the short lane."""
        return sum(self._lanes[0].counts.values())

    def heads(self) -> list[Waiting]:
        """Return who is next: the head of each lane that has one, the one to be tried first in front."""
        short, long = self._head(self._lanes[0]), self._head(self._lanes[1])
        if long is None or short is None:
            return [head for head in (short, long) if head is not None]
        owed = self._before_long <= 0.0 < self.admission.long_share_ratio
        first = owed or VALUES.index(long.value) < VALUES.index(short.value)
        return [long, short] if first else [short, long]

    def may_pass(self, head: Waiting) -> bool:
        """Say whether the other lane's head may go before this one, which came first and cannot start.

        A short call lets no long one by. A long one lets short ones by until they have had their part once more;
        beyond that they would keep the room that it needs taken for ever.
        """
        return head.long and self._before_long > -self._short_part(head.cost_tokens)

    def charge(self, call: Call, value: Value, long: bool, now_s: float) -> None:
        """Count a call that goes in while others wait."""
        tokens = cost_of(call)
        lane = self._lanes[long]
        lane.served.add(tokens, value, lane.counts, now_s)
        self._pace.add(tokens, now_s)
        if long:
            # The next turn is as far away as this call was large, less what this one had to wait beyond its own.
            self._before_long = min(0.0, self._before_long) + self._short_part(tokens)
        else:
            self._before_long -= tokens
            if not any(self._lanes[1].counts.values()):
                self._before_long = max(0.0, self._before_long)
        self.settle(call.tenant.name, tokens)

    def settle(self, tenant: str, tokens: float) -> None:
        """Correct what a tenant has been served, by tokens of prompt; negative gives back."""
        counters = self._counters
        if tenant not in counters and len(counters) >= MAX_COUNTERS:
            # The one who has gone longest without a call; it comes back lifted to the others.
            del counters[next(iter(counters))]
        counters[tenant] = max(0.0, counters.pop(tenant, 0.0) + tokens)

    def overfull(self, value: Value, queue_size: int) -> bool:
        """Say whether the queue is full for one more call of a class."""
        return self.size >= queue_size * CEILING_RATIO[value]

    def evictable(self, tenant: str, value: Value) -> Waiting | None:
        """Return a call that should rather be refused than one of this tenant: the last of who has the most waiting.

        Only a tenant with more than one call more than this one gives way, and no call of a higher class.
        """
        most = max(self._waiting, key=self._waiting.__getitem__, default="")
        if self._waiting.get(most, 0) <= self._waiting.get(tenant, 0) + 1:
            return None
        for worth in reversed(VALUES[VALUES.index(value) :]):
            calls = [w for lane in self._lanes for w in lane.waiting(worth, most)]
            if calls:
                return max(calls, key=lambda w: w.arrived_s)
        return None

    def ahead(self, value: Value, long: bool, call: Call | None = None) -> tuple[float, int]:
        """Return the prompt tokens and the number of calls that a newcomer would wait behind.

        Args:
            value: its class.
            long: it takes the long lane.
            call: the newcomer; of the other tenants' calls in its class only those count that go before it by the
                counters. None counts everything.
        """
        tokens, calls = 0.0, 0.0
        for lane in self._lanes if long else self._lanes[:1]:
            for worth in VALUES[: VALUES.index(value) + 1]:
                loads = lane.loads(worth)
                reach = math.inf if call is None or worth != value else self._reach(call, loads)
                for name, waiting_tokens, cost_tokens, count in loads:
                    lead = reach - self._counters.get(name, 0.0)
                    part = 1.0 if lead >= cost_tokens else max(0.0, lead / cost_tokens)
                    tokens += part * waiting_tokens
                    calls += part * count
        return tokens, math.ceil(calls)

    def _reach(self, call: Call, loads: Iterable[tuple[str, int, float, int]]) -> float:
        """Return what the counter of a newcomer's tenant will be when all of its calls have gone in."""
        tenant = call.tenant.name
        own = sum(cost_tokens for name, _, cost_tokens, _ in loads if name == tenant)
        return self._level(tenant) + own + cost_of(call)

    def due(self, now_s: float) -> list[Waiting]:
        """Return the calls whose wait has ended."""
        return [waiting for waiting in self.waiting() if waiting.until_s <= now_s]

    def waiting(self) -> Iterator[Waiting]:
        """Yield all calls that wait."""
        for lane in self._lanes:
            for value in VALUES:
                for tenant in list(lane.tenants(value)):
                    yield from lane.waiting(value, tenant)

    def depths(self) -> Iterator[tuple[tuple[str, str], int]]:
        """Yield the number of waiting calls by lane and class."""
        for name, lane in zip(("short", "long"), self._lanes, strict=True):
            for value in VALUES:
                yield (name, value), lane.counts[value]

    def tenants(self) -> dict[str, int]:
        """Return the number of waiting calls by tenant."""
        return dict(self._waiting)

    def _short_part(self, long_tokens: float) -> float:
        """Return the tokens that short calls get for so many of the long lane."""
        share = self.admission.long_share_ratio
        return long_tokens * (1.0 - share) / share if share else math.inf

    def _head(self, lane: Lane) -> Waiting | None:
        backlogged = [value for value in VALUES if lane.counts[value]]
        if not backlogged:
            return None
        value = backlogged[0]
        if len(backlogged) > 1:
            value = self._class_of(backlogged, lane.served)
        tenant = min(lane.tenants(value), key=lambda name: self._counters.get(name, 0.0))
        return lane.first(value, tenant)

    def _class_of(self, backlogged: list[Value], served: Served) -> Value:
        """Return the class that is owed the most of its guaranteed share, else the highest."""
        most, owed = backlogged[0], 0.0
        for value in backlogged:
            lacking = served.lacking(value, self.admission.classes[value].share_ratio)
            if lacking > owed:
                most, owed = value, lacking
        return most

    def _lift(self, tenant: str) -> None:
        """Who comes back from idleness has saved up a little, so much for an hour as for a few seconds."""
        self._passed = self._now_passed()
        level = self._level(tenant)
        self._counters.pop(tenant, None)
        self.settle(tenant, level)

    def _level(self, tenant: str) -> float:
        """Return the counter that a tenant goes on with: its own, or the others' less what goes in in `CREDIT_S`."""
        credit_tokens = CREDIT_S * self._pace.tokens_per_s
        return max(self._counters.get(tenant, 0.0), self._now_passed() - credit_tokens)

    def _now_passed(self) -> float:
        """Return the virtual time; when nobody waits, the last one who did says where the others would be."""
        counters = self._counters
        return max(self._passed, min([counters.get(name, 0.0) for name in self._waiting or (self._last,)]))
