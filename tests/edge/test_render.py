"""Errors as bytes."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.edge.render import error_body, error_event, status_line
from forebay.errors import CODES, ForebayError
from forebay.wire.endpoints import Shape
from forebay.wire.sse import Framer


@pytest.mark.parametrize("code", CODES)
def test_every_status_has_its_reason(code: str) -> None:
    line = status_line(CODES[code].status)
    assert line.startswith(b"HTTP/1.1 %d " % CODES[code].status)
    assert len(line) > len(b"HTTP/1.1 400 \r\n")
    assert line.endswith(b"\r\n")


@settings(max_examples=100, deadline=None)
@given(st.text(st.characters(exclude_categories=("Cs",))), st.sampled_from(["chat", "responses", "messages", "whole"]))
def test_any_message_is_one_event_and_valid_json(message: str, shape: Shape) -> None:
    error = ForebayError("internal_error", message)
    assert json.loads(error_body(error))["error"]["message"] == message
    (event,) = Framer().feed(error_event(error, shape))
    assert json.loads(event.data)["error"]["message"] == message


def test_an_unknown_status_is_still_a_status_line() -> None:
    assert status_line(599) == b"HTTP/1.1 599 \r\n"
