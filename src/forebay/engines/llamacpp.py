"""llama.cpp's server: read from `/slots`, never from `/metrics`.

Each scrape of `/metrics` resets two of its gauges, so that a second reader falsifies the first one's
series; and it has no KV usage since 2025.
"""

import msgspec
from msgspec import Struct

from forebay.engines.contract import Advice, EndpointName, Telemetry, reported
from forebay.policy import EngineKind

_NO_SLOTS = Advice(
    flag="--slots",
    why="its load and its KV room are invisible",
    fix="start llama-server without --no-slots, or add --slots on an old release",
)


class _Slot(Struct, frozen=True):
    n_ctx: int
    is_processing: bool | None = None
    n_prompt_tokens: int | None = None


_SLOTS = msgspec.json.Decoder(list[_Slot])


class Llamacpp:
    """The adapter of llama.cpp, and of the embedded engine."""

    kind: EngineKind = "llamacpp"
    endpoints: frozenset[EndpointName] = frozenset(
        ("chat", "completions", "embeddings", "responses", "messages", "rerank", "tokenize", "detokenize")
    )
    denied_fields = frozenset(
        {
            "cache_prompt",
            "id_slot",
            "lora",
            "n_cache_reuse",
            "n_cmpl",
            "n_discard",
            "n_keep",
            "n_predict",
            "sse_ping_interval",
        }
    )
    health_path = "/health"
    telemetry_path: str | None = "/slots"

    def read_telemetry(self, body: bytes) -> Telemetry:
        """Translate `/slots`; the length of the engine's queue is not on it, so `waiting` is absent.

        Usage counts the slots that work: an idle slot still shows the tokens of its last call, but they are
        given up as soon as the slot is needed.

        Raises:
            ValueError: the body is not a list of slots.
        """
        try:
            slots = _SLOTS.decode(body)
        except msgspec.DecodeError as error:
            raise ValueError(f"not a list of slots: {error}") from error
        if not slots:
            return Telemetry()
        room = sum(slot.n_ctx for slot in slots)
        return Telemetry(
            running=reported(_running(slots)),
            kv_usage_ratio=reported(_usage(slots, room)),
            kv_tokens=reported(room),
            slots=reported(len(slots)),
        )


def missing_flags(slots_status: int) -> tuple[Advice, ...]:
    """Return the flags that a llama.cpp server should have, from the HTTP status of its `/slots` (501 is off)."""
    return (_NO_SLOTS,) if slots_status == 501 else ()


def _running(slots: list[_Slot]) -> int | None:
    if any(slot.is_processing is None for slot in slots):
        return None
    return sum(1 for slot in slots if slot.is_processing)


def _usage(slots: list[_Slot], room: int) -> float | None:
    used = 0
    for slot in slots:
        if slot.is_processing is None or (slot.is_processing and slot.n_prompt_tokens is None):
            return None
        if slot.is_processing:
            used += slot.n_prompt_tokens or 0
    return used / room if room > 0 else None
