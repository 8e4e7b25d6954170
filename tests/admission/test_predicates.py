"""Globs: `*` and `?`, the whole text, in linear time. The other predicates are tested where rules are."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.admission.predicates import predicate_of
from forebay.policy import Condition


def like(pattern: str, text: str) -> bool:
    return predicate_of(Condition("model", "glob", pattern)).holds(text)


@pytest.mark.parametrize(
    ("pattern", "text", "expected"),
    [
        ("qwen", "qwen", True),
        ("qwen", "qwen2", False),
        ("qwen", "Qwen", False),
        ("qwen*", "qwen", True),
        ("*wen", "qwen", True),
        ("q*w*n", "qwen", True),
        ("q?en", "qwen", True),
        ("q??en", "qwen", False),
        ("ab*ba", "aba", False),
        ("*", "", True),
        ("?", "", False),
        ("*?*", "x", True),
        ("*b?d*", "abcde", True),
        ("*[a]*", "x[a]y", True),
        (".*", "abc", False),
        ("a*b", "a\nb", True),
        ("é?", "éß", True),
    ],
)
def test_globs(pattern: str, text: str, expected: bool) -> None:
    assert like(pattern, text) is expected


def oracle(pattern: str, text: str) -> bool:
    """The textbook table, in quadratic time."""
    row = [True] + [False] * len(text)
    for sign in pattern:
        before, row = row, [row[0] and sign == "*"]
        for place, letter in enumerate(text):
            row.append((before[place + 1] or row[place]) if sign == "*" else before[place] and sign in ("?", letter))
    return row[-1]


@given(st.text("ab*?", max_size=8), st.text("ab", max_size=12))
def test_globs_agree_with_the_textbook(pattern: str, text: str) -> None:
    assert like(pattern, text) is oracle(pattern, text)


class Counting(str):
    """A text that counts how often a pattern looks into it."""

    looks = 0

    def startswith(self, *arguments: Any) -> bool:
        Counting.looks += 1
        return super().startswith(*arguments)

    def find(self, *arguments: Any) -> int:
        Counting.looks += 1
        return super().find(*arguments)


@pytest.mark.parametrize("pattern", ["a*" * 60 + "b", "*a" * 60 + "b*", "*a?a?a?b*", "*" * 60 + "a?b" + "*" * 60])
def test_hostile_patterns_and_texts_cost_linear_time(pattern: str) -> None:
    looks = []
    for size in (2_000, 200_000):
        Counting.looks = 0
        assert not like(pattern, Counting("a" * size))
        looks.append(Counting.looks)
    # A backtracking matcher would try size ** 60 ways; here a text of a hundred times the size costs no more looks.
    assert looks[1] <= 6_000
    assert looks[1] <= looks[0] * 3
