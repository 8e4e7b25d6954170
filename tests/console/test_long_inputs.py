"""The switch for long inputs from the admin port to the data port, with real processes."""

import http.client
import json
from collections.abc import Callable
from contextlib import closing
from typing import Any

import pytest
from gateway_process import Gateway, document, eventually
from notation import DONE, STOP, Answer, D, Wait, completion, reply, stream
from scripted import ScriptedEngine, Seen

pytestmark = pytest.mark.integration

CONSOLE_START_S = 20.0
EFFECT_S = 4.0  # far more than the second that it takes, on a machine that does other things too
SHORT, LONG = "hi", "word " * 4000
OVERRIDES = "/api/policy/overrides"


def admin(gateway: Gateway, method: str, path: str, body: Any = None) -> tuple[int, Any]:
    token = (gateway.data_dir / "admin-token").read_text().strip()
    connection = http.client.HTTPConnection(*gateway.admin, timeout=10)
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    try:
        connection.request(method, path, body and json.dumps(body), headers)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read() or "null")
    finally:
        connection.close()


def refuse(gateway: Gateway, target: str, ttl_s: int = 600) -> tuple[int, Any]:
    """Ask for inputs over 1,000 tokens to be refused."""
    asked = {"kind": "refuse_long_inputs", "target": target, "tokens": 1000, "ttl_s": ttl_s, "reason": "r", "by": "t"}
    return admin(gateway, "POST", OVERRIDES, asked)


def post(gateway: Gateway, text: str, model: str = "m", *, streams: bool = False) -> http.client.HTTPConnection:
    body = {"model": model, "stream": streams, "messages": [{"role": "user", "content": text}]}
    connection = http.client.HTTPConnection(*gateway.address, timeout=10)
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Authorization": "Bearer key-A"})
    return connection


def ask(gateway: Gateway, text: str, model: str = "m") -> tuple[int, Any]:
    connection = post(gateway, text, model)
    try:
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())
    finally:
        connection.close()


def becomes(gateway: Gateway, status: int, text: str = LONG, model: str = "m") -> bool:
    return eventually(lambda: ask(gateway, text, model)[0] == status, EFFECT_S)


def counting(seen: Seen) -> Answer:
    """An engine that counts a token for each word, as the estimates learn from what engines count."""
    body = seen.json()
    tokens = len(body["messages"][0]["content"].split()) + 5
    return reply(200, completion(body["model"], prompt=tokens))


@pytest.fixture
def upstream(engine: Callable[..., ScriptedEngine]) -> ScriptedEngine:
    """An engine with two models."""
    return engine(models=("m", "n"), default=counting)


@pytest.fixture
def running(upstream: ScriptedEngine, gateway: Callable[..., Gateway]) -> Gateway:
    """A gateway before the engine, and a control plane that answers."""
    models = {"m": {"pool": "main"}, "n": {"pool": "main"}}
    timeouts = {"connect_s": 1, "first_byte_s": 5, "stall_s": 20, "total_s": 60}
    started = gateway(document(upstream, models=models, timeouts=timeouts))
    assert eventually(lambda: started.admin_get("/api/status")[0] == 200, CONSOLE_START_S)
    return started


def test_long_inputs_are_refused_until_the_switch_is_taken_back(running: Gateway, upstream: ScriptedEngine) -> None:
    # The stream goes on until after the switch has been seen to work.
    upstream.play(stream(D("a"), Wait(EFFECT_S), D("b"), STOP, DONE, gap_s=0))
    with closing(post(running, LONG, streams=True)) as streaming:
        answer = streaming.getresponse()
        assert answer.status == 200 and b'"a"' in answer.readline()
        assert ask(running, LONG)[0] == 200
        status, made = refuse(running, "m")
        assert status == 201, made
        assert becomes(running, 422)
        status, refusal = ask(running, LONG)
        assert (status, refusal["error"]["code"]) == (422, "rule_rejected")
        assert "more than 1,000 tokens" in refusal["error"]["message"]
        assert "Shorten or summarise" in refusal["error"]["message"]
        assert ask(running, SHORT)[0] == 200
        assert ask(running, LONG, "n")[0] == 200
        rest = answer.read()
        assert b'"b"' in rest and rest.endswith(DONE)
    assert admin(running, "DELETE", f"{OVERRIDES}/{made['id']}")[0] == 204
    assert becomes(running, 200)
    lines = admin(running, "GET", "/api/timeline?limit=2")[1]["actions"]
    assert [(line["kind"], line["change"], line["tokens"]) for line in lines] == [
        ("override.deleted", "refuse_long_inputs", 1000),
        ("override.created", "refuse_long_inputs", 1000),
    ]
    running.common_ending()


def test_the_switch_for_all_models_ends_by_itself(running: Gateway) -> None:
    status, answer = refuse(running, "gone")
    assert (status, answer["error"]["param"]) == (400, "target")
    assert refuse(running, "*", ttl_s=4)[0] == 201
    assert becomes(running, 422) and becomes(running, 422, model="n")
    assert eventually(lambda: ask(running, LONG)[0] == 200, 4 + EFFECT_S)
    assert ask(running, LONG, "n")[0] == 200
