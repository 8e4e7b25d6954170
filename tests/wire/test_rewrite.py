"""What a client sees of the engine's names and of usage that it did not ask for."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.wire.answers import read_whole
from forebay.wire.facts import read_event
from forebay.wire.rewrite import Rewriter
from forebay.wire.sse import DONE, Event, render


def compact(payload: object) -> bytes:
    return json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()


def event_out(rewriter: Rewriter, data: bytes, *, opening: bool = False, name: bytes = b"") -> bytes:
    event = Event(data, name)
    shape = "messages" if name.startswith(b"message") else "responses" if name.startswith(b"response") else "chat"
    return rewriter.event(event, read_event(event, shape, opening=opening))


def body_out(rewriter: Rewriter, body: bytes) -> bytes:
    return rewriter.body(body, read_whole(body))


NAMES = [
    "m",
    "org/m",
    "Qwen/Qwen2.5-7B-Instruct:latest",
    "größe/模型",
    'with "quotes"',
    "back\\slash",
    "new\nline",
    "a b",
]
KEEP = Rewriter("m", drops_usage=False)


def chunk(model: str, **more: Any) -> dict[str, Any]:
    return {"id": "c1", "choices": [{"index": 0, "delta": {"content": 'say "model":"m"'}}], "model": model, **more}


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("new", NAMES)
@pytest.mark.parametrize("old", NAMES)
def test_the_model_is_renamed_and_nothing_else(
    old: str, new: str, separators: tuple[str, str], ascii_only: bool
) -> None:
    text = json.dumps(chunk(old), separators=separators, ensure_ascii=ascii_only).encode()
    rewriter = Rewriter(new, drops_usage=False)
    out = body_out(rewriter, text)
    assert json.loads(out) == chunk(new)
    assert event_out(rewriter, text) == render(Event(out))
    if old == new:
        assert out == text


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=8), st.text(max_size=8), st.booleans(), st.booleans())
def test_any_name_is_renamed(old: str, new: str, opening: bool, first: bool) -> None:
    payload = {"model": old, "choices": []} if first else chunk(old)
    rewriter = Rewriter(new, drops_usage=False)
    out = event_out(rewriter, compact(payload), opening=opening)
    assert out == render(Event(compact({**payload, "model": new})))


def test_a_name_in_the_text_of_an_answer_stays() -> None:
    inner = compact({"model": "org/m"}).decode()
    payload = {"model": "org/m", "choices": [{"index": 0, "delta": {"content": inner}}]}
    assert json.loads(body_out(KEEP, compact(payload))) == {**payload, "model": "m"}


def test_a_nested_member_of_the_same_name_stays() -> None:
    payload = {"metadata": {"model": "org/m"}, "model": "org/m", "choices": []}
    assert json.loads(body_out(KEEP, compact(payload))) == {**payload, "model": "m"}


def test_the_model_inside_typed_events_is_renamed() -> None:
    start = {"type": "message_start", "message": {"id": "1", "model": "org/m", "usage": {"input_tokens": 1}}}
    out = event_out(KEEP, compact(start), name=b"message_start")
    assert out == render(Event(compact(start).replace(b'"org/m"', b'"m"'), b"message_start"))
    created = {"type": "response.created", "response": {"id": "1", "model": "org/m", "usage": None}}
    out = event_out(KEEP, compact(created), name=b"response.created")
    assert out == render(Event(compact(created).replace(b'"org/m"', b'"m"'), b"response.created"))


def test_answers_without_a_model_stay() -> None:
    for body in (b'{"data":[1.50]}', b"[1]", b'{"model":null}', b'{ "model" : 5 }', b"text"):
        assert body_out(KEEP, body) == body


def test_an_event_without_edits_is_the_same_bytes() -> None:
    data = b'{ "model" : "m", "x": 1.50, "y": "\\u00e9", "choices": [] , "usage": null }'
    assert event_out(KEEP, data) == b"data: " + data + b"\n\n"
    assert event_out(KEEP, DONE) == b"data: [DONE]\n\n"


# usage

USAGE = {"prompt_tokens": 1, "completion_tokens": 2, "total_tokens": 3}


@pytest.mark.parametrize("opening", [True, False])
def test_the_usage_chunk_goes_only_to_who_asked(opening: bool) -> None:
    data = compact({"id": "c1", "model": "org/m", "choices": [], "usage": USAGE})
    assert event_out(Rewriter("m", drops_usage=True), data, opening=opening) == b""
    assert json.loads(event_out(KEEP, data, opening=opening)[6:])["usage"] == USAGE


@pytest.mark.parametrize("opening", [True, False])
@pytest.mark.parametrize(
    "data",
    [
        b'{"model":"m","choices":[{"index":0,"delta":{"content":"x"}}],"usage":null}',
        b'{"usage":null,"model":"m","choices":[{"index":0,"delta":{"content":"x"}}]}',
        b'{"model":"m","usage":null,"choices":[{"index":0,"delta":{"content":"x"}}]}',
    ],
)
def test_null_usage_that_we_caused_is_taken_out(data: bytes, opening: bool) -> None:
    out = event_out(Rewriter("m", drops_usage=True), data, opening=opening)
    expected = json.loads(data)
    del expected["usage"]
    assert json.loads(out[6:]) == expected
    assert event_out(KEEP, data, opening=opening) == render(Event(data))


def test_usage_beside_choices_stays() -> None:
    data = compact({"model": "m", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}], "usage": USAGE})
    assert event_out(Rewriter("m", drops_usage=True), data) == render(Event(data))


def test_null_usage_in_the_text_of_an_answer_stays() -> None:
    text = '{"a":1,"usage":null}'
    data = compact({"model": "m", "choices": [{"index": 0, "delta": {"content": text}}], "usage": None})
    out = event_out(Rewriter("m", drops_usage=True), data)
    assert json.loads(out[6:]) == {"model": "m", "choices": [{"index": 0, "delta": {"content": text}}]}


def test_an_empty_choices_chunk_without_usage_stays() -> None:
    data = compact({"id": "c1", "model": "m", "choices": []})
    assert event_out(Rewriter("m", drops_usage=True), data, opening=True) == render(Event(data))
