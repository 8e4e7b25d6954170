"""Figures of a proof: percentiles, ratios per pair, and no difference claimed that chance explains."""

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.release.figures import Report, Row, percentile, report
from forebay.release.load import Sample
from forebay.release.mix import Lengths, Speed
from forebay.release.proof import Arm, Proof, Timing, Way

LENGTHS = Lengths(10, 4000, 20, 5000, 8)


def sample(number: int, ttft_s: float, **fields: object) -> Sample:
    made = Sample("long" if number % 7 == 0 else "short", number, number / 10, end="ok", ttft_s=ttft_s, status=200)
    made.total_s, made.prompt_tokens, made.output_tokens, made.gaps_s = ttft_s + 0.1, 100, 8, [0.01, 0.02]
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def proof(factor: float, noise: float = 0.1, count: int = 140, pairs: int = 6, lengths: Lengths = LENGTHS) -> Proof:
    """A proof in which Forebay takes `factor` times as long, give or take."""
    random = Random(7)
    arms = []
    for pair in range(pairs):
        base = [random.uniform(0.1, 1.0) for _ in range(count)]
        ways: dict[Way, float] = {"direct": 1.0, "forebay": factor}
        for way, times in ways.items():
            samples = [sample(n, b * times * random.uniform(1 - noise, 1 + noise)) for n, b in enumerate(base)]
            arms.append(Arm(pair, way, samples, 14.0))
    return Proof(Speed(1000.0, 100.0), lengths, Timing(3.0, 2.0, 14.0, pairs), 11.0, 10.0, arms)


def row(made: Report, name: str) -> Row:
    return next(row for row in made.rows if row.name.startswith(name))


@given(st.lists(st.floats(0, 100), min_size=1, max_size=300), st.floats(0.01, 1.0))
def test_percentile_is_the_least_value_that_reaches_the_rank(values: list[float], ratio: float) -> None:
    values.sort()
    found = percentile(values, ratio)
    assert found in values
    assert sum(v <= found for v in values) >= ratio * len(values) - 1e-9
    assert sum(v < found for v in values) < ratio * len(values) + 1e-9


@pytest.mark.parametrize(("factor", "says"), [(0.4, "lower"), (2.0, "higher"), (1.0, "no clear difference")])
def test_a_difference_is_told_from_chance(factor: float, says: str) -> None:
    made = report(proof(factor), "1")
    found = row(made, "short TTFT P50")
    assert found.says == says
    assert found.ratio == pytest.approx(factor, rel=0.1)
    assert found.interval is not None and found.interval[0] <= found.ratio <= found.interval[1]
    assert len(found.pair_ratios) == 6 and found.count == 720


def test_pairs_that_disagree_are_no_difference() -> None:
    made = proof(0.4)
    for arm in made.arms:
        if arm.pair == 1 and arm.way == "forebay":
            for one in arm.samples:
                assert one.ttft_s is not None
                one.ttft_s *= 5.0
    found = row(report(made, "1"), "short TTFT P50")
    assert min(found.pair_ratios) < 1 < max(found.pair_ratios)
    assert found.says == "no clear difference"


@pytest.mark.parametrize(
    ("pairs", "factor", "says"),
    [(6, 0.4, "lower"), (4, 0.4, "probably lower"), (4, 2.5, "probably higher"), (2, 0.4, "too few")],
)
def test_it_takes_pairs_to_be_sure(pairs: int, factor: float, says: str) -> None:
    assert row(report(proof(factor, pairs=pairs), "1"), "short TTFT P50").says == says


def test_swings_of_the_engine_itself_are_said() -> None:
    made = proof(1.0)
    assert not any("from arm to arm" in note for note in report(made, "1").notes)
    for one in made.arms[0].samples:
        one.ttft_s = 4.0
    assert any("to 4000 ms from arm to arm" in note for note in report(made, "1").notes)


def test_few_calls_conclude_nothing() -> None:
    found = row(report(proof(0.2, count=10, pairs=2), "1"), "short TTFT P95")
    assert (found.says, found.interval) == ("too few", None)
    assert found.ratio is not None and found.ratio < 0.4


def test_the_same_seed_gives_the_same_interval() -> None:
    assert report(proof(0.9), "1") == report(proof(0.9), "1")


def test_throughput_counts_tokens_of_answered_calls() -> None:
    made = proof(1.0)
    made.arms[1].samples[0].end = "lost"
    found = row(report(made, "1"), "throughput")
    assert found.direct == pytest.approx(140 * 108 / 14)
    assert found.forebay == pytest.approx((6 * 140 - 1) * 108 / (6 * 14))
    assert found.says == "no clear difference"


def test_calls_that_failed_are_counted_explained_and_not_timed() -> None:
    made = proof(1.0)
    for arm in made.arms:
        if arm.way == "forebay":
            arm.samples[1] = sample(1, 99.0, end="failed", reason="HTTP 429: busy", status=429)
            arm.samples[2] = sample(2, 99.0, end="lost", reason="no answer", status=0)
    found = report(made, "1")
    ends = found.ends["forebay"]
    assert (ends.asked, ends.answered, ends.failed, ends.lost) == (840, 828, 6, 6)
    assert ends.reasons == {"HTTP 429: busy": 6, "no answer": 6}
    assert any("answered calls alone" in note for note in found.notes)
    assert any(note == "through Forebay: 6 x HTTP 429: busy" for note in found.notes)
    slowest = row(found, "short TTFT P99").forebay
    assert slowest is not None and slowest < 2_000


def test_nothing_answered_is_nothing_not_zero() -> None:
    made = proof(1.0)
    for arm in made.arms:
        if arm.way == "forebay":
            for one in arm.samples:
                one.end, one.ttft_s, one.gaps_s = "failed", None, []
    found = row(report(made, "1"), "long TTFT")
    assert found.direct is not None
    assert (found.forebay, found.ratio, found.says) == (None, None, "too few")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"late_s": 0.2}, "late by 200 ms"),
        ({"cached_tokens": 60}, "60% of the prompt tokens in its cache"),
    ],
)
def test_what_weakens_the_figures_is_said(change: dict[str, object], words: str) -> None:
    made = proof(1.0)
    assert not any(words in note for note in report(made, "1").notes)
    for arm in made.arms:
        for one in arm.samples:
            for name, value in change.items():
                setattr(one, name, value)
    assert any(words in note for note in report(made, "1").notes)


def test_a_changed_setting_is_said() -> None:
    slow = Lengths(10, 150, 48, 192, 6)
    assert any("long_prompt_tokens: 96 instead of 2048" in n for n in report(proof(1.0, lengths=slow), "1").notes)
    assert not any("long_prompt_tokens" in n for n in report(proof(1.0), "1").notes)
