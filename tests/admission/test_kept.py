"""Answers kept under their keys: found again, bounded, erased in time, and nobody's key is another's."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.admission.kept import Kept, KeptAnswers, key_of
from forebay.errors import Refused


def kept(size: int, now_s: float = 0.0, *, lost: bool = False) -> Kept[str]:
    return Kept("c1", b"print", now_s, None if lost else "said", 0 if lost else size)


def store(ttl_s: float = 10.0, entries: int = 100, size: int = 1000) -> KeptAnswers[str]:
    answers: KeptAnswers[str] = KeptAnswers()
    answers.limit(ttl_s, entries, size)
    return answers


def test_an_answer_is_its_tenants_until_its_time_is_up() -> None:
    answers = store()
    answers.keep("a", b"k", kept(5, 100.0))
    assert answers.get("a", b"k", 109.9) is not None
    assert answers.get("b", b"k", 100.0) is None and answers.get("a", b"l", 100.0) is None
    assert answers.get("a", b"k", 110.0) is None
    assert answers.held_bytes == 5
    answers.tick(110.0)
    assert (answers.entries, answers.held_bytes) == (0, 0)


def test_a_shorter_time_holds_for_what_is_kept_already() -> None:
    answers = store()
    answers.keep("a", b"k", kept(5))
    answers.limit(1.0, 100, 1000)
    assert answers.get("a", b"k", 1.0) is None


def test_the_key_of_a_lost_answer_stays() -> None:
    answers = store(size=10)
    answers.keep("a", b"1", kept(6))
    answers.keep("a", b"2", kept(6))
    first, second = answers.get("a", b"1", 0.0), answers.get("a", b"2", 0.0)
    assert first is not None and first.said is None and first.print == b"print"
    assert second is not None and second.said == "said"
    assert answers.held_bytes == 6


def test_who_has_the_most_gives_first() -> None:
    answers = store(entries=4, size=100)
    answers.keep("quiet", b"q", kept(20))
    for name in (b"1", b"2", b"3", b"4", b"5"):
        answers.keep("noisy", name, kept(30))
    seen = answers.get("quiet", b"q", 0.0)
    assert seen is not None and seen.said == "said"
    assert [answers.get("noisy", name, 0.0) is not None for name in (b"1", b"2", b"3", b"4", b"5")] == [
        *(False, False, True, True, True),
    ]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.integers(0, 40), st.booleans(), st.integers(0, 4)),
        max_size=40,
    )
)
def test_the_bounds_hold_and_the_sums_are_true(steps: list[tuple[str, int, int, bool, int]]) -> None:
    answers, now_s = store(ttl_s=5.0, entries=5, size=60), 0.0
    for tenant, key, size, lost, pause in steps:
        now_s += pause
        answers.tick(now_s)
        answers.keep(tenant, b"%d" % key, kept(size, now_s, lost=lost))
        held = [found for name in "ab" for k in range(6) if (found := answers.get(name, b"%d" % k, now_s)) is not None]
        assert answers.held_bytes == sum(found.size_bytes for found in held) <= 60
        assert answers.entries == len(held) <= 5
    answers.tick(now_s + 5.0)
    assert (answers.entries, answers.held_bytes) == (0, 0)


@pytest.mark.parametrize("raw", [b"a", b"~!", b"k" * 255, b'"8e03978e-40d5-43dd-bc93-6894a57f9324"'])
def test_visible_ascii_is_a_key(raw: bytes) -> None:
    assert key_of(raw) == raw


@pytest.mark.parametrize("raw", [b"", b"k" * 256, b"a b", b"a\x7f", b"\xc3\xa9", b"a\t"])
def test_anything_else_is_none(raw: bytes) -> None:
    with pytest.raises(Refused) as refused:
        key_of(raw)
    assert refused.value.code == "invalid_value" and refused.value.param == "Idempotency-Key"
