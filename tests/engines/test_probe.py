"""Probing with a fake fetch: what each engine answers, what stays unknown, and what is never asked."""

import asyncio
import json
from typing import Any

import pytest

from forebay.domain import Replica
from forebay.engines.contract import Capabilities
from forebay.engines.probe import MAX_DOCUMENT_BYTES, MAX_MODELS, identify, probe

REPLICA = Replica("127.0.0.1:9", "127.0.0.1", 9)
CHAT = ("model", "messages", "stream_options", "priority", "cache_salt", "return_token_ids")

VLLM_METRICS = (
    "# HELP vllm:num_requests_running Number of requests in model execution batches.\n"
    'vllm:num_requests_running{engine="0",model_name="m"} 0.0\n'
    'vllm:cache_config_info{block_size="16",enable_prefix_caching="True",engine="0",kv_cache_size_tokens="98304"} 1.0\n'
)
SGLANG_METRICS = (
    "# TYPE sglang:num_running_reqs gauge\n"
    'sglang:num_running_reqs{model_name="m",tp_rank="0"} 1.0\n'
    'sglang:max_total_num_tokens{model_name="m",tp_rank="0"} 5000.0\n'
)


def openapi(*fields: str) -> dict[str, Any]:
    properties = {field: {"title": field} for field in fields}
    schemas = {"ChatCompletionRequest": {"properties": properties, "type": "object"}, "Color": {"enum": ["red"]}}
    return {"openapi": "3.1.0", "paths": {}, "components": {"schemas": schemas}}


def models(owner: str, *cards: dict[str, Any]) -> dict[str, Any]:
    return {"object": "list", "data": [{"object": "model", "owned_by": owner} | card for card in cards]}


VLLM = {
    "/v1/models": models("vllm", {"id": "m", "root": "/weights", "max_model_len": 4096}),
    "/version": {"version": "0.32.0"},
    "/metrics": VLLM_METRICS,
    "/openapi.json": openapi(*CHAT),
}
SGLANG = {
    "/v1/models": models("sglang", {"id": "m", "max_model_len": 32768}),
    "/server_info": {
        "version": "0.5.23",
        "max_total_num_tokens": 100_000,
        "dp_size": 2,
        "enable_metrics": True,
        "enable_cache_report": False,
        "enable_priority_scheduling": True,
        "internal_states": [{}],
    },
    "/metrics": SGLANG_METRICS,
    "/openapi.json": openapi(*CHAT),
}
SLOT = {"id": 0, "n_ctx": 4096, "is_processing": False}
LLAMACPP = {
    "/v1/models": models("llamacpp", {"id": "default", "meta": {"n_ctx": 4096, "n_ctx_train": 8192}}),
    "/props": {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 2, "build_info": "b7101-3fe1c2a"},
    "/slots": [SLOT, SLOT | {"id": 1}],
    "/metrics": "llamacpp:requests_processing 0\n",
}
OLLAMA = {
    "/v1/models": models("library", {"id": "llama3.2:latest"}, {"id": "qwen3:8b"}),
    "/api/version": {"version": "0.13.1"},
}


class FakeEngine:
    """Answers GETs from a table: a document, a text, a status, or an exception; 404 for all else."""

    def __init__(self, pages: dict[str, Any]) -> None:
        self.pages = pages
        self.asked: list[str] = []
        self.timeouts_s: set[float] = set()

    async def fetch(self, replica: Replica, path: str, timeout_s: float) -> tuple[int, bytes]:
        self.asked.append(path)
        self.timeouts_s.add(timeout_s)
        page = self.pages.get(path, 404)
        if isinstance(page, Exception):
            raise page
        if page == "hang":
            await asyncio.sleep(3600)
        if isinstance(page, int):
            return page, b'{"detail":"Not Found"}'
        return 200, page if isinstance(page, bytes) else (page if isinstance(page, str) else json.dumps(page)).encode()


def ask(pages: dict[str, Any], step_s: float = 2.0) -> Capabilities:
    return asyncio.run(probe(REPLICA, FakeEngine(pages).fetch, step_s))


def test_vllm() -> None:
    found = ask(VLLM)
    assert (found.kind, found.product, found.version) == ("vllm", "vLLM", "0.32.0")
    assert (found.models, found.max_model_len, found.kv_tokens) == (("m",), 4096, 98304)
    assert (found.telemetry, found.token_ids, found.cache_salt, found.usage_in_stream) == (True, True, True, True)
    assert found.priority == "lower_first"
    assert [advice.flag for advice in found.missing if advice.certain] == []


def test_an_older_vllm_has_what_its_schema_says() -> None:
    found = ask(VLLM | {"/openapi.json": openapi("model", "messages", "stream_options", "priority")})
    assert (found.token_ids, found.cache_salt, found.priority) == (False, False, "lower_first")


def test_without_a_schema_nothing_is_claimed() -> None:
    found = ask(VLLM | {"/openapi.json": 404})
    assert (found.token_ids, found.cache_salt, found.priority, found.usage_in_stream) == (False, False, None, None)
    assert found.kind == "vllm"


def test_a_question_without_an_answer_leaves_the_probe_incomplete() -> None:
    assert ask(VLLM).complete
    assert ask(VLLM | {"/openapi.json": 404}).complete
    found = ask(VLLM | {"/openapi.json": "hang"}, step_s=0.01)
    assert (found.complete, found.kind, found.token_ids) == (False, "vllm", False)


def test_sglang() -> None:
    found = ask(SGLANG)
    assert (found.kind, found.product, found.version) == ("sglang", "SGLang", "0.5.23")
    assert (found.models, found.max_model_len, found.kv_tokens) == (("m",), 32768, 200_000)
    assert (found.priority, found.cache_salt, found.usage_in_stream) == ("higher_first", True, True)
    assert not found.token_ids
    assert [advice.flag for advice in found.missing] == ["--enable-cache-report"]


def test_sglang_priority_as_it_was_started() -> None:
    info = SGLANG["/server_info"]
    lower = SGLANG | {"/server_info": info | {"schedule_low_priority_values_first": True}}
    assert ask(lower).priority == "lower_first"
    assert ask(SGLANG | {"/server_info": info | {"enable_priority_scheduling": False}}).priority is None


def test_an_older_sglang_is_asked_by_the_former_path() -> None:
    pages = {key: page for key, page in SGLANG.items() if key != "/server_info"}
    found = ask(pages | {"/get_server_info": SGLANG["/server_info"]})
    assert (found.kind, found.version, found.kv_tokens) == ("sglang", "0.5.23", 200_000)


def test_sglang_without_server_info_takes_the_room_from_its_metrics() -> None:
    pages = {key: page for key, page in SGLANG.items() if key != "/server_info"}
    assert ask(pages).kv_tokens == 5000


def test_llamacpp() -> None:
    found = ask(LLAMACPP)
    assert (found.kind, found.product, found.version) == ("llamacpp", "llama.cpp", "b7101-3fe1c2a")
    assert (found.models, found.max_model_len, found.kv_tokens, found.slots) == (("default",), 4096, 8192, 2)
    assert (found.telemetry, found.token_ids, found.priority, found.cache_salt) == (True, False, None, False)
    assert found.usage_in_stream is True
    assert found.missing == ()


@pytest.mark.parametrize("owner", ["llamacpp", "someone"])
def test_the_metrics_page_of_llamacpp_is_never_read(owner: str) -> None:
    engine = FakeEngine(LLAMACPP | {"/v1/models": models(owner, {"id": "default"})})
    found = asyncio.run(probe(REPLICA, engine.fetch))
    assert found.kind == "llamacpp"
    assert "/metrics" not in engine.asked


def test_llamacpp_without_slots_says_how_to_get_them() -> None:
    found = ask(LLAMACPP | {"/slots": 501})
    assert (found.slots, found.kv_tokens, found.telemetry) == (2, None, False)
    assert [advice.flag for advice in found.missing] == ["--slots"]


def test_a_build_that_does_not_know_its_number_has_no_version() -> None:
    assert ask(LLAMACPP | {"/props": LLAMACPP["/props"] | {"build_info": "b0-unknown"}}).version == ""


def test_ollama_is_a_generic_server() -> None:
    found = ask(OLLAMA)
    assert (found.kind, found.product, found.version) == ("openai", "Ollama", "0.13.1")
    assert found.models == ("llama3.2:latest", "qwen3:8b")
    assert (found.telemetry, found.usage_in_stream, found.missing) == (False, None, ())


def test_ollama_without_a_model() -> None:
    found = ask(OLLAMA | {"/v1/models": {"object": "list", "data": None}})
    assert (found.product, found.models, found.identified) == ("Ollama", (), True)


def test_any_other_server() -> None:
    found = ask({"/v1/models": {"data": [{"id": "x"}]}})
    assert (found.kind, found.product, found.models, found.identified) == ("openai", "", ("x",), True)


@pytest.mark.parametrize(("page", "kind"), [(VLLM_METRICS, "vllm"), (SGLANG_METRICS, "sglang")])
def test_a_fork_is_known_by_its_metrics(page: str, kind: str) -> None:
    assert ask({"/v1/models": models("fork", {"id": "x"}), "/metrics": page}).kind == kind


def test_a_server_that_wants_a_key() -> None:
    found = ask(VLLM | {"/v1/models": 401})
    assert (found.kind, found.models, found.guarded, found.identified) == ("vllm", (), True, True)


@pytest.mark.parametrize(
    "pages",
    [
        {},
        {"/": "<html>", "/v1/models": "<html>"},
        {"/v1/models": 401},
        {"/v1/models": b"\xff\xfe"},
        {"/v1/models": {"data": [{"name": "no id"}]}},
        {"/version": {"version": "1.0"}, "/server_info": {"version": "2"}},
    ],
)
def test_what_is_no_engine_is_not_identified(pages: dict[str, Any]) -> None:
    assert not ask(pages).identified


@pytest.mark.parametrize(
    "fault", [ConnectionRefusedError(), TimeoutError(), OSError("reset"), 500, "nonsense", b"\xff"]
)
@pytest.mark.parametrize("pages", [VLLM, SGLANG, LLAMACPP, OLLAMA], ids=["vllm", "sglang", "llamacpp", "ollama"])
def test_a_failed_step_leaves_only_its_own_part_unknown(pages: dict[str, Any], fault: Any) -> None:
    whole = ask(pages)
    for path in pages:
        if path != "/v1/models":
            found = ask(pages | {path: fault})
            assert (found.kind, found.models) == (whole.kind, whole.models)


def test_nobody_there() -> None:
    async def refuse(replica: Replica, path: str, timeout_s: float) -> tuple[int, bytes]:
        raise ConnectionRefusedError

    assert asyncio.run(probe(REPLICA, refuse)) == Capabilities(complete=False)


def test_a_step_that_hangs_is_cut_off() -> None:
    found = ask(VLLM | {"/openapi.json": "hang", "/props": "hang"}, step_s=0.02)
    assert (found.kind, found.token_ids, found.kv_tokens) == ("vllm", False, 98304)


def test_the_bound_of_a_step_is_passed_on() -> None:
    engine = FakeEngine(VLLM)
    asyncio.run(probe(REPLICA, engine.fetch))
    assert engine.timeouts_s == {2.0}


def test_answers_are_bounded() -> None:
    cards = [{"id": f"m{number}"} for number in range(MAX_MODELS + 5)]
    assert len(ask({"/v1/models": models("x", *cards)}).models) == MAX_MODELS
    assert ask(VLLM | {"/openapi.json": b" " * (MAX_DOCUMENT_BYTES + 1)}).token_ids is False


def test_identify() -> None:
    assert asyncio.run(identify(REPLICA, FakeEngine(LLAMACPP).fetch)) == "llamacpp"
    assert asyncio.run(identify(REPLICA, FakeEngine({}).fetch)) is None
