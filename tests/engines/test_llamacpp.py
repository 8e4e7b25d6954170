"""llama.cpp's `/slots`, as its server wrote it with one call running, one ended and two slots never used."""

import json
from typing import Any

import pytest

from forebay.domain import ABSENT
from forebay.engines.llamacpp import Llamacpp, missing_flags

IDLE = {"id": 0, "n_ctx": 4096, "speculative": False, "is_processing": False}
USED = IDLE | {"id": 1, "id_task": 9, "n_prompt_tokens": 333, "next_token": [{"n_remain": -1, "n_decoded": 0}]}
BUSY = {
    "id": 3,
    "n_ctx": 4096,
    "speculative": False,
    "is_processing": True,
    "id_task": 12,
    "n_prompt_tokens": 1024,
    "n_prompt_tokens_processed": 10,
    "n_prompt_tokens_cache": 24,
    "params": {"temperature": 0.8, "samplers": ["top_k"], "lora": []},
    "next_token": [{"has_next_token": True, "n_remain": 212, "n_decoded": 88}],
}


def page(*slots: Any) -> bytes:
    return json.dumps(slots).encode()


def test_slots_are_counted() -> None:
    load = Llamacpp().read_telemetry(page(IDLE, USED, IDLE, BUSY))
    assert (load.running.value, load.slots.value, load.kv_tokens.value) == (1.0, 4.0, 16_384.0)


def test_the_queue_is_not_on_the_page() -> None:
    assert Llamacpp().read_telemetry(page(BUSY)).waiting == ABSENT


def test_only_working_slots_hold_room() -> None:
    assert Llamacpp().read_telemetry(page(IDLE, USED, IDLE, BUSY)).kv_usage_ratio.value == 1024 / 16_384
    assert Llamacpp().read_telemetry(page(USED, USED)).kv_usage_ratio.value == 0.0


def test_an_older_page_leaves_unknown_what_it_does_not_say() -> None:
    load = Llamacpp().read_telemetry(page({"id": 0, "n_ctx": 512, "state": 0}))
    assert (load.running, load.kv_usage_ratio) == (ABSENT, ABSENT)
    assert load.kv_tokens.value == 512
    unsaid = {key: value for key, value in BUSY.items() if key != "n_prompt_tokens"}
    assert Llamacpp().read_telemetry(page(IDLE, unsaid)).kv_usage_ratio == ABSENT


def test_no_slots_and_no_room() -> None:
    assert Llamacpp().read_telemetry(b"[]").slots == ABSENT
    assert Llamacpp().read_telemetry(page(IDLE | {"n_ctx": 0})).kv_usage_ratio == ABSENT


@pytest.mark.parametrize("body", [b"", b"{}", b'{"error":{"code":501}}', b"[1]", b"\xff", b'[{"id":0}]'])
def test_what_is_not_a_list_of_slots_is_refused(body: bytes) -> None:
    with pytest.raises(ValueError, match="slots"):
        Llamacpp().read_telemetry(body)


def test_its_metrics_page_is_never_read() -> None:
    assert Llamacpp().telemetry_path == "/slots"


@pytest.mark.parametrize(("status", "flags"), [(501, ["--slots"]), (200, []), (404, []), (0, [])])
def test_flags_from_the_status_of_slots(status: int, flags: list[str]) -> None:
    assert [advice.flag for advice in missing_flags(status)] == flags
