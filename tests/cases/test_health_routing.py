"""Cases 060 and 064: whose fault it was, and engines that are not ready yet."""

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cases.pair import CHAT, Pair
from cases.rawhttp import Client, chat, request_bytes
from gateway_process import document, eventually, pool
from notation import STOP, D, reply, stream
from scripted import ScriptedEngine

pytestmark = pytest.mark.integration

BAD_REQUEST = {"error": {"message": "too long", "type": "BadRequestError", "param": None, "code": 400}}


@pytest.fixture
def alone(engine: Any, gateway: Any) -> Pair:
    upstream = engine()
    return Pair(upstream, gateway(document(upstream, pools={"main": pool(upstream, breaker={"failures": 3})})))


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_case_060_client_errors_are_no_failure(alone: Pair, status: int) -> None:
    alone.engine.play(*[reply(status, BAD_REQUEST)] * 20)
    assert {alone.post(chat()).status for _ in range(20)} == {status}
    assert alone.post(chat()).status == 200
    assert alone.gateway.metric("forebay_replica_up") == 1
    alone.gateway.common_ending()


def test_case_060_clients_that_leave_are_no_failure(alone: Pair) -> None:
    for _ in range(20):
        alone.engine.play(stream(*[D("a")] * 100, STOP, gap_s=0.05))
        with Client(alone.gateway.address) as client:
            client.send(request_bytes("POST", CHAT, chat()))
            client.read_until(b"data:")
    alone.engine.script.clear()
    assert alone.post(chat()).status == 200
    assert alone.gateway.metric("forebay_replica_up") == 1
    alone.gateway.common_ending()


@pytest.mark.parametrize("status", [401, 403])
def test_case_060_our_credential_is_refused(alone: Pair, status: int) -> None:
    refusal = {"error": {"message": "Unauthorized", "type": "auth", "param": None, "code": status}}
    alone.engine.default = reply(status, refusal)
    answers = [alone.post(chat()) for _ in range(20)]
    assert (answers[0].status, answers[0].error["code"]) == (502, "engine_credential")
    assert {answer.status for answer in answers} <= {502, 503}
    assert len(alone.engine.posts) < 20, "the replica stayed in rotation"
    assert eventually(lambda: alone.gateway.metric("forebay_replica_up") == 0, 30)
    assert "credential" in alone.gateway.get("/metrics")[1].decode()


def test_case_060_the_other_replica_serves_what_one_refuses(engine: Any, gateway: Any) -> None:
    wrong, right = engine(), engine()
    pair = Pair(right, gateway(document(wrong, right)))
    wrong.default = reply(401, {"error": {"message": "Unauthorized", "code": 401}})
    statuses = [pair.post(chat()).status for _ in range(20)]
    assert statuses.count(200) >= 19 and set(statuses) <= {200, 502}
    assert len(wrong.posts) <= 2
    pair.gateway.common_ending()


LOADING = {"error": {"message": "loading model", "type": "unavailable_error", "code": 503}}


def load(upstream: ScriptedEngine) -> None:
    """Behave as an engine whose model is still being read."""
    upstream.probes["/health"] = reply(503, LOADING)
    upstream.default = reply(503, LOADING)


def test_case_064_the_only_engine_is_loading(engine: Any, gateway: Any) -> None:
    upstream = engine()
    load(upstream)
    settings = document(upstream, pools={"main": pool(upstream, breaker={"failures": 2, "open_s": 60})})
    pair = Pair(upstream, gateway(settings))
    assert eventually(lambda: pair.gateway.get("/health/serving")[0] == 503, 30)
    for _ in range(5):
        answer = pair.post(chat())
        assert answer.status == 503
        assert int(answer.value("retry-after") or 0) >= 1
        assert answer.error["code"] in ("engine_loading", "no_engine", 503)
    assert pair.gateway.get("/health/ready")[0] == 200, "the gateway itself can answer"
    assert pair.gateway.get("/health/serving")[0] == 503
    time.sleep(1)
    upstream.reset()
    assert eventually(lambda: pair.post(chat()).status == 200, 30), "not picked up when it was ready"
    assert eventually(lambda: pair.gateway.get("/health/serving")[0] == 200, 30)
    pair.gateway.common_ending()


def test_case_064_a_ready_engine_takes_all(engine: Any, gateway: Any) -> None:
    slow, ready = engine(), engine()
    load(slow)
    settings = document(slow, pools={"main": pool(slow, ready, breaker={"failures": 2, "open_s": 60})})
    pair = Pair(ready, gateway(settings))
    with ThreadPoolExecutor(8) as threads:
        answers = list(threads.map(lambda _: pair.post(chat()), range(40)))
    assert {answer.status for answer in answers} == {200}
    assert max(answer.elapsed_s for answer in answers) < 10
    slow.reset()
    assert eventually(lambda: bool(pair.post(chat()).status == 200 and slow.posts), 30), (
        "the other was left out for good"
    )
    pair.gateway.common_ending()
