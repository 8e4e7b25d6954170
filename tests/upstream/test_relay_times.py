"""Deadlines, pings, slow clients; answers that are not streamed."""

import json

import pytest
from notation import DONE, STOP, D, chunk, completion, part
from upstream.engine_side import HEAD, LAST, Try, call_of

from forebay.domain import FailureKind, Outcome, Usage
from forebay.policy import Stream, Timeouts
from forebay.upstream.relay import MAX_ERROR_BYTES, PING

TIMES = Timeouts(first_byte_s=60.0, stall_s=15.0, total_s=600.0)
QUIET = Stream(ping_s=0)


def failed(made: Try, kind: FailureKind, *, committed: bool = False) -> None:
    verdict = made.ended
    assert (verdict.failure, verdict.outcome, verdict.committed) == (kind, Outcome.TIMEOUT, committed)
    assert verdict.message
    assert made.line.transport.aborted, "the engine must stop working"
    assert not made.reply.ended


def running(**terms: object) -> Try:
    made = Try(timeouts=TIMES, **terms)
    made.feed(HEAD)
    made.events(D("x"))
    return made


# deadlines


@pytest.mark.parametrize("sent", [b"", HEAD, HEAD + chunk(part({"role": "assistant"})), HEAD + chunk(b": wait\n\n")])
def test_the_first_content_must_come_in_time(sent: bytes) -> None:
    made = Try(timeouts=TIMES, stream=QUIET)
    made.feed(sent)
    made.after(59.9)
    made.feed(*([chunk(b": wait\n\n")] if sent else []))
    made.after(0.1)
    assert made.verdict is None
    made.after(0.1)
    failed(made, FailureKind.FIRST_BYTE)
    assert not made.reply.started


def test_a_silent_engine_in_the_middle() -> None:
    made = running()
    made.after(15.0)
    assert made.verdict is None
    made.events(D("y"))
    made.after(15.0)
    assert made.verdict is None
    made.after(0.1)
    failed(made, FailureKind.STALL, committed=True)


@pytest.mark.parametrize("framed", [True, False])
def test_every_token_starts_the_silence_anew(framed: bool) -> None:
    made = Try(timeouts=TIMES, framed=framed)
    made.feed(HEAD)
    for _ in range(20):
        made.events(D("x"))
        made.after(14.0)
    assert made.verdict is None


def test_the_whole_answer_has_a_deadline() -> None:
    made = Try(timeouts=TIMES, call=call_of(deadline_s=130.0))
    made.feed(HEAD)
    for _ in range(3):
        made.events(D("x"))
        made.after(10.0)
    assert made.verdict is None
    made.after(0.1)
    failed(made, FailureKind.TOTAL, committed=True)


def test_the_deadline_of_the_call_holds_before_the_first_byte_too() -> None:
    made = Try(timeouts=TIMES, call=call_of(deadline_s=110.0), stream=QUIET)
    made.after(10.1)
    failed(made, FailureKind.TOTAL)


def test_a_finished_answer_waits_for_its_usage_only_so_long() -> None:
    made = running()
    made.events(STOP)
    made.after(5.0)
    assert made.verdict is None
    made.after(0.1)
    assert (made.ended.outcome, made.ended.missing_done) == (Outcome.OK, True)
    assert made.reply.body == D("x") + STOP + DONE
    assert made.reply.ended
    assert not made.line.transport.closing
    made.clock.advance(1.1)
    made.line.pool.sweep()
    assert made.line.transport.aborted, "an engine that does not end its answer is cut"


# pings


def test_a_waiting_client_is_pinged_and_then_served() -> None:
    made = Try(timeouts=TIMES, stream=Stream(ping_s=10))
    made.feed(HEAD)
    made.after(10.0)
    assert not made.reply.started
    made.after(0.1)
    assert made.reply.body == PING
    assert made.reply.status == 200
    assert dict(made.reply.headers)[b"content-type"].startswith(b"text/event-stream")
    made.after(5.0)
    assert made.reply.body == PING
    made.after(5.1)
    assert made.reply.body == PING * 2
    made.events(D("x"), STOP, DONE)
    assert made.reply.body == PING * 2 + D("x") + STOP + DONE
    assert made.ended.outcome is Outcome.OK


def test_a_ping_commits_nothing() -> None:
    made = Try(timeouts=TIMES, stream=Stream(ping_s=10))
    made.after(10.1)
    assert made.reply.started
    made.feed(b"HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\nno")
    assert made.ended.committed is False
    assert made.ended.answer is not None
    assert made.ended.answer.status == 503


def test_pings_do_not_move_the_first_byte_deadline() -> None:
    made = Try(timeouts=TIMES, stream=Stream(ping_s=10))
    for _ in range(5):
        made.after(10.1)
    assert made.verdict is None
    made.after(10.0)
    failed(made, FailureKind.FIRST_BYTE)


def test_a_whole_answer_is_never_pinged() -> None:
    made = Try(call=call_of(stream=False), stream=Stream(ping_s=1), timeouts=TIMES)
    made.after(30.0)
    assert not made.reply.started


# the client


def test_a_client_that_leaves_stops_the_engine() -> None:
    made = running()
    assert made.reply.listener is made.relay
    made.relay.client_gone()
    assert (made.ended.outcome, made.ended.failure, made.ended.committed) == (Outcome.CLIENT_CLOSED, None, True)
    assert made.line.transport.aborted
    made.relay.client_gone()


def test_a_slow_client_slows_the_engine_and_does_not_count_as_its_silence() -> None:
    made = running()
    made.relay.client_ready(False)
    assert not made.line.transport.reading
    made.after(59.0)
    assert made.verdict is None
    made.relay.client_ready(True)
    assert made.line.transport.reading
    made.after(15.0)
    assert made.verdict is None
    made.after(0.1)
    failed(made, FailureKind.STALL, committed=True)


def test_a_client_that_takes_nothing_is_cut() -> None:
    made = running(stream=Stream(write_stall_s=60))
    made.relay.client_ready(False)
    made.after(60.0)
    assert made.verdict is None
    made.after(0.1)
    assert (made.ended.outcome, made.ended.failure) == (Outcome.CLIENT_CLOSED, None)
    assert made.reply.aborted
    assert made.line.transport.aborted


def test_nothing_happens_after_the_verdict() -> None:
    made = running()
    made.relay.client_gone()
    for act in (
        lambda: made.relay.client_ready(False),
        lambda: made.relay.on_body(D("y")),
        lambda: made.relay.on_lost(FailureKind.RESET),
        made.relay.on_end,
        lambda: made.after(10_000),
    ):
        act()
    assert made.reply.body == D("x")
    assert len(made.promise.verdicts) == 1


@pytest.mark.parametrize("body", [D("x") * 3, D("x") + STOP + DONE])
def test_a_client_that_fills_up_with_the_last_bytes_leaves_the_connection_readable(body: bytes) -> None:
    made = Try(timeouts=TIMES)
    write = made.reply.write

    def full(data: bytes) -> None:
        write(data)
        if made.reply.listener is not None:
            made.reply.listener.client_ready(False)

    made.reply.write = full  # type: ignore[method-assign]
    made.feed(HEAD + chunk(body) + LAST)
    assert made.verdict is not None
    taken = made.line.pool.take(made.line.connection.replica)
    assert taken is None or made.line.transport.reading


# answers that are not streamed


def whole(body: bytes, *, status: int = 200, kind: str = "application/json", lines: str = "", **terms: object) -> Try:
    made = Try(call=call_of(stream=bool(terms.pop("stream_asked", False))), timeouts=TIMES, **terms)
    head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n{lines}\r\n"
    made.feed(head.encode(), body)
    return made


BODY = json.dumps(completion(), separators=(",", ":")).encode()


@pytest.mark.parametrize("stream_asked", [False, True])
def test_a_whole_answer(stream_asked: bool) -> None:
    made = whole(BODY, stream_asked=stream_asked)
    assert (made.ended.outcome, made.ended.status, made.ended.committed) == (Outcome.OK, 200, True)
    assert (made.reply.body, made.reply.length_bytes, made.reply.ended) == (BODY, len(BODY), True)
    assert (made.record.usage, made.record.first_tokens) == (Usage(2, 1), 1)
    assert made.line.idle


def test_the_models_name_is_the_clients_in_a_whole_answer() -> None:
    made = whole(BODY, model="alias")
    assert json.loads(made.reply.body) == completion("alias")
    assert made.reply.length_bytes == len(made.reply.body)


@pytest.mark.parametrize("body", [b"", b"{", b"oops"])
def test_a_whole_answer_that_is_no_json(body: bytes) -> None:
    made = whole(body)
    assert (made.ended.failure, made.ended.committed) == (FailureKind.BAD_ANSWER, False)
    assert not made.reply.started
    text = whole(body, kind="text/plain")
    assert text.ended.outcome is Outcome.OK
    assert text.reply.body == body


def test_a_whole_answer_that_is_cut() -> None:
    made = Try(call=call_of(stream=False))
    made.feed(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{")
    made.line.end()
    assert (made.ended.failure, made.ended.outcome) == (FailureKind.TRUNCATED, Outcome.TRUNCATED)
    assert not made.reply.started


def test_a_whole_answer_is_bounded() -> None:
    made = whole(b"[" + b"1," * 600 + b"1]", max_answer_bytes=1000)
    assert (made.ended.failure, made.reply.started) == (FailureKind.BAD_ANSWER, False)
    assert made.line.transport.aborted


def test_a_whole_answer_behind_a_ping_is_one_event() -> None:
    made = Try(timeouts=TIMES, stream=Stream(ping_s=10))
    made.after(10.1)
    made.feed(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 8\r\n\r\n", b'{"a":\n1}')
    assert made.reply.body == PING + b'data: {"a": 1}\n\n'
    assert made.ended.outcome is Outcome.OK


@pytest.mark.parametrize("bound", [True, False])
def test_the_first_byte_deadline_binds_a_whole_answer_only_when_it_is_asked_to(bound: bool) -> None:
    times = Timeouts(first_byte_s=60.0, total_s=600.0, first_byte_for_whole=bound)
    made = Try(call=call_of(stream=False), timeouts=times)
    made.after(60.1)
    if bound:
        failed(made, FailureKind.FIRST_BYTE)
    else:
        assert made.verdict is None
        made.after(540.0)
        failed(made, FailureKind.TOTAL)


# the engine's own errors


@pytest.mark.parametrize("status", [400, 404, 429, 500, 503, 302])
@pytest.mark.parametrize("stream_asked", [False, True])
def test_an_error_answer_is_kept_and_not_sent(status: int, stream_asked: bool) -> None:
    made = whole(b'{"error":{}}', status=status, lines="Retry-After: 7\r\n", stream_asked=stream_asked)
    verdict = made.ended
    assert (verdict.outcome, verdict.failure, verdict.status) == (Outcome.ENGINE_ERROR, FailureKind.STATUS, status)
    assert verdict.answer is not None
    assert (verdict.answer.status, verdict.answer.body, verdict.retry_after_s) == (status, b'{"error":{}}', 7.0)
    assert (b"retry-after", b"7") in verdict.answer.headers
    assert not made.reply.started
    assert made.line.idle, "an error is a whole answer too"


@pytest.mark.parametrize("value", ["", "soon", "-1", "Wed, 21 Oct 2026 07:28:00 GMT", "1.5"])
def test_a_retry_after_that_is_no_number_of_seconds(value: str) -> None:
    assert whole(b"{}", status=503, lines=f"Retry-After: {value}\r\n").ended.retry_after_s is None


def test_an_error_answer_is_bounded() -> None:
    made = whole(b"x" * (MAX_ERROR_BYTES + 1), status=500, kind="text/html")
    assert made.ended.failure is FailureKind.BAD_ANSWER
    assert made.line.transport.aborted
