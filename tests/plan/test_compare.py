"""Comparisons: setups, names, cells."""

import pytest

from forebay.engines.sim.spec import SimSpec
from forebay.plan.compare import CELL_REPLICAS, Study, arrivals_of, compare, peak_prefill_tokens_per_s, policy_names
from forebay.plan.traces import Arrival
from forebay.policy import Admission

SMALL = {"seconds": 20.0, "realisations": 2, "replicas": 2}


def test_the_peak_is_that_of_full_chunks() -> None:
    assert peak_prefill_tokens_per_s(SimSpec()) == pytest.approx(18_220.6, abs=0.1)


def test_all_policies_run_on_the_same_arrivals_and_progress_is_told() -> None:
    seen: list[tuple[str, float]] = []
    results = compare(
        Study(**SMALL), ["round_robin", "forebay_latency"], lambda name, share: seen.append((name, share))
    )
    assert list(results) == ["round_robin", "forebay_latency"]
    assert [one.requests for one in results["round_robin"]] == [one.requests for one in results["forebay_latency"]]
    assert seen[-1] == ("forebay_latency 2/2", 1.0)
    assert [share for _, share in seen] == sorted(share for _, share in seen)
    assert results == compare(Study(**SMALL), ["round_robin", "forebay_latency"])


def test_traces_are_used_when_there_are_some() -> None:
    trace = tuple(Arrival(number / 10, 700, 10, "a") for number in range(1000))
    arrivals = arrivals_of(Study(traces=(trace,), **SMALL), 0)
    assert {one.prompt_tokens for one in arrivals} == {700}


def test_an_unknown_policy_is_named_with_those_that_exist() -> None:
    with pytest.raises(ValueError, match="'best'.*round_robin.*forebay_latency"):
        compare(Study(**SMALL), ["best"])
    assert "forebay_config" not in policy_names(Study())
    study = Study(admission=Admission(), **SMALL)
    assert policy_names(study)[-1] == "forebay_config"
    assert compare(study, ["forebay_config"])["forebay_config"][0].requests > 0


@pytest.mark.parametrize("field", ["replicas", "load_ratio", "seconds", "realisations"])
def test_a_setup_without_an_answer_is_refused(field: str) -> None:
    with pytest.raises(ValueError, match=field):
        Study(**{field: 0})


def test_a_large_fleet_is_run_as_one_of_its_cells() -> None:
    assert (Study(replicas=64).cells, Study(replicas=64).cell_replicas) == (1, 64)
    large = Study(replicas=2000, seconds=3.0, realisations=1, load_ratio=0.5)
    assert large.cell_replicas <= CELL_REPLICAS
    assert large.cells * large.cell_replicas >= 2000
    (one,) = compare(large, ["least_prefill_tokens"])["least_prefill_tokens"]
    small = Study(replicas=large.cell_replicas, seconds=3.0, realisations=1, load_ratio=0.5)
    (cell,) = compare(small, ["least_prefill_tokens"])["least_prefill_tokens"]
    assert one.goodput_tokens_per_s == pytest.approx(cell.goodput_tokens_per_s * 2000 / large.cell_replicas)
    assert one.in_slo_ratio == cell.in_slo_ratio
