"""Whole answers and error bodies of engines."""

import json
from typing import Any

import pytest

from forebay.domain import Usage
from forebay.wire.answers import read_error, read_whole


def compact(payload: object) -> bytes:
    return json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode()


def llamacpp(delta: dict[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"finish_reason": finish, "index": 0, "delta": delta}
    head = {"created": 1, "id": "chatcmpl-1", "model": "m.gguf", "system_fingerprint": "b1", "object": "x"}
    return {"choices": [choice], **head, **more}


USAGE = {"prompt_tokens": 9, "total_tokens": 12, "completion_tokens": 3, "prompt_tokens_details": None}
TIMINGS = {
    "cache_n": 4, "prompt_n": 5, "prompt_ms": 20.5, "prompt_per_token_ms": 4.1, "prompt_per_second": 243.9,
    "predicted_n": 3, "predicted_ms": 30.25, "predicted_per_token_ms": 10.1, "predicted_per_second": 99.2,
}  # fmt: skip


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (None, None),
        (USAGE, Usage(9, 3)),
        ({**USAGE, "prompt_tokens_details": {"cached_tokens": 8}}, Usage(9, 3, 8)),
        ({"prompt_tokens": 4, "total_tokens": 4}, Usage(4, 0)),
        ({"prompt_tokens": 4, "completion_tokens": None}, Usage(4, 0)),
        ({"total_tokens": 7}, Usage(7, 0)),
        ({"input_tokens": 5, "output_tokens": 2, "cache_read_input_tokens": 3}, Usage(8, 2, 3)),
        ({"input_tokens": 5, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 1}}, Usage(5, 2, 1)),
        ({}, Usage(0, 0)),
        ({**USAGE, "completion_tokens": 10**30}, None),
        ({**USAGE, "prompt_tokens": -1}, None),
        ({**USAGE, "prompt_tokens_details": {"cached_tokens": 2**64}}, None),
    ],
)
def test_usage_of_a_whole_answer(usage: Any, expected: Usage | None) -> None:
    seen = read_whole(compact({"model": "m", "choices": [], "usage": usage}))
    assert (seen.usage, seen.model, seen.valid) == (expected, "m", True)


@pytest.mark.parametrize(
    ("body", "valid"),
    [(b"{}", True), (b"[1]", True), (b'{"model":5}', True), (b"", False), (b"oops", False), (b'{"a":1', False)],
)
def test_whether_a_whole_answer_is_json(body: bytes, valid: bool) -> None:
    assert read_whole(body).valid is valid


def test_a_whole_answer_of_llamacpp() -> None:
    seen = read_whole(compact({**llamacpp({}), "timings": TIMINGS}))
    assert (seen.usage, seen.model) == (Usage(9, 3, 4), "m.gguf")
    assert seen.timings is not None


NESTED = {"message": "engine ran out of cache", "type": "server_error", "param": None, "code": 500}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (compact({"error": NESTED}), ("engine ran out of cache", "server_error", None, 500)),
        (compact({"error": {"message": "m", "type": "t", "param": "p", "code": "c"}}), ("m", "t", "p", "c")),
        (compact({"object": "error", "message": "m", "type": "Bad", "code": 400}), ("m", "Bad", None, 400)),
        (compact({"error": None, "message": "flat"}), ("flat", None, None, None)),
        (compact({"error": "text"}), ("text", None, None, None)),
        (compact({"detail": "Not Found"}), ("Not Found", None, None, None)),
        (compact({"detail": [{"msg": "bad"}]}), ('[{"msg":"bad"}]', None, None, None)),
        (compact({"error": {"message": None}}), ("fallback", None, None, None)),
        (compact({"error": {}}), ("fallback", None, None, None)),
        (b"upstream timed out", ("fallback", None, None, None)),
        (b"", ("fallback", None, None, None)),
        (b"[1]", ("fallback", None, None, None)),
        (b'{"error":{"message":"cut', ("fallback", None, None, None)),
        (b'{"error":{"message":"a \\ud83d b"}}', ("fallback", None, None, None)),
        ('{"error":{"message":"größer als \\"8192\\"\\n"}}'.encode(), ('größer als "8192"\n', None, None, None)),
        (b"[" * 5000, ("fallback", None, None, None)),
    ],
)  # fmt: skip
def test_an_engines_error_in_the_one_shape(body: bytes, expected: tuple[object, ...]) -> None:
    error = json.loads(read_error(body, "fallback").text())
    assert list(error) == ["error"]
    assert tuple(error["error"][key] for key in ("message", "type", "param", "code")) == expected
