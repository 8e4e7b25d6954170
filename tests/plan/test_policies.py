"""The baselines choose as they say."""

import pytest

from forebay.clock import ManualClock
from forebay.engines.sim.spec import SimSpec
from forebay.plan.policies import BASELINES, Job, Router
from forebay.plan.traces import Arrival


class Sent:
    """A floor that notes where each request went."""

    def __init__(self, policy: str, replicas: int, spec: SimSpec | None = None) -> None:
        self.engines: list[int] = []
        self.jobs: list[Job] = []
        self.router: Router = BASELINES[policy](self, ManualClock(), spec or SimSpec(), replicas)

    def send(self, job: Job, engine: int) -> None:
        job.engine = engine
        self.engines.append(engine)

    def refuse(self, job: Job, code: str) -> None:
        raise AssertionError("no baseline refuses")

    def arrive(self, prompt_tokens: int) -> Job:
        job = Job(len(self.jobs), Arrival(0.0, prompt_tokens, 10, "a"))
        self.jobs.append(job)
        self.router.arrive(job)
        return job


def test_round_robin_looks_at_nothing() -> None:
    sent = Sent("round_robin", 3)
    first = sent.arrive(100)
    for _ in range(4):
        sent.arrive(10)
    sent.router.first_token(first)
    sent.router.end(first)
    sent.arrive(10)
    assert sent.engines == [0, 1, 2, 0, 1, 2]


def test_least_requests_counts_them_to_their_end() -> None:
    sent = Sent("least_requests", 2)
    first = sent.arrive(9000)
    second = sent.arrive(10)
    sent.router.first_token(second)
    sent.arrive(10)  # one each: the next in turn
    sent.router.first_token(first)
    sent.router.end(first)
    sent.router.end(second)
    sent.arrive(10)
    assert sent.engines == [0, 1, 0, 1]


def test_least_prefill_tokens_counts_prompts_to_their_first_token() -> None:
    sent = Sent("least_prefill_tokens", 2)
    first = sent.arrive(9000)
    sent.arrive(100)
    sent.arrive(200)
    sent.router.first_token(first)
    sent.arrive(10)
    sent.router.end(first)
    sent.arrive(10)
    assert sent.engines == [0, 1, 1, 0, 0]


def test_held_requests_wait_for_room_in_their_order() -> None:
    sent = Sent("held_fcfs", 1, SimSpec(max_num_batched_tokens=200))
    jobs = [sent.arrive(tokens) for tokens in (300, 300, 50, 50)]
    assert len(sent.engines) == 2  # two chunks of 200 are held by then
    sent.router.first_token(jobs[0])
    assert len(sent.engines) == 4


@pytest.mark.parametrize("policy", BASELINES)
def test_no_load_is_left_when_all_have_ended(policy: str) -> None:
    sent = Sent(policy, 2)
    jobs = [sent.arrive(tokens) for tokens in (9000, 10, 700, 4000, 80)]
    for job in jobs:
        sent.router.first_token(job)
    for job in jobs:
        sent.router.end(job)
    assert sent.router._load == [0, 0]  # type: ignore[attr-defined]
