"""A sentence behind an answer's text changes that text and nothing else."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.wire.facts import read_event
from forebay.wire.notice import with_notice
from forebay.wire.rewrite import Rewriter
from forebay.wire.sse import Event

NOTICE = "\n\n（提示）"


def event(delta: dict[str, Any], finish: str | None = "stop", **more: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return json.dumps({"id": "c", "model": "m", "choices": [choice], **more}).encode()


def whole(message: dict[str, Any]) -> bytes:
    choice = {"index": 0, "message": message, "finish_reason": "length"}
    return json.dumps({"id": "c", "model": "m", "choices": [choice], "usage": {"completion_tokens": 7}}).encode()


@pytest.mark.parametrize(
    "delta", [{}, {"content": ""}, {"content": None}, {"content": "end", "reasoning_content": None}]
)
def test_the_event_with_the_end_carries_it(delta: dict[str, Any]) -> None:
    before = json.loads(event(delta))
    after = json.loads(with_notice(event(delta), b"delta", NOTICE))
    assert after["choices"][0]["delta"]["content"] == (delta.get("content") or "") + NOTICE
    after["choices"][0]["delta"] = before["choices"][0]["delta"]
    assert after == before


def test_a_whole_answer_carries_it() -> None:
    text = whole({"role": "assistant", "content": "Well."})
    after = json.loads(with_notice(text, b"message", NOTICE))
    assert after["choices"][0]["message"] == {"role": "assistant", "content": "Well." + NOTICE}
    assert after["choices"][0]["finish_reason"] == "length" and after["usage"] == {"completion_tokens": 7}


@pytest.mark.parametrize("content", ['{"a": 1}', " [1]", "```py\nx\n```", "<a/>", "", None])
def test_data_and_code_are_left_alone(content: str | None) -> None:
    text = whole({"role": "assistant", "content": content})
    assert with_notice(text, b"message", NOTICE) is text


@pytest.mark.parametrize(
    "text", [b"{}", b'{"choices":[]}', b'{"choices":[1]}', b"[", b'{"choices":[{"delta":{"content":5}}]}']
)
def test_what_cannot_be_read_stays_as_it_is(text: bytes) -> None:
    assert with_notice(text, b"delta", NOTICE) is text


def out(rewriter: Rewriter, data: bytes) -> bytes:
    return rewriter.event(Event(data), read_event(Event(data), "chat", opening=False))


def test_only_the_end_of_a_stream_has_it() -> None:
    rewriter = Rewriter("m", drops_usage=False, notice=NOTICE)
    middle = event({"content": "word"}, None)
    assert out(rewriter, middle) == b"data: %b\n\n" % middle
    assert NOTICE in json.loads(out(rewriter, event({}))[6:])["choices"][0]["delta"]["content"]
    assert out(Rewriter("m", drops_usage=False), event({})) == b"data: %b\n\n" % event({})


@given(st.text(), st.text(min_size=1))
def test_any_text_comes_before_any_notice(content: str, notice: str) -> None:
    after = json.loads(with_notice(event({"content": content}), b"delta", notice))
    assert after["choices"][0]["delta"]["content"] == content + notice
