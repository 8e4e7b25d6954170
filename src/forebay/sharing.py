"""Keeps this node in step with the others through the store: its claims, what it has spent, its report.

One background task of the data plane. No call waits for it: calls look at ceilings in memory. A store that is down,
hangs or holds nonsense costs a bounded time in this task, is logged once, and shows in metrics, health and status.
"""

import asyncio
import logging
import random
import secrets
from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import replace

from forebay.admission.quota import Quota
from forebay.clock import Clock, timestamp
from forebay.config.joint import Joint, node_name
from forebay.config.load import Settings
from forebay.portions import Decided, Portions
from forebay.ports import Levels
from forebay.recording.metrics import Metrics
from forebay.store import shares
from forebay.store.contract import ALL_LEVELS_KEY, SHARES_KEY, Page, Store, StoreError, level_key, month_key
from forebay.store.levels import Report, TimedLevel, fields_of_report, levels_of
from forebay.store.on_redis import RedisStore
from forebay.store.records import (
    MAX_NODES,
    MAX_TENANTS,
    Book,
    Month,
    Record,
    Spent,
    book_of,
    fields_of,
    month_field,
    months_of,
)

log = logging.getLogger(__name__)

PERIOD_S: Final = 0.5
LONGEST_WAIT_S: Final = 1.0
"""Between two tries of a store that does not answer; see `shares.STEADY_S`."""
JOIN_S: Final = 5.0
"""So long a node that has just been started waits for its part; then it takes an even one."""
SLOW_ROUNDS: Final = 2
_JOIN_ROUNDS: Final = 4
_TRIES: Final = 4
_PAUSE_S: Final = 0.03
_SHARES_TTL_S: Final = 3600
_MONTH_TTL_S: Final = 62 * 86_400
_LEVEL_TTL_S: Final = 604_800
# After so many tenants the loop is given back to the calls.
_AT_ONCE: Final = 20
_SHOWN: Final = 100


def sharing_of(settings: Settings, quota: Quota, clock: Clock) -> "Sharing | None":
    """Return this node's part in what the nodes share; None without a store, and then its client is not loaded."""
    joint = settings.joint
    if not joint.url:
        return None
    return Sharing(RedisStore(joint.url), replace(joint, node=node_name(joint, settings.listen)), quota, clock)


class Sharing:
    """This node's part in what the nodes share.

    Args:
        store: where they meet.
        joint: names and numbers of the configuration.
        quota: of this node.
        clock: monotonic and wall time.

    Attributes:
        portions: of the limits.
        state: `starting`, `up`, or `down: reason`.
        failures: rounds that the store did not answer.
    """

    def __init__(self, store: Store, joint: Joint, quota: Quota, clock: Clock) -> None:
        self._store = store
        self._clock = clock
        self._node = joint.node
        self._started_s = clock.now_s()
        self._heard_s: float | None = None
        self._round = 0
        self._risen = 0
        self._broken: tuple[str, ...] = ()
        self._bad_levels: tuple[str, ...] = ()
        self._month = 0
        self._months: dict[str, Month] = {}
        self._before: Month | None = None
        # Two processes of one node may be there at a time, one that drains and its successor: both must be counted.
        self.portions = Portions(quota, clock, f"{joint.node}~{secrets.token_hex(4)}", joint.nodes)
        self._levels: Levels | None = None
        self._followed: Callable[[], tuple[int, int]] = lambda: (0, 0)
        self._by_hand: list[TimedLevel] = []
        self.state = "starting"
        self.failures = 0

    def ladder(self, levels: Levels, followed: Callable[[], tuple[int, int]]) -> None:
        """Report the levels of this node's ladder, and give it those that people have set in the store.

        Args:
            levels: of this node.
            followed: returns (epoch, seq) of the override document in force.
        """
        self._levels, self._followed = levels, followed

    def gauges(self, metrics: Metrics) -> None:
        """Show the store and this node's portions."""
        metrics.watch("forebay_store_up", lambda: [((), float(self.state == "up"))])
        metrics.watch("forebay_store_age_seconds", lambda: [((), self.age_s())])
        metrics.watch("forebay_store_failures_total", lambda: [((), self.failures)])
        metrics.watch("forebay_nodes", lambda: [((), len(self.portions.nodes))])
        metrics.watch(
            "forebay_limit_portion",
            lambda: [((tenant, name), portion) for tenant, name, _, portion, _ in self.portions.shown()],
        )

    def age_s(self) -> float:
        """Return the seconds since the store last answered; since the start before it has."""
        since_s = self._started_s if self._heard_s is None else self._heard_s
        return self._clock.now_s() - since_s

    def describe(self) -> dict[str, Any]:
        """Describe the state, for the control plane; holds no address."""
        rows = list(self.portions.shown())
        return {
            "state": self.state,
            "age_s": round(self.age_s(), 2),
            "failures": self.failures,
            "node": self._node,
            "nodes": self.portions.nodes,
            "joined": self.portions.joined,
            "broken": [*self._broken, *self._bad_levels][:_SHOWN],
            "portions": [
                {"tenant": tenant, "limit": name, "of": limit, "portion": portion, "used": used}
                for tenant, name, limit, portion, used in rows[:_SHOWN]
            ],
            "portions_left_out": max(0, len(rows) - _SHOWN),
        }

    async def run(self) -> None:
        """Keep in step until cancelled."""
        wait_s = PERIOD_S
        try:
            while True:
                wait_s = PERIOD_S if await self.round() else min(LONGEST_WAIT_S, wait_s * 1.5)
                await asyncio.sleep(wait_s)
        finally:
            await self._store.close()

    async def joined(self) -> None:
        """Wait until this node has its part, for `JOIN_S` at most."""
        until_s = self._started_s + JOIN_S
        while not self.portions.joined and self._clock.now_s() < until_s:  # noqa: ASYNC110 - bounded, at the start
            await asyncio.sleep(0.05)

    async def round(self) -> bool:
        """Do once what is due; return whether the store answered."""
        try:
            self.portions.look()
            await self._exchange()
            if self._round % SLOW_ROUNDS == 0:
                await self._share_month()
                await self._exchange_levels()
            self._round += 1
        except StoreError as error:
            self.failures += 1
            self._note(f"down: {error}")
        else:
            self._note("up")
        if not self.portions.joined and self._clock.now_s() - self._started_s >= JOIN_S:
            self.portions.joined = True
        if self.portions.joined and self.age_s() > shares.LEASE_S:
            self.portions.endure(self.age_s())
        self._set_levels()
        return self.state == "up"

    async def _exchange(self) -> None:
        """Read what the others claim, and write what this node claims.

        Raises:
            StoreError: the store does not answer as it should.
        """
        for _ in range(_TRIES):
            page = await self._store.read(SHARES_KEY)
            book = book_of(page)
            self._meet(book)
            moments, rising = shares.steady(book)
            decided = await self._decide(book, rising=rising)
            record = Record(page.now_ms, {one.tenant.name: one.claims for one in decided})
            fields = fields_of(secrets.token_hex(8), moments, self.portions.node, record)
            old = (name for name, other in book.records.items() if shares.forgotten(other, book.now_ms))
            changed = await self._store.swap(SHARES_KEY, page.version, {**dict.fromkeys(old), **fields}, _SHARES_TTL_S)
            if changed:
                self._heard_s = self._clock.now_s()
                self.portions.take(decided)
                self._join(decided, rising=rising)
                return
            await asyncio.sleep(random.uniform(0.0, _PAUSE_S))
        raise StoreError("others are always faster")

    def _join(self, decided: list[Decided], *, rising: bool) -> None:
        """Note whether this node has its part: others may need a round to give it up, and may have nothing to give."""
        self._risen += rising
        has_all = all(claim is None or claim.ceiling > 0 for one in decided for claim in one.claims)
        if rising and (has_all or self._risen >= _JOIN_ROUNDS):
            self.portions.joined = True

    async def _decide(self, book: Book, *, rising: bool) -> list[Decided]:
        decided: list[Decided] = []
        for one in self.portions.decide(book, rising=rising):
            decided.append(one)
            if not len(decided) % _AT_ONCE:
                await asyncio.sleep(0)
        return decided

    def _meet(self, book: Book) -> None:
        """Learn who is there."""
        self.portions.nodes = shares.nodes_of(book, self.portions.node)
        if book.broken and not self._broken:
            log.error(
                "the store holds records that cannot be read, which count as none: %s",
                ", ".join(map(repr, book.broken[:5])),
            )
        self._broken = book.broken

    async def _share_month(self) -> None:
        """Tell the others what was spent here in this month, and count what they have spent.

        Raises:
            StoreError: the store does not answer as it should.
        """
        for _ in range(_TRIES):
            told = self.portions.spent(0)
            if told is None:
                return
            page = await self._store.read(month_key(told[0]))
            month, own = told[0], Month(page.now_ms, self._with_before(told[0], told[1], page))
            others = {**self._others(page), self._node: _beyond(own, told[1])}
            self.portions.spent_elsewhere(month, others, page.now_ms)
            fields = {":version": secrets.token_hex(8).encode(), self._node: month_field(own)}
            if await self._store.swap(month_key(month), page.version, fields, _MONTH_TTL_S):
                return

    def _with_before(self, month: int, own: Month, page: Page) -> dict[str, Spent]:
        """Return what was spent here, with what an earlier process of this name told and this one does not know."""
        if month != self._month:
            self._month, self._months = month, {}
            self._before = months_of(page).get(self._node)
        before = {} if self._before is None else self._before.spent
        return {name: _most(spent, before.get(name, Spent())) for name, spent in own.spent.items()}

    def _others(self, page: Page) -> dict[str, Month]:
        """Return what others have spent; what was known once stays, for a store may lose what it held."""
        for name, month in months_of(page).items():
            known = self._months.get(name)
            if name == self._node or (known is None and len(self._months) >= MAX_NODES):
                continue
            old = {} if known is None or len(known.spent) > MAX_TENANTS else known.spent
            spent = {tenant: _most(new, old.get(tenant, Spent())) for tenant, new in month.spent.items()}
            self._months[name] = Month(month.at_ms, {**old, **spent})
        return self._months

    async def _exchange_levels(self) -> None:
        """Report the ladder, and read the levels that people have set for this node and for all.

        Raises:
            StoreError: the store does not answer as it should.
        """
        if self._levels is None:
            return
        own, everybody = await self._store.read(level_key(self._node)), await self._store.read(ALL_LEVELS_KEY)
        epoch, seq = self._followed()
        report = Report(self._levels.report(), epoch, seq, timestamp(own.now_ms / 1000))
        await self._store.put(level_key(self._node), fields_of_report(report, own), _LEVEL_TTL_S)
        found = [*levels_of(own), *levels_of(everybody)]
        self._by_hand = [one for one in found if isinstance(one, TimedLevel)]
        bad = tuple(one for one in found if isinstance(one, str))
        if bad and not self._bad_levels:
            log.error(
                "levels in the store that are not taken: %s; write LEVEL and an end within a week",
                ", ".join(map(repr, bad[:5])),
            )
        self._bad_levels = bad

    def _set_levels(self) -> None:
        """Let the levels count that people have set in the store, until their ends, whether it answers or not."""
        if self._levels is not None:
            wall_s = self._clock.wall_s()
            self._levels.share(tuple(one.level for one in self._by_hand if one.ends_s > wall_s))

    def _note(self, state: str) -> None:
        """Show a state; log when the store goes or comes, not each try."""
        was, self.state = self.state, state
        if state == "up" and was != "up":
            log.info("the store answers; this is node %s", self._node)
        elif state != "up" and not was.startswith("down"):
            log.error("the store does not answer as it should (%s); limits go on with this node's portions", state)


def _beyond(told: Month, known: Month) -> Month:
    """Return what an earlier process of this node has spent beyond what this one knows of."""
    return Month(
        0,
        {
            name: Spent(spent.tokens - known.spent[name].tokens, spent.nano - known.spent[name].nano)
            for name, spent in told.spent.items()
        },
    )


def _most(new: Spent, old: Spent) -> Spent:
    """Return the larger sums; what is reserved is what it is now."""
    return Spent(max(new.tokens, old.tokens), max(new.nano, old.nano), new.reserved_tokens, new.reserved_nano)
