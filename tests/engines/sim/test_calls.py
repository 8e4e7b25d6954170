"""What a request asks for."""

import json
from typing import Any

import pytest

from forebay.engines.sim import tokens
from forebay.engines.sim.calls import Call, Endpoint, read
from forebay.engines.sim.errors import SimError
from forebay.engines.sim.spec import SimSpec
from forebay.engines.sim.tokens import VOCABULARIES

SPEC = SimSpec(models=("m", "n"), max_model_len=100)
USER = {"role": "user", "content": "hello"}


def call(endpoint: Endpoint, **fields: Any) -> Call:
    return read(endpoint, json.dumps(fields).encode(), SPEC)


def refused(endpoint: Endpoint, **fields: Any) -> SimError:
    with pytest.raises(SimError) as caught:
        call(endpoint, **fields)
    return caught.value


def test_chat_defaults() -> None:
    found = call("chat", messages=[USER])
    assert (found.model, found.max_tokens, found.stream, found.has_prefix) == ("m", 16, False, False)
    assert found.prompt_ids() == tokens.encode("<|user|>hello<|end|><|assistant|>")
    assert found.prompt_tokens == len(found.prompt_ids())


def test_the_newer_name_of_the_limit_wins() -> None:
    assert call("chat", messages=[USER], max_tokens=3, max_completion_tokens=4).max_tokens == 4


def test_usage_in_every_chunk_needs_usage_at_all() -> None:
    only = {"continuous_usage_stats": True}
    assert not call("chat", messages=[USER], stream=True, stream_options=only).continuous_usage
    assert call("chat", messages=[USER], stream=True, stream_options=only | {"include_usage": True}).continuous_usage


def test_a_prefix_message_continues_the_answer() -> None:
    messages = [USER, {"role": "assistant", "content": "t0 t1"}]
    found = call("chat", messages=messages, continue_final_message=True, add_generation_prompt=False)
    assert found.has_prefix
    assert found.text(0, 2) == " t2 t3"
    assert found.ids(0, 1) == [tokens.ASCII_BASE + 2]


def test_a_prefix_that_ends_inside_a_token_is_completed() -> None:
    messages = [USER, {"role": "assistant", "content": "t0 t1 t"}]
    found = call("chat", messages=messages, continue_final_message=True, add_generation_prompt=False)
    assert found.text(0, 2) == "2 t3"


def test_an_assistant_message_without_the_flags_is_history() -> None:
    found = call("chat", messages=[USER, {"role": "assistant", "content": "t0 t1"}])
    assert not found.has_prefix
    assert found.text(0, 1) == "t0"


def test_ids_continue_chat_and_completions() -> None:
    ids = [*tokens.encode("hello"), *VOCABULARIES["ascii"].ids(0, 7)]
    for found in (
        call("chat", messages=[USER], kv_transfer_params={"prompt_token_ids": ids}),
        call("completions", prompt=ids),
        call("completions", prompt=[ids]),
    ):
        assert found.has_prefix
        assert found.prompt_tokens == len(ids)
        assert found.text(0, 1) == " t7"


def test_a_prompt_of_plain_completions_that_ends_with_an_answer_continues_it() -> None:
    found = call("completions", prompt="hello t0 t1 t2")
    assert (found.text(0, 2), found.has_prefix) == (" t3 t4", True)
    assert not call("completions", prompt="hello").has_prefix


def test_ids_cut_inside_a_character_leak_the_prompt() -> None:
    ids = [*tokens.encode("secret"), *VOCABULARIES["unicode"].ids(0, 3)]
    found = call("completions", prompt=ids, sim_vocabulary="unicode")
    assert found.text(0, 1).startswith("secret")


def test_messages_and_responses_are_read() -> None:
    found = call("messages", model="n", max_tokens=3, system="be kind", messages=[USER])
    assert (found.model, found.max_tokens) == ("n", 3)
    assert "be kind" in tokens.decode(found.prompt_ids())
    items = [{"role": "user", "content": [{"type": "input_text", "text": "hello"}]}]
    assert "hello" in tokens.decode(call("responses", input=items, max_output_tokens=2).prompt_ids())


@pytest.mark.parametrize(
    ("fields", "status", "param"),
    [
        ({"messages": [USER], "model": "x"}, 404, "model"),
        ({"messages": []}, 400, "messages"),
        ({"messages": [USER], "n": 2}, 400, "n"),
        ({"messages": [USER], "echo": True}, 400, "echo"),
        ({"messages": [USER], "max_tokens": 0}, 400, "max_tokens"),
        ({"messages": [USER], "max_tokens": 99}, 400, "input_tokens"),
        ({"messages": [USER], "stream_options": {}}, 400, "stream_options"),
        ({"messages": [USER], "continue_final_message": True}, 400, None),
        ({"messages": "hello"}, 400, None),
        ({"messages": [USER], "sim_vocabulary": "klingon"}, 400, None),
        ({}, 400, None),
    ],
)
def test_a_chat_that_cannot_be_is_refused(fields: dict[str, Any], status: int, param: str | None) -> None:
    error = refused("chat", **fields)
    assert (error.status, error.param) == (status, param)


@pytest.mark.parametrize("prompt", [None, 3, [], ["a", "b"], [1, "a"], [-1], [True]])
def test_a_prompt_that_cannot_be_is_refused(prompt: Any) -> None:
    assert refused("completions", prompt=prompt).param == "prompt"


def test_an_overflow_names_the_length_of_the_model() -> None:
    assert "maximum context length is 100 tokens" in refused("completions", prompt="a" * 400).message


def test_bytes_that_are_no_json_are_refused() -> None:
    with pytest.raises(SimError) as caught:
        read("chat", b'{"messages": ', SPEC)
    assert caught.value.status == 400
