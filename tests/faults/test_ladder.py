"""The ladder through real processes: engines that say that they are full, people who set levels, and real clients."""

import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import openai
import pytest
from console.test_long_inputs import OVERRIDES, admin
from faults.engines import Engines
from gateway_process import Document, Gateway, document, eventually
from notation import DONE, STOP, USAGE, Answer, D, completion, reply, stream
from scripted import ScriptedEngine, Seen

from forebay.degrade.steps import CHINESE, ENGLISH
from forebay.engines.sim import SimSpec

pytestmark = [pytest.mark.integration, pytest.mark.timeout(120)]

ROOM_TOKENS = 400_000
RISE_S = 20.0  # two polls, and a machine that does other things too
EFFECT_S = 10.0  # far more than the second that it takes, on a machine that does other things too
KV_OF_MAIN = ("forebay_ladder_kv_ratio", frozenset({("pool", "main")}))
TALK = [{"role": "user" if n % 2 == 0 else "assistant", "content": "word " * 900} for n in range(10)]
ENGLISH_CHAT = [
    {"role": "system", "content": "Be kind."},
    *TALK,
    {"role": "user", "content": "And what do you say now?"},
]
CHINESE_CHAT = [*ENGLISH_CHAT[:-1], {"role": "user", "content": "那么现在你怎么看？"}]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {}}}}]


def page(kv: float, waiting: int) -> bytes:
    labels = 'engine="0",model_name="m"'
    return (
        f"vllm:num_requests_running{{{labels}}} 3.0\nvllm:num_requests_waiting{{{labels}}} {waiting}\n"
        f"vllm:kv_cache_usage_perc{{{labels}}} {kv}\n"
        f'vllm:cache_config_info{{engine="0",kv_cache_size_tokens="{ROOM_TOKENS}"}} 1.0\n'
    ).encode()


def says(engine: ScriptedEngine, kv: float, waiting: int) -> None:
    engine.probes["/metrics"] = reply(200, page(kv, waiting))


def models(**ladder: Any) -> Document:
    return {
        "m": {"pool": "main", "ladder": {"output_tokens": 300, "history_tokens": 2048, **ladder}},
        "small": {"pool": "spare", "upstream_model": "m"},
    }


def pools(main: ScriptedEngine, spare: ScriptedEngine) -> Document:
    return {
        name: {"engine": "vllm", "replicas": [{"url": engine.url}]}
        for name, engine in (("main", main), ("spare", spare))
    }


def counting(seen: Seen) -> Answer:
    """An engine that says "ok" and counts a token for each word, as the estimates learn from what engines count."""
    asked = seen.json()
    tokens = sum(len(message["content"].split()) for message in asked["messages"])
    if not asked.get("stream"):
        return reply(200, completion("m", prompt=tokens))
    return stream(D("ok"), STOP, USAGE(tokens, 1), DONE, gap_s=0)


@pytest.fixture
def main(engine: Callable[..., ScriptedEngine]) -> ScriptedEngine:
    started = engine(default=counting)
    says(started, 0.2, 0)
    return started


@pytest.fixture
def spare(engine: Callable[..., ScriptedEngine]) -> ScriptedEngine:
    started = engine(default=counting)
    says(started, 0.1, 0)
    return started


def level(gateway: Gateway, pool: str = "main") -> float:
    return gateway.metric("forebay_ladder_level", pool=pool)


def client(gateway: Gateway) -> openai.OpenAI:
    return openai.OpenAI(base_url=gateway.base_url + "/v1", api_key="key-A", max_retries=0)


def whole(gateway: Gateway, **asked: Any) -> tuple[Any, str | None]:
    """A whole answer by the official client, and how it was degraded."""
    asked = {"model": "m", "messages": ENGLISH_CHAT, **asked}
    with client(gateway) as sdk:
        raw = sdk.chat.completions.with_raw_response.create(**asked)
        return raw.parse(), raw.headers.get("x-forebay-degraded")


def streamed(gateway: Gateway, **asked: Any) -> tuple[str, list[str], Any]:
    """The text of a streamed answer by the official client, its finish reasons and its usage."""
    asked = {"model": "m", "messages": ENGLISH_CHAT, "stream": True, "stream_options": {"include_usage": True}, **asked}
    text, ends, usage = "", [], None
    with client(gateway) as sdk:
        for chunk in sdk.chat.completions.create(**asked):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                text += choice.delta.content or ""
                ends += [choice.finish_reason] if choice.finish_reason else []
    return text, ends, usage


def last_body(engine: ScriptedEngine) -> Any:
    return [seen for seen in engine.requests if seen.method == "POST"][-1].json()


def all_know(gateway: Gateway) -> bool:
    """Whether every process serves by the level: each of some short calls is moved."""
    short: Any = [{"role": "user", "content": "hi"}]
    return all(whole(gateway, messages=short, max_tokens=5)[1] == "model" for _ in range(6))


@pytest.mark.parametrize("workers", [1, 2])
def test_an_engine_that_is_full_with_calls_waiting(
    main: ScriptedEngine, spare: ScriptedEngine, gateway: Callable[..., Gateway], workers: int
) -> None:
    running = gateway(document(pools=pools(main, spare), models=models(fallback="small"), workers=workers))
    assert level(running) == 0
    assert whole(running, messages=[{"role": "user", "content": "hi"}])[1] is None
    says(main, 0.98, 4)
    assert eventually(lambda: level(running) == 3, RISE_S), "the level does not rise"
    assert level(running, "spare") == 0
    assert running.metric("forebay_ladder_kv_ratio", pool="main") == pytest.approx(0.98, abs=0.01)
    assert running.metric("forebay_ladder_pain", pool="main", reason="waiting") == 1
    assert eventually(lambda: all_know(running), EFFECT_S)
    moved = running.metric("forebay_requests_degraded_total", step="model")

    answer, how = whole(running, messages=CHINESE_CHAT)
    assert (answer.model, how) == ("small", "output, model, history")
    assert answer.choices[0].message.content == "ok" + CHINESE and answer.choices[0].finish_reason == "stop"
    sent = last_body(spare)
    assert sent["messages"] == [CHINESE_CHAT[0], *CHINESE_CHAT[-3:]] and sent["max_tokens"] == 300
    text, ends, usage = streamed(running)
    assert (text, ends) == ("ok" + ENGLISH, ["stop"])
    words = sum(len(message["content"].split()) for message in last_body(spare)["messages"])
    assert (usage.prompt_tokens, usage.completion_tokens) == (words, 1)

    structured = {"messages": ENGLISH_CHAT, "tools": TOOLS, "max_tokens": 2000}
    answer, how = whole(running, **structured)
    assert (answer.choices[0].message.content, how) == ("ok", "model")
    assert {key: last_body(spare)[key] for key in structured} == structured
    with pytest.raises(openai.InternalServerError) as refused:
        whole(running, n=2)
    assert refused.value.status_code == 503 and refused.value.code == "degraded"

    def written(*steps: str) -> int:
        return sum(line["degraded"] == list(steps) for line in running.closes())

    assert eventually(lambda: written("output", "model", "history") == 2, 30), "not in the journal"
    assert running.metric("forebay_requests_degraded_total", step="history") == 2
    assert running.metric("forebay_requests_degraded_total", step="model") == moved + 3
    assert running.metric("forebay_requests_refused_total", reason="degraded") == 1
    running.common_ending()


def test_a_full_engine_with_nobody_waiting_changes_nothing(
    main: ScriptedEngine, spare: ScriptedEngine, gateway: Callable[..., Gateway]
) -> None:
    running = gateway(document(pools=pools(main, spare), models=models(fallback="small")))
    says(main, 0.95, 0)
    assert eventually(lambda: running.metrics().get(KV_OF_MAIN, 0.0) > 0.9, RISE_S)
    time.sleep(3)
    assert level(running) == 0
    answer, how = whole(running)
    assert (answer.model, answer.choices[0].message.content, how) == ("m", "ok", None)
    assert last_body(main)["messages"] == ENGLISH_CHAT


def set_level(gateway: Gateway, target: str, value: int, ttl_s: int = 600) -> tuple[int, Any]:
    asked = {"kind": "ladder", "target": target, "level": value, "ttl_s": ttl_s, "reason": "surge", "by": "ann"}
    return admin(gateway, "POST", OVERRIDES, asked)


def test_a_level_set_by_hand_counts_at_once_and_ends_by_itself(
    main: ScriptedEngine, spare: ScriptedEngine, gateway: Callable[..., Gateway]
) -> None:
    running = gateway(document(pools=pools(main, spare), models={"m": {"pool": "main"}, **models()}))
    assert eventually(lambda: running.admin_get("/api/status")[0] == 200, 30)
    assert set_level(running, "pool nowhere", 1)[0] == 400
    assert set_level(running, "somebody", 1)[0] == 400
    assert set_level(running, "node", 4)[0] == 400
    assert (
        admin(running, "POST", OVERRIDES, {"kind": "ladder", "target": "node", "ttl_s": 5, "reason": "r", "by": "b"})[0]
        == 400
    )
    status, made = set_level(running, "tenant a", 3)
    assert (status, made["level"], made["target"]) == (201, 3, "tenant a")
    assert eventually(lambda: whole(running)[1] == "output, history", EFFECT_S)
    answer, _ = whole(running)
    assert answer.choices[0].message.content == "ok" + ENGLISH
    text, ends, _ = streamed(running, messages=CHINESE_CHAT)
    assert (text, ends) == ("ok" + CHINESE, ["stop"])
    assert level(running) == 0, "one tenant is not the pool"
    assert admin(running, "DELETE", f"{OVERRIDES}/{made['id']}")[0] == 204
    assert eventually(lambda: whole(running)[1] is None, EFFECT_S)

    assert set_level(running, "pool main", 1, ttl_s=8)[0] == 201
    assert eventually(lambda: level(running) == 1, EFFECT_S)
    assert eventually(lambda: level(running) == 0, 8 + EFFECT_S), "it does not end"
    lines = admin(running, "GET", "/api/timeline?limit=20")[1]["actions"]
    assert ("override.created", "ladder", 3) in [(line["kind"], line["change"], line["level"]) for line in lines]


SMALL = SimSpec(
    iteration_base_ms=5, ms_per_prefill_token=0, ms_per_decode_seq=0, models=("m",), kv_tokens=4096, max_model_len=2048,
    max_num_seqs=64, keep_alive_s=60,
)  # fmt: skip
LARGE = SimSpec(
    iteration_base_ms=5, ms_per_prefill_token=0, ms_per_decode_seq=0, models=("m",), kv_tokens=65_536,
    max_model_len=2048, keep_alive_s=60,
)  # fmt: skip
LONG_ANSWER, CAPPED = 400, 64


class Surge:
    """More calls than the main engine has KV room for, of which three in four have a structure; a context manager.

    Attributes:
        seen: ends of calls by kind, model and tokens of the answer, or by the error.
    """

    def __init__(self, gateway: Gateway, callers: int) -> None:
        self.seen: Counter[tuple[str, str, int]] = Counter()
        self._gateway = gateway
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._call, args=(n,), daemon=True) for n in range(callers)]

    def __enter__(self) -> "Surge":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(30)

    def count(self, kind: str, model: str, tokens: int) -> int:
        return self.seen[(kind, model, tokens)]

    def _call(self, number: int) -> None:
        structured = number % 4 > 0
        more: dict[str, Any] = {"response_format": {"type": "json_object"}} if structured else {}
        with client(self._gateway) as sdk:
            while not self._over.is_set():
                kind = "structured" if structured else "plain"
                try:
                    messages: Any = [{"role": "user", "content": f"{number} hello"}]
                    answer = sdk.chat.completions.create(
                        model="main", messages=messages, max_tokens=LONG_ANSWER, extra_body={"ignore_eos": True}, **more
                    )
                    assert answer.usage is not None
                    self.seen[(kind, answer.model, answer.usage.completion_tokens)] += 1
                except openai.APIStatusError as error:
                    self.seen[(kind, f"status {error.status_code}", 0)] += 1


@pytest.fixture
def two(engines: Engines, node: Callable[..., Gateway]) -> Iterator[Gateway]:
    engines.start("main", spec=SMALL)
    engines.start("spare", spec=LARGE)
    of = engines.models()
    of["main"]["ladder"] = {"fallback": "spare", "output_tokens": CAPPED}
    timeouts = {"connect_s": 1, "first_byte_s": 20, "stall_s": 5, "total_s": 60}
    yield node(document(pools=engines.pools(), models=of, timeouts=timeouts))


@pytest.mark.slow
def test_more_calls_than_there_is_room_for(two: Gateway) -> None:
    with Surge(two, 48) as surge:
        assert eventually(lambda: level(two) >= 1, 30), "the level does not rise"
        assert eventually(lambda: surge.count("plain", "main", CAPPED) > 0, 30), surge.seen
        assert eventually(lambda: surge.count("structured", "spare", LONG_ANSWER) > 0, 60), surge.seen
        metrics = two.metrics()
        held = json.dumps({f"{name}{dict(labels)}": v for (name, labels), v in metrics.items() if "ladder" in name})
    kinds = dict(surge.seen)
    assert {tokens for kind, _, tokens in kinds if kind == "structured" and tokens} == {LONG_ANSWER}, (kinds, held)
    assert {tokens for kind, _, tokens in kinds if kind == "plain" and tokens} <= {LONG_ANSWER, CAPPED}, (kinds, held)
    assert not [how for _, how, _ in kinds if how.startswith("status 5")], (kinds, held)
