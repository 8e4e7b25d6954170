"""A learned deadline beside the configured ones."""

import pytest
from upstream.engine_side import sending_of

from forebay.domain import FailureKind
from forebay.policy import Timeouts
from forebay.traffic import changed
from forebay.upstream.deadlines import Times, due

TERMS = sending_of(timeouts=Timeouts(first_byte_s=60.0, stall_s=30.0, total_s=600.0))


@pytest.mark.parametrize("streamed", [True, False])
def test_a_learned_deadline_ends_a_try_that_has_sent_nothing(streamed: bool) -> None:
    terms = changed(TERMS, learned_s=7.0)
    times = Times(100.0, 106.0, 0.0, 0.0, 700.0)
    assert due(times, 107.0, terms, streamed=streamed, committed=False) is None
    assert due(times, 107.1, terms, streamed=streamed, committed=False) is FailureKind.FIRST_BYTE
    assert due(times, 107.1, TERMS, streamed=streamed, committed=False) is None


def test_a_learned_deadline_is_none_of_an_answer_that_has_begun() -> None:
    terms = changed(TERMS, learned_s=7.0)
    times = Times(100.0, 120.0, 0.0, 0.0, 700.0)
    assert due(times, 121.0, terms, streamed=True, committed=True) is None
