"""What all adapters have in common, and that the documentation has their lists."""

import re
from pathlib import Path
from typing import get_args

import pytest

from forebay.domain import ABSENT
from forebay.engines.contract import Engine, Telemetry, reported
from forebay.engines.registry import ENGINES
from forebay.policy import EngineKind
from forebay.wire.endpoints import ENDPOINTS

DOCS = (Path(__file__).parents[2] / "docs" / "engines.md").read_text(encoding="utf-8")

# What must never reach an engine from a client: each one was seen to jump a queue, to replace a prompt, to
# read another tenant's cache or to hold a slot (docs/engines.md).
MUST_BE_DENIED = {
    "vllm": {"priority", "cache_salt", "kv_transfer_params", "vllm_xargs", "request_id"},
    "sglang": {"priority", "rid", "routed_dp_rank", "input_ids", "custom_logit_processor"},
    "llamacpp": {"id_slot", "n_predict", "lora"},
    "openai": {"priority", "rid", "id_slot"},
}

# Ordinary members of a request: denying one of these would break clients.
MUST_PASS = {
    "model", "messages", "prompt", "input", "stream", "stream_options", "max_tokens", "max_completion_tokens", "n",
    "temperature", "top_p", "top_k", "min_p", "seed", "stop", "tools", "tool_choice", "response_format", "logprobs",
    "user", "metadata", "logit_bias", "chat_template_kwargs", "reasoning_effort", "system", "documents", "query",
    "grammar", "json_schema", "structured_outputs", "continue_final_message", "previous_response_id",
}  # fmt: skip


def test_the_registry_is_closed_and_complete() -> None:
    assert set(ENGINES) == set(get_args(EngineKind))
    assert all(engine.kind == kind for kind, engine in ENGINES.items())


def test_the_contract_has_at_most_six_members() -> None:
    members = [name for name in vars(Engine) if not name.startswith("_")]
    assert len(members) <= 6


@pytest.mark.parametrize("kind", get_args(EngineKind))
def test_endpoints_are_those_that_forebay_serves(kind: EngineKind) -> None:
    names = {endpoint.name for endpoint in ENDPOINTS}
    assert ENGINES[kind].endpoints <= names
    assert {"chat", "completions", "embeddings"} <= ENGINES[kind].endpoints


@pytest.mark.parametrize("kind", get_args(EngineKind))
def test_the_deny_list_has_what_it_must_and_nothing_ordinary(kind: EngineKind) -> None:
    denied = ENGINES[kind].denied_fields
    assert denied >= MUST_BE_DENIED[kind]
    assert not denied & MUST_PASS


def test_a_generic_server_is_steered_by_no_field_of_any_engine() -> None:
    assert ENGINES["openai"].denied_fields == frozenset().union(
        *(ENGINES[kind].denied_fields for kind in ("vllm", "sglang", "llamacpp"))
    )


@pytest.mark.parametrize("kind", ["vllm", "sglang", "llamacpp"])
def test_every_denied_field_stands_in_the_docs(kind: EngineKind) -> None:
    start = DOCS.index(f"### Denied on {kind}\n")
    section = DOCS[start : DOCS.index("\n#", start + 1)]
    rows = set(re.findall(r"^\| `([a-z_]+)`", section, re.MULTILINE))
    assert rows == ENGINES[kind].denied_fields


def test_a_generic_server_has_no_telemetry() -> None:
    generic = ENGINES["openai"]
    assert generic.telemetry_path is None
    assert generic.read_telemetry(b"vllm:num_requests_running 3\n") == Telemetry()


@pytest.mark.parametrize("value", [None, float("nan"), float("inf"), float("-inf")])
def test_what_is_no_number_is_absent(value: float | None) -> None:
    assert reported(value) == ABSENT


def test_zero_is_a_reading() -> None:
    assert reported(0).value == 0.0
    assert reported(0).source == "engine"
