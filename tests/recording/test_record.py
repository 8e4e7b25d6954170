"""One record: closed once, with true tokens, times and sources."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from recording.scrape import policy, value

from forebay.clock import ManualClock
from forebay.domain import FailureKind, Outcome, Tenant, Usage
from forebay.recording.metrics import Metrics
from forebay.recording.record import CallRecord, Recorder
from forebay.traffic import Call
from forebay.wire.endpoints import BY_PATH

CALL = Call(
    "c1", BY_PATH["/v1/chat/completions"], "m", True, False, Tenant("a"), 9, 40, (), 0.0, 600.0,
    value="high", max_tokens=64, template="greeting", retries=2, rule="r",
)  # fmt: skip


class Lines:
    """A journal in memory."""

    state = "ok"
    recovered = 0

    def __init__(self) -> None:
        self.all: list[tuple[bool, dict[str, Any]]] = []

    def write(self, line: bytes, is_open: bool = False) -> None:
        assert b"\n" not in line
        self.all.append((is_open, json.loads(line)))

    def lines_written(self) -> Iterator[tuple[tuple[str, ...], float]]:
        yield ("open",), 4

    def lines_dropped(self) -> Iterator[tuple[tuple[str, ...], float]]:
        yield ("close",), 2

    @property
    def row(self) -> dict[str, Any]:
        (row,) = [line for is_open, line in self.all if not is_open]
        return row


class Desk:
    """Recorder, journal, metrics and a clock that stands still."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.lines = Lines()
        self.metrics = Metrics(self.clock)
        self.metrics.apply(policy())
        self.recorder = Recorder(self.clock, self.lines, self.metrics)

    def open(self, call_id: str = "c1", stream: bool = True) -> CallRecord:
        record = self.recorder.open(call_id, "r1", "chat", "10.0.0.1")
        record.identified("a", "m", stream)
        record.input_estimate_tokens = 9
        return record

    def dispatched(self, stream: bool = True) -> CallRecord:
        record = self.open(stream=stream)
        record.dispatched("main", "h:1")
        return record


@pytest.fixture
def desk() -> Desk:
    return Desk()


def test_a_whole_call(desk: Desk) -> None:
    record = desk.open()
    record.queue_ms = 12.5
    desk.clock.advance(0.0625)
    record.dispatched("main", "h:1")
    desk.clock.advance(0.5)
    record.first_token()
    desk.clock.advance(2.0)
    record.usage = Usage(11, 7, 4)
    record.output_events = 7
    record.hygiene = ("not_nfc",)
    record.output_flags = ("loop",)
    record.understood(CALL)
    record.close(200, Outcome.OK)
    opened = desk.lines.all[0]
    assert opened[0] and opened[1]["kind"] == "open" and "outcome" not in opened[1]
    assert opened[1]["input_estimate_tokens"] == 9
    row = desk.lines.row
    assert row == row | {
        "kind": "close", "schema": 1, "call_id": "c1", "request_id": "r1", "tenant": "a", "model": "m",
        "endpoint": "chat", "stream": True, "pool": "main", "replica": "h:1", "status": 200, "outcome": "ok",
        "error_code": None, "input_length": 11, "output_length": 7, "total_tokens": 18, "cached_tokens": 4,
        "usage_estimated": False, "kv_cache_hit": True, "block_table_size": None, "client_address": "10.0.0.1",
        "queue_ms": 12.5, "queue_source": "gateway", "ttft_ms": 562.5, "ttft_source": "gateway",
        "prefill_time_ms": 500.0, "prefill_time_source": "gateway", "decode_time_ms": 2000.0,
        "decode_time_source": "gateway", "total_ms": 2562.5, "total_source": "gateway", "hygiene": ["not_nfc"],
        "output_flags": ["loop"], "prompt_template_id": "greeting", "request_value": "high", "max_tokens": 64,
        "input_estimate_tokens": 9, "output_estimate_tokens": 40, "retry_count": 2, "rule": "r",
        "degraded": [], "continued": 0, "resumed_from": None, "resumed_tokens": None,
    }  # fmt: skip
    assert row["attempts"] == [{"pool": "main", "replica": "h:1", "failure": None, "status": 200, "ms": 2500.0}]
    assert row["ts"] == 1_800_000_002.562
    assert record.settled_usage() == Usage(11, 7, 4)


def test_it_is_closed_once(desk: Desk) -> None:
    record = desk.dispatched()
    record.close(200, Outcome.OK)
    record.close(500, Outcome.ENGINE_ERROR, "internal_error")
    assert desk.lines.row["outcome"] == "ok"
    labels = {"endpoint": "chat", "model": "m", "tenant": "a"}
    assert value(desk.metrics, "forebay_requests_total", **labels, code="200", outcome="ok") == 1
    assert value(desk.metrics, "forebay_request_duration_seconds_count", endpoint="chat", model="m") == 1


def test_the_engines_own_times_win(desk: Desk) -> None:
    record = desk.dispatched()
    record.first_token()
    record.engine_prefill_ms, record.engine_decode_ms = 0.0, 40.25
    record.close(200, Outcome.OK)
    row = desk.lines.row
    assert (row["prefill_time_ms"], row["prefill_time_source"]) == (0.0, "engine")
    assert (row["decode_time_ms"], row["decode_time_source"]) == (40.25, "engine")


def test_what_cannot_be_seen_is_null(desk: Desk) -> None:
    record = desk.dispatched(stream=False)
    record.first_token()
    record.usage = Usage(3, 1)
    record.close(200, Outcome.OK)
    row = desk.lines.row
    for name in ("ttft", "prefill_time", "decode_time", "queue"):
        assert (row[f"{name}_ms"], row[f"{name}_source"]) == (None, "absent"), name
    assert row["cached_tokens"] is None and row["kv_cache_hit"] is None
    assert value(desk.metrics, "forebay_time_to_first_token_seconds_count", model="m") == 0


@pytest.mark.parametrize(
    ("events", "first", "outcome", "expected"),
    [
        (3, True, Outcome.CLIENT_CLOSED, (9, 3, 12)),  # case 053 a: what was sent
        (0, False, Outcome.CLIENT_CLOSED, (9, 0, 9)),  # case 053 b: the prompt alone
        (100, True, Outcome.CLIENT_CLOSED, (9, 100, 109)),  # case 053 c: all of it
        (0, False, Outcome.TIMEOUT, (9, 0, 9)),
        (0, False, Outcome.ENGINE_ERROR, (9, None, None)),  # the engine's fault before any content is free
        (5, True, Outcome.ENGINE_ERROR, (9, 5, 14)),
    ],
)
def test_case_053_tokens_without_usage(
    desk: Desk, events: int, first: bool, outcome: Outcome, expected: tuple[int | None, ...]
) -> None:
    record = desk.dispatched()
    if first:
        record.first_token()
    record.output_events = events
    record.close(499, outcome)
    row = desk.lines.row
    assert (row["input_length"], row["output_length"], row["total_tokens"]) == expected
    assert row["usage_estimated"] is True
    used = record.settled_usage()
    assert used.prompt_tokens + used.completion_tokens == (row["total_tokens"] or 0), "the limiter sees another sum"
    counted = sum(
        value(desk.metrics, "forebay_tokens_total", model="m", kind=kind) for kind in ("prompt", "completion")
    )
    assert counted == (row["total_tokens"] or 0)


def test_a_refused_call_uses_nothing_and_has_one_line(desk: Desk) -> None:
    record = desk.open()
    record.refused("queue_full")
    record.close(429, Outcome.REFUSED, "queue_full")
    ((is_open, row),) = desk.lines.all
    assert not is_open
    assert (row["outcome"], row["error_code"], row["status"]) == ("refused", "queue_full", 429)
    assert (row["input_length"], row["output_length"], row["total_tokens"], row["attempts"]) == (9, None, None, [])
    assert (row["pool"], row["replica"]) == (None, None)
    assert record.settled_usage() == Usage()
    assert value(desk.metrics, "forebay_requests_refused_total", reason="queue_full") == 1


def test_a_call_that_nobody_identified(desk: Desk) -> None:
    record = desk.recorder.open("c1", "r1", "chat", "10.0.0.1")
    record.refused("invalid_api_key")
    record.close(401, Outcome.REFUSED)
    row = desk.lines.row
    assert (row["tenant"], row["model"], row["stream"], row["input_length"]) == (None, None, None, None)
    assert row["error_code"] == "invalid_api_key"
    labels = {"endpoint": "chat", "model": "other", "tenant": "other", "code": "401", "outcome": "refused"}
    assert value(desk.metrics, "forebay_requests_total", **labels) == 1


def test_a_request_without_a_route_is_counted_only(desk: Desk) -> None:
    desk.recorder.unrouted("route_not_found", 404)
    assert desk.lines.all == []
    assert value(desk.metrics, "forebay_requests_refused_total", reason="route_not_found") == 1


def test_every_try_is_in_the_row(desk: Desk) -> None:
    record = desk.dispatched()
    desk.clock.advance(1.0)
    record.attempt_failed(FailureKind.CONNECT, 0)
    record.dispatched("main", "h:2")
    desk.clock.advance(0.25)
    record.attempt_failed(FailureKind.STATUS, 503)
    record.dispatched("spare", "h:1")
    desk.clock.advance(0.5)
    record.first_token()
    record.close(200, Outcome.FALLBACK)
    assert [line["kind"] for _, line in desk.lines.all] == ["open", "close"]
    row = desk.lines.row
    assert (row["pool"], row["replica"], row["prefill_time_ms"], row["ttft_ms"]) == ("spare", "h:1", 500.0, 1750.0)
    assert row["attempts"] == [
        {"pool": "main", "replica": "h:1", "failure": "connect", "status": None, "ms": 1000.0},
        {"pool": "main", "replica": "h:2", "failure": "status", "status": 503, "ms": 250.0},
        {"pool": "spare", "replica": "h:1", "failure": None, "status": 200, "ms": 500.0},
    ]
    for pool, replica, failure in (("main", "h:1", "connect"), ("main", "h:2", "status"), ("spare", "h:1", "none")):
        assert value(desk.metrics, "forebay_attempts_total", pool=pool, replica=replica, failure=failure) == 1


def test_an_attempt_that_failed_is_not_ended_again_by_close(desk: Desk) -> None:
    record = desk.dispatched()
    record.attempt_failed(FailureKind.RESET, 0)
    record.attempt_failed(FailureKind.RESET, 0)
    record.close(502, Outcome.ENGINE_ERROR, "engine_failed")
    assert len(desk.lines.row["attempts"]) == 1


def test_another_model_answers(desk: Desk) -> None:
    record = desk.dispatched()
    record.answered_by("unused")
    record.degraded("fallback")
    record.continued += 1
    record.close(200, Outcome.FALLBACK)
    row = desk.lines.row
    assert (row["model"], row["degraded"], row["continued"], row["block_table_size"]) == (
        "unused",
        ["fallback"],
        1,
        None,
    )
    assert value(desk.metrics, "forebay_requests_degraded_total", step="fallback") == 1
    assert value(desk.metrics, "forebay_request_duration_seconds_count", endpoint="chat", model="unused") == 1


def test_the_first_token_counts_once(desk: Desk) -> None:
    record = desk.dispatched()
    desk.clock.advance(0.3)
    record.first_token()
    desk.clock.advance(0.3)
    record.first_token()
    assert value(desk.metrics, "forebay_time_to_first_token_seconds_sum", model="m") == pytest.approx(0.3)
    record.close(200, Outcome.OK)
    assert desk.lines.row["ttft_ms"] == pytest.approx(300.0, abs=0.0011)


def test_a_hanging_call_is_visible_while_it_hangs(desk: Desk) -> None:
    assert value(desk.metrics, "forebay_requests_oldest_age_seconds") == 0
    old = desk.open("c1")
    desk.clock.advance(100)
    young = desk.open("c2")
    desk.clock.advance(20)
    assert value(desk.metrics, "forebay_requests_in_flight", model="m") == desk.recorder.in_flight == 2
    assert value(desk.metrics, "forebay_requests_oldest_age_seconds") == desk.recorder.oldest_age_s() == 120
    old.close(504, Outcome.TIMEOUT)
    assert desk.recorder.oldest_age_s() == 20
    young.close(200, Outcome.OK)
    assert (desk.recorder.in_flight, desk.recorder.oldest_age_s()) == (0, 0.0)
    assert value(desk.metrics, "forebay_requests_in_flight", model="m") == 0


def test_the_journals_state_is_a_metric(desk: Desk) -> None:
    assert value(desk.metrics, "forebay_journal_state", state="ok") == 1
    desk.lines.state = "failing: Input/output error"
    assert value(desk.metrics, "forebay_journal_state", state="failing") == 1
    assert value(desk.metrics, "forebay_journal_state", state="ok") == 0
    assert value(desk.metrics, "forebay_journal_lines_total", kind="open") == 4
    assert value(desk.metrics, "forebay_journal_dropped_total", kind="close") == 2


def test_server_timing(desk: Desk) -> None:
    record = desk.open()
    assert record.server_timing() == b"queue;dur=0.0, engine;dur=0.0"
    record.queue_ms = 1.26
    record.dispatched("main", "h:1")
    desk.clock.advance(0.5)
    assert record.server_timing() == b"queue;dur=1.3, engine;dur=500.0"
