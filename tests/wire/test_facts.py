"""Facts read from what engines really send."""

import json
from typing import Any

import pytest

from forebay.domain import Usage
from forebay.wire.answers import read_error
from forebay.wire.endpoints import Shape
from forebay.wire.facts import is_plain_token, read_event
from forebay.wire.said import EventFacts, Timings
from forebay.wire.sse import Event
from forebay.wire.usage import merge_usage


def compact(payload: object) -> bytes:
    return json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()


def read(payload: object, shape: Shape = "chat", name: bytes = b"", *, opening: bool = True) -> EventFacts:
    data = payload if isinstance(payload, bytes) else compact(payload)
    return read_event(Event(data, name), shape, opening=opening)


def vllm(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "org/m"}
    return {**head, "choices": [choice], **more}


def llamacpp(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"finish_reason": finish, "index": 0, "delta": delta}
    head = {"created": 1, "id": "chatcmpl-1", "model": "m.gguf", "system_fingerprint": "b1", "object": "x"}
    return {"choices": [choice], **head, **more}


USAGE = {"prompt_tokens": 9, "total_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": None}
TIMINGS = {
    "cache_n": 4, "prompt_n": 5, "prompt_ms": 20.5, "prompt_per_token_ms": 4.1, "prompt_per_second": 243.9,
    "predicted_n": 3, "predicted_ms": 30.25, "predicted_per_token_ms": 10.1, "predicted_per_second": 99.2,
}  # fmt: skip


# what makes an answer begin


@pytest.mark.parametrize(
    ("delta", "carries"),
    [
        ({"role": "assistant", "content": ""}, False),
        ({"role": "assistant", "content": None}, False),
        ({"role": "assistant"}, False),
        ({}, False),
        ({"tool_calls": []}, False),
        ({"content": "x"}, True),
        ({"content": " "}, True),
        ({"role": "assistant", "content": "x"}, True),
        ({"reasoning_content": "hm"}, True),
        ({"reasoning": "hm"}, True),
        ({"content": None, "tool_calls": [{"index": 0, "id": "a"}]}, True),
        ({"refusal": "no"}, True),
        ({"content": None, "refusal": None}, False),
    ],
)
def test_a_chat_delta_carries(delta: dict[str, Any], carries: bool) -> None:
    assert read(vllm(delta)).carries is carries
    assert read(llamacpp(delta)).carries is carries


@pytest.mark.parametrize(("text", "finish", "carries"), [("", None, False), ("a", None, True), ("", "stop", True)])
def test_a_completions_chunk_carries(text: str, finish: str | None, carries: bool) -> None:
    seen = read({"choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": finish}]}, "completions")
    assert (seen.carries, seen.finished) == (carries, finish)


def test_an_azure_style_opening_chunk_has_no_choices() -> None:
    seen = read({"id": "c1", "model": "m", "choices": [], "prompt_filter_results": []})
    assert (seen.carries, seen.usage_only, seen.valid) == (False, False, True)


# the end


@pytest.mark.parametrize("opening", [True, False])
@pytest.mark.parametrize("finish", ["stop", "length", "tool_calls", "content_filter", "abort"])
def test_the_finish_reason(opening: bool, finish: str) -> None:
    for chunk in (vllm({}, finish), llamacpp({}, finish)):
        seen = read(chunk, opening=opening)
        assert (seen.finished, seen.carries, seen.done) == (finish, True, False)


def test_the_finish_of_any_choice_counts() -> None:
    choices = [{"index": 0, "delta": {}, "finish_reason": "stop"}, {"index": 1, "delta": {}, "finish_reason": None}]
    assert read({"choices": choices}, opening=False).finished == "stop"
    assert read({"choices": choices[::-1]}, opening=True).finished == "stop"


@pytest.mark.parametrize("opening", [True, False])
@pytest.mark.parametrize(
    "more",
    [
        {"timings": {**TIMINGS, "prompt_ms": None}},
        {"timings": "fast"},
        {"usage": {"prompt_tokens": "9"}},
        {"usage": []},
        {"usage": {"prompt_tokens": 9.5}},
        {"model": 5},
    ],
)
def test_a_finish_reason_is_read_beside_members_of_unknown_types(opening: bool, more: dict[str, Any]) -> None:
    seen = read(vllm({}, "stop", **more), opening=opening)
    assert (seen.finished, seen.valid, seen.error) == ("stop", True, None)


def test_the_sentinel() -> None:
    seen = read(b"[DONE]")
    assert (seen.done, seen.valid, seen.finished) == (True, True, None)


# usage


@pytest.mark.parametrize("opening", [True, False])
def test_the_usage_chunk_of_vllm(opening: bool) -> None:
    seen = read({"model": "m", "choices": [], "usage": USAGE}, opening=opening)
    assert (seen.usage, seen.usage_only) == (Usage(9, 3), True)


@pytest.mark.parametrize("opening", [True, False])
def test_usage_beside_choices_is_no_usage_chunk(opening: bool) -> None:
    seen = read(vllm({"content": "x"}, usage=USAGE), opening=opening)
    assert (seen.usage, seen.usage_only) == (Usage(9, 3), False)


@pytest.mark.parametrize("opening", [True, False])
def test_the_last_chunk_of_llamacpp_states_timings(opening: bool) -> None:
    seen = read(llamacpp({}, "stop", timings=TIMINGS), opening=opening)
    assert seen.usage == Usage(9, 3, 4)
    assert seen.timings == Timings(4, 5, 20.5, 3, 30.25)
    assert (seen.finished, seen.usage_only) == ("stop", False)


def test_usage_goes_before_timings() -> None:
    assert read(llamacpp({}, "stop", timings=TIMINGS, usage=USAGE)).usage == Usage(9, 3)


def test_usage_of_two_events_is_merged() -> None:
    first = merge_usage(None, Usage(25, 1, 3))
    assert first == Usage(25, 1, 3)
    assert merge_usage(first, Usage(0, 15)) == Usage(25, 15, 3)
    assert merge_usage(first, Usage(25, 15, 4)) == Usage(25, 15, 4)


# errors in the stream

NESTED = {"message": "engine ran out of cache", "type": "server_error", "param": None, "code": 500}


@pytest.mark.parametrize("opening", [True, False])
@pytest.mark.parametrize("shape", ["chat", "completions"])
def test_an_error_object_in_the_stream(opening: bool, shape: Shape) -> None:
    seen = read({"error": NESTED}, shape, opening=opening)
    assert seen.error is not None
    assert json.loads(seen.error) == NESTED
    assert read_error(b'{"error":' + seen.error + b"}", "?").message == "engine ran out of cache"


@pytest.mark.parametrize("opening", [True, False])
def test_an_error_by_event_name(opening: bool) -> None:
    seen = read({"message": "engine ran out of cache"}, name=b"error", opening=opening)
    assert seen.error == b'{"message":"engine ran out of cache"}'
    assert seen.valid


@pytest.mark.parametrize("opening", [True, False])
@pytest.mark.parametrize("shape", ["chat", "messages", "responses"])
def test_error_null_is_no_error(opening: bool, shape: Shape) -> None:
    assert read(vllm({"content": "x"}, error=None), shape, opening=opening).error is None
    assert read({"choices": 5, "usage": 5, "error": None}, shape, opening=opening).error is None


@pytest.mark.parametrize("opening", [True, False])
@pytest.mark.parametrize("text", ["x", {"message": "x"}, ["x"], False, 7])
def test_an_error_of_any_type_is_seen(opening: bool, text: object) -> None:
    assert read({"error": text}, opening=opening).error == compact(text)
    assert read({"error": text, "choices": "odd"}, opening=opening).error == compact(text)


@pytest.mark.parametrize("opening", [True, False])
@pytest.mark.parametrize("shape", ["chat", "completions", "messages", "responses"])
@pytest.mark.parametrize(
    "data", [b"oops", b"{", b'{"choices":[', b"[1]", b"7", b"\xff", b'{"a":1}{"b":2}', b"[" * 5000]
)
def test_what_is_no_json_object_is_invalid(data: bytes, shape: Shape, opening: bool) -> None:
    assert not read(data, shape, opening=opening).valid


# Anthropic messages


def test_the_events_of_a_messages_stream() -> None:
    start = {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "content": [],
        "model": "claude",
        "stop_reason": None,
    }
    counted = {**start, "usage": {"input_tokens": 25, "output_tokens": 1, "cache_read_input_tokens": 3}}
    seen = read({"type": "message_start", "message": counted}, "messages", b"message_start")
    assert (seen.carries, seen.model, seen.usage) == (False, "claude", Usage(28, 1, 3))
    block = {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}}
    assert not read(block, "messages", b"content_block_start").carries
    assert not read({"type": "ping"}, "messages", b"ping").carries
    text = {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "Hi"}}
    seen = read(text, "messages", b"content_block_delta")
    assert (seen.carries, seen.finished, seen.valid) == (True, None, True)
    ending = {"stop_reason": "end_turn", "stop_sequence": None}
    seen = read(
        {"type": "message_delta", "delta": ending, "usage": {"output_tokens": 15}}, "messages", b"message_delta"
    )
    assert (seen.finished, seen.usage, seen.done) == ("end_turn", Usage(0, 15), False)
    seen = read({"type": "message_stop"}, "messages", b"message_stop")
    assert (seen.done, seen.finished) == (True, None)


def test_an_error_event_of_a_messages_stream() -> None:
    inner = {"type": "overloaded_error", "message": "Overloaded"}
    seen = read({"type": "error", "error": inner}, "messages", b"error")
    assert seen.error == compact(inner)
    assert read({"type": "error", "error": inner}, "messages").error == compact(inner)


# Responses


def response(status: str, **more: Any) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "status": status, "model": "org/m", "output": [], **more}


def test_the_events_of_a_responses_stream() -> None:
    for kind in ("response.created", "response.in_progress", "response.queued"):
        seen = read({"type": kind, "response": response("in_progress", usage=None, error=None)}, "responses")
        assert (seen.carries, seen.model, seen.usage, seen.done) == (False, "org/m", None, False)
    seen = read({"type": "response.output_text.delta", "item_id": "m", "output_index": 0, "delta": "Hi"}, "responses")
    assert (seen.carries, seen.finished, seen.valid, seen.error) == (True, None, True, None)
    usage = {"input_tokens": 37, "input_tokens_details": {"cached_tokens": 2}, "output_tokens": 11, "total_tokens": 48}
    seen = read({"type": "response.completed", "response": response("completed", usage=usage, error=None)}, "responses")
    assert (seen.finished, seen.usage, seen.done, seen.error) == ("completed", Usage(37, 11, 2), True, None)
    seen = read({"type": "response.incomplete", "response": response("incomplete")}, "responses")
    assert (seen.finished, seen.done) == ("incomplete", True)


def test_errors_of_a_responses_stream() -> None:
    inner = {"code": "server_error", "message": "no"}
    assert read({"type": "response.failed", "response": response("failed", error=inner)}, "responses").error == compact(
        inner
    )
    assert read({"type": "response.failed", "response": response("failed", error=None)}, "responses").error == b"{}"
    flat = {"type": "error", "code": "server_error", "message": "no", "param": None}
    assert read(flat, "responses", b"error").error == compact(flat)


# one token, exactly


@pytest.mark.parametrize(
    ("payload", "plain"),
    [
        (vllm({"content": "x"}), True),
        (vllm({"content": "x"}, "stop"), False),
        (vllm({"content": "x"}, usage=USAGE), False),
        (vllm({"content": "x"}, error=NESTED), False),
        (vllm({"content": "x"}, timings=TIMINGS), False),
        ({**vllm({"content": "x"}), "model": "other"}, False),
        ({**vllm({"content": "x"}), "choices": []}, False),
        ({"model": "org/m"}, False),
        (vllm({"content": "x"}, usage=None), True),
        ({"error": NESTED}, False),
        (b"[DONE]", False),
        (b"oops", False),
        (b"", False),
    ],
)
def test_a_plain_token(payload: Any, plain: bool) -> None:
    assert is_plain_token(payload if isinstance(payload, bytes) else compact(payload), "org/m") is plain


def test_two_choices_are_plain_while_none_is_finished() -> None:
    open_, ended = vllm({"content": "x"})["choices"][0], vllm({}, "stop")["choices"][0]
    assert is_plain_token(compact({**vllm({}), "choices": [open_, open_]}), "org/m")
    assert not is_plain_token(compact({**vllm({}), "choices": [open_, ended]}), "org/m")
