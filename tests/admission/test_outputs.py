"""Learned lengths of answers."""

import csv
import math
import os
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.admission.outputs import (
    ENOUGH_SAMPLES,
    MAX_KEYS,
    MAX_OUTPUT_TOKENS,
    PRIOR_TOKENS,
    SPARING_STEP,
    WINDOW,
    Key,
    Outputs,
)

KIN: tuple[Key, ...] = (("t", "m", "", 5, 0), ("t", "m"), ("m",))
TRACES = (
    Path(os.environ.get("FOREBAY_SHARED") or Path(__file__).resolve().parents[3] / "shared") / "traces" / "azure2023"
)


def test_the_prior() -> None:
    assert Outputs().likely(KIN) == (PRIOR_TOKENS, PRIOR_TOKENS)
    assert Outputs().likely(()) == (PRIOR_TOKENS, PRIOR_TOKENS)


def test_the_closest_key_with_enough_samples_wins() -> None:
    outputs = Outputs()
    for _ in range(ENOUGH_SAMPLES):
        outputs.learn((("m",),), 300)
    for _ in range(ENOUGH_SAMPLES):
        outputs.learn((("t", "m"), ("m",)), 100)
    for _ in range(ENOUGH_SAMPLES - 1):
        outputs.learn(KIN, 20)
    assert outputs.likely(KIN) == outputs.likely(KIN[1:])
    outputs.learn(KIN, 20)
    assert outputs.likely(KIN) == (20, 20)
    assert outputs.likely((("u", "m", "", 5, 0), ("u", "m"), ("m",))) == outputs.likely((("m",),))


@pytest.mark.parametrize(("count", "p90"), [(20, 19), (99, 90), (WINDOW, 232)])
def test_mean_and_percentile(count: int, p90: int) -> None:
    outputs = Outputs()
    lengths = list(range(1, count + 1))
    Random(1).shuffle(lengths)
    for length in lengths:
        outputs.learn(KIN[:1], length)
    assert outputs.likely(KIN) == (math.ceil((count + 1) / 2), p90)


def test_old_answers_are_forgotten() -> None:
    outputs = Outputs()
    for length in [1000] * 400 + [10] * WINDOW * SPARING_STEP:
        outputs.learn(KIN[:1], length)
    assert outputs.likely(KIN) == (10, 10)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 60), min_size=ENOUGH_SAMPLES, max_size=3 * WINDOW))
def test_it_is_the_window_of_the_last_answers(lengths: list[int]) -> None:
    outputs = Outputs()
    for length in lengths:
        outputs.learn(KIN[:1], length)
    last = sorted(lengths[-WINDOW:])
    rank = min(len(last), math.ceil(0.9 * (len(last) + 1)))
    assert outputs.likely(KIN) == (math.ceil(sum(last) / len(last)), last[rank - 1])


@pytest.mark.parametrize(("tokens", "kept"), [(-3, 0), (10**12, MAX_OUTPUT_TOKENS)])
def test_strange_counts_are_bounded(tokens: int, kept: int) -> None:
    outputs = Outputs()
    for _ in range(ENOUGH_SAMPLES):
        outputs.learn(KIN, tokens)
    assert outputs.likely(KIN) == (kept, kept)


def test_wider_keys_see_an_eighth_of_what_a_full_key_sees() -> None:
    outputs = Outputs()
    for _ in range(WINDOW - 1):
        outputs.learn(KIN, 10)
    for _ in range(8 * ENOUGH_SAMPLES):
        outputs.learn(KIN, 50)
    mean, _ = outputs.likely((("u", "m"), ("m",)))
    assert 10 < mean < 14


def test_the_key_that_learned_nothing_for_longest_is_dropped() -> None:
    outputs = Outputs()
    for number in range(MAX_KEYS):
        for _ in range(ENOUGH_SAMPLES if number < 2 else 1):
            outputs.learn(((number,),), number)
    outputs.learn(((0,),), 0)
    outputs.learn((("one more",),), 1)
    assert outputs.likely(((0,),)) == (0, 0)
    assert outputs.likely(((1,),)) == (PRIOR_TOKENS, PRIOR_TOKENS)


def lognormal(random: Random) -> int:
    return round(random.lognormvariate(5, 1.2))


def bimodal(random: Random) -> int:
    return random.randint(1, 9) if random.random() < 0.6 else random.randint(400, 900)


@pytest.mark.parametrize("draw", [lognormal, bimodal])
def test_the_percentile_covers_nine_of_ten(draw: object) -> None:
    assert callable(draw)
    random, outputs = Random(3), Outputs()
    covered = 0
    for number in range(6000):
        length = draw(random)
        covered += number >= 1000 and length <= outputs.likely(KIN)[1]
        outputs.learn(KIN, length)
    assert covered / 5000 == pytest.approx(0.9, abs=0.02)


def calls(name: str) -> list[tuple[int, int]]:
    """Input and output tokens of a public trace."""
    path = TRACES / f"AzureLLMInferenceTrace_{name}.csv"
    if not path.is_file():
        pytest.skip("no public traces beside the checkout, nor where FOREBAY_SHARED says")
    with path.open(encoding="utf-8", newline="") as lines:
        return [(int(row["ContextTokens"]), int(row["GeneratedTokens"])) for row in csv.DictReader(lines)]


def kin_of(name: str, input_tokens: int) -> Iterator[Key]:
    yield (name, "m", "", input_tokens.bit_length(), 0)
    yield (name, "m")
    yield ("m",)


@pytest.mark.parametrize("name", ["conv", "code"])
def test_coverage_on_a_public_trace(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    trace = calls(name)
    half = len(trace) // 2
    outputs = Outputs()
    for input_tokens, output_tokens in trace[:half]:
        outputs.learn(tuple(kin_of(name, input_tokens)), output_tokens)
    said = [outputs.likely(tuple(kin_of(name, input_tokens))) for input_tokens, _ in trace[half:]]
    lengths = [output_tokens for _, output_tokens in trace[half:]]
    coverage = sum(length <= p90 for length, (_, p90) in zip(lengths, said, strict=True)) / len(lengths)
    reserved, likely = sum(p90 for _, p90 in said) / sum(lengths), sum(mean for mean, _ in said) / sum(lengths)
    with capsys.disabled():
        print(
            f"\noutput of {name}: p90 covers {coverage:.1%}, reserved {reserved:.2f}, mean {likely:.2f} of the actual"
        )
    assert 0.88 <= coverage <= 0.92
    assert 0.9 < likely < 1.1
