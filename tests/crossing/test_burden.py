"""When a worker accepts, and how soon."""

from hypothesis import given
from hypothesis import strategies as st

from forebay.crossing.burden import FEW, accepts
from forebay.edge.accepting import LONGEST_S, delay_s


def test_one_that_is_late_leaves_connections_to_others() -> None:
    assert not accepts(True, 1, 1.0, 0.2)
    assert not accepts(False, 1, 1.0, 0.05), "between the marks it stays as it was"
    assert accepts(True, 1, 1.0, 0.05)
    assert accepts(False, 1, 1.0, 0.0)


def test_one_with_far_more_than_the_mean_does_too() -> None:
    assert accepts(True, FEW, 0.0, 0.0), "a few are never too many"
    assert not accepts(True, 201, 100.0, 0.0)
    assert not accepts(False, 180, 100.0, 0.0)
    assert accepts(False, 150, 100.0, 0.0)


@given(st.booleans(), st.integers(0, 100_000), st.integers(1, 64))
def test_not_all_can_be_above_the_mean(accepting: bool, connections: int, workers: int) -> None:
    assert accepts(accepting, connections, float(connections), 0.0)
    assert delay_s(connections, float(connections)) == 0.0


@given(st.integers(0, 1000), st.integers(0, 1000), st.floats(0, 1000))
def test_who_has_fewer_accepts_no_later(few: int, more: int, mean: float) -> None:
    few, more = sorted((few, more))
    assert 0.0 <= delay_s(few, mean) <= delay_s(more, mean) <= LONGEST_S
