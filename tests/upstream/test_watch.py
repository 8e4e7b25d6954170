"""The output watch: loops of any length, broken characters, nothing at all, and the token limit."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.upstream.watch import (
    END_BYTES,
    FLAGS,
    MAX_PERIOD_TOKENS,
    MIN_LOOP_TOKENS,
    MIN_REPEATS,
    Watch,
    ends_in_loop,
    flags_of_whole,
)
from forebay.wire.facts import read_event
from forebay.wire.sse import Event


def chunk(text: str, created: int = 1, **choice: object) -> bytes:
    """A chunk as vLLM writes it."""
    choices = [{"index": 0, "delta": {"content": text}, "logprobs": None, "finish_reason": None} | choice]
    return json.dumps(
        {"id": "c1", "created": created, "model": "m", "choices": choices}, separators=(",", ":")
    ).encode()


def llamacpp(text: str, created: int) -> bytes:
    """A chunk as llama.cpp writes it: with the time, which goes on, behind the text."""
    choices = [{"finish_reason": None, "index": 0, "delta": {"content": text}}]
    return json.dumps(
        {"choices": choices, "created": created, "id": "c1", "model": "m"}, separators=(",", ":")
    ).encode()


def responses(text: str, number: int) -> bytes:
    """An event as vLLM writes it for the Responses API."""
    event = {"content_index": 0, "delta": text, "item_id": "i", "sequence_number": number}
    return json.dumps(event | {"type": "response.output_text.delta"}, separators=(",", ":")).encode()


def watched(texts: list[str]) -> Watch:
    watch = Watch()
    for text in texts:
        watch.token(chunk(text))
    return watch


def loops(texts: list[str]) -> bool:
    return "loop" in watched(texts).flags(finished=False)


WORDS = [f"w{number}" for number in range(200)]


# loops


@pytest.mark.parametrize("period", [1, 2, 3, 5, 6, 7, 20, MAX_PERIOD_TOKENS])
def test_a_loop_is_seen_when_it_has_lasted_long_enough(period: int) -> None:
    needed = max(MIN_LOOP_TOKENS, MIN_REPEATS * period)
    text = WORDS[100:150] + WORDS[:period] * needed
    # Places are forgotten all at once, here within the first cycle; so parts of the second have to be learned as well.
    seen = [count for count in range(50, 50 + needed + period + 9) if loops(text[:count])]
    assert seen
    assert 50 + needed <= seen[0] <= 50 + needed + period


@pytest.mark.parametrize("period", [1, 5, MAX_PERIOD_TOKENS])
def test_once_seen_it_stays_seen(period: int) -> None:
    assert loops(WORDS[:period] * 520 + WORDS[64:200])


def test_a_longer_cycle_is_not_looked_for() -> None:
    assert not loops(WORDS[: MAX_PERIOD_TOKENS + 1] * 20)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from(WORDS[:12]), min_size=1, max_size=20, unique=True), st.integers(1, 6), st.integers(0, 3)
)
def test_a_cycle_with_cycles_inside(words: list[str], inner: int, start: int) -> None:
    cycle = words[:2] * inner + words + words[:1] * inner
    assert loops(WORDS[50 : 50 + start] + cycle * max(MIN_REPEATS + 3, 60 // len(cycle) + 3))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from(WORDS[:5]), min_size=5, max_size=60), st.data())
def test_repetition_that_is_broken_in_time_is_no_loop(cycle: list[str], data: st.DataObject) -> None:
    """A new word at least every 47 tokens: nothing repeats for long enough."""
    text: list[str] = []
    for number in range(20):
        text += (cycle * 10)[: data.draw(st.integers(0, MIN_LOOP_TOKENS - 2))]
        text.append(f"new{number}")
    assert not loops(text)


def test_ordinary_lists_and_tables_are_no_loop() -> None:
    table = [piece for row in range(40) for piece in ("|", " ", str(row), " |", " ok", " |", "\n")]
    assert not loops(table)
    assert not loops(["0", ",", " "] * 15)


@pytest.mark.parametrize("write", [llamacpp, responses, lambda text, at: chunk(text, created=at)])
def test_what_else_varies_from_chunk_to_chunk_is_left_out(write: Any) -> None:
    watch = Watch()
    for number in range(100, 200):
        watch.token(write("again", number))
    assert watch.flags(finished=False) == ("loop",)


def test_chunks_without_text_are_no_loop() -> None:
    assert not loops([""] * 500)
    assert loops([""] * 500 + ["no"] * 100)


def test_its_state_is_bounded() -> None:
    watch = watched([f"x{number}" for number in range(1000)])
    assert len(watch._ring) == MAX_PERIOD_TOKENS
    assert len(watch._places) <= MAX_PERIOD_TOKENS


# characters


@pytest.mark.parametrize("data", [chunk("a\ufffd"), chunk("a").replace(b'"a"', '"é\ufffd"'.encode())])
def test_a_replacement_character_is_seen_escaped_and_raw(data: bytes) -> None:
    watch = Watch()
    watch.token(data)
    assert watch.flags(finished=False) == ("replacement_character",)


@pytest.mark.parametrize("text", ["a\\b\n", "é", "狐狸", "🚀"])
def test_other_characters_are_not(text: str) -> None:
    assert watched([text]).flags(finished=False) == ()


# the end


def told(*events: dict[str, Any] | bytes, shape: Any = "chat") -> Watch:
    """A watch that has been shown events as the relay shows them: nothing has been sent yet."""
    watch = Watch()
    for payload in events:
        data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
        watch.event(data, read_event(Event(data), shape, opening=True))
    return watch


def delta(finish_reason: str | None = None, **members: object) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": members, "finish_reason": finish_reason}]}


ROLE = delta(role="assistant", content="")
USAGE = {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 1}}
NULL_DELTA = {"choices": [{"index": 0, "delta": None, "finish_reason": "stop"}]}


@pytest.mark.parametrize(
    "events",
    [(ROLE, delta("stop")), (ROLE, delta("stop", content=""), USAGE), (NULL_DELTA,), (delta("stop", role="a"),)],
)
def test_a_stream_that_says_nothing_is_empty(events: tuple[dict[str, Any], ...]) -> None:
    assert told(*events).flags(finished=True) == ("empty",)
    assert told(*events).flags(finished=False) == (), "one that broke off is no empty answer"


@pytest.mark.parametrize(
    "event",
    [
        delta(content="a"),
        delta("stop", content="a"),
        delta(reasoning_content="hm"),
        delta(tool_calls=[{"index": 0, "function": {"name": "f"}}]),
        {"choices": [{"index": 0, "text": "a", "finish_reason": "stop"}]},
        {"choices": [{"text": 7}]},
    ],
)
def test_a_stream_that_says_anything_is_not(event: dict[str, Any]) -> None:
    assert told(ROLE, event, delta("stop")).flags(finished=True) == ()


@pytest.mark.parametrize("reason", ["length", "stop", "tool_calls"])
def test_the_token_limit_is_seen(reason: str) -> None:
    assert told(delta(content="a"), delta(reason)).flags(finished=True) == (("cut_off",) if reason == "length" else ())


def test_typed_events() -> None:
    start = {"type": "message_start", "message": {"usage": {"input_tokens": 1, "output_tokens": 1}}}
    text = {"type": "content_block_delta", "delta": {"type": "text_delta", "text": "a"}}
    limit = {"type": "message_delta", "delta": {"stop_reason": "max_tokens"}}
    stop = {"type": "message_stop"}
    assert told(start, text, limit, stop, shape="messages").flags(finished=True) == ("cut_off",)
    assert told(start, limit, stop, shape="messages").flags(finished=True) == ("empty", "cut_off")
    said = {"type": "response.output_text.delta", "delta": "a"}
    incomplete = {"type": "response.incomplete", "response": {}}
    assert told(said, incomplete, shape="responses").flags(finished=True) == ("cut_off",)
    assert told(incomplete, shape="responses").flags(finished=True) == ("empty", "cut_off")


# whole answers


def chat_answer(content: str | None, reason: str = "stop", **message: object) -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": content} | message, "finish_reason": reason}
    usage = {"prompt_tokens": 1, "total_tokens": 2, "completion_tokens": 1, "prompt_tokens_details": None}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}


def first_reason(answer: dict[str, Any]) -> dict[str, Any]:
    """The answer with its members in llama.cpp's order."""
    choice = answer["choices"][0]
    return {"choices": [{"finish_reason": choice["finish_reason"], **choice}], **answer}


STORY = " ".join(f"The fox number {number} met hen {number * 7 % 31} at the river." for number in range(40))
STUCK = STORY + " and so on and on" * 60


def messages_answer(text: str, reason: str = "end_turn") -> dict[str, Any]:
    content = [{"type": "text", "text": text}] if text else []
    return {"id": "m", "type": "message", "role": "assistant", "content": content, "stop_reason": reason}


def responses_answer(text: str, status: str = "completed") -> dict[str, Any]:
    details = {"reason": "max_output_tokens"} if status == "incomplete" else None
    content = [{"type": "output_text", "text": text, "annotations": []}] if text else []
    output = [{"type": "message", "id": "m", "role": "assistant", "status": status, "content": content}]
    return {"id": "r", "status": status, "incomplete_details": details, "output": output if text else []}


@pytest.mark.parametrize("spaced", [True, False])
@pytest.mark.parametrize(
    ("shape", "answer", "flags"),
    [
        ("chat", chat_answer("Hi."), ()),
        ("chat", chat_answer(STORY), ()),
        ("chat", chat_answer("null and void"), ()),
        ("chat", chat_answer('"length"'), ()),
        ("chat", chat_answer(STORY, "length"), ("cut_off",)),
        ("chat", first_reason(chat_answer(STORY, "length")), ("cut_off",)),
        ("chat", chat_answer(""), ("empty",)),
        ("chat", chat_answer(None, refusal=None, tool_calls=[]), ("empty",)),
        ("chat", chat_answer(None, "tool_calls", tool_calls=[{"function": {"name": "f"}}]), ()),
        ("chat", chat_answer(STUCK), ("loop",)),
        ("chat", chat_answer(STUCK, "length", reasoning=None), ("loop", "cut_off")),
        ("chat", chat_answer("嗯，" * 2000, "length"), ("loop", "cut_off")),
        ("chat", chat_answer("a\ufffdb"), ("replacement_character",)),
        ("chat", {"choices": []}, ("empty",)),
        ("completions", {"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}, ("empty", "cut_off")),
        ("completions", {"choices": [{"index": 0, "text": STORY, "finish_reason": "stop"}]}, ()),
        ("messages", messages_answer(STORY), ()),
        ("messages", messages_answer(STUCK, "max_tokens"), ("loop", "cut_off")),
        ("messages", messages_answer(""), ("empty",)),
        ("responses", responses_answer(STORY), ()),
        ("responses", responses_answer(STUCK, "incomplete"), ("loop", "cut_off")),
        ("responses", responses_answer(""), ("empty",)),
        ("whole", {"data": [], "content": ""}, ()),
    ],
)
def test_whole_answers(shape: Any, answer: dict[str, Any], flags: tuple[str, ...], spaced: bool) -> None:
    separators = None if spaced else (",", ":")
    for escaped in (True, False):
        body = json.dumps(answer, separators=separators, ensure_ascii=escaped).encode()
        assert flags_of_whole(body, shape) == flags


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"null", b'{"choices":7}', b'{"choices":[{"message":{"content":[7]}}]}']
)
def test_an_answer_of_another_form_is_left_alone(body: bytes) -> None:
    assert flags_of_whole(body, "chat") == ()


def test_a_large_answer_is_judged_by_its_ends() -> None:
    middle = "".join(f"{number} " for number in range(60_000))
    assert flags_of_whole(json.dumps(chat_answer(middle + STUCK * 9, "length")).encode(), "chat") == ("loop", "cut_off")
    hidden = f"{middle}\ufffd{middle}"
    assert len(middle) > 2 * END_BYTES
    assert flags_of_whole(json.dumps(chat_answer(hidden)).encode(), "chat") == ()
    assert flags_of_whole(json.dumps(chat_answer(hidden + "\ufffd")).encode(), "chat") == ("replacement_character",)


@settings(max_examples=100, deadline=None)
@given(st.binary(min_size=1, max_size=256), st.integers(0, 40), st.binary(max_size=50))
def test_a_text_ends_in_a_loop_when_its_end_comes_again_and_again(piece: bytes, times: int, before: bytes) -> None:
    text = before + piece.translate(None, b'"]}') * times
    repeated = len(text) - len(before)
    if times >= MIN_REPEATS and repeated >= 192 + 256:
        assert ends_in_loop(text)
    if repeated + len(before) < 192:
        assert not ends_in_loop(text)


def test_the_flags_are_a_closed_list() -> None:
    everything = chat_answer("\ufffd" * 500, "length")
    assert set(flags_of_whole(json.dumps(everything).encode(), "chat")) == set(FLAGS) - {"empty"}
