"""How much work a call is."""

import pytest

from forebay.admission.work import estimate_prompt_tokens, expected_output_tokens


@pytest.mark.parametrize(("size", "tokens"), [(0, 1), (3, 1), (4, 1), (8, 2), (4000, 1000), (33_554_432, 8_388_608)])
def test_the_tokens_of_a_prompt(size: int, tokens: int) -> None:
    assert estimate_prompt_tokens(size) == tokens


@pytest.mark.parametrize(("asked", "tokens"), [(None, 256), (0, 0), (1, 1), (100_000, 100_000)])
def test_the_tokens_of_an_answer(asked: int | None, tokens: int) -> None:
    assert expected_output_tokens(asked) == tokens
