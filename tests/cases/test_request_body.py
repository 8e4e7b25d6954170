"""Cases 031, 033, 035, 036 and 038: what a request body may hold, and what the engine gets of it."""

import json
import threading
import time
from collections.abc import Iterator
from typing import Any, Self

import pytest
from cases.pair import CHAT, Pair
from cases.rawhttp import MESSAGES, Client, ask, chat, request_bytes
from gateway_process import document, pool
from notation import reply

pytestmark = pytest.mark.integration

HI = b'"messages":[{"role":"user","content":"hi"}]'


@pytest.fixture(scope="module")
def models_pair(module_engine: Any, module_gateway: Any) -> Pair:
    engine = module_engine(models=("real", "cheap", "forbidden"))
    settings = document(
        engine,
        models={
            "cheap": {"pool": "main"},
            "forbidden": {"pool": "main"},
            "a": {"pool": "main", "upstream_model": "real"},
        },
        tenants=[{"name": "a", "keys": ["key-A"], "models": ["cheap"]}, {"name": "b", "keys": ["key-B"]}],
    )
    return Pair(engine, module_gateway(settings))


@pytest.fixture
def models(models_pair: Pair) -> Iterator[Pair]:
    models_pair.engine.reset()
    yield models_pair


AMBIGUOUS = {
    "allowed, then forbidden": b'{"model":"cheap","model":"forbidden",' + HI + b"}",
    "forbidden, then allowed": b'{"model":"forbidden","model":"cheap",' + HI + b"}",
    "one of them escaped": b'{"model":"cheap","mod\\u0065l":"forbidden",' + HI + b"}",
    "max_tokens": b'{"model":"cheap","max_tokens":1,"max_tokens":9999,' + HI + b"}",
    "stream": b'{"model":"cheap","stream":true,"stream":false,' + HI + b"}",
    "the same value twice": b'{"model":"cheap","model":"cheap",' + HI + b"}",
}


@pytest.mark.parametrize("what", AMBIGUOUS)
def test_case_031_duplicate_top_level_keys(models: Pair, what: str) -> None:
    with Client(models.gateway.address) as client:
        answer = client.ask("POST", CHAT, AMBIGUOUS[what])
        assert (answer.status, answer.error["code"]) == (400, "duplicate_key")
        assert models.engine.posts == []
        assert client.ask("POST", CHAT, chat("cheap")).status == 200
    models.gateway.common_ending("cheap")


def test_case_031_a_duplicate_key_deep_inside(models: Pair) -> None:
    tool = b'"tools":[{"type":"function","function":{"name":"f","name":"g"}}]'
    with Client(models.gateway.address) as client:
        assert client.ask("POST", CHAT, b'{"model":"cheap",' + HI + b"," + tool + b"}").status in (200, 400)
        assert client.ask("POST", CHAT, chat("cheap")).status == 200
    models.gateway.common_ending("cheap")


def test_case_031_the_right_is_checked(models: Pair) -> None:
    answer = models.post(chat("forbidden"))
    assert (answer.status, answer.error["code"]) == (403, "model_not_allowed")
    answer = models.post(chat("nope"))
    assert (answer.status, answer.error["code"]) == (404, "model_not_found")
    assert models.engine.posts == []
    models.gateway.common_ending("cheap")


SURROGATES = {
    "high half": rb'{"model":"m","messages":[{"role":"user","content":"cut \ud83d"}]}',
    "low half": rb'{"model":"m","messages":[{"role":"user","content":"cut \ude00"}]}',
    "tool description": b'{"model":"m",' + HI + rb',"tools":[{"function":{"name":"f","description":"\ud83d"}}]}',
    "user": b'{"model":"m",' + HI + rb',"user":"\ud83d"}',
    "object key": b'{"model":"m",' + HI + rb',"metadata":{"\ud83d":"x"}}',
    "top-level key": b'{"model":"m",' + HI + rb',"\ud83d":"x"}',
    "model": b'{"model":"m\\ud83d",' + HI + b"}",
}


@pytest.mark.parametrize("where", SURROGATES)
def test_case_033_lone_surrogates(pair: Pair, where: str) -> None:
    answer = pair.post(SURROGATES[where])
    if answer.status == 200:
        assert json.loads(pair.engine.posts[0].body) == json.loads(SURROGATES[where])
        assert pair.row(answer)["outcome"] == "ok"
    else:
        assert answer.status in ((400, 404) if where == "model" else (400,))
        assert answer.error["type"] == "invalid_request_error"
    pair.gateway.common_ending()


def test_case_033_a_whole_pair_arrives(pair: Pair) -> None:
    answer = pair.post(rb'{"model":"m","messages":[{"role":"user","content":"\ud83d\ude80"}]}')
    assert answer.status == 200
    assert pair.engine.posts[0].json()["messages"][0]["content"] == "\N{ROCKET}"
    pair.gateway.common_ending()


def nested(depth: int) -> bytes:
    return b'{"a":' * depth + b"1" + b"}" * depth


DEEP = {
    "20,000 lists": b'{"model":"m",' + HI + b',"x":' + b"[" * 20_000 + b"]" * 20_000 + b"}",
    "20,000 lists left open": b'{"model":"m",' + HI + b',"x":' + b"[" * 20_000,
    "1,000 objects in a tool": b'{"model":"m",'
    + HI
    + b',"tools":[{"type":"function","function":{"name":"f","parameters":'
    + nested(1_000)
    + b"}}]}",
    "1,025 objects": b'{"model":"m",' + HI + b',"x":' + nested(1_025) + b"}",
    "129 levels": b'{"model":"m",' + HI + b',"x":' + nested(129) + b"}",
    "20,000 lists alone": b"[" * 20_000 + b"]" * 20_000,
}


@pytest.mark.parametrize("what", DEEP)
def test_case_035_too_deep(pair: Pair, what: str) -> None:
    answer = pair.post(DEEP[what])
    assert answer.status == 400
    assert answer.error["code"] in ("json_too_deep", "invalid_json")
    if "open" not in what and "alone" not in what:
        assert answer.error["code"] == "json_too_deep"
    assert pair.engine.posts == []
    pair.gateway.common_ending()


def test_case_035_a_hundred_levels_pass_and_brackets_in_text_do_not_count(pair: Pair) -> None:
    assert pair.post(b'{"model":"m",' + HI + b',"x":' + nested(100) + b"}").status == 200
    text = json.dumps({"model": "m", "messages": [{"role": "user", "content": '[{"' * 5_000 + "\\"}]})
    assert pair.post(text.encode()).status == 200
    assert pair.engine.posts[1].json() == json.loads(text)
    pair.gateway.common_ending()


def resident_bytes(pid: int) -> int:
    with open(f"/proc/{pid}/status") as status:
        line = next(line for line in status if line.startswith("VmRSS"))
    return int(line.split()[1]) * 1024


class Probe(threading.Thread):
    """Asks something small again and again, and keeps how long each took."""

    def __init__(self, pair: Pair, every_s: float, method: str, target: str, payload: object = None) -> None:
        super().__init__()
        self.took_s: list[float] = []
        self.statuses: set[int] = set()
        self._over = threading.Event()
        self._pair = pair
        self._every_s = every_s
        self._what = (method, target, payload)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self.join()

    def run(self) -> None:
        while not self._over.wait(self._every_s):
            answer = ask(self._pair.gateway.address, *self._what)
            self.took_s.append(answer.elapsed_s)
            self.statuses.add(answer.status)


@pytest.mark.parametrize("level", ["info", "debug"])
def test_case_036_a_large_body_beside_small_ones(engine: Any, gateway: Any, level: str) -> None:
    upstream = engine()
    pair = Pair(upstream, gateway(document(upstream, log={"level": level})))
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "QUJD" * 7_500_000}}
    bodies = [
        json.dumps(chat(stream=False, messages=[{"role": "user", "content": [image]}])).encode(),
        json.dumps(chat(stream=False, messages=[{"role": "user", "content": "plain words " * 500_000}])).encode(),
    ]
    pair.gateway.common_ending()
    before = resident_bytes(pair.gateway.process.pid)
    with (
        Probe(pair, 0.05, "POST", CHAT, chat(stream=False)) as small,
        Probe(pair, 0.1, "GET", "/health/live") as health,
    ):
        for body in bodies:
            answer = pair.post(body)
            assert answer.status == 200, answer.body[:200]
            time.sleep(0.2)
    for probe in (small, health):
        assert probe.statuses == {200}
        # Client, engine and gateway share a small machine: this sees a gateway that is blocked for as long as
        # it works on the large body; the 50 ms of the case are measured by the benchmark.
        assert sorted(probe.took_s)[-2] < 0.6, probe.took_s
    big = next(seen for seen in upstream.posts if len(seen.body) > 20_000_000)
    assert big.json() == json.loads(bodies[0])
    grown = resident_bytes(pair.gateway.process.pid) - before
    assert grown < 3 * len(bodies[0]) + 30_000_000, f"{grown / 1e6:.0f} MB more"
    assert len(pair.gateway.log) < 200_000
    assert "QUJDQUJD" not in pair.gateway.log and "plain words plain" not in pair.gateway.log
    pair.gateway.common_ending()


def test_case_036_one_byte_too_many(pair: Pair) -> None:
    limit = 33_554_432
    with Client(pair.gateway.address) as client:
        head, _, _ = request_bytes("POST", CHAT, chat()).partition(b"\r\n\r\n")
        size = head.split(b"Content-Length: ")[1]
        client.send(head.replace(b"Content-Length: " + size, b"Content-Length: %d" % (limit + 1)) + b"\r\n\r\n")
        answer = client.response()
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")
    assert pair.engine.posts == []
    pair.gateway.common_ending()


def test_case_036_one_byte_too_many_without_a_length(engine: Any, gateway: Any) -> None:
    upstream = engine()
    pair = Pair(upstream, gateway(document(upstream, limits={"body_bytes": 100_000})))
    with Client(pair.gateway.address) as client:
        client.send(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer key-A\r\n"
            b"Transfer-Encoding: chunked\r\n\r\n"
        )
        for _ in range(11):
            client.send(b"2710\r\n" + b" " * 10_000 + b"\r\n")
        answer = client.response()
    assert (answer.status, answer.error["code"]) == (413, "body_too_large")
    padded = json.dumps(chat(stream=False)).encode()
    assert pair.post(padded + b" " * (100_000 - len(padded))).status == 200
    assert pair.post(padded + b" " * (100_001 - len(padded))).status == 413
    pair.gateway.common_ending()


ENGINE_OWN = {
    "chat_template_kwargs": {"enable_thinking": False},
    "top_k": 20,
    "min_p": 0.05,
    "guided_json": {"type": "object"},
    "max_completion_tokens": 64,
    "parallel_tool_calls": False,
    "x_vendor": {"deep": [1, {"a": None}]},
}
MESSAGE = {
    "role": "user",
    "content": "hi",
    "reasoning_content": "because",
    "cache_control": {"type": "ephemeral"},
}


def test_case_038_unknown_fields_go_both_ways(models: Pair) -> None:
    answered = {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": "real",
        "system_fingerprint": "fp_1",
        "kv_transfer_params": {"remote": [1, None]},
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": "x", "reasoning_content": "thought"},
                "finish_reason": "stop",
                "stop_reason": 5,
            }
        ],
        "usage": {"prompt_tokens": 3, "completion_tokens": 1, "total_tokens": 4},
    }
    models.engine.play(reply(200, answered))
    sent = {"model": "a", "messages": [MESSAGE], **ENGINE_OWN}
    answer = models.post(sent, key="key-B")
    assert answer.json() == {**answered, "model": "a"}
    assert models.engine.posts[0].json() == {**sent, "model": "real"}
    assert answer.value("x-forebay-stripped") is None
    models.gateway.common_ending("cheap")


def test_case_038_a_stream_gains_the_usage_switch_alone(models: Pair) -> None:
    sent = {"model": "a", "messages": [MESSAGE], **ENGINE_OWN, "stream": True}
    assert models.post(sent, key="key-B").done
    got = models.engine.posts[0].json()
    options = got.pop("stream_options")
    assert options["include_usage"] is True
    assert got == {**sent, "model": "real"}
    models.gateway.common_ending("cheap")


def test_case_038_number_text_and_order_survive(models: Pair) -> None:
    body = (
        b'{ "seed":12345678901234567890123, "temperature":1.0e-2,\n "model":"a",'
        b'"messages":[{"role":"user","content":"caf\\u00e9 \\/ x"}],"z":1.10 }'
    )
    assert models.post(body, key="key-B").status == 200
    got = models.engine.posts[0].body
    assert b"12345678901234567890123" in got and b"1.0e-2" in got
    assert json.loads(got) == {**json.loads(body), "model": "real"}
    models.gateway.common_ending("cheap")


def test_case_038_what_steers_the_engine_is_stripped_and_named(models: Pair) -> None:
    steering = {"priority": -5, "cache_salt": "x", "kv_transfer_params": {"do_remote_prefill": True}}
    answer = models.post({"model": "a", "messages": MESSAGES, "top_k": 3, **steering}, key="key-B")
    assert answer.status == 200
    assert models.engine.posts[0].json() == {"model": "real", "messages": MESSAGES, "top_k": 3}
    named = {name.strip() for name in (answer.value("x-forebay-stripped") or "").split(",")}
    assert named == set(steering)
    models.gateway.common_ending("cheap")


def test_no_pool_setting_is_needed(engine: Any, gateway: Any) -> None:
    """The minimal file of the contract works, with nothing but addresses, one pool, one model, one key."""
    upstream = engine()
    settings = {
        "pools": {"main": pool(upstream)},
        "models": {"m": {"pool": "main"}},
        "tenants": [{"name": "a", "keys": ["key-A"]}],
    }
    gateway(settings).common_ending()
