"""The guess of what a replica has cached."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.routing.prefixes import BLOCK_TOKENS, MAX_BLOCKS, Prefixes


def trusted() -> Prefixes:
    prefixes = Prefixes()
    prefixes.trust_ratio = 1.0
    return prefixes


def test_a_block_matches_only_behind_all_before_it() -> None:
    prefixes = trusted()
    prefixes.add((1, 2, 3))
    assert prefixes.cached_tokens((1, 2, 3, 4)) == 3 * BLOCK_TOKENS
    assert prefixes.cached_tokens((1, 9, 3)) == BLOCK_TOKENS
    assert prefixes.cached_tokens((9, 2, 3)) == 0
    assert prefixes.cached_tokens(()) == 0


def test_before_any_report_half_is_believed() -> None:
    prefixes = Prefixes()
    prefixes.add((1, 2))
    assert prefixes.cached_tokens((1, 2)) == BLOCK_TOKENS


def test_the_longest_unused_blocks_are_forgotten() -> None:
    prefixes = trusted()
    prefixes.add((1, 2))
    prefixes.add(tuple(range(10, 10 + MAX_BLOCKS - 2)))
    prefixes.add((1,))
    prefixes.add((5,))
    assert len(prefixes._blocks) == MAX_BLOCKS
    assert prefixes.cached_tokens((1, 2)) == BLOCK_TOKENS, "1 was used again, 2 was not"


def test_a_prompt_longer_than_the_whole_index_is_no_trouble() -> None:
    prefixes = Prefixes()
    prefixes.add(tuple(range(3 * MAX_BLOCKS)))
    assert len(prefixes._blocks) == MAX_BLOCKS


@pytest.mark.parametrize("ratio", [1.0, 0.6, 0.2])
def test_trust_follows_what_engines_report(ratio: float) -> None:
    prefixes = Prefixes()
    blocks = tuple(range(20))
    prefixes.add(blocks)
    for _ in range(100):
        prefixes.learn(prefixes.cached_tokens(blocks), int(ratio * len(blocks) * BLOCK_TOKENS))
    assert prefixes.trust_ratio == pytest.approx(ratio, abs=0.02)
    assert prefixes.cached_tokens(blocks) == pytest.approx(ratio * len(blocks) * BLOCK_TOKENS, rel=0.1)


def test_trust_comes_back_from_the_lowest() -> None:
    prefixes = Prefixes()
    prefixes.add((1,))
    for cached_tokens, expected in ((0, 0.05), (BLOCK_TOKENS, 1.0)):
        for _ in range(100):
            foreseen = prefixes.cached_tokens((1,))
            assert foreseen > 0, "or nothing would ever be learned again"
            prefixes.learn(foreseen, cached_tokens)
        assert prefixes.trust_ratio == pytest.approx(expected, abs=0.03)


def test_where_nothing_was_foreseen_nothing_is_learned() -> None:
    prefixes = Prefixes()
    prefixes.learn(0, 5000)
    assert prefixes.trust_ratio == 0.5


@given(st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 10**6)), max_size=50))
def test_trust_stays_a_ratio(reports: list[tuple[int, int]]) -> None:
    prefixes = Prefixes()
    for foreseen, cached in reports:
        prefixes.learn(foreseen, cached)
        assert 0.05 <= prefixes.trust_ratio <= 1.0
