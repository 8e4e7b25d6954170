"""A hundred tenants on the virtual clock, one of whom goes bad: the product's own code before modelled engines.

What is the product's: the queue, the choice, breakers, retry budgets and the degrading of tenants. Engines are those of
the planner, calls those of `bench.callers`.
"""

import itertools
import math
import random
from collections.abc import Callable, Sequence
from functools import partial
from heapq import heappop, heappush
from typing import NamedTuple

from bench.callers import ANSWER_TOKENS, BAD, LIMIT_TOKENS_PER_MINUTE, MAIN, RESERVED_TOKENS, Job, Plan, Way, arrivals
from bench.surge import CHAT, SPARE, Nowhere, Reply
from forebay.actions import Actions
from forebay.admission.gate import LocalGate, LocalPermit
from forebay.clock import ManualClock
from forebay.degrading import Degrading
from forebay.domain import FailureKind, Outcome, Replica, Signal, Spend, Tenant
from forebay.engines.contract import Telemetry
from forebay.engines.sim.model import Seq
from forebay.errors import Refused
from forebay.laddering import Laddering
from forebay.plan.engine import VirtualEngine
from forebay.policy import Capacity, Degrade, Model, Policy, Pool, Stream, Timeouts
from forebay.recording.metrics import Metrics
from forebay.recording.record import CallRecord, Recorder
from forebay.routing import attempts
from forebay.routing.attempts import Tried
from forebay.routing.budget import RetryBudgets
from forebay.routing.pool import Fleet
from forebay.routing.replica import Lease
from forebay.sparing import Sparing
from forebay.traffic import Call, Verdict, Work
from forebay.upstream.deadlines import Sending
from forebay.upstream.trial import Trial
from forebay.wire.rewrite import Rewriter

TICK_S, SCRAPE_S, SECOND_S = 0.1, 2.0, 1.0
FIRST_BYTE_S, TOTAL_S = 10.0, 30.0
MAX_ATTEMPTS = 3


class Seen(NamedTuple):
    """What became of a run; shares and times are of calls that came while he was bad.

    Attributes:
        calls: of the others.
        p99_s: to the first token of the others' that got one.
        errors: part of the others' calls that were refused or failed.
        strangers: the others who were moved, in the whole run.
        bad_calls: his.
        bad_errors: part of his.
        moved_s: from his turning bad to his move; infinite when he was not moved.
        returned_s: from his being well to his last return, 0 when he was at home; infinite when he did not return.
        moves: of him, in the whole run.
    """

    calls: int
    p99_s: float
    errors: float
    strangers: int
    bad_calls: int
    bad_errors: float
    moved_s: float
    returned_s: float
    moves: int


class Stage:
    """Runs one plan once."""

    def __init__(self, plan: Plan, way: Way, seed: int) -> None:
        self._plan = plan
        self._jobs = arrivals(plan, way, seed)
        self._clock = clock = ManualClock()
        self._engines = {f"m{n}": VirtualEngine(MAIN) for n in range(plan.engines)} | {"s0": VirtualEngine(SPARE)}
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._numbers = itertools.count()
        self._moves: list[tuple[float, str, str]] = []
        self._rng = random.Random(seed)
        self._fleet = Fleet(clock)
        self._gate = LocalGate(clock, self._fleet)
        self._budgets = RetryBudgets(clock.now_s)
        self._actions = Actions(self._fleet, clock)
        self._degrading = Degrading(self._fleet, self._actions, clock)
        laddering = Laddering(self._fleet, self._gate.basin, self._actions, clock)
        self._degrading.has_headroom = Sparing(laddering, self._fleet, self._gate.basin, clock).has_headroom
        metrics = Metrics(clock)
        self._recorder = Recorder(clock, Nowhere(), metrics)
        limit = LIMIT_TOKENS_PER_MINUTE if way == "flood, limited" else None
        self._tenants = [Tenant(f"t{n}", tokens_per_minute=limit) for n in range(plan.tenants)]
        self._policy = _policy(plan, self._tenants)
        self._laddering = laddering
        for listener in (metrics, self._fleet, self._gate, self._actions, laddering, self._degrading):
            listener.apply(self._policy)

    def run(self) -> Seen:
        """Run until he is home again, or the time is over."""
        for job in self._jobs:
            self._at(job.at_s, partial(self._arrive, job))
        for every_s, work in ((TICK_S, self._tick), (SCRAPE_S, self._scrape), (SECOND_S, self._second)):
            self._at(every_s, partial(self._repeat, every_s, work))
        well_s = self._plan.before_s + self._plan.bad_s
        over_s = well_s + self._plan.after_s
        while self._events:
            at_s, _, work = heappop(self._events)
            # What came while he was bad must have its end, too.
            if at_s >= over_s or (at_s > well_s + TOTAL_S + FIRST_BYTE_S and not self._away()):
                break
            self._clock.advance(max(0.0, at_s - self._clock.now_s()))
            work()
        return self._summary()

    def _away(self) -> bool:
        return bool(self._degrading.shown())

    def _at(self, at_s: float, work: Callable[[], None]) -> None:
        heappush(self._events, (at_s, next(self._numbers), work))

    def _repeat(self, every_s: float, work: Callable[[], None]) -> None:
        work()
        self._at(self._clock.now_s() + every_s, partial(self._repeat, every_s, work))

    def _tick(self) -> None:
        self._fleet.tick()
        self._gate.tick()
        self._laddering.tick()

    def _second(self) -> None:
        before = {str(row["tenant"]) for row in self._degrading.shown()}
        self._degrading.tick()
        self._actions.tick()
        after = {str(row["tenant"]) for row in self._degrading.shown()}
        now_s = self._clock.now_s()
        self._moves += [(now_s, "moved", name) for name in after - before]
        self._moves += [(now_s, "returned", name) for name in before - after]

    def _scrape(self) -> None:
        for state in self._fleet.states():
            engine = self._engines[state.replica.name]
            waiting, usage = Signal(float(engine.waiting), "engine"), Signal(engine.kv_usage_ratio, "engine")
            state.telemetry = Telemetry(waiting=waiting, kv_usage_ratio=usage)
            state.polled_at_s = self._clock.now_s()
            state.noted(None, None)

    def _arrive(self, job: Job) -> None:
        now_s = self._clock.now_s()
        work = Work(job.prompt, RESERVED_TOKENS, ANSWER_TOKENS, "m", (1.0,), (("k",),))
        call = Call(
            str(job.number), CHAT, "m", True, True, self._tenants[job.tenant], job.prompt, RESERVED_TOKENS, (), now_s,
            now_s + TOTAL_S, work=work, bound_tokens=RESERVED_TOKENS,
        )  # fmt: skip
        record = self._recorder.open(call.call_id, "", "chat", "")
        record.understood(call)
        # As `placing` does it.
        job.call = call = self._degrading.placed(call, self._policy, Reply(), record)  # type: ignore[arg-type]
        job.pool = self._policy.models[call.model].pool
        self._gate.offer(call, job.pool, partial(self._granted, job, record), partial(self._refused, job, record))

    def _refused(self, job: Job, record: CallRecord, refusal: Refused) -> None:
        record.close(refusal.status, Outcome.REFUSED, refusal.code)
        job.failed = True

    def _granted(self, job: Job, record: CallRecord, permit: LocalPermit) -> None:
        assert job.call is not None
        record.close(200, Outcome.OK)
        job.permit = permit
        self._budgets.note_call(job.pool, job.call.tenant.name)
        lease, permit.lease = permit.lease, None
        self._send(job, lease if isinstance(lease, Lease) else None)

    def _send(self, job: Job, lease: Lease | None) -> None:
        """Begin a try; without a replica it was the last."""
        if lease is None:
            self._close(job, failed=True)
            return
        now_s, name = self._clock.now_s(), lease.replica.name
        job.lease = lease
        self._engines[name].submit(now_s, Seq(job.number, job.prompt, job.output))
        self._announce(name)
        assert job.call is not None
        self._at(now_s + FIRST_BYTE_S, partial(self._late, job, lease, FailureKind.FIRST_BYTE))
        self._at(job.call.deadline_s, partial(self._late, job, lease, FailureKind.TOTAL))

    def _announce(self, name: str) -> None:
        due_s = self._engines[name].due_s
        if due_s is not None:
            self._at(due_s, partial(self._pass, name, due_s))

    def _pass(self, name: str, due_s: float) -> None:
        engine = self._engines[name]
        if engine.due_s != due_s:
            return
        news = engine.pass_to(due_s)
        self._announce(name)
        for number in news.first:
            job = self._jobs[number]
            if not self._runs_on(job, name):
                continue
            if job.pool in job.breaks:
                self._fail(job, FailureKind.STATUS, 500)
            elif job.lease is not None:
                job.first_s = min(job.first_s, due_s)
                job.lease.first_token()
        for number in news.ended:
            job = self._jobs[number]
            if self._runs_on(job, name):
                self._end(job, Verdict(True, Outcome.OK), None)
                self._close(job, failed=False)

    def _runs_on(self, job: Job, name: str) -> bool:
        return job.lease is not None and job.lease.replica.name == name

    def _late(self, job: Job, lease: Lease, kind: FailureKind) -> None:
        if job.lease is lease and not (kind is FailureKind.FIRST_BYTE and job.first_s < math.inf):
            self._fail(job, kind)

    def _fail(self, job: Job, kind: FailureKind, status: int = 0) -> None:
        """End a try that failed, and try again where the product would."""
        lease, call = job.lease, job.call
        assert lease is not None and call is not None
        name = lease.replica.name
        self._engines[name].abort(self._clock.now_s(), job.number)
        self._announce(name)
        outcome = Outcome.TIMEOUT if kind in (FailureKind.FIRST_BYTE, FailureKind.TOTAL) else Outcome.ENGINE_ERROR
        verdict = Verdict(job.first_s < math.inf, outcome, kind, status)
        self._end(job, verdict, kind)
        job.tried += (Tried(call.model, name, kind, status),)
        step = attempts.next_step(job.tried, MAX_ATTEMPTS, self._rng.random())
        if verdict.committed or step.action != "elsewhere" or not self._budgets.try_take(job.pool, call.tenant.name):
            self._close(job, failed=True)
            return
        used = frozenset(tried.replica for tried in job.tried)
        other = self._fleet.take(job.pool, call, used, held=False)
        if other is not None or used <= step.excluded:
            self._send(job, other)
            return
        self._at(self._clock.now_s() + step.pause_s, partial(self._again, job, step.excluded))

    def _again(self, job: Job, excluded: frozenset[str]) -> None:
        assert job.call is not None
        self._send(job, self._fleet.take(job.pool, job.call, excluded, held=False))

    def _end(self, job: Job, verdict: Verdict, failure: FailureKind | None) -> None:
        """Report a try, as `dispatch` does it."""
        lease, job.lease = job.lease, None
        assert lease is not None and job.call is not None
        counted = failure is not None and attempts.counts_against_replica(failure, verdict)
        lease.report(failure if counted else None, answered=failure is None, again=failure is not None)
        self._degrading.ended(Trial(job.call, _sending(job.pool), lease, verdict, failure))

    def _close(self, job: Job, *, failed: bool) -> None:
        job.failed = failed
        if job.permit is not None:
            job.permit.release(Spend(job.prompt + (0 if failed else job.output)))

    def _summary(self) -> Seen:
        plan = self._plan
        well_s = plan.before_s + plan.bad_s
        period = [job for job in self._jobs if plan.before_s <= job.at_s < well_s]
        others = [job for job in period if job.tenant != BAD]
        his = [job for job in period if job.tenant == BAD]
        firsts = sorted(job.first_s - job.at_s for job in others if job.first_s < math.inf)
        name = self._tenants[BAD].name
        moves = [at_s for at_s, what, who in self._moves if (what, who) == ("moved", name)]
        returns = [at_s for at_s, what, who in self._moves if (what, who) == ("returned", name)]
        home_s = math.inf if self._away() else max([well_s, *returns])
        return Seen(
            len(others),
            firsts[int(0.99 * (len(firsts) - 1) + 0.5)],
            sum(job.failed for job in others) / len(others),
            len({who for _, what, who in self._moves if what == "moved" and who != name}),
            len(his),
            sum(job.failed for job in his) / max(1, len(his)),
            min(moves, default=math.inf) - plan.before_s,
            home_s - well_s,
            len(moves),
        )


def _sending(pool: str) -> Sending:
    return Sending(pool, b"", _TIMEOUTS, Stream(), 1, Rewriter("m", False), True)


_TIMEOUTS = Timeouts(first_byte_s=FIRST_BYTE_S, total_s=TOTAL_S, learned=False)


def _policy(plan: Plan, tenants: Sequence[Tenant]) -> Policy:
    pools = {
        name: Pool(
            name, "vllm", tuple(Replica(f"{name[0]}{n}", "h", 1) for n in range(count)), queue_size=100_000,
            capacity=Capacity(kv_tokens=spec.kv_tokens, streams=spec.max_num_seqs),
        )
        for name, count, spec in (("main", plan.engines, MAIN), ("spare", 1, SPARE))
    }  # fmt: skip
    models = {
        "m": Model("m", "main", timeouts=_TIMEOUTS, degrade=Degrade("small", plan.ttl_s)),
        "small": Model("small", "spare", timeouts=_TIMEOUTS),
    }
    return Policy(pools, models, {tenant.name.encode(): tenant for tenant in tenants})
