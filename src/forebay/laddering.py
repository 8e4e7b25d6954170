"""The level of the ladder that each pool stands on: what its replicas and its queue say, and what people say (D1).

The level is a reflex: it is decided here, in memory, twice a second, and never goes through a file (T7). It passes no
arbiter, as ejections do not, but each change stands in the list of actions. What a level does to a call is `sparing`'s.
"""

import logging
from collections.abc import Iterator
from itertools import islice

from msgspec import Struct

from forebay.actions import Actions
from forebay.admission.basin import Basin
from forebay.clock import Clock
from forebay.degrade.ladder import Ladder
from forebay.degrade.pressure import PAINS, SUFFERING_S, EngineWatch, Lasting, Load, Pain, Pressure, pool_pressure
from forebay.domain import ABSENT, Signal
from forebay.engines.contract import Telemetry
from forebay.policy import KV_RATIOS, Admission, LevelOverride, Policy
from forebay.ports import PoolView
from forebay.routing.pool import Fleet
from forebay.routing.replica import ReplicaState

log = logging.getLogger(__name__)

PERIOD_S = 0.5
STEP = "ladder"
# A replica that is preempting has been given too much: so much of its room is used until its pool is well again.
SMALLER_BATCH_RATIO = 0.9
# Who waits first is looked for among so many.
_LOOKED_AT = 1024
# A first token is late beyond its target, or beyond so many times what it takes with nobody else there.
_ALONE_RATIO = 1.5
_UNDO = "falls by itself, a level every 30 s or more; POST a level for the pool to hold it elsewhere"


class _Watch:
    """One pool."""

    def __init__(self) -> None:
        self.ladder = Ladder()
        self.late = Lasting()
        self.engines: dict[str, EngineWatch] = {}
        self.pressure = Pressure()


_NOBODY_KNOWS = PoolView()


class ByHand(Struct, frozen=True):
    """The levels that people have set: for all, by pool, by tenant; None for nothing."""

    node: int | None
    pools: dict[str, int]
    tenants: dict[str, int]

    def level(self, pool: str, tenant: str) -> int | None:
        """Return the highest that holds for a call; None when none does."""
        levels = (self.node, self.pools.get(pool), self.tenants.get(tenant))
        found = [level for level in levels if level is not None]
        return max(found) if found else None


def by_hand(levels: tuple[LevelOverride, ...]) -> ByHand | None:
    """Sort the levels that people have set; of two for the same thing the higher counts."""
    if not levels:
        return None
    node: int | None = None
    pools: dict[str, int] = {}
    tenants: dict[str, int] = {}
    for one in levels:
        if one.scope == "node":
            node = max(one.level, node or 0)
        else:
            found = pools if one.scope == "pool" else tenants
            found[one.name] = max(one.level, found.get(one.name, 0))
    return ByHand(node, pools, tenants)


class Laddering:
    """Follows the pressure on all pools; follows the policy.

    Args:
        fleet: the replicas.
        basin: the queues.
        actions: the list of what Forebay does by itself.
        clock: monotonic time.

    Attributes:
        engaged: some level is above 0, or set by hand; while it is False no call need ask.
    """

    def __init__(self, fleet: Fleet, basin: Basin, actions: Actions, clock: Clock) -> None:
        self._fleet = fleet
        self._basin = basin
        self._actions = actions
        self._clock = clock
        self._watches: dict[str, _Watch] = {}
        self._ratios = KV_RATIOS
        self._admission = Admission()
        self._own: tuple[LevelOverride, ...] = ()
        self._shared: tuple[LevelOverride, ...] = ()
        self._by_hand: ByHand | None = None
        self._told: dict[str, PoolView] | None = None
        # Pools with a model whose calls give way; the level of others is shown and does nothing.
        self._giving: frozenset[str] = frozenset()
        self._due_s = 0.0
        self.engaged = False

    def apply(self, policy: Policy) -> None:
        """Follow a new policy; a pool that stays keeps its level."""
        self._watches = {name: self._watches.get(name) or _Watch() for name in policy.pools}
        self._giving = frozenset(model.pool for model in policy.models.values() if model.ladder is not None)
        self._ratios, self._admission = policy.kv_ratios, policy.admission
        self._own = policy.levels
        self._sort()

    def share(self, levels: tuple[LevelOverride, ...]) -> None:
        """See `ports.Levels`."""
        if levels != self._shared:
            self._shared = levels
            self._sort()

    def report(self) -> dict[str, int]:
        """See `ports.Levels`."""
        return {name: watch.ladder.level for name, watch in self._watches.items()}

    def shared(self) -> tuple[LevelOverride, ...]:
        """Return the levels that people have set elsewhere, as `share` was told last."""
        return self._shared

    def views(self) -> dict[str, PoolView]:
        """Return how the pools do, for the processes that have no gate."""
        return {name: self._view(name, watch) for name, watch in self._watches.items()}

    def view(self, pool: str) -> PoolView:
        """Return how a pool does: by what is here, or by what the gate has told."""
        if self._told is not None:
            return self._told.get(pool, _NOBODY_KNOWS)
        watch = self._watches.get(pool)
        return _NOBODY_KNOWS if watch is None else self._view(pool, watch)

    def told(self, pools: dict[str, PoolView], shared: tuple[LevelOverride, ...]) -> None:
        """Take what the gate says, which is in another process: `tick` is called there alone."""
        self._told = pools
        for name, watch in self._watches.items():
            watch.ladder.level = pools.get(name, _NOBODY_KNOWS).level
        self._shared = shared
        self._sort()

    def own_level(self, pool: str) -> int:
        """Return the level that a pool has come to by itself."""
        watch = self._watches.get(pool)
        return 0 if watch is None else watch.ladder.level

    def levels(self, pool: str, tenant: str) -> tuple[int, int]:
        """Return the level for a call of a tenant on a pool, and the part of it that people have set.

        A level that people set is held at least; 0 forbids any.
        """
        own = self.own_level(pool)
        hands = None if self._by_hand is None else self._by_hand.level(pool, tenant)
        if hands is None:
            return own, 0
        return (max(own, hands) if hands else 0), hands

    def tick(self) -> None:
        """See how the pools do, twice a second; called ten times a second."""
        now_s = self._clock.now_s()
        if now_s < self._due_s:
            return
        self._due_s = now_s + PERIOD_S
        for name, watch in self._watches.items():
            before = watch.ladder.level
            watch.pressure = self._look(name, watch, now_s)
            changed = watch.ladder.update(watch.pressure, self._ratios, now_s)
            if changed and name in self._giving:
                self._note(name, watch.ladder, before)
            self._size_batches(name, watch)
        self._engage()

    def gauge_levels(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield the level of each pool, what people have set for it included."""
        for name in self._watches:
            yield (name,), self.levels(name, "")[0]

    def gauge_kv(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield the foreseen KV usage of each pool, where it is known."""
        for name, watch in self._watches.items():
            if watch.pressure.kv_ratio is not None:
                yield (name,), watch.pressure.kv_ratio

    def gauge_pains(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield whether calls suffer, by pool and by way."""
        for name, watch in self._watches.items():
            for pain in PAINS:
                yield (name, pain), float(pain in watch.pressure.pains)

    def shown(self, most: int) -> dict[str, object]:
        """Describe the levels of at most so many pools, and what people have set."""
        rows = [self._row(name, watch) for name, watch in islice(self._watches.items(), most)]
        hands = [{"scope": one.scope, "name": one.name, "level": one.level} for one in (*self._own, *self._shared)]
        return {"pools": rows, "by_hand": hands[:most]}

    def _row(self, name: str, watch: _Watch) -> dict[str, object]:
        pressure = watch.pressure
        return {
            "pool": name,
            "level": self.levels(name, "")[0],
            "own_level": watch.ladder.level,
            "kv_measured_ratio": _rounded(pressure.measured),
            "kv_reserved_ratio": _rounded(pressure.reserved),
            "pains": list(pressure.pains),
            "reason": watch.ladder.reason,
        }

    def _view(self, pool: str, watch: _Watch) -> PoolView:
        queue = self._basin.queue(pool)
        queued = 0 if queue is None else queue.size
        inside = "waiting" in watch.pressure.pains and not queued
        return PoolView(watch.ladder.level, queued, inside, watch.pressure.measured.value)

    def _sort(self) -> None:
        self._by_hand = by_hand((*self._own, *self._shared))
        self._engage()

    def _engage(self) -> None:
        self.engaged = self._by_hand is not None or any(watch.ladder.level for watch in self._watches.values())

    def _look(self, pool: str, watch: _Watch, now_s: float) -> Pressure:
        loads: list[Load] = []
        found: set[Pain] = set()
        engines: dict[str, EngineWatch] = {}
        next_tokens = self._next_tokens(pool)
        for state in self._fleet.states(pool):
            name = state.replica.name
            engine = engines[name] = watch.engines.get(name) or EngineWatch()
            telemetry, polled_at_s = state.telemetry, state.polled_at_s
            usage = ABSENT
            if isinstance(telemetry, Telemetry) and polled_at_s is not None:
                engine.read(telemetry.waiting.value, telemetry.preemptions.value, polled_at_s)
                usage = _aged(telemetry.kv_usage_ratio, now_s - polled_at_s)
            if state.usable(now_s):
                found.update(engine.pains(now_s))
                tokens = (state.reserved_tokens, state.polled_reserved_tokens, next_tokens)
                loads.append(Load(usage, state.kv_tokens, *tokens))
        watch.engines = engines
        if self._waits(pool, now_s):
            found.add("waiting")
        if watch.late.for_s(self._is_late(pool), now_s) >= SUFFERING_S:
            found.add("first_token")
        return pool_pressure(loads, tuple(pain for pain in PAINS if pain in found))

    def _next_tokens(self, pool: str) -> int:
        """Return the size of the call that is next to go in; 0 while none waits."""
        queue = self._basin.queue(pool)
        heads = queue.heads() if queue is not None and queue.size else []
        return heads[0].call.prompt_tokens + heads[0].call.output_tokens if heads else 0

    def _waits(self, pool: str, now_s: float) -> bool:
        """Say whether a call waits here for too long; `low` ones are meant to wait."""
        queue = self._basin.queue(pool)
        if queue is None or not queue.size:
            return False
        waiting = islice(queue.waiting(), _LOOKED_AT)
        return any(w.value != "low" and now_s - w.arrived_s >= SUFFERING_S for w in waiting)

    def _is_late(self, pool: str) -> bool:
        """Say whether the first token of a short `medium` call that came now is foreseen to be late."""
        queue = self._basin.queue(pool)
        if queue is None:
            return False
        tokens, calls = queue.ahead("medium", long=False)
        seen = self._fleet.outlook(pool, 1, tokens, calls)
        target_s = self._admission.classes["medium"].target_s
        return seen.first_token_s is not None and seen.first_token_s > max(target_s, _ALONE_RATIO * seen.alone_s)

    def _size_batches(self, pool: str, watch: _Watch) -> None:
        """Give replicas that preempt smaller batches, until the pool is down from the ladder again."""
        for state in self._fleet.states(pool):
            if not watch.ladder.level or pool not in self._giving:
                state.room_ratio = 1.0
            elif self._preempts(watch, state):
                state.room_ratio = SMALLER_BATCH_RATIO

    def _preempts(self, watch: _Watch, state: ReplicaState) -> bool:
        engine = watch.engines.get(state.replica.name)
        return engine is not None and "preemptions" in engine.pains(self._clock.now_s())

    def _note(self, pool: str, ladder: Ladder, before: int) -> None:
        what = "up" if ladder.level > before else "down"
        log.warning("pool %s: ladder level %d, was %d: %s", pool, ladder.level, before, ladder.reason)
        reason = f"level {before} to {ladder.level}: {ladder.reason}"
        self._actions.note((pool, STEP, pool), what, reason, undo=_UNDO if ladder.level else "")


def _aged(signal: Signal, age_s: float) -> Signal:
    return Signal(signal.value, signal.source, signal.age_s + age_s)


def _rounded(signal: Signal) -> float | None:
    return None if signal.value is None else round(signal.value, 3)
