"""Numbered tokens: exact both ways, and continued where a prompt leaves off."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engines.sim import tokens
from forebay.engines.sim.tokens import VOCABULARIES, Continuation

ASCII, UNICODE = VOCABULARIES["ascii"], VOCABULARIES["unicode"]


def test_texts_are_numbered() -> None:
    assert ASCII.texts(0, 4) == "t0 t1 t2 t3"
    assert ASCII.ids(2, 4) == [tokens.ASCII_BASE + 2, tokens.ASCII_BASE + 3]


def test_a_character_is_split_over_two_ids_and_the_first_is_silent() -> None:
    texts = [UNICODE.text(number) for number in range(16)]
    assert [bool(text) for text in texts] == [False, True] * 8
    assert all(len(text) == 1 and len(text.encode()) > 2 for text in texts[1::2])
    assert any(len(text.encode()) == 4 for text in texts)


@given(st.text(max_size=200))
def test_any_text_comes_back_from_its_ids(text: str) -> None:
    ids = tokens.encode(text)
    assert tokens.decode(ids) == text
    assert len(ids) == tokens.count(text)


@given(st.sampled_from([ASCII, UNICODE]), st.integers(0, 5000))
def test_answers_come_back_from_their_ids(vocabulary: tokens.Vocabulary, stop: int) -> None:
    assert tokens.decode(vocabulary.ids(0, stop)) == vocabulary.texts(0, stop)


@pytest.mark.parametrize("token_id", [0, 7, tokens.TEXT_BASE - 1, tokens.TEXT_BASE + 257**4, tokens.TEXT_BASE + 257])
def test_an_id_of_no_vocabulary_is_refused(token_id: int) -> None:
    with pytest.raises(ValueError, match=str(token_id)):
        tokens.decode([token_id])


def test_a_prompt_is_counted_in_fours_of_bytes() -> None:
    assert [tokens.count(text) for text in ("", "a", "abcd", "abcde", "日本")] == [1, 1, 1, 2, 2]


@given(st.text(max_size=20), st.integers(1, 300))
def test_ids_at_the_end_of_a_prompt_continue_the_answer(text: str, count: int) -> None:
    prompt = tokens.encode(text) + ASCII.ids(0, count)
    assert ASCII.continued_ids(prompt) == Continuation(count)
    assert UNICODE.continued_ids(prompt) == Continuation()


def test_ids_that_skip_a_token_continue_nothing() -> None:
    assert ASCII.continued_ids([*tokens.encode("x"), *ASCII.ids(0, 3), *ASCII.ids(4, 5)]) == Continuation()
    assert ASCII.continued_ids(ASCII.ids(1, 3)) == Continuation()
    assert ASCII.continued_ids([]) == Continuation()


def test_ids_that_end_inside_a_character_make_the_engine_repeat_the_prompt() -> None:
    prompt = tokens.encode("x")
    assert UNICODE.continued_ids(prompt + UNICODE.ids(0, 4)) == Continuation(4)
    assert UNICODE.continued_ids(prompt + UNICODE.ids(0, 5)) == Continuation(5, leads_with_prompt=True)


@given(st.sampled_from([ASCII, UNICODE]), st.integers(0, 400))
def test_a_text_that_begins_the_answer_continues_it(vocabulary: tokens.Vocabulary, cut: int) -> None:
    whole = vocabulary.texts(0, 500)
    given_text = whole[: min(cut, len(whole))]
    found = vocabulary.continued_text(given_text)
    assert given_text + vocabulary.texts(found.start, 500)[found.skip_chars :] == whole


@pytest.mark.parametrize("text", ["t1", "t0 t2", "hello", "t0  t1"])
def test_any_other_text_continues_nothing(text: str) -> None:
    assert ASCII.continued_text(text) == Continuation()


@given(st.sampled_from([ASCII, UNICODE]), st.text(max_size=8), st.integers(2, 400))
def test_the_end_of_a_text_continues_the_answer(vocabulary: tokens.Vocabulary, before: str, cut: int) -> None:
    whole = vocabulary.texts(0, 500)
    beginning = whole[: min(cut, len(whole))]
    found = vocabulary.continued_end(before + beginning)
    assert beginning + vocabulary.texts(found.start, 500)[found.skip_chars :] == whole


@pytest.mark.parametrize("text", ["", "hello", "say t1", "t"])
def test_a_text_that_ends_otherwise_continues_nothing(text: str) -> None:
    assert ASCII.continued_end(text) == Continuation()
