"""The composition root of the data plane: all its rooms, wired, with their background work and their state.

One process, one loop. How such a process starts, serves and ends stands in `single`, and where there are several, in
`worker` and `gatekeeper`.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import msgspec

from forebay import __version__, status
from forebay.actions import Actions
from forebay.admission.gate import LocalGate
from forebay.clock import Clock
from forebay.config.load import Settings
from forebay.config.reload import DocumentWatch
from forebay.continuing import Continuer
from forebay.counting import Counter
from forebay.crossing.remote import RemoteGate
from forebay.degrading import Degrading
from forebay.dispatch import Dispatcher
from forebay.edge.local import Insight, LocalAnswers
from forebay.edge.server import EdgeServer
from forebay.following import DocumentFollower
from forebay.gauges import Gauges
from forebay.identity.keys import identify
from forebay.inquest import Inquest
from forebay.joining import Joining
from forebay.laddering import Laddering
from forebay.ledger import Counted, MonthLedger
from forebay.lessons import Lessons
from forebay.pipeline import Pipeline
from forebay.placing import Placing
from forebay.policy import PolicyHolder
from forebay.polling import Poller
from forebay.processes import Child
from forebay.recording.journal import Journal
from forebay.recording.metrics import Metrics
from forebay.recording.record import Recorder
from forebay.resume import extra
from forebay.resuming import Resuming
from forebay.retrying import LocalRetries
from forebay.routing.budget import RetryBudgets
from forebay.routing.pool import Fleet
from forebay.routing.replica import ReplicaState
from forebay.sharing import sharing_of
from forebay.sparing import Sparing
from forebay.timing import Timing
from forebay.understanding import Understanding
from forebay.upstream.fetch import Fetcher
from forebay.upstream.send import Upstream

log = logging.getLogger(__name__)

TICK_S = 0.1
SLOW_TICK_S = 1.0


class DataPlane:
    """All rooms of the data plane, wired.

    Args:
        loop: the running loop.
        clock: monotonic and wall time.
        settings: the configuration.
        data_dir: for journal, policy documents and the control plane's socket.
        config_path: the file to watch, if there is one.
        far: the gate, when it is in another process; limits, queue and places are asked of it alone.

    Attributes:
        siblings: reports on child processes of the supervisor, where there is one.
        ready: it takes calls.
        others_lag_s: the same of other workers, where there are some.
        lag_s: how late the loop's latest tick was.
        beats: called ten times a second.
        run_id: what the ids of its calls begin with.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        settings: Settings,
        data_dir: Path,
        config_path: Path | None,
        far: RemoteGate | None = None,
    ) -> None:
        self.loop = loop
        self.clock = clock
        self.settings = settings
        self.data_dir = data_dir
        self.children: list[Child] = []
        self.siblings: list[dict[str, Any]] = []
        self.ready = False
        self.others_lag_s: Callable[[], float] = lambda: 0.0
        self.beats: list[Callable[[], None]] = []
        self._started_s = clock.now_s()
        self.lag_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self.policy = PolicyHolder(settings.policy)
        self.metrics = Metrics(clock)
        self.journal = Journal(data_dir / "journal", clock)
        self.recorder = Recorder(clock, self.journal, self.metrics)
        self.fleet = Fleet(clock)
        self.actions = Actions(self.fleet, clock)
        self.lessons = Lessons(Timing(self.fleet, clock), Degrading(self.fleet, self.actions, clock))
        self.gate = LocalGate(clock, self.fleet)
        self.laddering = Laddering(self.fleet, self.gate.basin, self.actions, clock)
        self.sharing = None if far is not None else sharing_of(settings, self.gate.quota, clock)
        self.budgets = RetryBudgets(clock.now_s)
        self.upstream = Upstream(loop, clock)
        self.fetch = Fetcher(loop, self.upstream.connections)
        self.counter = Counter(self.fleet, self.fetch.post)
        self.understanding = Understanding(self.counter.count)
        self.ledger = MonthLedger(self.gate.quota, clock, data_dir, loop)
        self.poller = Poller(self.fleet, self.fetch, clock)
        watch = DocumentWatch(settings, config_path, data_dir / "policy")
        self.follower = DocumentFollower(watch, self.policy, clock, loop)
        if self.sharing is not None:
            self.sharing.ladder(self.laddering, self._followed)
        self.joining = Joining(clock)
        self.resuming = Resuming(extra.office(data_dir, clock.wall_s))
        self._wire(far)
        self._follow()
        self._watch()

    def _follow(self) -> None:
        """Let every part that depends on the policy follow it."""
        for listener in (
            self.metrics, self.fleet, self.gate, self.budgets, self.understanding, self.edge, self.actions,
            self.lessons.degrading, self.joining, self.laddering, self.resuming, self.inquest,
        ):  # fmt: skip
            self.policy.subscribe(listener)

    def _wire(self, far: RemoteGate | None) -> None:
        """Make the request path out of the rooms."""
        retries = far or LocalRetries(self.fleet, self.budgets)
        self.inquest = Inquest(self.fleet, retries, self.actions, self.fetch, self.clock)
        self.continuer = Continuer(self.fleet, retries, self.resuming, self.inquest, self.counter.count_text)
        dispatcher = Dispatcher(self.fleet, retries, self.upstream, self.continuer, self.lessons)
        sparing = Sparing(self.laddering, self.fleet, self.gate.basin, self.clock)
        placing = Placing(far or self.gate, self.lessons.degrading, self.joining, sparing, self.resuming, self.inquest)
        if far is None:
            self.beats.append(self.laddering.tick)
        insight = Insight(self._live, self.is_ready, self._serving, self.metrics.render, self.status)
        self.local = local = LocalAnswers(insight, identify)
        pipeline = Pipeline(self.policy, self.understanding, placing, dispatcher, self.recorder, local)
        self.run_id = pipeline.run_id
        self.edge = EdgeServer(self.loop, self.clock, pipeline.handle)

    def _watch(self) -> None:
        gauges = Gauges(self.fleet, self.upstream, self.clock)
        gauges.watch(self.metrics, self.gate, lambda: self.lag_s)
        gauges.watch_work(self.metrics, self.budgets, self.continuer, self.understanding)
        gauges.watch_automata(self.metrics, self.lessons, self.laddering)
        gauges.watch_joining(self.metrics, self.joining)
        gauges.watch_money(self.metrics, self.gate, self.ledger)
        gauges.watch_resuming(self.metrics, self.resuming)
        gauges.watch_deaths(self.metrics, self.inquest)
        self.follower.gauges(self.metrics)
        if self.sharing is not None:
            self.sharing.gauges(self.metrics)

    def sharing_work(self) -> list[Callable[[], Coroutine[Any, Any, None]]]:
        """Return what keeps this node in step with others, for `background`; nothing without a store."""
        return [] if self.sharing is None else [self.sharing.run]

    def background(self, *works: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Do work in the background until `end`; what a bug ends is begun again."""
        self._tasks += [self.loop.create_task(_kept(work), name=work.__qualname__) for work in works]

    def once(self, work: Coroutine[Any, Any, None]) -> None:
        """Do some work in the background, until it is done or `end` comes."""
        self._tasks.append(self.loop.create_task(work))

    async def tick(self) -> None:
        """Be the clockwork of all rooms, until cancelled."""
        due_s = self.clock.now_s() + TICK_S
        slow_due_s = due_s
        while True:
            await asyncio.sleep(max(0.0, due_s - self.clock.now_s()))
            now_s = self.clock.now_s()
            self.lag_s = max(0.0, now_s - due_s)
            due_s = max(due_s + TICK_S, now_s)
            self.upstream.tick()
            self.fleet.tick()
            self.gate.tick()
            self.lessons.timing.tick()
            self.continuer.tick()
            self.inquest.tick()
            for beat in self.beats:
                beat()
            if now_s >= slow_due_s:
                slow_due_s = now_s + SLOW_TICK_S
                self.edge.tick()
                self.lessons.degrading.tick()
                self.actions.tick()
                self.joining.tick()
                self.upstream.connections.sweep()

    async def read_ledger(self, counted: tuple[Counted, ...]) -> None:
        """Add what was spent before, but for calls that are counted already."""
        models = self.policy.current.models.values()
        prices = {model.name: model.price for model in models if model.price is not None}
        await self.ledger.start(counted, prices)

    async def end(self) -> None:
        """End children and background work."""
        for child in self.children:
            await child.stop(grace_s=2.0)
        self.inquest.stop()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.upstream.connections.close()

    async def until_serving(self, model: str, stop: asyncio.Event) -> None:
        """Wait until a replica of a model has answered its health poll, or until told to stop."""
        pool = self.policy.current.models[model].pool
        while not stop.is_set() and not any(state.up for state in self.fleet.states(pool)):
            await asyncio.sleep(0.1)
            await self.poller.round()

    def status(self) -> dict[str, Any]:
        """Describe the whole state for the control plane; holds no secret."""
        parts = status.Parts(
            self.clock,
            self._started_s,
            self.policy,
            self.fleet,
            self.gate,
            self.budgets,
            self.understanding,
            self.recorder,
            self.lessons,
            self.laddering,
            self.actions,
            self.ledger.bills,
            self.inquest,
        )
        own = {
            "version": __version__,
            "pid": os.getpid(),
            "ready": self.is_ready(),
            "store": {"state": "off"} if self.sharing is None else self.sharing.describe(),
            "documents": msgspec.to_builtins(self.follower.watch.status),
            "journal": self.journal.state,
            "month_ledger": self.ledger.state,
            "exact_counts": {
                "counted": self.counter.counted,
                "failed": self.counter.failed,
                "skipped": self.counter.skipped,
            },
            "children": [*(msgspec.to_builtins(child.report()) for child in self.children), *self.siblings],
            "joining": self.joining.shown(),
            "loop_lag_ms": round(self.lag_s * 1000, 2),
        }
        return status.describe(parts, self._serving(), own)

    def is_ready(self) -> bool:
        """Say whether it takes calls, and has its part of the limits that nodes share."""
        return self.ready and (self.sharing is None or self.sharing.portions.joined)

    def _followed(self) -> tuple[int, int]:
        override = self.follower.watch.status.override
        return override.epoch, override.seq

    def _live(self) -> dict[str, Any]:
        return {
            "live": True,
            **({} if self.sharing is None else {"store": self.sharing.state}),
            "version": __version__,
            "loop_lag_ms": round(max(self.lag_s, self.others_lag_s()) * 1000, 2),
            "policy_hash": self.policy.current.hash,
        }

    def _serving(self) -> dict[str, bool]:
        models = self.policy.current.models.values()
        return {model.name: any(map(self._serves, self.fleet.states(model.pool))) for model in models}

    def _serves(self, state: ReplicaState) -> bool:
        """Say whether a replica may be used and nothing speaks against it."""
        well = state.up is not False and not state.loading and not state.drained
        return well and state.breaker.allows(self.clock.now_s())


async def _kept(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run background work again if a bug ends it: without it deadlines would silently stop."""
    task = asyncio.current_task()
    while True:
        try:
            await work()
        except Exception:
            log.exception("%s failed and is started again", work.__qualname__)
        if task is not None and task.cancelling():
            return  # what failed was its end
        await asyncio.sleep(TICK_S)
