"""What a comparison of two answers does not show: what reaches the engine, and when it is let go."""

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cases.rawhttp import Client, Response, request_bytes
from conformance.cases import CHAT, COMPLETIONS, EMBEDDINGS, HELLO, MESSAGES, RESPONSES, TALK, UNICODE
from conformance.compare import Repeated, answer
from conformance.world import World
from gateway_process import PATIENCE, eventually

pytestmark = [pytest.mark.integration, pytest.mark.engine]
SHORT: dict[str, Any] = {"max_tokens": 6, "temperature": 0}
LONG: dict[str, Any] = {"max_tokens": 3000, "temperature": 0, "ignore_eos": True}
ALLOWED_HEADERS = {
    "host", "content-type", "content-length", "accept-encoding", "accept", "user-agent", "x-request-id",
    "traceparent", "tracestate", "anthropic-version", "anthropic-beta",
}  # fmt: skip
CREDENTIALS = (
    "Cookie: key-A", "X-Api-Key: key-A", "Proxy-Authorization: Basic key-A", "X-Forwarded-For: 10.0.0.1",
    "X-Conversation-Id: key-A", "X-Request-Id: of-the-client", "traceparent: 00-key", "Anthropic-Version: 2023-06-01",
)  # fmt: skip


def ends(response: Response) -> dict[int, str]:
    """The finish_reason of each choice of a stream."""
    chunks = [event.json() for event in response.events if event.data.startswith("{")]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return {choice["index"]: choice["finish_reason"] for choice in choices if choice["finish_reason"]}


# --- what reaches the engine ---


@pytest.mark.parametrize("key", ["bearer", "x-api-key"])
@pytest.mark.parametrize("target", [CHAT, MESSAGES])
def test_no_credential_and_only_named_headers_reach_the_engine(world: World, target: str, key: str) -> None:
    world.engine("llamacpp")
    world.tap.take()
    body = {"model": "tapped", "messages": UNICODE, **SHORT}
    headers = tuple(line for line in CREDENTIALS if key == "x-api-key" or not line.startswith("X-Api-Key"))
    done = world.through(target, body, key="key-A" if key == "bearer" else None, headers=headers)
    assert done.status == 200, done.body
    sent = world.tap.take()
    head, _, payload = sent.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    assert lines[0] == f"POST {target} HTTP/1.1"
    names = [line.partition(":")[0].lower() for line in lines[1:]]
    assert sorted(names) == sorted(set(names) & ALLOWED_HEADERS)
    assert b"authorization" not in sent.lower()
    assert b"key-A" not in sent
    assert f"X-Request-Id: {done.value('x-forebay-call-id')}" in lines
    assert done.value("x-request-id") == "of-the-client"
    assert payload == json.dumps(body).replace('"tapped"', '"default"').encode()


def test_the_body_reaches_the_engine_but_for_the_model_and_denied_members(world: World) -> None:
    world.engine("llamacpp")
    body = (
        b'{ "messages" : [{"role":"user","content":"\\ud83d\\ude00 \xc3\xa9 \\u0041"}],\n\t"temperature":0.0, "n":1,'
        b' "cache_prompt" : false ,"model":"tapped","max_tokens":3,"seed":12345678901234567890, "x":{"model":"tapped",'
        b'"cache_prompt":1e300}, "id_slot":0,"n_predict":9 }'
    )
    world.tap.take()
    done = world.through(CHAT, body)
    assert done.status == 200, done.body
    assert done.value("x-forebay-stripped") == "cache_prompt, id_slot, n_predict"
    _, _, payload = world.tap.take().partition(b"\r\n\r\n")
    expected = body.replace(b' "cache_prompt" : false ,', b" ").replace(b', "id_slot":0,"n_predict":9 }', b"}")
    expected = expected.replace(b'"model":"tapped",', b'"model":"default",', 1)
    assert payload.replace(b" ", b"") == expected.replace(b" ", b"")
    assert done.json()["usage"]["completion_tokens"] == 3


@pytest.mark.parametrize("lines", [(), ("Content-Type: application/x-www-form-urlencoded",), ("Content-Type: x",)])
def test_a_request_without_its_content_type_is_served(world: World, lines: tuple[str, ...]) -> None:
    world.engine("llamacpp")
    body = json.dumps({"model": "alias", "messages": HELLO, **SHORT}).encode()
    lines = ("Authorization: Bearer key-A", f"Content-Length: {len(body)}", "Accept: */*", *lines)
    with Client(world.gateway.address, 60) as client:
        client.send(request_bytes("POST", CHAT, key=None, headers=lines) + body)
        done = client.response()
    assert done.status == 200
    assert done.json()["model"] == "alias"


# --- how calls run ---


@pytest.mark.parametrize("target", [CHAT, COMPLETIONS, MESSAGES])
def test_a_client_that_leaves_frees_the_engine(world: World, target: str) -> None:
    world.engine("llamacpp")
    asked = {"prompt": "Count to 1000:"} if target == COMPLETIONS else {"messages": HELLO}
    with Client(world.gateway.address, 60) as client:
        client.send(request_bytes("POST", target, {"model": "alias", "stream": True, **LONG, **asked}))
        head = client.read_events(6).decode("latin-1")
        assert world.busy_slots() == 1
    assert eventually(lambda: world.busy_slots() == 0, 1.0 * PATIENCE), "the engine still works for nobody"
    request_id = head.lower().partition("x-request-id: ")[2].partition("\r\n")[0]
    row = world.gateway.close_line(request_id)
    assert (row["outcome"], row["status"]) == ("client_closed", 499)
    assert eventually(world.gateway.idle)


def test_a_client_that_leaves_before_a_whole_answer_is_let_go(world: World) -> None:
    """llama.cpp itself notices this only for streams, so the engine is not asked; the answer is kept short."""
    world.engine("llamacpp")
    with Client(world.gateway.address, 60) as client:
        client.send(request_bytes("POST", CHAT, {"model": "alias", "messages": HELLO, **LONG, "max_tokens": 60}))
        assert eventually(lambda: world.busy_slots() == 1)
    assert eventually(world.gateway.idle)
    assert eventually(lambda: world.busy_slots() == 0, 30.0)


def test_more_calls_than_slots_are_all_answered(world: World) -> None:
    world.engine("llamacpp")

    def call(number: int) -> Response:
        body = {"model": "alias", "messages": [{"role": "user", "content": f"Count from {number}"}], **SHORT}
        return world.through(CHAT, body | {"stream": number % 2 == 0})

    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(call, range(8)))
    assert [done.status for done in answers] == [200] * 8
    assert all(done.text and done.finish and done.done for done in answers[::2])
    assert [done.json()["usage"]["completion_tokens"] for done in answers[1::2]] == [6] * 4
    rows = world.gateway.rows([done.value("x-request-id") for done in answers])
    assert {(row["outcome"], row["output_length"], row["usage_estimated"]) for row in rows} == {("ok", 6, False)}


def test_a_choice_that_ends_early_does_not_end_the_others(world: World) -> None:
    """The first prompt meets its stop text at once; the second goes on for longer than `done_grace_s`."""
    body = {
        "model": "alias", "prompt": ["The sky is", "A dog"], "stop": [" canvas"], "stream": True,
        "max_tokens": 120, "temperature": 0, "ignore_eos": True,
    }  # fmt: skip
    direct = world.direct("llamacpp", COMPLETIONS, body | {"model": "default"})
    through = world.through(COMPLETIONS, body)
    assert min(direct.elapsed_s, through.elapsed_s) > 2 * world.gateway.settings["stream"]["done_grace_s"]
    assert ends(direct) == ends(through) == {0: "stop", 1: "length"}


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("target", "more"),
    [
        (CHAT, {"messages": HELLO}),
        (CHAT, {"messages": HELLO, "stream_options": {"include_usage": True}}),
        (COMPLETIONS, {"prompt": "The sky is blue"}),
        (RESPONSES, {"input": HELLO, "max_output_tokens": 6}),
        (MESSAGES, {"messages": HELLO}),
    ],
)
def test_the_journal_has_the_engines_counts(world: World, target: str, more: dict[str, Any], stream: bool) -> None:
    """The second time all of the prompt but its last token comes from the cache, whatever the API calls that."""
    world.engine("llamacpp")
    for _ in range(2):
        done = world.through(target, {"model": "alias", "stream": stream, **SHORT, **more})
        assert done.status == 200, done.body
    row = world.gateway.close_line(str(done.value("x-request-id")))
    prompt_tokens = 4 if target == COMPLETIONS else 32
    assert (row["input_length"], row["output_length"]) == (prompt_tokens, 6)
    assert (row["cached_tokens"], row["usage_estimated"]) == (prompt_tokens - 1, False)


def test_an_input_that_is_too_large_is_tried_once(world: World) -> None:
    """llama.cpp answers 500 to it: more tries cannot help, and must not open the breaker for others."""
    world.engine("llamacpp")
    done = world.through(EMBEDDINGS, {"model": "alias", "input": "word " * 600})
    assert done.status == 500
    assert "too large" in done.json()["error"]["message"]
    assert len(world.gateway.close_line(str(done.value("x-request-id")))["attempts"]) == 1


def test_a_prompt_of_3000_tokens(world: World) -> None:
    body = {"messages": [*TALK[:1], {"role": "user", "content": "word " * 2980}], "stream": True, **SHORT}
    cold = world.through(CHAT, body | {"model": "alias"})
    assert cold.status == 200
    assert cold.done and cold.finish == "length"
    direct = Repeated(lambda: answer(world.direct("llamacpp", CHAT, body | {"model": "default"})))
    through = world.through(CHAT, body | {"model": "alias"})
    assert direct.faults(answer(through), "alias") == []
    row = world.gateway.close_line(str(through.value("x-request-id")))
    assert row["input_length"] >= 3000
    assert (row["output_length"], row["usage_estimated"]) == (6, False)
    assert row["cached_tokens"] == row["input_length"] - 1


# --- where Forebay answers otherwise, on purpose ---

ASK = {"model": "alias", "messages": HELLO}
REFUSED: dict[str, tuple[str, Any, int, str, str | None]] = {
    "wrong model": (CHAT, ASK | {"model": "nope"}, 404, "model_not_found", "model"),
    "no model": (CHAT, {"messages": HELLO}, 400, "missing_value", "model"),
    "model of another type": (CHAT, ASK | {"model": 7}, 400, "invalid_value", "model"),
    "no messages": (CHAT, {"model": "alias"}, 400, "missing_value", "messages"),
    "messages of another type": (CHAT, ASK | {"messages": "hi"}, 400, "invalid_value", "messages"),
    "stream of another type": (CHAT, ASK | {"stream": "yes"}, 400, "invalid_value", "stream"),
    "max_tokens of another type": (CHAT, ASK | {"max_tokens": "6"}, 400, "invalid_value", "max_tokens"),
    "no JSON": (CHAT, b"{bad", 400, "invalid_json", None),
    "an array": (CHAT, b"[]", 400, "invalid_json", None),
    "a member twice": (CHAT, b'{"model":"alias","model":"default","messages":[]}', 400, "duplicate_key", "model"),
    "no reranking model": ("/v1/rerank", {"model": "alias", "query": "a"}, 404, "endpoint_not_supported", None),
    "no such endpoint": ("/v1/score", {"model": "alias", "text_1": "a"}, 404, "endpoint_not_supported", None),
    "an engine's own route": ("/completion", {"model": "alias", "prompt": "a"}, 404, "route_not_found", None),
    "an engine's control": ("/slots/0?action=erase", {}, 404, "route_not_found", None),
}


@pytest.mark.parametrize(("target", "body", "status", "code", "param"), REFUSED.values(), ids=REFUSED)
def test_what_forebay_refuses(world: World, target: str, body: Any, status: int, code: str, param: str | None) -> None:
    world.engine("llamacpp")
    done = world.through(target, body)
    assert (done.status, done.error["code"], done.error["param"]) == (status, code, param)
    assert world.busy_slots() == 0
