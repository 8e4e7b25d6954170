"""Cases 006, 008, 010, 012 and 014: what a stream means, and what nulls mean."""

import time
from collections.abc import Iterator

import openai
import pytest
from cases.pair import CHAT, Pair
from cases.rawhttp import MESSAGES, Client, chat, request_bytes
from gateway_process import document, eventually
from notation import DONE, ERROR, HANG, STOP, USAGE, Answer, D, event, part, stream
from scripted import ScriptedEngine

pytestmark = pytest.mark.integration


def test_case_006_empty_choices_first_and_last(pair: Pair) -> None:
    first = event({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": []})
    sent = (first, D("x"), STOP, USAGE(3, 1), DONE)
    pair.engine.play(stream(*sent))
    answer = pair.post(chat(stream_options={"include_usage": True}))
    assert answer.clean
    assert [event.data for event in answer.events] == [event.decode()[6:-2] for event in sent]
    row = pair.row(answer)
    assert (row["input_length"], row["output_length"], row["usage_estimated"]) == (3, 1, False)
    pair.gateway.common_ending()


def test_case_006_usage_that_the_client_did_not_ask_for(pair: Pair) -> None:
    pair.engine.play(stream(D("x"), STOP, USAGE(3, 1), DONE))
    answer = pair.post(chat())
    assert pair.engine.posts[0].json()["stream_options"]["include_usage"] is True
    assert answer.text == "x" and answer.done
    assert not [event for event in answer.events if '"usage":{' in event.data]
    row = pair.row(answer)
    assert (row["input_length"], row["output_length"], row["usage_estimated"]) == (3, 1, False)
    pair.gateway.common_ending()


@pytest.mark.parametrize("late_usage", [(), (USAGE(3, 1),)])
def test_case_008_finish_without_done(pair: Pair, late_usage: tuple[bytes, ...]) -> None:
    pair.engine.play(stream(D("x"), STOP, *late_usage, HANG))
    answer = pair.post(chat())
    assert answer.text == "x" and answer.finish == "stop" and answer.done and answer.clean
    assert answer.elapsed_s < 10, "stream.done_grace_s is 0.5"
    seen = pair.engine.posts[0]
    assert eventually(lambda: seen.closed_s is not None, 30), "the engine's connection was not closed"
    row = pair.row(answer)
    assert row["outcome"] == "ok"
    if late_usage:
        assert (row["input_length"], row["output_length"]) == (3, 1)
    assert "missing_done" in pair.gateway.get("/metrics")[1].decode()
    pair.gateway.common_ending()


IN_BAND = {
    "error object": ERROR(),
    "error event": b'event: error\ndata: {"message":"engine ran out of cache"}\n\n',
}


@pytest.mark.parametrize("shape", IN_BAND)
def test_case_010_error_in_a_200_stream(pair: Pair, shape: str) -> None:
    pair.engine.play(stream(D("x"), IN_BAND[shape]))
    answer = pair.post(chat(logprobs=True))  # which no other engine could go on with
    assert answer.text in ("", "x") and answer.clean and not answer.done
    error = answer.stream_error
    assert error is not None and set(error) >= {"message", "type", "param", "code"}
    assert "engine ran out of cache" in error["message"]
    assert len(pair.engine.posts) == 1
    row = pair.row(answer)
    assert row["outcome"] == "engine_error"
    assert row["output_length"] >= 1 and row["usage_estimated"] is True
    pair.gateway.common_ending()


@pytest.mark.parametrize("shape", IN_BAND)
def test_case_010_the_official_client_raises(pair: Pair, shape: str) -> None:
    pair.engine.play(stream(D("x"), IN_BAND[shape]))
    with openai.OpenAI(base_url=f"{pair.gateway.base_url}/v1", api_key="key-A", max_retries=0) as client:
        with pytest.raises(openai.APIError, match="engine ran out of cache"):
            with client.chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}], stream=True, logprobs=True
            ) as answer:
                list(answer)
    pair.gateway.common_ending()


@pytest.fixture
def two(engine, gateway) -> Iterator[tuple[ScriptedEngine, ScriptedEngine, Pair]]:  # type: ignore[no-untyped-def]
    first, second = engine(), engine()
    yield first, second, Pair(first, gateway(document(first, second)))


@pytest.mark.parametrize("shape", IN_BAND)
def test_case_010_no_second_engine_where_the_answer_cannot_go_on(
    two: tuple[ScriptedEngine, ScriptedEngine, Pair], shape: str
) -> None:
    first, second, pair = two

    def failing(_: object) -> Answer:
        return stream(D("x"), D("y"), D("z"), IN_BAND[shape], gap_s=0.03)

    first.default = second.default = failing
    answer = pair.post(chat(logprobs=True))
    assert answer.stream_error is not None and not answer.done
    assert answer.text.startswith("x")
    assert len(first.posts) + len(second.posts) == 1
    first.reset()
    second.reset()
    pair.gateway.common_ending()


def call(index: int, arguments: str, **opening: object) -> bytes:
    function: dict[str, object] = {"arguments": arguments}
    if opening:
        function["name"] = opening.pop("name")
    return part({"content": None, "tool_calls": [{"index": index, **opening, "function": function}]})


def test_case_012_interleaved_tool_calls(pair: Pair) -> None:
    sent = (
        call(0, "", id="call_A", type="function", name="f"),
        call(1, "", id="call_B", type="function", name="g"),
        call(0, '{"x":1}'),
        call(1, '{"y":2}'),
        part({}, "tool_calls"),
        DONE,
    )
    pair.engine.play(stream(*sent))
    answer = pair.post(chat(tools=[{"type": "function", "function": {"name": "f"}}]))
    assert [event.data for event in answer.events] == [event.decode()[6:-2] for event in sent]
    joined = {0: "", 1: ""}
    for piece in answer.events[:4]:
        for fragment in piece.json()["choices"][0]["delta"]["tool_calls"]:
            joined[fragment["index"]] += fragment["function"]["arguments"]
    assert joined == {0: '{"x":1}', 1: '{"y":2}'}
    assert pair.row(answer)["outcome"] == "ok"
    pair.gateway.common_ending()


def test_case_014_nulls_mean_absent(pair: Pair) -> None:
    nulls = dict.fromkeys(("stream", "stream_options", "tools", "max_tokens", "stop", "user", "metadata"))
    answer = pair.post({"model": "m", "messages": MESSAGES, **nulls})
    assert answer.status == 200 and answer.json()["choices"][0]["message"]["content"] == "ok"
    pair.engine.play(stream(D("x"), STOP, USAGE(3, 1), DONE))
    streamed = pair.post({"model": "m", "messages": MESSAGES, **nulls, "stream": True})
    assert streamed.text == "x" and streamed.done
    assert pair.row(streamed)["output_length"] == 1
    pair.gateway.common_ending()


WRONG = {
    "messages null": (b'{"model":"m","messages":null}', "messages"),
    "model a number": (b'{"model":5,"messages":[]}', "model"),
    "model missing": (b'{"messages":[{"role":"user","content":"hi"}]}', "model"),
    "stream a string": (b'{"model":"m","stream":"yes","messages":[{"role":"user","content":"hi"}]}', "stream"),
    "a list": (b"[]", None),
    "null": (b"null", None),
    "a string": (b'"x"', None),
    "empty": (b"", None),
    "more after the end": (b'{"a":1} x', None),
    "not UTF-8": (b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}', None),
}


@pytest.mark.parametrize("what", WRONG)
def test_case_014_wrong_types(pair: Pair, what: str) -> None:
    body, param = WRONG[what]
    answer = pair.post(body)
    assert answer.status == 400
    assert answer.value("content-type") == "application/json"
    assert answer.error["type"] == "invalid_request_error"
    if param is not None:
        assert answer.error["param"] == param
    assert pair.engine.posts == []
    pair.gateway.common_ending()


def test_the_stream_is_not_held_back(pair: Pair) -> None:
    """One event may be held back to see an error coming, not more."""
    pair.engine.play(stream(*(D(str(i)) for i in range(8)), STOP, DONE, gap_s=0.1))
    with Client(pair.gateway.address) as client:
        client.send(request_bytes("POST", CHAT, chat()))
        started = time.monotonic()
        client.read_until(b'"content":"2"')
        assert time.monotonic() - started < 0.7, "the third event was held for more than three gaps"
        answer = client.response()
    assert answer.text == "01234567" and answer.done
    pair.gateway.common_ending()
