"""Calibration of the prompt estimate, without a tokenizer: against weights that the test makes up."""

from random import Random
from statistics import median

import pytest
from admission.corpora import KINDS
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.admission import tokens as module
from forebay.admission.texts import FEATURES, features
from forebay.admission.tokens import CAREFUL_SAMPLES, MAX_MODELS, SPARING_STEP, PromptTokens
from forebay.traffic import Prompt

Counts = tuple[float, ...]

# Tokens for one of each feature in a made-up tokenizer that no prior is near.
TRUTH = {"lower": 0.2, "upper": 0.5, "digits": 1.0, "blanks": 0.1, "marks": 0.9, "lines": 1.0, "han": 1.7, "kana": 2.0}


def prompts(seed: int, count: int) -> list[Counts]:
    """Features of texts of all kinds, in turn."""
    random = Random(seed)
    kinds = list(KINDS.values())
    raws = [kinds[at % len(kinds)](random, int(50 * 80 ** random.random())).encode() for at in range(count)]
    return [features(Prompt(text=raw, text_bytes=len(raw))) for raw in raws]


def true_tokens(counts: Counts, template_tokens: int = 20) -> int:
    """What the made-up engine counts."""
    named = dict(zip(FEATURES, counts, strict=True))
    return template_tokens + round(sum(weight * named[name] for name, weight in TRUTH.items()))


def teach(learned: PromptTokens, given_prompts: list[Counts], template_tokens: int = 20, model: str = "m") -> None:
    for counts in given_prompts:
        learned.learn(model, counts, learned.estimate(model, counts, 10**9), true_tokens(counts, template_tokens))


def error_ratio(learned: PromptTokens, given_prompts: list[Counts], template_tokens: int = 20) -> float:
    truths = [true_tokens(counts, template_tokens) for counts in given_prompts]
    pairs = zip(given_prompts, truths, strict=True)
    return median(abs(learned.estimate("m", counts, 10**9) / truth - 1) for counts, truth in pairs)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [
        (b"The quick brown fox jumps over the lazy dog and goes home.", 12),
        ("今天天气很好，我们去城市里的公园看春天的花。".encode(), 18),
        (b"def add(left: int, right: int) -> int:\n    return left + right\n", 20),
        (b'{"id": 12, "name": "lamp", "tags": ["a", "b"]}', 22),
    ],
)
def test_the_priors_are_near_common_tokenizers(text: bytes, tokens: int) -> None:
    estimate = PromptTokens().estimate("m", features(Prompt(text=text, text_bytes=len(text))), len(text))
    assert estimate == pytest.approx(tokens, rel=0.3)


def test_it_learns_a_tokenizer_that_no_prior_is_near() -> None:
    learned, fresh = PromptTokens(), prompts(2, 80)
    assert error_ratio(learned, fresh) > 0.15
    teach(learned, prompts(1, 200))
    assert error_ratio(learned, fresh) < 0.02


@pytest.mark.parametrize("template_tokens", [100, 3000])
def test_it_follows_a_new_template(template_tokens: int) -> None:
    learned, fresh = PromptTokens(), prompts(2, 80)
    teach(learned, prompts(1, 900))
    assert error_ratio(learned, fresh, template_tokens) > 0.2
    teach(learned, prompts(3, 100), template_tokens)
    assert error_ratio(learned, fresh, template_tokens) < 0.05
    teach(learned, prompts(4, 200), 20)
    assert error_ratio(learned, fresh) < 0.05


def test_one_absurd_count_changes_little() -> None:
    learned, fresh = PromptTokens(), prompts(2, 80)
    teach(learned, prompts(1, 600))
    before = error_ratio(learned, fresh)
    for tokens in (1, 10**6):
        learned.learn("m", fresh[0], learned.estimate("m", fresh[0], 10**9), tokens)
    assert error_ratio(learned, fresh) < before + 0.02


def test_what_was_never_seen_keeps_its_prior() -> None:
    learned = PromptTokens()
    image = (1.0, *(900.0 if name == "images" else 0.0 for name in FEATURES[1:]))
    before = learned.estimate("m", image, 0)
    teach(learned, prompts(1, 1000))
    assert learned.estimate("m", image, 0) == pytest.approx(before, rel=0.01)


def test_after_the_careful_samples_only_each_eighth_moves_the_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    learned = PromptTokens()
    moved: list[bool] = []
    model = module._Model
    monkeypatch.setattr(model, "move", lambda self, counts, tokens, off: moved.append(off))
    for counts in prompts(1, 1) * (CAREFUL_SAMPLES + 10 * SPARING_STEP):
        learned.learn("m", counts, 100, 100)
    assert moved == [False] * (CAREFUL_SAMPLES + 10)
    for counts in prompts(1, 1) * 20:
        learned.learn("m", counts, 100, 300)
    assert moved.count(True) >= 15


@pytest.mark.parametrize("tokens", [0, -5])
def test_a_count_that_is_none_is_ignored(tokens: int) -> None:
    learned = PromptTokens()
    learned.learn("m", prompts(1, 1)[0], 100, tokens)
    learned.learn("m", (), 100, 100)
    assert list(learned.report()) == []


def test_the_report_has_the_median_error_of_the_last_samples() -> None:
    learned = PromptTokens()
    counts = prompts(1, 1)[0]
    for error in [0.9] * 100 + [0.1] * 40 + [0.5] * 24:
        learned.learn("m", counts, round(1000 * (1 + error)), 1000)
    ((name, error_now, samples),) = learned.report()
    assert (name, samples) == ("m", 164)
    assert error_now == pytest.approx(0.1)


def test_the_model_that_learned_nothing_for_longest_is_dropped() -> None:
    learned = PromptTokens()
    counts = prompts(1, 1)[0]
    for number in range(MAX_MODELS):
        learned.learn(f"m{number}", counts, 100, 100)
    learned.learn("m0", counts, 100, 100)
    learned.learn("one more", counts, 100, 100)
    names = [name for name, _, _ in learned.report()]
    assert len(names) == MAX_MODELS
    assert "m1" not in names and {"m0", "m2", "one more"} <= set(names)


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(1, 10**7), st.integers(0, 10**6)), max_size=40),
    st.binary(max_size=200),
)
def test_an_estimate_is_never_absurd(counted: list[tuple[int, int]], raw: bytes) -> None:
    learned = PromptTokens()
    texts = prompts(5, 3)
    for at, (tokens, estimated) in enumerate(counted):
        learned.learn("m", texts[at % 3], estimated, tokens)
    counts = features(Prompt(text=raw, text_bytes=len(raw)))
    with_text, without = learned.estimate("m", counts, len(raw)), learned.estimate("m", counts, 0)
    assert 1 <= without <= with_text <= without + len(raw)
