"""The lines of the journal: their fields, in the order in which they are written (docs/records.md)."""

from typing import Final, Literal

from msgspec import Struct

from forebay.domain import FailureKind, Outcome

SCHEMA: Final = 1

Source = Literal["engine", "gateway", "absent"]


class Attempt(Struct, frozen=True, gc=False):
    """One try on one replica; `ms` is its time from dispatch to its end."""

    pool: str
    replica: str
    failure: FailureKind | None = None
    status: int | None = None
    ms: float | None = None


class OpenLine(Struct, frozen=True, gc=False, tag_field="kind", tag="open"):
    """A call has been dispatched for the first time."""

    ts: float
    call_id: str
    request_id: str
    tenant: str | None
    model: str | None
    endpoint: str
    stream: bool | None
    pool: str
    replica: str
    input_estimate_tokens: int | None
    prompt_template_id: str | None
    client_address: str
    schema: int = SCHEMA


class CloseLine(Struct, eq=False, gc=False, tag_field="kind", tag="close"):
    """All that is known of a call at its end; filled while the call runs, None where unknown."""

    ts: float
    call_id: str
    request_id: str
    endpoint: str
    client_address: str
    tenant: str | None = None
    model: str | None = None
    stream: bool | None = None
    pool: str | None = None
    replica: str | None = None
    status: int | None = None
    outcome: Outcome = Outcome.LOST
    error_code: str | None = None
    input_length: int | None = None
    output_length: int | None = None
    total_tokens: int | None = None
    cached_tokens: int | None = None
    usage_estimated: bool = True
    queue_ms: float | None = None
    queue_source: Source = "absent"
    ttft_ms: float | None = None
    ttft_source: Source = "absent"
    prefill_time_ms: float | None = None
    prefill_time_source: Source = "absent"
    decode_time_ms: float | None = None
    decode_time_source: Source = "absent"
    total_ms: float | None = None
    total_source: Source = "absent"
    kv_cache_hit: bool | None = None
    block_table_size: int | None = None
    prompt_template_id: str | None = None
    request_value: str | None = None
    input_estimate_tokens: int | None = None
    output_estimate_tokens: int | None = None
    max_tokens: int | None = None
    retry_count: int = 0
    rule: str | None = None
    hygiene: tuple[str, ...] = ()
    output_flags: tuple[str, ...] = ()
    degraded: tuple[str, ...] = ()
    continued: int = 0
    joined: str | None = None
    joined_how: str | None = None
    resumed_from: str | None = None
    resumed_tokens: int | None = None
    attempts: tuple[Attempt, ...] = ()
    schema: int = SCHEMA
