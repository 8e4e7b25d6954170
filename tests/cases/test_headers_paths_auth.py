"""Cases 040, 042, 044, 046 and 048: credentials, model ids in paths, hop-by-hop headers, CORS, addresses."""

from collections.abc import Iterator
from typing import Any
from urllib.parse import quote

import pytest
from cases.pair import CHAT, Pair
from cases.rawhttp import Client, Response, ask, chat, request_bytes
from gateway_process import document, pool
from notation import FIN, HANG, Answer, D, Wait, chunk, completion, head, raw, reply, stream
from scripted import ScriptedEngine, well

pytestmark = pytest.mark.integration

TARGETS = {
    CHAT: chat(stream=False),
    "/v1/completions": {"model": "m", "prompt": "hi"},
    "/v1/embeddings": {"model": "m", "input": "hi"},
}


def heads(upstream: ScriptedEngine) -> str:
    return "\n".join(seen.head_text for seen in list(upstream.requests))


def test_case_040_an_engine_sees_its_own_credential_alone(engine: Any, gateway: Any) -> None:
    upstream = engine()
    settings = document(upstream, pools={"main": pool(upstream, api_key="env:ENGINE_ONE_KEY")})
    running = gateway(settings, env={"ENGINE_ONE_KEY": "sk-engine-one"})
    running.secrets.append("sk-engine-one")
    pair = Pair(upstream, running)
    for target, payload in TARGETS.items():
        for credential in ("Authorization: Bearer key-A", "x-api-key: key-A", "api-key: key-A"):
            answer = pair.post(payload, target, key=None, headers=(credential, "Cookie: session=key-A"))
            assert answer.status == (401 if credential.startswith("api-key") else 200)
    # A retry on a fresh connection carries the same credential.
    upstream.default = lambda seen: well(seen) if seen.nth == 1 else Answer((FIN,))
    assert pair.post(chat(stream=False)).status == 200
    assert upstream.posts and "key-A" not in heads(upstream)
    assert {tuple(seen.values("authorization")) for seen in upstream.posts} == {("Bearer sk-engine-one",)}
    for probe in [seen for seen in upstream.requests if seen.method == "GET"]:
        assert probe.values("authorization") in ([], ["Bearer sk-engine-one"])
    upstream.reset()
    running.common_ending()


def test_case_040_an_engine_without_credential_sees_none(pair: Pair) -> None:
    for target, payload in TARGETS.items():
        assert pair.post(payload, target).status == 200
        assert pair.post({**payload, "user": "u"}, target, key=None, headers=("X-Api-Key: key-A",)).status == 200
    assert len(pair.engine.posts) == 6
    for seen in pair.engine.requests:
        assert seen.values("authorization") == [] and seen.values("x-api-key") == []
        assert "key-A" not in seen.head_text
    pair.gateway.common_ending()


def test_case_040_a_credential_that_is_missing_stops_the_start(engine: Any, gateway: Any) -> None:
    upstream = engine()
    settings = document(upstream, pools={"main": pool(upstream, api_key="env:NOT_SET_ANYWHERE")})
    running = gateway(settings, ready=False)
    assert running.process.wait(15) == 2
    assert "NOT_SET_ANYWHERE" in running.log and "Traceback" not in running.log
    assert upstream.requests == []


ODD = ("org/model-7b:q4", "/srv/models/x", "模型")


@pytest.fixture(scope="module")
def odd(module_engine: Any, module_gateway: Any) -> Pair:
    engine = module_engine(models=(*ODD, "hidden"))
    settings = document(
        engine,
        models={name: {"pool": "main"} for name in (*ODD, "hidden")},
        tenants=[{"name": "a", "keys": ["key-A"], "models": list(ODD)}, {"name": "b", "keys": ["key-B"]}],
    )
    return Pair(engine, module_gateway(settings))


def get(pair: Pair, target: str, key: str | None = "key-A") -> Response:
    return ask(pair.gateway.address, "GET", target, key=key)


def test_case_042_the_list(odd: Pair) -> None:
    listed = get(odd, "/v1/models").json()
    assert listed["object"] == "list"
    assert [model["id"] for model in listed["data"]] == list(ODD)
    assert {"id", "object", "created", "owned_by"} <= set(listed["data"][0])
    assert get(odd, "/v1/models", key=None).status == 401
    odd.gateway.common_ending(ODD[0])


@pytest.mark.parametrize(
    ("target", "name"),
    [
        ("/v1/models/org/model-7b:q4", ODD[0]),
        ("/v1/models/org%2Fmodel-7b%3Aq4", ODD[0]),
        ("/v1/models/org%2fmodel-7b:q4", ODD[0]),
        ("/v1/models/%E6%A8%A1%E5%9E%8B", ODD[2]),
        ("/v1/models/" + quote(ODD[1], safe=""), ODD[1]),
        ("/v1/models//srv/models/x", ODD[1]),
    ],
)
def test_case_042_each_listed_id_is_found(odd: Pair, target: str, name: str) -> None:
    answer = get(odd, target)
    assert answer.status == 200
    assert answer.json()["id"] == name and answer.json()["object"] == "model"
    odd.gateway.common_ending(ODD[0])


@pytest.mark.parametrize("target", ["/v1/models/org%2Fnope", "/v1/models/org/nope", "/v1/models/hidden"])
def test_case_042_others_are_not_found(odd: Pair, target: str) -> None:
    answer = get(odd, target)
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    odd.gateway.common_ending(ODD[0])


@pytest.mark.parametrize("name", ODD)
def test_case_042_each_listed_id_can_be_called(odd: Pair, name: str) -> None:
    answer = odd.post(chat(name, stream=False))
    assert answer.status == 200 and answer.json()["model"] == name
    assert odd.engine.posts[-1].json()["model"] == name
    odd.gateway.common_ending(ODD[0])


def test_case_044_hop_by_hop_headers_stop_here(pair: Pair) -> None:
    body = request_bytes("POST", CHAT, chat(stream=False)).partition(b"\r\n\r\n")[2]
    lines = (
        f"POST {CHAT} HTTP/1.1",
        "Host: forebay.test",
        "Authorization: Bearer key-A",
        "Connection: close, X-Trace-Secret",
        "X-Trace-Secret: 1",
        "Keep-Alive: timeout=5",
        "TE: trailers",
        "Upgrade: h2c",
        "Proxy-Authorization: Basic eA==",
        "Transfer-Encoding: chunked",
    )
    up_body = reply(200, completion()).steps[0]
    assert isinstance(up_body, bytes)
    up_json = up_body.partition(b"\r\n\r\n")[2]
    up_head = head(
        200,
        "Content-Type: application/json",
        "Connection: keep-alive, X-Up",
        "X-Up: 1",
        "Trailer: X-T",
        "Transfer-Encoding: chunked",
    )
    pair.engine.play(raw(up_head, chunk(up_json[:20]), chunk(up_json[20:]), b"0\r\nX-T: 1\r\n\r\n"))
    with Client(pair.gateway.address) as client:
        client.send("\r\n".join((*lines, "", "")).encode() + chunk(body[:10]) + chunk(body[10:]) + b"0\r\n\r\n")
        answer = client.response()
        assert client.at_end(), "the client asked for the connection to be closed"
    assert answer.status == 200 and answer.json()["choices"][0]["message"]["content"] == "ok"
    seen = pair.engine.posts[0]
    assert seen.body == body
    for name in ("x-trace-secret", "keep-alive", "te", "upgrade", "proxy-authorization", "trailer"):
        assert seen.values(name) == [], name
    assert "x-trace-secret" not in " ".join(seen.values("connection")).lower()
    assert len(seen.values("content-length")) + len(seen.values("transfer-encoding")) == 1
    assert seen.values("host") == [f"127.0.0.1:{pair.engine.port}"]
    for name in ("x-up", "trailer", "x-t"):
        assert answer.values(name) == [], name
    assert len(answer.values("content-length")) + len(answer.values("transfer-encoding")) == 1
    pair.gateway.common_ending()


ORIGIN = "https://app.test"


@pytest.fixture(scope="module")
def browser_pair(module_engine: Any, module_gateway: Any) -> Pair:
    engine = module_engine()
    settings = document(
        engine,
        cors={"origins": [ORIGIN]},
        tenants=[
            {"name": "a", "keys": ["key-A"]},
            {"name": "b", "keys": ["key-B"], "limits": {"concurrency": 1}},
        ],
    )
    return Pair(engine, module_gateway(settings))


@pytest.fixture
def browser(browser_pair: Pair) -> Iterator[Pair]:
    browser_pair.engine.reset()
    yield browser_pair


def preflight(pair: Pair, origin: str) -> Response:
    asked = (
        f"Origin: {origin}",
        "Access-Control-Request-Method: POST",
        "Access-Control-Request-Headers: authorization,content-type",
    )
    return ask(pair.gateway.address, "OPTIONS", CHAT, key=None, headers=asked)


def test_case_046_preflight_needs_no_key(browser: Pair) -> None:
    refused_before = browser.gateway.metric("forebay_requests_refused_total")
    answer = preflight(browser, ORIGIN)
    assert 200 <= answer.status < 300 and answer.body == b""
    assert answer.value("access-control-allow-origin") == ORIGIN
    assert "POST" in (answer.value("access-control-allow-methods") or "")
    allowed = (answer.value("access-control-allow-headers") or "").lower()
    assert "authorization" in allowed and "content-type" in allowed
    assert "origin" in (answer.value("vary") or "").lower()
    assert browser.gateway.metric("forebay_requests_refused_total") == refused_before
    browser.gateway.common_ending()


def test_case_046_errors_and_streams_carry_the_header(browser: Pair) -> None:
    from_app = (f"Origin: {ORIGIN}",)
    bad_key = browser.post(chat(), key="nobody", headers=from_app)
    browser.engine.play(stream(D("a"), D("b"), D("c"), Wait(0.8), HANG))
    with Client(browser.gateway.address) as client:
        client.send(request_bytes("POST", CHAT, chat(), key="key-B"))
        client.read_until(b"data:")
        over_limit = browser.post(chat(), key="key-B", headers=from_app)
    streamed = browser.post(chat(), headers=from_app)
    assert [a.status for a in (bad_key, over_limit, streamed)] == [401, 429, 200]
    for answer in (bad_key, over_limit, streamed):
        assert answer.value("access-control-allow-origin") == ORIGIN
    browser.gateway.common_ending()


def test_case_046_another_origin_gets_nothing(browser: Pair) -> None:
    assert preflight(browser, "https://evil.test").values("access-control-allow-origin") == []
    answer = browser.post(chat(), headers=("Origin: https://evil.test",))
    assert answer.values("access-control-allow-origin") == []
    browser.gateway.common_ending()


@pytest.mark.parametrize(
    ("headers", "statuses"),
    [
        (("authorization: bearer key-A",), {200}),
        (("Authorization: BEARER  key-A",), {200}),
        (("Authorization: Bearer ",), {401}),
        (("Authorization: Bearer",), {401}),
        (("Authorization: Basic a2V5LUE=",), {401}),
        ((), {401}),
        (("Authorization: Bearer key-A", "Authorization: Bearer key-B"), {400, 401}),
        (("Authorization: Bearer key-A", "Authorization: Bearer key-A"), {400, 401}),
    ],
)
def test_case_046_ways_to_write_a_key(pair: Pair, headers: tuple[str, ...], statuses: set[int]) -> None:
    answer = pair.post(chat(stream=False), key=None, headers=headers)
    assert answer.status in statuses
    if answer.status == 401:
        assert (answer.value("www-authenticate") or "").lower().startswith("bearer")
    if answer.status != 200:
        assert pair.engine.posts == []
        assert answer.error["type"] in ("authentication_error", "invalid_request_error")
    pair.gateway.common_ending()


def address_of(pair: Pair, *headers: str) -> str:
    return str(pair.row(pair.post(chat(stream=False), headers=headers))["client_address"])


def test_case_048_nobody_is_believed_by_default(pair: Pair) -> None:
    assert address_of(pair, "X-Forwarded-For: 6.6.6.6") == "127.0.0.1"
    for i in range(20):
        assert address_of(pair, f"X-Forwarded-For: 10.0.0.{i}", "Forwarded: for=10.0.0.1") == "127.0.0.1"
    assert "6.6.6.6" not in heads(pair.engine) and "10.0.0." not in heads(pair.engine)
    pair.gateway.common_ending()


def test_case_048_the_right_most_address_behind_a_trusted_proxy(engine: Any, gateway: Any) -> None:
    upstream = engine()
    pair = Pair(upstream, gateway(document(upstream, trusted_proxies=["127.0.0.0/8"])))
    assert address_of(pair, "X-Forwarded-For: 6.6.6.6, 198.51.100.7") == "198.51.100.7"
    assert address_of(pair, "X-Forwarded-For: 6.6.6.6, 198.51.100.7, 127.0.0.9") == "198.51.100.7"
    assert address_of(pair, "X-Forwarded-For: 6.6.6.6", "X-Forwarded-For: 198.51.100.8") == "198.51.100.8"
    assert address_of(pair, "X-Forwarded-For: what ever") == "127.0.0.1"
    assert address_of(pair) == "127.0.0.1"
    pair.gateway.common_ending()
