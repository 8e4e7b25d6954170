"""The event loop: arrivals, news of engines and ticks, in order of virtual time."""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from msgspec import Struct

from forebay.clock import ManualClock
from forebay.engines.sim.model import Seq
from forebay.engines.sim.spec import SimSpec
from forebay.plan.engine import VirtualEngine
from forebay.plan.policies import Job, Router, RouterFactory
from forebay.plan.traces import Arrival

# Of what is due at the same moment engines come first: what they free can be given away.
_NEWS, _ARRIVAL, _TICK = 0, 1, 2
_PROGRESS_EVERY = 256


class Row(Struct, frozen=True, gc=False):
    """What became of one arrival.

    Attributes:
        queue_s: from its arrival until it was sent to an engine, or refused.
        ttft_s: from its arrival until the first token; None when refused.
        e2e_s: from its arrival until the last token; None when refused.
        refused: code of the refusal, empty when there was none.
        engine: index of the engine that ran it, -1 for none.
    """

    arrival: Arrival
    queue_s: float
    ttft_s: float | None
    e2e_s: float | None
    refused: str
    engine: int


class Stuck(Exception):
    """A policy left requests waiting for ever: nothing is due any more, and some have not ended."""


class Run:
    """One run of a policy over arrivals; it is the `Floor` on which its router works."""

    def __init__(self, arrivals: Sequence[Arrival], spec: SimSpec, replicas: int, factory: RouterFactory) -> None:
        self._spec = spec
        self._clock = ManualClock()
        self._now_s = 0.0
        self._jobs = [Job(number, arrival) for number, arrival in enumerate(arrivals)]
        self._engines = [VirtualEngine(spec) for _ in range(replicas)]
        self._events: list[tuple[float, int, int]] = []
        self._open = len(self._jobs)
        self._router: Router = factory(self, self._clock, spec, replicas)

    def send(self, job: Job, engine: int) -> None:
        """Give a request to an engine, which keeps it to its end."""
        arrival = job.arrival
        job.engine, job.sent_s = engine, self._now_s
        prompt_tokens = min(arrival.prompt_tokens, self._spec.max_model_len - 1)
        output_tokens = min(arrival.output_tokens, self._spec.max_model_len - prompt_tokens)
        self._engines[engine].submit(self._now_s, Seq(job.number, prompt_tokens, output_tokens))
        self._announce(engine)

    def refuse(self, job: Job, code: str) -> None:
        """Turn a request away."""
        job.refused, job.sent_s = code, self._now_s
        self._close(job)

    def rows(self, on_progress: Callable[[float], None] | None = None) -> list[Row]:
        """Run to the end and return what became of each arrival, in their order.

        Args:
            on_progress: called now and then with the part of the arrivals that have come, 0..1.

        Raises:
            Stuck: the policy forgot a request.
        """
        for job in self._jobs[:1]:
            heappush(self._events, (job.arrival.at_s, _ARRIVAL, 0))
        if self._router.tick_s:
            heappush(self._events, (self._router.tick_s, _TICK, 0))
        while self._open:
            if not self._events:
                raise Stuck(f"{self._open} of {len(self._jobs)} requests neither run nor were refused")
            at_s, kind, index = heappop(self._events)
            if kind == _NEWS and self._engines[index].due_s != at_s:
                continue  # it was announced anew, for another time
            self._clock.advance(max(0.0, at_s - self._clock.now_s()))
            self._now_s = at_s
            if kind == _NEWS:
                self._pass(index, at_s)
            elif kind == _ARRIVAL:
                self._arrive(index, on_progress)
            else:
                self._router.tick()
                heappush(self._events, (at_s + self._router.tick_s, _TICK, 0))
        return [_row(job) for job in self._jobs]

    def _arrive(self, index: int, on_progress: Callable[[float], None] | None) -> None:
        if index + 1 < len(self._jobs):
            heappush(self._events, (self._jobs[index + 1].arrival.at_s, _ARRIVAL, index + 1))
        if on_progress is not None and index % _PROGRESS_EVERY == 0:
            on_progress(index / len(self._jobs))
        self._router.arrive(self._jobs[index])

    def _pass(self, index: int, at_s: float) -> None:
        news = self._engines[index].pass_to(at_s)
        self._announce(index)
        for number in news.first:
            job = self._jobs[number]
            job.first_s = at_s
            self._router.first_token(job)
        for number in news.ended:
            job = self._jobs[number]
            job.end_s = at_s
            self._close(job)
            self._router.end(job)

    def _announce(self, index: int) -> None:
        due_s = self._engines[index].due_s
        if due_s is not None:
            heappush(self._events, (due_s, _NEWS, index))

    def _close(self, job: Job) -> None:
        if job.closed:
            raise ValueError(f"request {job.number} has ended twice")
        job.closed = True
        self._open -= 1


def _row(job: Job) -> Row:
    at_s = job.arrival.at_s
    ran = not job.refused
    return Row(
        arrival=job.arrival,
        queue_s=job.sent_s - at_s,
        ttft_s=job.first_s - at_s if ran else None,
        e2e_s=job.end_s - at_s if ran else None,
        refused=job.refused,
        engine=job.engine,
    )
