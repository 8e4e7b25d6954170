"""The request of the next leg, and the decision that there is one."""

import json
from array import array
from typing import Any

import pytest

from forebay.domain import FailureKind, Usage
from forebay.policy import EngineKind
from forebay.upstream.continuation.edits import closing
from forebay.upstream.continuation.moves import MAX_MOVES, AtLimit, Continue, Death, GiveUp, next_leg
from forebay.upstream.continuation.reasons import Impossible, Reason
from forebay.upstream.continuation.resume import MAX_FRESH_BYTES, at_limit, resume_request
from forebay.upstream.continuation.shapes import Plan
from forebay.upstream.continuation.told import Finish, Head, Leg, Mode, Told
from forebay.wire.endpoints import Shape

USER = {"role": "user", "content": "hé"}


def ids_of(count: int) -> "array[int]":
    return array("q", range(100, 100 + count))


def told_of(text: str = "one two", tokens: int = 4, hidden: int = 0, **more: Any) -> Told:
    ids = ids_of(tokens + hidden)
    fields: dict[str, Any] = {"prompt_ids": array("q", [1, 2]), "ids": ids, "safe": tokens, "clean": True}
    return Told(text, **(fields | {"tokens": tokens, "counted": True, "prompt_tokens": 2} | more))


def asked(shape: Shape = "chat", **fields: Any) -> bytes:
    base: dict[str, Any] = {"messages": [USER]} if shape == "chat" else {"prompt": 'on\u00e9 "'}
    return json.dumps({"model": "m", "stream": True} | base | fields).encode()


def plan_of(shape: Shape = "chat", kind: EngineKind = "vllm", **more: Any) -> Plan:
    return Plan(kind, shape, **({"exact": kind == "vllm", "text": True, "collects_ids": kind == "vllm"} | more))


def leg_of(body: bytes, told: Told, plan: Plan, *barred: Mode) -> tuple[Leg, dict[str, Any]]:
    leg = resume_request(body, told, plan, frozenset(barred))
    assert isinstance(leg, Leg)
    return leg, json.loads(leg.body)


def reason_of(body: bytes, told: Told, plan: Plan, *barred: Mode) -> Reason:
    with pytest.raises(Impossible) as caught:
        resume_request(body, told, plan, frozenset(barred))
    return caught.value.reason


def test_a_chat_goes_on_from_ids() -> None:
    leg, body = leg_of(asked(max_tokens=10, min_tokens=6, extra=1), told_of(hidden=1), plan_of())
    assert body == {
        "model": "m",
        "stream": True,
        "messages": [USER],
        "max_tokens": 6,
        "min_tokens": 2,
        "extra": 1,
        "kv_transfer_params": {"prompt_token_ids": [1, 2, 100, 101, 102, 103]},
    }
    assert (leg.mode, leg.cut, leg.tail, leg.made_tokens, leg.prompt) == ("exact", 4, "", 4, ("hé",))


def test_completions_go_on_from_ids() -> None:
    leg, body = leg_of(asked("completions"), told_of(), plan_of("completions"))
    assert body["prompt"] == [1, 2, 100, 101, 102, 103]
    assert body["max_tokens"] == 12  # the engine's own 16, less four
    assert leg.prompt == ('oné "',)


def test_half_a_character_is_cut_off_and_said_again() -> None:
    told = told_of(clean=False, clean_ids=2, clean_chars=4)
    leg, body = leg_of(asked(max_tokens=10), told, plan_of(text=False))
    assert body["kv_transfer_params"]["prompt_token_ids"] == [1, 2, 100, 101]
    assert (leg.cut, leg.tail, leg.made_tokens, body["max_tokens"]) == (2, "two", 2, 8)
    assert reason_of(asked(), told_of(clean=False), plan_of(text=False), "restart") is Reason.SPLIT_CHARACTER


def test_a_chat_goes_on_from_text() -> None:
    leg, body = leg_of(asked(max_completion_tokens=10), told_of(" one \n", recent=(" one", " \n")), plan_of(), "exact")
    assert body["messages"] == [USER, {"role": "assistant", "content": " one"}]
    assert (body["continue_final_message"], body["add_generation_prompt"]) == (True, False)
    assert (leg.tail, leg.made_tokens, body["max_completion_tokens"]) == (" \n", 4, 6)


def test_llamacpp_goes_on_from_a_trailing_message() -> None:
    leg, body = leg_of(asked(), told_of("one ", counted=False), plan_of(kind="llamacpp"))
    assert body == {"model": "m", "stream": True, "messages": [USER, {"role": "assistant", "content": "one "}]}
    assert (leg.mode, leg.tail) == ("text", "")


def test_greedy_text_is_cut_before_its_last_word() -> None:
    body = asked(temperature=0, max_tokens=9)
    told = told_of("one two\nthr", recent=("one", " two", "\nth", "r"), counted=False)
    leg, sent = leg_of(body, told, plan_of(kind="llamacpp"))
    assert sent["messages"][-1] == {"role": "assistant", "content": "one two"}
    assert (leg.mode, leg.tail, leg.made_tokens, sent["max_tokens"]) == ("words", "\nthr", 2, 7)
    assert sent["cache_prompt"] is False
    large = asked(temperature=0, user="x" * MAX_FRESH_BYTES)
    assert "cache_prompt" not in leg_of(large, told, plan_of(kind="llamacpp"))[1]
    leg, sent = leg_of(asked("completions", temperature=0.0), told_of("one two "), plan_of("completions", "llamacpp"))
    assert (sent["prompt"], leg.tail) == ('oné "one', " two ")
    assert leg_of(body, told, plan_of(kind="llamacpp"), "words")[0].mode == "text"
    for text in ("one", " one", "one " + "x" * 70):
        assert leg_of(body, told_of(text), plan_of(kind="llamacpp"))[0].mode == "text"
    assert leg_of(asked(temperature=0.1), told, plan_of(kind="llamacpp"))[0].mode == "text"


def test_completions_go_on_from_text() -> None:
    _, body = leg_of(asked("completions"), told_of('t"wo\n'), plan_of("completions", kind="llamacpp"))
    assert body["prompt"] == 'oné "t"wo\n'
    assert "max_tokens" not in body


def test_a_beginning_that_the_client_gave_is_prolonged() -> None:
    begun = [USER, {"role": "assistant", "content": "zero ", "name": "x"}]
    for kind, more in (("vllm", {"continue_final_message": True}), ("llamacpp", {})):
        _, body = leg_of(asked(messages=begun, **more), told_of("one"), plan_of(kind=kind), "exact")  # type: ignore[arg-type]
        assert body["messages"] == [USER, {"role": "assistant", "content": "zero one", "name": "x"}]
    # Without the flag it is a turn of its own for vLLM.
    _, body = leg_of(asked(messages=begun), told_of("one"), plan_of(), "exact")
    assert [message["content"] for message in body["messages"]] == ["hé", "zero ", "one"]
    parts = [{"role": "assistant", "content": [{"type": "text", "text": "a"}]}]
    assert reason_of(asked(messages=parts), told_of(), plan_of(kind="llamacpp"), "restart") is Reason.PREFIX_FORM


def test_asked_anew_it_is_the_same_request() -> None:
    body = asked(max_tokens=10, stop=["x"], stream_options={"include_usage": True})
    leg, _ = leg_of(body, told_of(), plan_of(), "exact", "text")
    assert leg == Leg(body, "restart", tail="one two", stops=("x",), wants_usage=True)
    leg, _ = leg_of(body, Told(), plan_of())
    assert (leg.mode, leg.tail) == ("restart", "")
    assert reason_of(body, told_of(), plan_of(), "exact", "text", "restart") is Reason.PREFIX_REFUSED


@pytest.mark.parametrize(
    ("told", "plan", "reason"),
    [
        (told_of(tools=True), plan_of(), Reason.TOOL_CALLS),
        (told_of(flaw=Reason.ANSWER_TOO_LONG), plan_of(), Reason.ANSWER_TOO_LONG),
        (told_of(reasoning="hm"), plan_of(tools=True), Reason.TOOLS_AFTER_REASONING),
        (told_of(reasoning="hm"), plan_of(kind="sglang"), Reason.REASONING),
        (told_of(reasoning="hm", prompt_ids=None), plan_of(), Reason.NO_IDS),
    ],
)
def test_what_cannot_be(told: Told, plan: Plan, reason: Reason) -> None:
    assert reason_of(asked(), told, plan) is reason


def test_a_prompt_with_pictures_goes_on_from_text() -> None:
    parts = [{"type": "text", "text": "what"}, {"type": "image_url", "image_url": {"url": "data:"}}]
    body = asked(messages=[{"role": "user", "content": parts}])
    assert leg_of(body, told_of(), plan_of())[0].mode == "text"
    assert reason_of(body, told_of(reasoning="hm"), plan_of()) is Reason.PROMPT_FORM


def test_with_tools_an_answer_goes_on_from_text_and_thoughts_from_ids() -> None:
    assert leg_of(asked(), told_of(), plan_of(tools=True))[0].mode == "text"
    assert leg_of(asked(), told_of("", reasoning="hm"), plan_of(tools=True))[0].mode == "exact"


def test_nothing_left_is_the_end() -> None:
    body = asked(max_tokens=4, stream_options={"include_usage": True})
    finish = resume_request(body, told_of(), plan_of())
    assert finish == Finish("length", Usage(2, 4), wants_usage=True)
    assert at_limit(body, told_of()) == finish
    head = Head(b'"a"', b'"chat.completion.chunk"', b"1", b'"m"', b"")
    (last, usage) = [json.loads(event.data) for event in closing(finish, head, "chat")]
    assert last["choices"] == [{"index": 0, "delta": {"content": ""}, "logprobs": None, "finish_reason": "length"}]
    assert {key: usage[key] for key in ("id", "created", "model", "choices", "usage")} == {
        "id": "a",
        "created": 1,
        "model": "m",
        "choices": [],
        "usage": {"prompt_tokens": 2, "completion_tokens": 4, "total_tokens": 6},
    }
    assert len(closing(Finish("length", Usage()), head, "completions")) == 1


TOLD = told_of()
PLAN = plan_of()
CUT = FailureKind.TRUNCATED
BOTH: frozenset[Mode] = frozenset(("exact", "text"))


@pytest.mark.parametrize(
    ("death", "told", "plan", "expected"),
    [
        *((Death(kind), TOLD, PLAN, Continue()) for kind in FailureKind if kind is not FailureKind.TOTAL),
        (Death(FailureKind.TOTAL), TOLD, PLAN, GiveUp(Reason.DEADLINE)),
        (Death(CUT, moves=1), TOLD, PLAN, Continue()),
        (Death(CUT, moves=MAX_MOVES), TOLD, PLAN, GiveUp(Reason.MOVES_SPENT)),
        (Death(CUT), TOLD, Reason.LOGPROBS, GiveUp(Reason.LOGPROBS)),
        (Death(CUT), told_of(tools=True), PLAN, GiveUp(Reason.TOOL_CALLS)),
        (Death(CUT), told_of(flaw=Reason.UNREADABLE), PLAN, GiveUp(Reason.UNREADABLE)),
        (Death(CUT, 1, "exact", overflow=True), TOLD, PLAN, AtLimit()),
        (Death(CUT, 1, "exact", refused=True), TOLD, PLAN, Continue(frozenset(("exact",)))),
        (Death(CUT, 1, "text", refused=True, barred=BOTH), TOLD, PLAN, Continue(BOTH)),
        (Death(CUT, 1, "restart", refused=True), TOLD, PLAN, GiveUp(Reason.PREFIX_REFUSED)),
        (Death(CUT, 1, "text", Reason.DIVERGED), TOLD, PLAN, Continue(frozenset(("text",)))),
        (Death(CUT, 1, "restart", Reason.DIVERGED), TOLD, PLAN, GiveUp(Reason.DIVERGED)),
        (Death(CUT, 1, "exact", Reason.PROMPT_LEAK), TOLD, PLAN, GiveUp(Reason.PROMPT_LEAK)),
        (Death(CUT, 2, "text", Reason.CHANNEL), TOLD, PLAN, GiveUp(Reason.CHANNEL)),
    ],
)
def test_decisions(death: Death, told: Told, plan: Plan | Reason, expected: Continue | AtLimit | GiveUp) -> None:
    assert next_leg(death, told, plan) == expected
