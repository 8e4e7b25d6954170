"""Legs that clients have come back for: once, for an hour, within a bound."""

from hypothesis import given
from hypothesis import strategies as st

from forebay.resume import used
from forebay.resume.used import KEEP_S, Used


def test_once_and_again_after_an_hour() -> None:
    legs = Used()
    assert legs.take(b"a", 0.0) and b"a" in legs
    assert not legs.take(b"a", KEEP_S - 1)
    assert legs.take(b"b", KEEP_S) and len(legs) == 1
    assert legs.take(b"a", KEEP_S)


def test_what_came_to_nothing_may_be_used_again() -> None:
    legs = Used()
    assert legs.take(b"a", 0.0)
    legs.give_back(b"a")
    legs.give_back(b"unknown")
    assert legs.take(b"a", 0.0)


@given(st.lists(st.binary(min_size=1, max_size=1), max_size=60))
def test_it_never_grows_beyond_its_bound(names: list[bytes]) -> None:
    legs, before = Used(), used.MAX_LEGS
    used.MAX_LEGS = 5  # type: ignore[misc]
    try:
        taken: list[bytes] = []
        for name in names:
            assert legs.take(name, 0.0) == (name not in taken[-5:])
            taken += [name] if name not in taken[-5:] else []
            assert len(legs) <= 5
    finally:
        used.MAX_LEGS = before  # type: ignore[misc]
