"""Summaries count refusals against the policy, and say nothing about nobody."""

import pytest

from forebay.plan.report import Slo, as_json, percentile, spread, summary
from forebay.plan.run import Row
from forebay.plan.traces import Arrival


def row(prompt_tokens: int, ttft_s: float | None, at_s: float = 0.0) -> Row:
    ran = ttft_s is not None
    e2e_s = None if ttft_s is None else ttft_s + 1
    return Row(Arrival(at_s, prompt_tokens, 10, "a"), 0.1, ttft_s, e2e_s, "" if ran else "overloaded", 0 if ran else -1)


def test_percentiles_are_values_that_were_seen() -> None:
    assert percentile([], 0.5) is None
    assert percentile([3, 1, 2], 0.5) == 2
    assert percentile(list(range(100, 0, -1)), 0.99) == 99
    assert percentile([5], 0.99) == 5


def test_a_refusal_is_not_in_slo_and_has_no_time() -> None:
    one = summary([row(100, 0.5), row(100, 2.0), row(100, None), row(5000, 9.0, at_s=10.0)], Slo())
    assert one.requests == 4
    assert one.in_slo_ratio == 0.5
    assert one.refused_ratio == 0.25
    assert one.short_in_slo_ratio == pytest.approx(1 / 3)
    assert one.long_in_slo_ratio == 1.0
    assert one.short_p99_s == 2.0
    assert one.long_p99_s == 9.0
    assert one.run_s == 20.0
    assert one.goodput_tokens_per_s == pytest.approx((110 + 5010) / 20)
    assert one.throughput_tokens_per_s == pytest.approx((110 + 110 + 5010) / 20)
    assert one.slo_tokens_ratio == pytest.approx(5120 / 5340)


def test_the_lengths_and_targets_are_those_of_the_slo() -> None:
    slo = Slo(short_s=0.1, long_s=3.0, long_prompt_tokens=99)
    assert summary([row(99, 0.2), row(100, 0.2)], slo).in_slo_ratio == 0.5


def test_nobody_has_no_percentile() -> None:
    nobody = summary([], Slo())
    assert nobody.short_p50_s is None
    assert nobody.long_in_slo_ratio is None
    assert nobody.in_slo_ratio == 0.0


def test_realisations_are_spread() -> None:
    runs = [summary([row(100, ttft_s)], Slo()) for ttft_s in (0.5, 1.5, 4.0)]
    columns = spread(runs)
    p50 = columns["short_p50_s"]
    assert p50 is not None
    assert (p50.mean, p50.low, p50.high) == (2.0, 0.5, 4.0)
    assert p50.deviation == pytest.approx(1.4720, abs=1e-4)
    assert columns["long_p99_s"] is None
    document = as_json({"x": runs})
    assert document["x"]["spread"]["in_slo_ratio"]["mean"] == pytest.approx(1 / 3)  # type: ignore[index]
