"""Who decides which engine gets a request and when: the protocol, and simple policies to compare with.

The baselines are what proxies do: each request goes to an engine at once. `held` keeps a first-come queue of its
own in front, so that holding back can be told apart from ordering.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Protocol

from forebay.clock import Clock
from forebay.engines.sim.spec import SimSpec
from forebay.plan.traces import Arrival

# The depth of the scheduling study: more loses the order of the queue, less loses throughput.
HOLD_CHUNKS = 2


class Job:
    """One arrival on its way; all times in virtual seconds.

    Attributes:
        number: its place among the arrivals, from 0.
        refused: code of the refusal, empty when there was none.
        engine: index of the engine that it was sent to, -1 before.
        closed: it has ended, or was refused.
    """

    __slots__ = ("arrival", "closed", "end_s", "engine", "first_s", "number", "refused", "sent_s")

    def __init__(self, number: int, arrival: Arrival) -> None:
        self.number = number
        self.arrival = arrival
        self.closed = False
        self.engine = -1
        self.sent_s = 0.0
        self.first_s = 0.0
        self.end_s = 0.0
        self.refused = ""


class Floor(Protocol):
    """What a policy can do with a request: send it to an engine, or turn it away; each once."""

    def send(self, job: Job, engine: int) -> None:
        """Give it to the engine of that index."""

    def refuse(self, job: Job, code: str) -> None:
        """Turn it away."""


class Router(Protocol):
    """A policy at work; called in order of virtual time.

    Attributes:
        tick_s: how often it wants to be told the time; 0 never.
    """

    tick_s: float

    def arrive(self, job: Job) -> None:
        """A request came."""

    def first_token(self, job: Job) -> None:
        """Its engine made the first token."""

    def end(self, job: Job) -> None:
        """Its engine made the last token."""

    def tick(self) -> None:
        """Time has passed."""


RouterFactory = Callable[[Floor, Clock, SimSpec, int], Router]
"""Makes a router for so many engines of a kind, on the clock of the run."""


class PassThrough(ABC):
    """Sends each request at once; the base of the baselines."""

    tick_s = 0.0

    def __init__(self, floor: Floor, clock: Clock, spec: SimSpec, replicas: int) -> None:
        self._floor = floor
        self._load = [0] * replicas
        self._turn = 0

    def arrive(self, job: Job) -> None:
        """Send it where the load is least."""
        engine = self._least()
        self._load[engine] += self._arriving(job.arrival)
        self._floor.send(job, engine)

    def first_token(self, job: Job) -> None:
        """Take the prompt's part off the load."""
        self._load[job.engine] -= self._prefilled(job.arrival)

    def end(self, job: Job) -> None:
        """Take the rest off the load."""
        self._load[job.engine] -= self._arriving(job.arrival) - self._prefilled(job.arrival)

    def tick(self) -> None:  # noqa: B027 - to do nothing is right for all of them
        """Nothing depends on time."""

    def _least(self) -> int:
        """Return the engine of the least load; among equals the next in turn."""
        count = len(self._load)
        # The first of the list would else get every request of a quiet hour.
        best = min(range(self._turn, self._turn + count), key=lambda place: self._load[place % count]) % count
        self._turn = (best + 1) % count
        return best

    @abstractmethod
    def _arriving(self, arrival: Arrival) -> int:
        """Load that a request brings."""

    @abstractmethod
    def _prefilled(self, arrival: Arrival) -> int:
        """Load that it leaves off with its first token."""


class RoundRobin(PassThrough):
    """Each engine in turn."""

    def _arriving(self, arrival: Arrival) -> int:
        return 0

    def _prefilled(self, arrival: Arrival) -> int:
        return 0


class LeastRequests(PassThrough):
    """The engine with the fewest requests in flight."""

    def _arriving(self, arrival: Arrival) -> int:
        return 1

    def _prefilled(self, arrival: Arrival) -> int:
        return 0


class LeastPrefillTokens(PassThrough):
    """The engine with the fewest prompt tokens in flight that have no first token yet."""

    def _arriving(self, arrival: Arrival) -> int:
        return arrival.prompt_tokens

    def _prefilled(self, arrival: Arrival) -> int:
        return arrival.prompt_tokens


class Held(LeastPrefillTokens):
    """First come, first served, and no engine gets a request while it has two chunks of prompts to compute."""

    def __init__(self, floor: Floor, clock: Clock, spec: SimSpec, replicas: int) -> None:
        super().__init__(floor, clock, spec, replicas)
        self._waiting: deque[Job] = deque()
        self._hold_tokens = HOLD_CHUNKS * spec.chunk_tokens

    def arrive(self, job: Job) -> None:
        """Send it, or let it wait behind the others."""
        self._waiting.append(job)
        self._pump()

    def first_token(self, job: Job) -> None:
        """An engine has room for more."""
        super().first_token(job)
        self._pump()

    def _pump(self) -> None:
        while self._waiting and min(self._load) < self._hold_tokens:
            super().arrive(self._waiting.popleft())


BASELINES: dict[str, RouterFactory] = {
    "round_robin": RoundRobin,
    "least_requests": LeastRequests,
    "least_prefill_tokens": LeastPrefillTokens,
    "held_fcfs": Held,
}
