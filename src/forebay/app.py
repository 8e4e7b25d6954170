"""The composition root of the data plane: builds, starts, drains and stops all of it.

One process, one loop. The control plane and the embedded engine are children that it never waits for.
"""

import asyncio
import gc
import logging
import os
import tempfile
from collections.abc import Callable, Coroutine
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from forebay import __version__, status
from forebay.actions import Actions
from forebay.admission.gate import LocalGate
from forebay.admission.spending import Seed
from forebay.clock import Clock
from forebay.config.load import Settings
from forebay.config.reload import DocumentWatch
from forebay.continuing import Continuer
from forebay.counting import Counter
from forebay.degrading import Degrading
from forebay.dispatch import Dispatcher
from forebay.edge.local import Insight, LocalAnswers
from forebay.edge.server import EdgeServer
from forebay.following import DocumentFollower
from forebay.gauges import Gauges
from forebay.handover import FORMAT, Hello, Offer, Released, Spent, Taken, bound_unix_socket
from forebay.identity.keys import identify
from forebay.joining import Joining
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
from forebay.routing.budget import RetryBudgets
from forebay.routing.pool import Fleet
from forebay.routing.replica import ReplicaState
from forebay.timing import Timing
from forebay.understanding import Understanding
from forebay.upstream.fetch import Fetcher
from forebay.upstream.send import Upstream

log = logging.getLogger(__name__)

TICK_S = 0.1
SLOW_TICK_S = 1.0
# After a hand-over clients may use their idle connections for so long; each is closed behind its next answer.
LINGER_S = 5.0
CONTROL_PLANE = "control plane"
_SOCKET_NAME = "data.sock"


class DataPlane:
    """All rooms of the data plane, wired.

    Args:
        loop: the running loop.
        clock: monotonic and wall time.
        settings: the configuration.
        data_dir: for journal, policy documents and the control plane's socket.
        config_path: the file to watch, if there is one.

    Attributes:
        replaced: set when another process serves in this one's place: it is to be stopped.
    """

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        clock: Clock,
        settings: Settings,
        data_dir: Path,
        config_path: Path | None,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._settings = settings
        self._data_dir = data_dir
        self._temporary: Path | None = None
        self.children: list[Child] = []
        self.replaced = asyncio.Event()
        self._offer = Offer(loop, self._hello, lambda: self.edge.descriptors(), self._release)
        self.policy = PolicyHolder(settings.policy)
        self.metrics = Metrics(clock)
        self.journal = Journal(data_dir / "journal", clock)
        self.recorder = Recorder(clock, self.journal, self.metrics)
        self.fleet = Fleet(clock)
        self.actions = Actions(self.fleet, clock)
        self.lessons = Lessons(Timing(self.fleet, clock), Degrading(self.fleet, self.actions, clock))
        self.gate = LocalGate(clock, self.fleet)
        self.budgets = RetryBudgets(clock.now_s)
        self.upstream = Upstream(loop, clock)
        self.fetch = Fetcher(loop, self.upstream.connections)
        self.counter = Counter(self.fleet, self.fetch.post)
        self.understanding = Understanding(self.counter.count)
        self.ledger = MonthLedger(self.gate.quota, clock, data_dir, loop)
        self._poller = Poller(self.fleet, self.fetch, clock)
        watch = DocumentWatch(settings, config_path, data_dir / "policy")
        self._follower = DocumentFollower(watch, self.policy, clock, loop)
        insight = Insight(self._live, lambda: self._ready, self._serving, self.metrics.render, self.status)
        self._local = LocalAnswers(insight, identify)
        self.continuer = Continuer(self.fleet)
        dispatcher = Dispatcher(self.fleet, self.budgets, self.upstream, self.continuer, self.lessons)
        self.joining = Joining(clock)
        placing = Placing(self.gate, self.lessons.degrading, self.joining)
        self._pipeline = Pipeline(self.policy, self.understanding, placing, dispatcher, self.recorder, self._local)
        self.edge = EdgeServer(loop, clock, self._pipeline.handle)
        self._ready = False
        self._started_s = clock.now_s()
        self._lag_s = 0.0
        self._tasks: list[asyncio.Task[None]] = []
        self._follow()
        self._watch()

    def _follow(self) -> None:
        """Let every part that depends on the policy follow it."""
        for listener in (
            self.metrics, self.fleet, self.gate, self.budgets, self.understanding, self.edge, self.actions,
            self.lessons.degrading, self.joining,
        ):  # fmt: skip
            self.policy.subscribe(listener)

    def _watch(self) -> None:
        gauges = Gauges(self.fleet, self.upstream, self._clock)
        gauges.watch(self.metrics, self.gate, lambda: self._lag_s)
        gauges.watch_work(self.metrics, self.budgets, self.continuer, self.understanding)
        gauges.watch_automata(self.metrics, self.lessons)
        gauges.watch_joining(self.metrics, self.joining)
        self._follower.gauges(self.metrics)

    def begin(self) -> None:
        """Begin the background work."""
        self.journal.start()
        self._tasks = [
            self._loop.create_task(_kept(work), name=work.__qualname__)
            for work in (self._tick, self._poller.run, self._follower.run, self.ledger.run)
        ]

    async def listen(self, taken: Taken | None = None) -> int:
        """Serve; return the data port.

        Args:
            taken: the sockets of a running process, which is told to finish as soon as this one serves.

        Raises:
            OSError: the address cannot be listened on.
        """
        address = self._settings.listen
        port = 0
        if taken is not None:
            await self._poller.round()
            for listener in taken.listening_on(str(address)):
                port = await self.edge.listen_on(listener)
        port = port or await self.edge.listen(address.host, address.port)
        self._ready = True
        own = Counted((f"{self._pipeline.run_id}-",))
        if taken is None:
            self._background(self._read_ledger((own,)))
        else:
            released = await taken.ready(self._loop)
            self._background(self._read_ledger((own, Counted(taken.hello.run_ids, released.counted_until_s))))
            self._background(self._outlive(taken))
        self.socket_path = await self._listen_for_control_plane()
        self._offer.start(self._data_dir / "run")
        gc.collect()
        # What lives as long as the process need not be walked again: a full collection stops the loop.
        gc.freeze()
        gc.set_threshold(50_000, 20, 100)
        return port

    async def start_child(self, child: Child) -> None:
        """Start a child and stop it when the data plane stops."""
        self.children.append(child)
        await child.start()

    async def stop(self) -> None:
        """Drain: unready, wait for load balancers, stop accepting, let calls finish, then end.

        After a hand-over the address is still served, so nobody waits for load balancers, and idle connections are not
        closed at once: a client may be using one at this moment.
        """
        shutdown = self.policy.current.shutdown
        linger_s = self._clock.now_s() + LINGER_S
        if not self._offer.taken:
            self._ready = False
            self._offer.stop()
            await asyncio.sleep(shutdown.drain_delay_s)
            self.edge.stop_accepting()
        until_s = self._clock.now_s() + shutdown.grace_s
        while self._is_used(linger_s) and self._clock.now_s() < until_s:  # noqa: ASYNC110 - bounded, at the end
            await asyncio.sleep(0.02)
        self.edge.cut_all()
        await asyncio.sleep(0)
        for child in self.children:
            await child.stop(grace_s=2.0)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self.upstream.connections.close()
        await self.ledger.stop()
        if self._offer.taken:
            spent = self.ledger.since_handed()
            self._offer.tell(Spent(spent.month, spent.spent))
        else:
            with suppress(OSError):
                self.socket_path.unlink()
        self._offer.stop()
        if self._temporary is not None:
            with suppress(OSError):
                self._temporary.rmdir()
        await self._loop.run_in_executor(None, self.journal.close)

    def _is_used(self, linger_s: float) -> bool:
        """Say whether a client has a call running, or after a hand-over an open connection, until it was long idle."""
        if not self._offer.taken:
            return self.edge.busy_connections > 0
        if self._clock.now_s() >= linger_s:
            self.edge.stop_accepting()
        return self.edge.open_connections > 0

    def _background(self, work: Coroutine[Any, Any, None]) -> None:
        self._tasks.append(self._loop.create_task(work))

    async def _read_ledger(self, counted: tuple[Counted, ...]) -> None:
        models = self.policy.current.models.values()
        prices = {model.name: model.price for model in models if model.price is not None}
        await self.ledger.start(counted, prices)

    async def _outlive(self, taken: Taken) -> None:
        """Count what the calls of the process that was taken over still spend, when it has ended."""
        spent = await taken.ended(self._loop)
        if spent is None:
            log.warning("the process that was taken over died; what its last calls spent is not counted")
        else:
            self.ledger.add(Seed(spent.month, spent.spent))
            log.info("the process that was taken over has ended")

    def _hello(self) -> Hello:
        return Hello(FORMAT, str(self._settings.listen), os.getpid(), (f"{self._pipeline.run_id}-",))

    async def _release(self) -> Released:
        """Let another process serve: accept no more, and let go of what two processes must not both have."""
        self.edge.close_listeners()
        for child in self.children:
            if child.name == CONTROL_PLANE:
                await child.stop(grace_s=2.0)
        until_s = await self.ledger.hand_over()
        self.replaced.set()
        return Released(until_s)

    async def until_serving(self, model: str, stop: asyncio.Event) -> None:
        """Wait until a replica of a model has answered its health poll, or until told to stop."""
        pool = self.policy.current.models[model].pool
        while not stop.is_set() and not any(state.up for state in self.fleet.states(pool)):
            await asyncio.sleep(0.1)
            await self._poller.round()

    def status(self) -> dict[str, Any]:
        """Describe the whole state for the control plane; holds no secret."""
        parts = status.Parts(
            self._clock,
            self._started_s,
            self.policy,
            self.fleet,
            self.gate,
            self.budgets,
            self.understanding,
            self.recorder,
            self.lessons,
            self.actions,
        )
        own = {
            "version": __version__,
            "pid": os.getpid(),
            "ready": self._ready,
            "documents": msgspec.to_builtins(self._follower.watch.status),
            "journal": self.journal.state,
            "month_ledger": self.ledger.state,
            "exact_counts": {
                "counted": self.counter.counted,
                "failed": self.counter.failed,
                "skipped": self.counter.skipped,
            },
            "children": [msgspec.to_builtins(child.report()) for child in self.children],
            "joining": self.joining.shown(),
            "loop_lag_ms": round(self._lag_s * 1000, 2),
        }
        return status.describe(parts, self._serving(), own)

    async def _tick(self) -> None:
        due_s = self._clock.now_s() + TICK_S
        slow_due_s = due_s
        while True:
            await asyncio.sleep(max(0.0, due_s - self._clock.now_s()))
            now_s = self._clock.now_s()
            self._lag_s = max(0.0, now_s - due_s)
            due_s = max(due_s + TICK_S, now_s)
            self.upstream.tick()
            self.fleet.tick()
            self.gate.tick()
            self.lessons.timing.tick()
            self.continuer.tick()
            if now_s >= slow_due_s:
                slow_due_s = now_s + SLOW_TICK_S
                self.edge.tick()
                self.lessons.degrading.tick()
                self.actions.tick()
                self.joining.tick()
                self.upstream.connections.sweep()

    async def _listen_for_control_plane(self) -> Path:
        """Listen in the data folder, else in a temporary one; without either the control plane sees no status."""
        folder = self._data_dir / "run"
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            listener = bound_unix_socket(folder / _SOCKET_NAME)
        except OSError:
            try:
                folder = self._temporary = Path(tempfile.mkdtemp(prefix="forebay-"))
                listener = bound_unix_socket(folder / _SOCKET_NAME)
            except OSError as error:
                log.error("no socket for the control plane, which will show nothing of this process: %s", error)
                return folder / _SOCKET_NAME
        await self.edge.listen_unix(listener)
        return folder / _SOCKET_NAME

    def _live(self) -> dict[str, Any]:
        return {
            "live": True,
            "version": __version__,
            "loop_lag_ms": round(self._lag_s * 1000, 2),
            "policy_hash": self.policy.current.hash,
        }

    def _serving(self) -> dict[str, bool]:
        models = self.policy.current.models.values()
        return {model.name: any(map(self._serves, self.fleet.states(model.pool))) for model in models}

    def _serves(self, state: ReplicaState) -> bool:
        """Say whether a replica may be used and nothing speaks against it."""
        well = state.up is not False and not state.loading and not state.drained
        return well and state.breaker.allows(self._clock.now_s())


async def _kept(work: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run background work again if a bug ends it: without it deadlines would silently stop."""
    while True:
        try:
            await work()
        except Exception:
            log.exception("%s failed and is started again", work.__qualname__)
        await asyncio.sleep(TICK_S)
