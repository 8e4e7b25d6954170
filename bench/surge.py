"""A surge on the virtual clock: the product's queue, choice and ladder before modelled engines, with and without it.

Two pools: the main one, and a smaller model that is faster and has room of its own. Every arrival is a chat with a
body, which goes through the product's own code as far as the engine; engines are those of the planner.
"""

import itertools
import json
import math
import random
from collections.abc import Iterator
from functools import partial
from heapq import heappop, heappush
from typing import Any, NamedTuple

from msgspec.structs import replace

from bench.measure import percentile
from forebay.actions import Actions
from forebay.admission.gate import LocalGate, LocalPermit
from forebay.clock import ManualClock
from forebay.domain import Outcome, Replica, Signal, Spend, Tenant
from forebay.edge import body
from forebay.edge.body import Asked
from forebay.engines.contract import Telemetry
from forebay.engines.sim.model import Seq
from forebay.engines.sim.spec import SimSpec
from forebay.errors import Refused
from forebay.laddering import Laddering
from forebay.plan.engine import VirtualEngine
from forebay.policy import Capacity, Ladder, Model, Policy, Pool, Timeouts
from forebay.recording.metrics import Metrics
from forebay.recording.record import CallRecord, Recorder
from forebay.routing.pool import Fleet
from forebay.routing.replica import Lease
from forebay.sparing import Sparing
from forebay.traffic import Call, Work
from forebay.wire.endpoints import BY_PATH

CHAT = BY_PATH["/v1/chat/completions"]
TICK_S, SCRAPE_S = 0.1, 2.0
# A client leaves when no token has come for so long, or the answer is not there.
FIRST_TOKEN_S, WHOLE_S = 20.0, 60.0
WORD_BYTES = 4
LIKELY_TOKENS, RESERVED_TOKENS, MAX_TOKENS = 500, 1000, 1500
STRUCTURED = (
    {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]},
    {"response_format": {"type": "json_object"}},
    {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": {}}}},
)
MAIN = SimSpec(kv_tokens=64_000, max_model_len=16_384)
SPARE = SimSpec(iteration_base_ms=6, ms_per_prefill_token=0.03, kv_tokens=96_000, max_model_len=16_384)


class Load(NamedTuple):
    """How much comes.

    Attributes:
        calls_per_s: before and after the surge.
        factor: of the surge.
        before_s: until it begins.
        surge_s: that it lasts.
        after_s: that is watched when it is over.
        structured: part of the calls that have a structure.
    """

    calls_per_s: float = 2.0
    factor: float = 3.0
    before_s: float = 120.0
    surge_s: float = 180.0
    after_s: float = 300.0
    structured: float = 0.2


class Surged(NamedTuple):
    """What became of a run; parts are of all calls that came during the surge.

    Attributes:
        timeouts: left without their answer.
        refused: turned away at once.
        degraded: served reduced.
        harmed: requests with a structure that reached an engine altered.
        fullest: the most of its own room that the smaller pool had taken: KV reserved, KV used.
        recovered_s: from the end of the surge to level 0; infinite when it did not come.
        p99_s: time to the first token of those that were served.
    """

    calls: int
    timeouts: float
    refused: float
    degraded: float
    moved: float
    harmed: int
    fullest: tuple[float, float]
    levels: tuple[int, ...]
    recovered_s: float
    p99_s: float


class Nowhere:
    """A journal that keeps nothing."""

    state, recovered = "ok", 0

    def write(self, line: bytes, is_open: bool = False) -> None:
        """Take a line."""

    def lines_written(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield nothing."""
        yield from ()

    lines_dropped = lines_written


class Reply:
    """The client's side, of which only our header lines matter."""

    def __init__(self) -> None:
        self.extra = b""


class _Job:
    """One arrival."""

    def __init__(self, number: int, at_s: float, prompt: int, output: int, asked: dict[str, Any]) -> None:
        self.number, self.at_s, self.prompt, self.output, self.asked = number, at_s, prompt, output, asked
        self.first_s = self.end_s = math.inf
        self.refused = ""
        self.degraded: tuple[str, ...] = ()
        self.harmed = False
        self.permit: LocalPermit | None = None
        self.tokens = 0

    @property
    def structured(self) -> bool:
        """Whether it asks for an answer of some form."""
        return "tools" in self.asked or "response_format" in self.asked

    @property
    def timed_out(self) -> bool:
        """Whether its client left without an answer; a wait that the gate ended at its deadline is one too."""
        if self.refused:
            return self.refused == "queue_timeout"
        return self.first_s - self.at_s > FIRST_TOKEN_S or self.end_s - self.at_s > WHOLE_S


def arrivals(load: Load, rng: random.Random) -> list[_Job]:
    """Make chats with histories of 500 to 6,000 tokens and answers of 500 on the mean."""
    jobs: list[_Job] = []
    at_s, until_s = 0.0, load.before_s + load.surge_s + load.after_s
    while at_s < until_s:
        surging = load.before_s <= at_s < load.before_s + load.surge_s
        at_s += rng.expovariate(load.calls_per_s * (load.factor if surging else 1.0))
        turns = max(2, round(math.exp(rng.gauss(2.0, 0.6))))
        messages = [{"role": "system", "content": "Be kind. " * 20}]
        for turn in range(2 * turns - 1):
            role = "user" if turn % 2 == 0 else "assistant"
            messages.append({"role": role, "content": "word" * rng.randrange(40, 400)})
        prompt = sum(len(message["content"]) for message in messages) // WORD_BYTES
        output = min(MAX_TOKENS, max(8, round(rng.expovariate(1 / LIKELY_TOKENS))))
        asked: dict[str, Any] = {"model": "m", "stream": True, "messages": messages, "max_tokens": MAX_TOKENS}
        if rng.random() < load.structured:
            asked |= rng.choice(STRUCTURED)
        jobs.append(_Job(len(jobs), at_s, min(prompt, 12_000), output, asked))
    return jobs


class Stage:
    """Runs arrivals."""

    def __init__(self, load: Load, jobs: list[_Job], ladder: Ladder | None, main: int = 2, spare: int = 1) -> None:
        self._load, self._jobs = load, jobs
        self._clock = clock = ManualClock()
        self._engines = {f"m{n}": VirtualEngine(MAIN) for n in range(main)}
        self._engines |= {f"s{n}": VirtualEngine(SPARE) for n in range(spare)}
        self._events: list[tuple[float, int, str]] = []
        self._open = len(jobs)
        self._fullest = [0.0, 0.0]
        self._levels: list[tuple[float, int]] = []
        self._fleet = Fleet(clock)
        self._gate = LocalGate(clock, self._fleet)
        actions = Actions(self._fleet, clock)
        self._laddering = Laddering(self._fleet, self._gate.basin, actions, clock)
        self._sparing = Sparing(self._laddering, self._fleet, self._gate.basin, clock)
        metrics = Metrics(clock)
        self._recorder = Recorder(clock, Nowhere(), metrics)
        self._policy = _policy(ladder, main, spare)
        for listener in (metrics, self._fleet, self._gate, actions, self._laddering):
            listener.apply(self._policy)
        self._numbers = itertools.count()

    def run(self) -> Surged:
        """Run to the end."""
        for job in self._jobs:
            heappush(self._events, (job.at_s, job.number, "arrival"))
        self._push(TICK_S, "tick")
        self._push(SCRAPE_S / 2, "scrape")
        end_s = self._load.before_s + self._load.surge_s + self._load.after_s
        while self._events and (self._open or self._clock.now_s() < end_s):
            at_s, number, what = heappop(self._events)
            engine = self._engines.get(what)
            if engine is not None and engine.due_s != at_s:
                continue
            self._clock.advance(max(0.0, at_s - self._clock.now_s()))
            if engine is not None:
                self._pass(what, engine, at_s)
            elif what == "arrival":
                self._arrive(self._jobs[number])
            elif what == "scrape":
                self._scrape()
                self._push(at_s + SCRAPE_S, "scrape")
            else:
                self._tick(at_s)
                self._push(at_s + TICK_S, "tick")
        return self._summary()

    def _push(self, at_s: float, what: str) -> None:
        heappush(self._events, (at_s, -1 - next(self._numbers), what))

    def _tick(self, now_s: float) -> None:
        self._fleet.tick()
        self._gate.tick()
        self._laddering.tick()
        spare = list(self._fleet.states("spare"))
        room = sum(state.kv_tokens or 0 for state in spare)
        used = [self._engines[state.replica.name].kv_usage_ratio for state in spare]
        self._fullest[0] = max(self._fullest[0], sum(state.in_flight_tokens for state in spare) / room)
        self._fullest[1] = max(self._fullest[1], sum(used) / len(used))
        self._levels.append((now_s, self._laddering.own_level("main")))

    def _scrape(self) -> None:
        for state in self._fleet.states():
            engine = self._engines[state.replica.name]
            signals = (float(engine.waiting), engine.kv_usage_ratio, float(engine.preemptions))
            waiting, usage, preemptions = (Signal(value, "engine") for value in signals)
            state.telemetry = Telemetry(waiting=waiting, kv_usage_ratio=usage, preemptions=preemptions)
            state.polled_at_s = self._clock.now_s()
            state.noted(None, None)

    def _arrive(self, job: _Job) -> None:
        text = json.dumps(job.asked).encode()
        asked = _read(text)
        call = self._call(job, asked)
        record = self._recorder.open(call.call_id, "", "chat", "")
        record.understood(call)
        try:
            # As `placing` does it.
            served = asked
            if self._laddering.engaged:
                call, served = self._sparing.served(call, asked, self._policy, Reply(), record)  # type: ignore[arg-type]
        except Refused as refusal:
            self._refused(job, record, refusal)
            return
        job.degraded = record.row.degraded
        job.harmed = job.structured and (bytes(served.members.raw) != text or call.max_tokens != asked.max_tokens)
        pool = self._policy.models[call.model].pool
        self._gate.offer(call, pool, partial(self._granted, job, call, record), partial(self._refused, job, record))

    def _call(self, job: _Job, asked: Asked) -> Call:
        now_s = self._clock.now_s()
        work = Work(job.prompt, RESERVED_TOKENS, LIKELY_TOKENS, "m", (1.0,), (("k",),))
        return Call(
            str(job.number), CHAT, "m", True, True, Tenant("t"), job.prompt, RESERVED_TOKENS, (), now_s,
            now_s + WHOLE_S, work=work, max_tokens=asked.max_tokens, bound_tokens=RESERVED_TOKENS,
        )  # fmt: skip

    def _granted(self, job: _Job, call: Call, record: CallRecord, permit: LocalPermit) -> None:
        record.close(200, Outcome.OK)
        lease = permit.lease
        assert isinstance(lease, Lease), "an engine is there"
        job.permit, job.tokens = permit, min(job.output, call.max_tokens or MAX_TOKENS)
        name = lease.replica.name
        self._engines[name].submit(self._clock.now_s(), Seq(job.number, call.prompt_tokens, job.tokens))
        self._announce(name)

    def _refused(self, job: _Job, record: CallRecord, refusal: Refused) -> None:
        record.close(refusal.status, Outcome.REFUSED, refusal.code)
        job.refused = refusal.code
        self._open -= 1

    def _pass(self, name: str, engine: VirtualEngine, now_s: float) -> None:
        news = engine.pass_to(now_s)
        self._announce(name)
        for number in news.first:
            job = self._jobs[number]
            job.first_s = now_s
            if job.permit is not None and job.permit.lease is not None:
                job.permit.lease.first_token()
        for number in news.ended:
            job = self._jobs[number]
            job.end_s = now_s
            self._open -= 1
            permit = job.permit
            if permit is not None and permit.lease is not None:
                permit.lease.report(None, answered=True)
                permit.release(Spend(job.prompt + job.tokens))

    def _announce(self, name: str) -> None:
        due_s = self._engines[name].due_s
        if due_s is not None:
            self._push(due_s, name)

    def _summary(self) -> Surged:
        load = self._load
        over_s = load.before_s + load.surge_s
        surge = [job for job in self._jobs if load.before_s <= job.at_s < over_s]
        served = [job.first_s - job.at_s for job in surge if not job.refused]
        up = [at_s for at_s, level in self._levels if level and at_s >= over_s]
        recovered_s = max(up) - over_s if up else 0.0
        count = len(surge)
        return Surged(
            count,
            sum(job.timed_out for job in self._jobs if job.at_s >= load.before_s) / count,
            sum(bool(job.refused) and not job.timed_out for job in surge) / count,
            sum(bool(job.degraded) for job in surge) / count,
            sum("model" in job.degraded for job in surge) / count,
            sum(job.harmed for job in self._jobs),
            (self._fullest[0], self._fullest[1]),
            tuple(sorted({level for _, level in self._levels})),
            math.inf if self._levels[-1][1] else recovered_s,
            percentile(served, 0.99),
        )


def _read(text: bytes) -> Asked:
    """Read a body; it is small, so no turn of a loop is needed."""
    reading = body.read(text, CHAT, 64)
    try:
        reading.send(None)
    except StopIteration as read:
        found: Asked = read.value
        return found
    raise AssertionError("a large body")


def _policy(ladder: Ladder | None, main: int, spare: int) -> Policy:
    pools = {
        name: Pool(
            name,
            "vllm",
            tuple(Replica(f"{name[0]}{n}", "h", 1) for n in range(count)),
            queue_size=100_000,
            capacity=Capacity(kv_tokens=spec.kv_tokens, streams=spec.max_num_seqs),
        )
        for name, count, spec in (("main", main, MAIN), ("spare", spare, SPARE))
    }
    timeouts = replace(Timeouts(), first_byte_s=FIRST_TOKEN_S)
    models = {"m": Model("m", "main", timeouts=timeouts, ladder=ladder), "small": Model("small", "spare")}
    return Policy(pools, models, {})
