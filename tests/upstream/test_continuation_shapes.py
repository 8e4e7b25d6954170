"""Which requests can be continued."""

import json
from typing import Any, get_args

import pytest

from forebay.policy import EngineKind
from forebay.upstream.continuation.reasons import Reason
from forebay.upstream.continuation.shapes import MAX_BODY_BYTES, Plan, shape_of, stops_of
from forebay.wire.endpoints import Shape
from forebay.wire.members import read_members

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hé"}], "stream": True}
PLAIN = {"model": "m", "prompt": "once", "stream": True}


def found(shape: Shape = "chat", kind: EngineKind = "vllm", ids: bool = True, **fields: Any) -> Plan | Reason:
    body = json.dumps((CHAT if shape == "chat" else PLAIN) | fields).encode()
    return shape_of(read_members(body), shape, True, kind, ids)


def plan(shape: Shape = "chat", kind: EngineKind = "vllm", ids: bool = True, **fields: Any) -> Plan:
    one = found(shape, kind, ids, **fields)
    assert isinstance(one, Plan)
    return one


def test_a_plain_stream_is_continued_by_ids_where_the_engine_has_them() -> None:
    assert plan() == Plan("vllm", "chat", exact=True, text=True, collects_ids=True)
    assert plan().edits == {"return_token_ids": b"true"}
    for kind in ("llamacpp", "sglang"):
        assert plan(kind=kind, ids=True) == Plan(kind, "chat", exact=False, text=True, collects_ids=False)
    assert plan(ids=False).edits == {}
    assert plan("completions") == Plan("vllm", "completions", exact=True, text=True, collects_ids=True)


@pytest.mark.parametrize("shape", ["responses", "messages", "whole"])
def test_other_endpoints_are_not(shape: Shape) -> None:
    assert shape_of(read_members(b"{}"), shape, True, "vllm", True) is Reason.ENDPOINT


def test_what_is_no_stream_or_of_an_unknown_engine_is_not() -> None:
    assert shape_of(read_members(b"{}"), "chat", False, "vllm", True) is Reason.NOT_STREAMED
    assert found(kind="openai") is Reason.ENGINE


def test_a_large_body_is_not() -> None:
    assert found(user="x" * MAX_BODY_BYTES) is Reason.BODY_TOO_LARGE


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"n": 2}, Reason.SEVERAL_CHOICES),
        ({"best_of": 2}, Reason.SEVERAL_CHOICES),
        ({"use_beam_search": True}, Reason.SEVERAL_CHOICES),
        ({"logprobs": True}, Reason.LOGPROBS),
        ({"logprobs": 0}, Reason.LOGPROBS),
        ({"top_logprobs": 3}, Reason.LOGPROBS),
        ({"echo": True}, Reason.ECHO),
        ({"suffix": "x"}, Reason.SUFFIX),
        ({"response_format": {"type": "json_object"}}, Reason.STRUCTURED_OUTPUT),
        ({"response_format": 3}, Reason.STRUCTURED_OUTPUT),
        ({"structured_outputs": {"regex": "a"}}, Reason.STRUCTURED_OUTPUT),
        ({"guided_json": {}}, Reason.STRUCTURED_OUTPUT),
        ({"tool_choice": "required"}, Reason.STRUCTURED_OUTPUT),
        ({"tool_choice": {"type": "function"}}, Reason.STRUCTURED_OUTPUT),
        ({"presence_penalty": 0.5}, Reason.PENALTIES),
        ({"frequency_penalty": -1}, Reason.PENALTIES),
        ({"thinking_token_budget": 100}, Reason.THINKING_BUDGET),
        ({"truncate_prompt_tokens": 100}, Reason.TRUNCATION),
        ({"modalities": ["text", "audio"]}, Reason.AUDIO),
    ],
)
def test_the_closed_list(fields: dict[str, Any], reason: Reason) -> None:
    assert found(**fields) is reason


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 1, "best_of": None, "logprobs": False, "echo": False, "suffix": None, "top_logprobs": 0},
        {"response_format": {"type": "text"}, "tool_choice": "auto"},
        {"presence_penalty": 0, "frequency_penalty": 0.0},
        {"min_tokens": 5, "seed": 3, "repetition_penalty": 1.1, "temperature": 0.7},
    ],
)
def test_neutral_values_do_not_matter(fields: dict[str, Any]) -> None:
    assert plan(**fields) == plan()


def test_llamacpp_counts_and_constrains_from_the_beginning_of_the_answer() -> None:
    fields: dict[str, Any] = {"presence_penalty": 0.5, "response_format": {"type": "json_object"}}
    assert plan(kind="llamacpp", **fields).text
    assert found("completions", "llamacpp", grammar='root ::= "a"') is Reason.STRUCTURED_OUTPUT


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ([1, 2], (True, False)),
        ([["a"]], Reason.SEVERAL_CHOICES),
        (["a", "b"], Reason.SEVERAL_CHOICES),
        ([[1], [2]], Reason.SEVERAL_CHOICES),
        ([], Reason.PROMPT_FORM),
        (None, Reason.PROMPT_FORM),
    ],
)
def test_prompts(prompt: Any, expected: tuple[bool, bool] | Reason) -> None:
    one = found("completions", prompt=prompt)
    assert expected == (one if isinstance(one, Reason) else (one.exact, one.text))
    assert isinstance(found("completions", "llamacpp", prompt=prompt), Reason)


def test_text_that_runs_behind_ids_rules_ids_out() -> None:
    assert not plan(stop=["END"]).exact
    assert not plan(stop="END").exact
    assert plan(stop="END").collects_ids  # they count the tokens
    assert plan(stop=["\n", "."]).exact  # one character holds nothing back
    assert plan(stop=["END"], include_stop_str_in_output=True).exact


def test_text_that_hides_something_rules_text_out() -> None:
    assert not plan(include_reasoning=False).text
    assert not plan(add_generation_prompt=False).text
    assert plan(add_generation_prompt=False, continue_final_message=True).text
    assert found(include_reasoning=False, stop="END") is Reason.PROMPT_FORM


def test_tools_are_noted() -> None:
    assert plan(tools=[{"type": "function"}]).tools
    assert not plan().tools


def test_stops() -> None:
    assert stops_of(read_members(b'{"stop":"a"}')) == ("a",)
    assert stops_of(read_members(b'{"stop":["a","b\xc3\xa9"]}')) == ("a", "bé")
    assert stops_of(read_members(b'{"stop":3}')) == ()
    assert stops_of(read_members(b'{"stop":null}')) == ()


def test_every_kind_of_engine_has_an_answer() -> None:
    for kind in get_args(EngineKind):
        assert isinstance(found(kind=kind), Plan) == (kind != "openai")
