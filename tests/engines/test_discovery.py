"""Discovery on the four usual ports, with a fake fetch."""

import asyncio
import time
from typing import Any

from forebay.domain import Replica
from forebay.engines.contract import Advice, Capabilities
from forebay.engines.discovery import PORTS, Found, describe, discover

MODELS = b'{"object":"list","data":[{"id":"m","owned_by":"vllm","max_model_len":4096}]}'
HERE = Replica("127.0.0.1:8000", "127.0.0.1", 8000)


def search(ports: dict[int, Any], budget_s: float = 1.5) -> list[Found]:
    async def fetch(replica: Replica, path: str, timeout_s: float) -> tuple[int, bytes]:
        page = ports.get(replica.port)
        if page is None:
            raise ConnectionRefusedError
        if page == "hang":
            await asyncio.sleep(3600)
        return (200, page) if path == "/v1/models" else (404, b"")

    return asyncio.run(discover(fetch, budget_s))


def test_the_usual_ports() -> None:
    assert PORTS == (8000, 30000, 8080, 11434)


def test_nothing_runs_here() -> None:
    assert search({}) == []


def test_what_answers_decides_not_the_port() -> None:
    found = search({30000: MODELS, 8080: b'{"data":[{"id":"x"}]}', 8000: b"<html>some other server</html>"})
    assert [(one.replica.name, one.capabilities.kind, one.models) for one in found] == [
        ("127.0.0.1:30000", "vllm", ("m",)),
        ("127.0.0.1:8080", "openai", ("x",)),
    ]


def test_the_whole_search_is_bounded_by_its_budget() -> None:
    started_s = time.monotonic()
    found = search(dict.fromkeys(PORTS, "hang") | {8080: MODELS}, budget_s=0.2)
    assert time.monotonic() - started_s < 60, "one that hangs does so for an hour"
    assert [one.replica.port for one in found] == [8080]


def test_an_engine_in_lines_for_people() -> None:
    missing = (
        Advice("--enable-metrics", "its load is invisible", "add --enable-metrics"),
        Advice("--scheduling-policy priority", "priorities are ignored", "add it", certain=False),
    )
    known = Capabilities(
        "sglang", "SGLang", "0.5.23", ("m",), max_model_len=4096, kv_tokens=98304, missing=missing, telemetry=False
    )
    assert describe(Found(HERE, known)) == [
        "SGLang 0.5.23 at 127.0.0.1:8000: model m",
        "  KV room 98,304 tokens, context 4,096 tokens, its load cannot be read",
        "  missing --enable-metrics: its load is invisible; add --enable-metrics",
        "  cannot see --scheduling-policy priority: priorities are ignored; add it unless it is set",
    ]


def test_many_models_are_shortened() -> None:
    known = Capabilities(models=tuple("abcdefg"), telemetry=True)
    assert describe(Found(HERE, known)) == [
        "An OpenAI-compatible server at 127.0.0.1:8000: models a, b, c, d, e and 2 more"
    ]


def test_an_engine_that_cannot_be_used_says_why() -> None:
    guarded = describe(Found(HERE, Capabilities("vllm", "vLLM", "0.32.0", guarded=True, telemetry=True)))
    assert "wants an API key" in guarded[0]
    empty = describe(Found(HERE, Capabilities("openai", "Ollama", "0.13.1", telemetry=True)))
    assert "no model is loaded" in empty[0]


def test_what_an_engine_calls_itself_is_made_fit_for_a_terminal() -> None:
    (line,) = describe(Found(HERE, Capabilities(models=("\x1b[31mred" + "x" * 300,), telemetry=True)))
    assert "\x1b" not in line
    assert len(line) < 200
