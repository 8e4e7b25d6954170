"""Frames: wherever the reads end, the messages are the same."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.crossing.frames import MAX_FRAME_BYTES, FrameError, Frames, framed


@given(st.lists(st.binary(max_size=40), max_size=12), st.lists(st.integers(1, 30), min_size=1, max_size=40))
def test_messages_come_out_whole_wherever_they_are_cut(messages: list[bytes], cuts: list[int]) -> None:
    stream = b"".join(map(framed, messages))
    frames, found, place, turn = Frames(), [], 0, 0
    while place < len(stream):
        size = cuts[turn % len(cuts)]
        found += list(frames.feed(stream[place : place + size]))
        place, turn = place + size, turn + 1
    assert found == messages


def test_a_length_that_nobody_sends_is_refused() -> None:
    with pytest.raises(FrameError, match="at most"):
        list(Frames().feed((MAX_FRAME_BYTES + 1).to_bytes(4, "big")))
    with pytest.raises(FrameError, match="too long"):
        framed(bytes(MAX_FRAME_BYTES + 1))
