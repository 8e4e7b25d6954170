"""Cases 057 and 059: bounded labels, useful buckets, and secrets that stay secret."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cases.pair import CHAT, Pair
from cases.rawhttp import ask, chat
from gateway_process import Gateway, document, eventually, free_port, pool
from notation import HANG, Answer, reply

pytestmark = pytest.mark.integration


def unknown(pair: Pair, i: int) -> None:
    """Five requests, each with something new in it."""
    address = pair.gateway.address
    assert pair.post(chat(f"model-{i}", user=f"user-{i}")).status == 404
    assert ask(address, "POST", f"/v1/x{i}", chat()).status == 404
    assert ask(address, "GET", f"/v1/models/model-{i}").status == 404
    assert pair.post(chat(user=f"user-{i}"), key=f"bad-key-{i}").status == 401
    served = (f"X-User-Id: user-{i}", f"X-Prompt-Template-Id: template-{i}", f"X-Request-Value: value-{i}")
    assert pair.post(chat(user=f"user-{i}"), headers=served).status == 200


def test_case_057_labels_do_not_grow(pair: Pair) -> None:
    for i in range(10):
        unknown(pair, i)
    before = set(pair.gateway.metrics())
    for i in range(10, 210):
        unknown(pair, i)
    after = set(pair.gateway.metrics())
    # The reading of a pool is absent until it is known; there is one for each pool.
    grown = {(name, labels) for name, labels in after - before if name != "forebay_ladder_kv_ratio"}
    assert not grown and before <= after
    text = pair.gateway.get("/metrics")[1].decode()
    for raw_value in ("model-", "/v1/x", "user-", "bad-key", "value-", "template-"):
        assert raw_value not in text, raw_value
    pair.gateway.common_ending()


def test_an_unknown_method_is_no_new_label(pair: Pair) -> None:
    assert ask(pair.gateway.address, "LOCK", CHAT).status == 405
    before = set(pair.gateway.metrics())
    for method in ("PUT", "DELETE", "PATCH"):
        assert ask(pair.gateway.address, method, CHAT).status == 405
    assert set(pair.gateway.metrics()) - before == set()
    pair.gateway.common_ending()


@pytest.mark.parametrize(
    ("name", "lasting_s"),
    [
        ("forebay_request_duration_seconds", (0.02, 5.0, 70.0, 400.0)),
        ("forebay_time_to_first_token_seconds", (0.02, 0.2, 2.0, 20.0)),
    ],
)
def test_case_057_buckets_tell_times_apart(pair: Pair, name: str, lasting_s: tuple[float, ...]) -> None:
    bounds = sorted({float(dict(labels)["le"]) for n, labels in pair.gateway.metrics() if n == f"{name}_bucket"})
    assert bounds and bounds[-1] == math.inf
    finite = bounds[:-1]
    buckets = [next((bound for bound in finite if bound >= value), None) for value in lasting_s]
    assert None not in buckets and len(set(buckets)) == len(lasting_s), buckets
    if name == "forebay_request_duration_seconds":
        assert finite[-1] >= 600, "total_s may be 600 s, and such a call must fall in a finite bucket"


def test_case_057_total_and_first_token_have_their_own_buckets(pair: Pair) -> None:
    def bounds(name: str) -> set[str]:
        return {dict(labels)["le"] for n, labels in pair.gateway.metrics() if n == f"{name}_bucket"}

    assert bounds("forebay_request_duration_seconds") != bounds("forebay_time_to_first_token_seconds")


CLIENT_KEY = "sk-CANARY-1-client"
ENGINE_KEY = "sk-CANARY-2-engine"
CANARIES = ("CANARY-1", "CANARY-2", "CANARY-3", "CANARY-4", "CANARY-5", "CANARY-6")


@pytest.fixture
def canaries(engine: Any, gateway: Any) -> Iterator[tuple[Pair, list[bytes]]]:
    upstream = engine(base_path="/base")
    here = pool(api_key="env:CANARY_ENGINE_KEY")
    here["replicas"] = [{"url": f"http://u:CANARY-3@127.0.0.1:{upstream.port}/base?key=CANARY-4"}]
    gone = {**here, "replicas": [{"url": f"http://u:CANARY-3@127.0.0.1:{free_port()}/?key=CANARY-4"}]}
    # The same engine in a second pool: what happens there ejects nothing from the first.
    pools = {"main": here, "refusing": here, "gone": gone}
    settings = document(
        upstream,
        pools=pools,
        models={"m": {"pool": "main"}, "refused": {"pool": "refusing"}, "gone": {"pool": "gone"}},
        tenants=[{"name": "a", "keys": [CLIENT_KEY]}],
        log={"level": "debug"},
    )
    running = gateway(settings, env={"CANARY_ENGINE_KEY": ENGINE_KEY})
    running.secrets = list(CANARIES)
    yield Pair(upstream, running), []


def run_all(pair: Pair, shown: list[bytes]) -> None:
    """Every way to leak that a client can provoke; the bodies and headers of all answers are collected."""

    def post(model: str = "m", key: str = CLIENT_KEY, **members: Any) -> int:
        asked = chat(model, messages=[{"role": "user", "content": "CANARY-5 prompt"}], **members)
        answer = pair.post(asked, key=key)
        shown.append(answer.body + repr(answer.headers).encode())
        return answer.status

    assert post() == 200 and post(stream=False) == 200
    assert post(key="sk-CANARY-6-wrong") == 401
    assert post("no-such-model") == 404
    assert post("gone") in (502, 503)
    refusal = {"error": {"message": f"bad key {ENGINE_KEY} at http://u:CANARY-3@x/?key=CANARY-4", "code": 401}}
    pair.engine.play(reply(401, refusal))
    assert post("refused") == 502
    pair.engine.default = Answer((HANG,))
    assert post(stream=False) == 504
    pair.engine.default = Answer((b"NOT HTTP CANARY-5\r\n\r\n",))
    assert post(stream=False) in (502, 503)
    pair.engine.reset()
    shown.append(pair.post(b'{"model":"m","messages":"CANARY-5', key=CLIENT_KEY).body)
    shown.append(ask(pair.gateway.address, "GET", "/v1/models", key="sk-CANARY-6-wrong").body)


def reload_badly_and_back(running: Gateway) -> None:
    good = running.file.read_bytes()
    running.file.write_bytes(good.replace(b"api_key: env:CANARY_ENGINE_KEY", b"api_key: [sk-CANARY-2-engine, 5"))
    assert eventually(lambda: "forebay.yaml" in running.log or "config" in running.log.lower(), 30)
    running.file.write_bytes(good)


@pytest.mark.timeout(90)
def test_case_059_no_secret_anywhere(canaries: tuple[Pair, list[bytes]]) -> None:
    pair, shown = canaries
    run_all(pair, shown)
    reload_badly_and_back(pair.gateway)
    for path in ("/metrics", "/health/live", "/health/ready", "/health/serving"):
        shown.append(pair.gateway.get(path)[1])
    assert eventually(lambda: pair.gateway.admin_get("/api/status")[0] == 200, 30)
    shown += [pair.gateway.admin_get(path)[1] for path in ("/api/status", "/api/timeline", "/", "/docs")]
    assert eventually(lambda: pair.post(chat(), key=CLIENT_KEY).status == 200, 30)
    pair.gateway.common_ending(key=CLIENT_KEY)
    for body in shown:
        assert not [canary for canary in CANARIES if canary.encode() in body], body
    log = pair.gateway.log
    assert not [canary for canary in CANARIES if canary in log], log
    journal = "".join(path.read_text() for path in pair.gateway.data_dir.glob("journal/*"))
    assert "outcome" in journal and not [canary for canary in CANARIES if canary in journal]
    leaky = files_with(pair.gateway.data_dir, [CLIENT_KEY, ENGINE_KEY, "CANARY-5", "CANARY-6"])
    assert leaky == [], "what lies in the data directory outlives the process"
    # The engine did get its own credentials, so the search above had something to find.
    assert {tuple(seen.values("authorization")) for seen in pair.engine.posts} == {(f"Bearer {ENGINE_KEY}",)}
    assert "key=CANARY-4" in pair.engine.posts[-1].target


def files_with(folder: Path, words: list[str]) -> list[str]:
    """Which files of a folder hold one of these words."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [str(path) for path in files if any(word.encode() in path.read_bytes() for word in words)]


def test_case_059_a_prompt_in_an_engines_answer_is_not_logged(pair: Pair) -> None:
    pair.engine.default = reply(500, {"error": {"message": "cannot serve CANARY-5", "type": "x", "code": 500}})
    pair.post(chat(messages=[{"role": "user", "content": "CANARY-5"}]))
    pair.engine.reset()
    assert "CANARY-5" not in pair.gateway.log
    pair.gateway.common_ending()
