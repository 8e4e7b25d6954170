"""The calls of a hundred tenants, one of whom goes bad: each draws from a generator of its own.

So two runs of one realisation differ only in what the bad one does.
"""

import math
import random
from typing import Literal, NamedTuple

from forebay.admission.gate import LocalPermit
from forebay.engines.sim.model import Seq
from forebay.engines.sim.spec import SimSpec
from forebay.plan.engine import VirtualEngine
from forebay.routing.attempts import Tried
from forebay.routing.replica import Lease
from forebay.traffic import Call

Way = Literal["well", "redrawn", "errors", "errors everywhere", "time-outs", "flood", "flood, limited"]
"""What the bad one does: nothing; other calls of the same kind; calls that end with 500 when their prompt is computed,
at home only or on the smaller model too; answers that do not end in time; ten times as many calls with long prompts,
where tenants have no limit, or one of tokens per minute."""

BAD = 7
MAIN = SimSpec(max_num_seqs=256, kv_tokens=400_000, max_model_len=16_384)
PROMPT_TOKENS, MOST_PROMPT_TOKENS, ANSWER_TOKENS, MOST_ANSWER_TOKENS = 700, 6_000, 60, 400
RESERVED_TOKENS, ENDLESS_TOKENS = 150, 8_000
FLOOD_FACTOR, FLOOD_TOKENS = 10.0, (4_000, 8_000)
LIMIT_TOKENS_PER_MINUTE = 50_000
"""About three times of what a tenant uses."""
BACKLOG = 3_000


BREAKS: dict[Way, frozenset[str]] = {
    "errors": frozenset(("main",)),
    "errors everywhere": frozenset(("main", "spare")),
}
"""Pools whose engines fail at his calls."""


class Plan(NamedTuple):
    """What comes.

    Attributes:
        tenants: that call, at an equal rate.
        engines: in their own pool; the degrade pool has one, of a smaller model.
        calls_per_s: of each; the usual one is 70 % of what the engines finish of a backlog (`capacity_per_s`).
        before_s: until one goes bad.
        bad_s: that he is bad.
        after_s: that is watched at most when he is well again; it ends with his return.
        ttl_s: of `degrade`.
    """

    tenants: int = 100
    engines: int = 2
    calls_per_s: float = 0.237
    before_s: float = 60.0
    bad_s: float = 600.0
    after_s: float = 3600.0
    ttl_s: float = 600.0


class Job:
    """One call of one tenant."""

    def __init__(self, number: int, at_s: float, tenant: int, prompt: int, output: int) -> None:
        self.number, self.at_s, self.tenant, self.prompt, self.output = number, at_s, tenant, prompt, output
        self.breaks: frozenset[str] = frozenset()
        self.first_s = math.inf
        self.failed = False
        self.permit: LocalPermit | None = None
        self.call: Call | None = None
        self.pool = ""
        self.tried: tuple[Tried, ...] = ()
        self.lease: Lease | None = None


def shape(rng: random.Random) -> tuple[int, int]:
    """Draw the tokens of a prompt and of its answer."""
    prompt = min(MOST_PROMPT_TOKENS, max(50, round(PROMPT_TOKENS * math.exp(rng.gauss(0.0, 0.8)))))
    return prompt, min(MOST_ANSWER_TOKENS, max(4, round(rng.expovariate(1 / ANSWER_TOKENS))))


def capacity_per_s() -> float:
    """Return how many such calls an engine finishes a second, of a backlog."""
    rng, engine, now_s = random.Random(0), VirtualEngine(MAIN), 0.0
    for number in range(BACKLOG):
        engine.submit(0.0, Seq(number, *shape(rng)))
    while engine.due_s is not None:
        now_s = engine.due_s
        engine.pass_to(now_s)
    return BACKLOG / now_s


def arrivals(plan: Plan, way: Way, seed: int) -> list[Job]:
    """Make the calls of all tenants, in the order of their coming."""
    ends_s, over_s = plan.before_s + plan.bad_s, plan.before_s + plan.bad_s + plan.after_s
    found: list[Job] = []
    for tenant in range(plan.tenants):
        rng = random.Random(f"{seed}/{tenant}")
        at_s = rng.expovariate(plan.calls_per_s)
        while at_s < over_s:
            found.append(Job(0, at_s, tenant, *shape(rng)))
            at_s += rng.expovariate(plan.calls_per_s)
    his = [job for job in found if job.tenant == BAD and plan.before_s <= job.at_s < ends_s]
    rng = random.Random(f"{seed}/his")
    floods = way.startswith("flood")
    if floods or way == "redrawn":
        gone = set(his)
        found = [job for job in found if job not in gone]
        at_s = plan.before_s
        while (at_s := at_s + rng.expovariate(plan.calls_per_s * (FLOOD_FACTOR if floods else 1.0))) < ends_s:
            prompt, output = shape(rng)
            found.append(Job(0, at_s, BAD, rng.randint(*FLOOD_TOKENS) if floods else prompt, output))
    for job in his:
        job.breaks = BREAKS.get(way, frozenset())
        job.output = ENDLESS_TOKENS if way == "time-outs" else job.output
    found.sort(key=lambda job: job.at_s)
    for number, job in enumerate(found):
        job.number = number
    return found
