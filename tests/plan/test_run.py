"""Runs of policies: each arrival ends once, equal runs are equal, and the policies rank as the study says."""

from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.clock import Clock
from forebay.engines.sim.spec import SimSpec
from forebay.plan.compare import OWN, Study, factory
from forebay.plan.policies import BASELINES, Floor, Job
from forebay.plan.report import Slo, summary
from forebay.plan.run import Row, Run, Stuck
from forebay.plan.traces import Arrival, Synthetic, synthetic

SPEC = SimSpec()
POLICIES = [*BASELINES, *OWN]
PEAK_TOKENS_PER_S = 18_220


def traffic(load: float, seconds: float = 150.0, replicas: int = 3, seed: int = 1) -> list[Arrival]:
    return synthetic(Synthetic(), seconds, load * replicas * PEAK_TOKENS_PER_S, Random(seed))


def rows_of(policy: str, arrivals: list[Arrival], replicas: int = 3) -> list[Row]:
    return Run(arrivals, SPEC, replicas, factory(Study(), policy, arrivals)).rows()


@pytest.mark.parametrize("load", [0.5, 1.3])
@pytest.mark.parametrize("policy", POLICIES)
def test_each_arrival_ends_exactly_once(policy: str, load: float) -> None:
    arrivals = traffic(load, 60.0)
    rows = rows_of(policy, arrivals)
    assert [row.arrival for row in rows] == arrivals
    for row in rows:
        assert bool(row.refused) == (row.ttft_s is None) == (row.e2e_s is None) == (row.engine < 0)
        assert row.queue_s >= 0
        if row.ttft_s is not None and row.e2e_s is not None:
            assert row.queue_s < row.ttft_s <= row.e2e_s


@settings(max_examples=30, deadline=None)
@given(
    st.sampled_from(POLICIES),
    st.lists(st.tuples(st.floats(0, 5), st.integers(1, 20_000), st.integers(1, 300)), max_size=40),
    st.integers(1, 3),
)
def test_whatever_comes_all_of_it_ends(policy: str, sizes: list[tuple[float, int, int]], replicas: int) -> None:
    arrivals = [Arrival(at_s, prompt, output, "a") for at_s, prompt, output in sorted(sizes)]
    rows = rows_of(policy, arrivals, replicas)
    assert [row.arrival for row in rows] == arrivals
    assert all(row.refused or row.e2e_s for row in rows)


@pytest.mark.parametrize("policy", POLICIES)
def test_equal_runs_are_equal(policy: str) -> None:
    assert rows_of(policy, traffic(0.9, 40.0)) == rows_of(policy, traffic(0.9, 40.0))


def test_a_prompt_that_no_engine_could_hold_is_cut_down() -> None:
    (row,) = rows_of("round_robin", [Arrival(0.0, 1_000_000, 500, "a")])
    assert row.ttft_s is not None


def test_a_policy_that_forgets_a_request_is_found_out() -> None:
    class Forgetful(BASELINES["round_robin"]):  # type: ignore[misc, name-defined]
        def arrive(self, job: Job) -> None:
            if job.number:
                super().arrive(job)

    def forgetful(floor: Floor, clock: Clock, spec: SimSpec, replicas: int) -> Forgetful:
        return Forgetful(floor, clock, spec, replicas)

    with pytest.raises(Stuck, match="1 of"):
        Run(traffic(0.5, 5.0), SPEC, 1, forgetful).rows()


def test_progress_grows_to_the_end() -> None:
    arrivals = traffic(0.5, 60.0)
    seen: list[float] = []
    Run(arrivals, SPEC, 3, BASELINES["round_robin"]).rows(seen.append)
    assert seen == sorted(seen)
    assert 0 <= seen[0] < seen[-1] < 1


def test_policies_rank_as_in_the_study() -> None:
    """Token-based load beats counting requests, which beats taking turns; order beats both at high load."""
    slo = Slo()

    def short_p99_s(policy: str, load: float) -> float:
        found = [summary(rows_of(policy, traffic(load, 250.0, seed=seed)), slo).short_p99_s for seed in range(2)]
        return sum(value or 0.0 for value in found)

    in_turn, requests, tokens, own = (
        short_p99_s(policy, 0.6)
        for policy in ("round_robin", "least_requests", "least_prefill_tokens", "forebay_throughput")
    )
    assert in_turn > 1.2 * tokens
    assert requests > 1.1 * tokens
    assert tokens > 1.2 * own


def test_refusing_early_keeps_the_others_in_time_under_overload() -> None:
    arrivals = traffic(1.3, 200.0)
    plain, latency = (summary(rows_of(policy, arrivals), Slo()) for policy in ("held_fcfs", "forebay_latency"))
    assert plain.in_slo_ratio < 0.4
    assert latency.in_slo_ratio > 0.7
    assert latency.throughput_tokens_per_s > 0.9 * plain.throughput_tokens_per_s
