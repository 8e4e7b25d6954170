"""The message inside a token: what token.proto says, and bytes that can be put behind each other."""

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import forebay.resume.message as subject
from forebay.resume.message import FIELDS, Unreadable, field_of, new_state, pack, unpack

PROTO = Path(subject.__file__).with_name("token.proto")


def test_the_descriptor_is_what_the_proto_file_says() -> None:
    written = re.findall(r"^  optional (\w+) (\w+) = (\d+);$", PROTO.read_text(encoding="utf-8"), re.MULTILINE)
    assert written == [(kind, name, str(number)) for number, (name, kind) in enumerate(FIELDS, start=1)]


def test_absent_is_not_zero() -> None:
    state = unpack(pack(new_state(tokens=0, finished="")))
    assert (field_of(state, "tokens"), field_of(state, "finished")) == (0, "")
    assert field_of(state, "limit_tokens") is None


def test_two_messages_behind_each_other_are_one() -> None:
    state = unpack(pack(new_state(call_id="c", tokens=1)) + pack(new_state(tokens=7, usage=True)))
    assert (state.call_id, state.tokens, state.usage) == ("c", 7, True)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_message_or_unreadable(data: bytes) -> None:
    try:
        unpack(data)
    except Unreadable:
        pass


def test_bytes_that_are_no_message() -> None:
    with pytest.raises(Unreadable):
        unpack(b"\xff")
