"""The mixed load: lengths that fit, arrivals that repeat, prompts that share no beginning."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.release.mix import LANE_TOKENS, Prompts, Speed, chat_body, kinds_of, lengths_for, schedule

SLOW = Speed(230.0, 120.0, 1.0, 36)
FAST = Speed(40_000.0, 3_000.0, 1.1, 36)


def test_a_fast_engine_gets_long_prompts_and_a_slow_one_the_least() -> None:
    fast, slow = lengths_for(FAST, 32_768, 10.0), lengths_for(SLOW, 4096, 4.0)
    assert (fast.long_tokens, fast.short_tokens, fast.output_tokens) == (8192, 512, 64)
    assert (slow.long_tokens, slow.short_tokens, slow.output_tokens) == (4 * 48, 48, 6)
    assert (fast.lane_tokens, slow.lane_tokens) == (LANE_TOKENS, 96)


def test_words_make_up_for_the_template_and_for_long_words() -> None:
    lengths = lengths_for(Speed(8_000.0, 200.0, 2.0, 40), 8192, 10.0)
    assert lengths.words("short") == round((lengths.short_tokens - 40) / 2)
    assert lengths.words("long") == round((lengths.long_tokens - 40) / 2)


@given(st.floats(1.0, 1e6), st.floats(1.0, 1e5), st.integers(0, 200), st.integers(1200, 200_000), st.floats(2.0, 300.0))
def test_a_long_prompt_fits_and_is_long(
    prefill: float, decode: float, overhead: int, context: int, arm_s: float
) -> None:
    lengths = lengths_for(Speed(prefill, decode, 1.0, overhead), context, arm_s)
    assert lengths.long_tokens + lengths.output_tokens <= context
    assert lengths.long_tokens >= 4 * (overhead + 12)
    assert overhead < lengths.short_tokens <= lengths.lane_tokens <= lengths.long_tokens


@pytest.mark.parametrize(("context", "overhead", "takes"), [(256, 10, "512"), (600, 150, "818"), (511, 0, "512")])
def test_a_small_context_is_refused_with_what_it_takes(context: int, overhead: int, takes: str) -> None:
    with pytest.raises(ValueError, match=f"{context} tokens is too small .* takes {takes}"):
        lengths_for(Speed(230.0, 120.0, 1.0, overhead), context, 4.0)


def test_a_schedule_repeats_with_its_seed_and_holds_its_share() -> None:
    asks = schedule("1/0", 20.0, 10.0)
    assert asks == schedule("1/0", 20.0, 10.0) != schedule("1/1", 20.0, 10.0)
    assert (len(asks), sum(ask.kind == "long" for ask in asks)) == (200, 30)
    assert [ask.number for ask in asks] == list(range(200))
    assert all(0 <= a.at_s <= b.at_s <= 10.0 for a, b in pairwise(asks))


def test_a_schedule_is_bounded_on_both_sides() -> None:
    assert (len(schedule("1", 0.01, 2.0)), len(schedule("1", 1e6, 10.0))) == (4, 4000)


@pytest.mark.parametrize("count", [4, 6, 7, 12])
def test_even_a_handful_has_a_long_call(count: int) -> None:
    assert [ask.kind for ask in schedule("1", count / 10, 10.0)].count("long") == 1


@given(st.integers(1, 400))
def test_long_calls_are_spread_evenly(count: int) -> None:
    kinds = kinds_of(count)
    assert abs(kinds.count("long") - 0.15 * count) <= 1
    assert all("long" in kinds[n : n + 8] for n in range(count - 8))


def test_prompts_have_their_words_and_no_common_beginning() -> None:
    prompts, others = Prompts("1/0/direct"), Prompts("1/0/forebay")
    texts = [p.text(words) for p in (prompts, others) for words in (4, 20, 200, 20, 200)]
    assert [len(text.split()) - 5 for text in texts] == [4, 20, 200, 20, 200] * 2
    assert len({tuple(text.split()[:4]) for text in texts}) == len(texts)
    assert Prompts("1/0/direct").text(4) == texts[0]
    assert len(prompts.text(30_000)) > 30_000


@pytest.mark.parametrize("exact", [True, False])
def test_the_body_is_a_streamed_chat(exact: bool) -> None:
    body = json.loads(chat_body("m", "hello", 7, ignore_eos=exact))
    expected = {"model": "m", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 7, "stream": True}
    expected["stream_options"] = {"include_usage": True}
    assert body == (expected | {"ignore_eos": True} if exact else expected)
