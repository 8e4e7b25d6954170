"""What a level takes from a request: whole messages of plain chats, and nothing of a request with a structure."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.degrade import steps
from forebay.degrade.steps import CHINESE, ENGLISH, MAX_BYTES, costly, is_chinese, is_structured, shortened
from forebay.wire.members import Members, read_members

WORD_BYTES = 5


def body(**members: Any) -> Members:
    return read_members(json.dumps({"model": "m", **members}, ensure_ascii=False).encode())


def said(role: str, words: int, word: str = "talk") -> dict[str, Any]:
    return {"role": role, "content": f"{word} " * words}


def chat(*messages: dict[str, Any], **members: Any) -> Members:
    return body(messages=list(messages or (said("user", 3),)), **members)


TURNS = (said("system", 50), *(said(role, 100) for _ in range(6) for role in ("user", "assistant")), said("user", 20))


def kept(members: Members, history_tokens: int = 250, tokens: int = 1270) -> list[dict[str, Any]]:
    """The messages that stay of a chat with a token for each word."""
    cut = shortened(members, history_tokens, tokens)
    assert cut is not None
    found: list[dict[str, Any]] = json.loads(cut.messages)
    return found


@pytest.mark.parametrize(
    "members",
    [
        {"n": 2}, {"best_of": 3}, {"logprobs": True}, {"logprobs": 0}, {"top_logprobs": 2}, {"prompt_logprobs": 0},
        {"use_beam_search": True},
    ],
)  # fmt: skip
def test_what_costs_too_much_is_named(members: dict[str, Any]) -> None:
    assert costly(chat(**members)) == next(iter(members))
    assert is_structured(chat(**members), "chat")


@pytest.mark.parametrize(
    "members", [{"n": 1}, {"n": None}, {"logprobs": False}, {"logprobs": None}, {"top_logprobs": 0}]
)
def test_what_costs_nothing_is_let_by(members: dict[str, Any]) -> None:
    assert costly(chat(**members)) == "" and not is_structured(chat(**members), "chat")


TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}


@pytest.mark.parametrize(
    "members",
    [
        {"tools": [TOOL]}, {"functions": [{"name": "f"}]}, {"response_format": {"type": "json_object"}},
        {"response_format": {"type": "json_schema", "json_schema": {}}}, {"response_format": "odd"},
        {"tool_choice": "required"}, {"modalities": ["text", "audio"]}, {"guided_json": {"type": "object"}},
        {"structured_outputs": {"regex": "a"}}, {"grammar": "root ::= x"}, {"min_tokens": 700},
        {"continue_final_message": True}, {"thinking": {"budget_tokens": 2000}},
    ],
)  # fmt: skip
def test_a_structure_is_seen(members: dict[str, Any]) -> None:
    assert is_structured(chat(**members), "chat")


@pytest.mark.parametrize(
    "message",
    [
        {"role": "user", "content": [{"type": "text", "text": "look"}, {"type": "image_url", "image_url": {}}]},
        {"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]},
        {"role": "assistant", "content": None, "tool_calls": [{"id": "1", "type": "function", "function": {}}]},
        {"role": "tool", "tool_call_id": "1", "content": "42"},
        {"role": "system", "content": "Answer in JSON."},
        {"role": "user", "content": "give me a csv file"},
        {"role": "user", "content": 5},
        "odd",
    ],
)  # fmt: skip
def test_a_message_that_is_more_than_words_is_seen(message: Any) -> None:
    assert is_structured(chat(said("user", 3), message), "chat")


def test_plain_ones_are_plain() -> None:
    plain = {"tools": [], "response_format": {"type": "text"}, "tool_choice": "auto", "stop": ["x"], "seed": 1}
    assert not is_structured(chat(*TURNS, **plain), "chat")
    parts = {"role": "user", "content": [{"type": "text", "text": "hello"}]}
    assert not is_structured(chat(parts), "chat")
    old_talk = {"role": "user", "content": "what is JSON?"}
    assert not is_structured(chat(old_talk, said("assistant", 5), said("user", 5)), "chat")
    assert not is_structured(body(prompt="Once upon a time"), "completions")
    for prompt in (["a", "b"], [1, 2, 3], "as JSON: "):
        assert is_structured(body(prompt=prompt), "completions")


def test_a_huge_body_is_left_alone() -> None:
    assert is_structured(chat(said("user", MAX_BYTES // WORD_BYTES)), "chat")


def test_system_last_user_and_the_latest_turns_stay_whole() -> None:
    found = kept(chat(*TURNS))
    assert found == [TURNS[0], *TURNS[-3:]]
    assert kept(chat(*TURNS), history_tokens=1)[1:] == [TURNS[-1]], "the last of the user is never cut"
    late_system = (*TURNS[:4], said("system", 9, "late"), *TURNS[4:])
    assert said("system", 9, "late") in kept(chat(*late_system))


def test_it_begins_with_a_user_as_templates_demand() -> None:
    assert [message["role"] for message in kept(chat(*TURNS), history_tokens=130)] == ["system", "user"]


def test_nothing_to_leave_out_is_no_cut() -> None:
    assert shortened(chat(*TURNS), 5000, 1270) is None
    assert shortened(chat(said("system", 9), said("user", 9000)), 100, 9009) is None
    assert shortened(chat(said("assistant", 3)), 1, 3) is None
    assert shortened(body(prompt="x"), 1, 3) is None


def test_what_is_said_about_it() -> None:
    cut = shortened(chat(*TURNS), 250, 1270)
    assert cut is not None and cut.left_out == 10 and cut.notice == ENGLISH
    assert cut.kept_ratio == pytest.approx(270 / 1270, abs=0.01)
    chinese = shortened(chat(*TURNS[:-1], said("user", 1, "请用 Python 写一个排序函数")), 250, 1270)
    assert chinese is not None and chinese.notice == CHINESE


@pytest.mark.parametrize(
    ("text", "chinese"),
    [
        ("你好，今天天气怎么样？", True), ("用 Kubernetes 部署 vLLM 的步骤有哪些", True), ("hello 你", False),
        ("", False),
        ("こんにちは、今日の天気はどうですか", False), ("12345", False), ("安", True),
    ],
)  # fmt: skip
def test_whose_language_is_chinese(text: str, chinese: bool) -> None:
    assert is_chinese(json.dumps(text).encode()) is chinese
    assert is_chinese(json.dumps(text, ensure_ascii=False).encode()) is chinese


roles = st.sampled_from(["system", "user", "assistant", "developer"])
messages = st.builds(said, roles, st.integers(0, 60), st.sampled_from(["talk", "词语", 'q"\\']))


@given(st.lists(messages, max_size=15), st.integers(1, 200))
def test_what_is_cut_is_whole_messages_in_order(turns: list[dict[str, Any]], history_tokens: int) -> None:
    members = chat(*turns) if turns else body(messages=[])
    tokens = sum(len(turn["content"]) for turn in turns) // WORD_BYTES
    cut = shortened(members, history_tokens, tokens)
    if cut is None:
        return
    found = json.loads(cut.messages)
    rest = iter(turns)
    assert all(message in rest for message in found), "in order, and unchanged"
    assert [m for m in found if m["role"] in steps._SYSTEM] == [m for m in turns if m["role"] in steps._SYSTEM]
    assert [m for m in turns if m["role"] == "user"][-1] in found
    assert len(found) + cut.left_out == len(turns) and cut.left_out > 0
    assert next(m["role"] for m in found if m["role"] not in steps._SYSTEM) == "user"
