"""A streamed answer: what is held back, what is passed on, and how it ends."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from notation import DONE, ERROR, STOP, USAGE, D, chunk, event, part
from upstream.engine_side import HEAD, LAST, Try

from forebay.domain import FailureKind, Outcome, Usage
from forebay.upstream.relay import MAX_HELD_EVENTS
from forebay.wire.sse import Framer

ROLE = part({"role": "assistant", "content": ""})


def started(*events: bytes, shape: str = "chat", framed: bool = False, **terms: object) -> Try:
    """A try whose engine has sent its head and these events, each in its own read."""
    made = Try(shape, framed=framed, **terms)
    made.feed(HEAD)
    made.events(*events)
    return made


def well_ended(made: Try, body: bytes) -> None:
    assert (made.ended.outcome, made.ended.failure, made.ended.committed) == (Outcome.OK, None, True)
    assert made.reply.body == body
    assert made.reply.ended
    assert made.reply.listener is None


def test_a_whole_stream() -> None:
    made = started(ROLE, D("a"), D("b"), STOP, USAGE(3, 2), DONE)
    well_ended(made, ROLE + D("a") + D("b") + STOP + USAGE(3, 2) + DONE)
    assert made.reply.status == 200
    assert dict(made.reply.headers)[b"content-type"] == b"text/event-stream"
    assert made.reply.length_bytes is None
    assert made.record.usage == Usage(3, 2)
    assert made.record.first_tokens == 1
    assert not made.ended.missing_done
    made.feed(LAST)
    assert made.line.idle, "the connection is kept"


def test_a_whole_stream_in_one_read() -> None:
    made = Try()
    made.feed(HEAD + b"".join(map(chunk, (ROLE, D("a"), STOP, USAGE(3, 1), DONE))) + LAST)
    well_ended(made, ROLE + D("a") + STOP + USAGE(3, 1) + DONE)
    assert made.line.idle


def test_all_events_in_one_chunk() -> None:
    well_ended(started(ROLE + D("a") + STOP + DONE), ROLE + D("a") + STOP + DONE)


STREAM = ROLE + D("a") + D("é🚀") + b": ping\n\n" + part({}, "stop") + USAGE(3, 2) + DONE
CLIENT = ROLE + D("a") + D("é🚀") + part({}, "stop") + USAGE(3, 2) + DONE


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, len(STREAM) - 1)), st.lists(st.integers(0, 2000)), st.booleans(), st.booleans())
def test_any_chunks_and_any_reads_give_the_same_answer(
    chunk_places: list[int], read_places: list[int], framed: bool, crlf: bool
) -> None:
    stream = STREAM.replace(b"\n", b"\r\n") if crlf else STREAM
    edges = sorted({0, len(stream), *chunk_places})
    chunks = [stream[a:b] for a, b in zip(edges, edges[1:], strict=False)]
    wire = HEAD + b"".join(map(chunk, chunks)) + LAST
    edges = sorted({0, len(wire), *(place % len(wire) for place in read_places)})
    made = Try(framed=framed)
    made.feed(*(wire[a:b] for a, b in zip(edges, edges[1:], strict=False)))
    well_ended(made, CLIENT)
    assert (made.record.usage, made.record.first_tokens) == (Usage(3, 2), 1)
    assert made.line.idle


tokens = st.lists(st.sampled_from([D("a"), D("b" * 300), D("é"), part({"content": None}), b": c\n\n"]), max_size=8)


@settings(max_examples=150, deadline=None)
@given(tokens, st.lists(st.integers(0, 5000), max_size=4), st.sampled_from(["m", "org/m"]), st.booleans())
def test_reads_that_are_passed_on_as_they_are_change_nothing(
    sent: list[bytes], places: list[int], model: str, drops_usage: bool
) -> None:
    """One event in one chunk in one read takes a short way; the client must not be able to tell."""
    events = [D("first"), *sent, STOP, USAGE(3, 2), DONE]
    reads = [chunk(item) for item in events]
    for place in places:
        at = place % len(reads)
        cut = place % len(reads[at])
        reads[at : at + 1] = [part for part in (reads[at][:cut], reads[at][cut:]) if part]
    tries = [Try(framed=framed, model=model, drops_usage=drops_usage) for framed in (True, False)]
    for made in tries:
        made.feed(HEAD, *reads, LAST)
    assert tries[0].reply.body == tries[1].reply.body
    assert tries[0].record.usage == tries[1].record.usage == Usage(3, 2)
    assert tries[0].record.output_events == tries[1].record.output_events
    assert (USAGE(3, 2) in tries[0].reply.body) is (model == "m" and not drops_usage)
    well_ended(tries[0], tries[0].reply.body)


# opening


def test_nothing_is_sent_before_the_first_content() -> None:
    made = started(ROLE, event({"id": "c1", "model": "m", "choices": []}))
    assert not made.reply.started
    assert not made.relay.committed
    made.events(D("x"))
    assert made.reply.writes == [ROLE + event({"id": "c1", "model": "m", "choices": []}) + D("x")]
    assert made.record.first_tokens == 1


def test_what_is_held_back_is_bounded() -> None:
    made = started(*[ROLE] * MAX_HELD_EVENTS)
    assert not made.reply.started
    made.events(ROLE)
    assert made.reply.body == ROLE * (MAX_HELD_EVENTS + 1)


@pytest.mark.parametrize("before", [(), (ROLE,)])
def test_an_error_first_is_not_sent_but_told(before: tuple[bytes, ...]) -> None:
    made = started(*before, ERROR("too long", 400), DONE)
    verdict = made.ended
    assert (verdict.committed, verdict.outcome, verdict.failure) == (False, Outcome.ENGINE_ERROR, FailureKind.IN_BAND)
    assert verdict.answer is not None
    assert verdict.answer.status == 400
    assert json.loads(verdict.answer.body)["error"]["message"] == "too long"
    assert not made.reply.started
    assert made.line.transport.aborted


@pytest.mark.parametrize(("code", "status"), [(400, 400), (429, 429), (503, 503), ("x", 502), (None, 502), (200, 502)])
def test_the_status_that_an_error_event_means(code: object, status: int) -> None:
    made = started(event({"error": {"message": "m", "type": "t", "code": code}}))
    assert made.ended.answer is not None
    assert made.ended.answer.status == status


def test_a_finish_alone_is_content() -> None:
    well_ended(started(ROLE, STOP, DONE), ROLE + STOP + DONE)


# failures in the middle


@pytest.mark.parametrize(
    "error",
    [
        ERROR("engine ran out of cache"),
        b'event: error\ndata: {"message":"engine ran out of cache"}\n\n',
        b'data: {"error":"engine ran out of cache"}\n\n',
    ],
)
@pytest.mark.parametrize("together", [True, False])
def test_an_error_in_the_middle(error: bytes, together: bool) -> None:
    made = started(D("x") + error + D("late")) if together else started(D("x"), error, D("late"))
    verdict = made.ended
    assert (verdict.committed, verdict.outcome, verdict.failure) == (True, Outcome.ENGINE_ERROR, FailureKind.IN_BAND)
    assert verdict.message == "engine ran out of cache"
    assert verdict.answer is None
    assert made.reply.body == D("x")
    assert not made.reply.ended, "its end is written by who reads the verdict"
    assert made.line.transport.aborted


def test_an_aborted_answer() -> None:
    made = started(D("x"), part({}, "abort"))
    assert (made.ended.failure, made.ended.committed) == (FailureKind.IN_BAND, True)
    assert made.reply.body == D("x")


def test_an_event_that_is_no_json() -> None:
    made = started(D("x"), b"data: {oops\n\n", D("y"))
    assert (made.ended.failure, made.ended.outcome) == (FailureKind.BAD_ANSWER, Outcome.ENGINE_ERROR)
    assert made.reply.body == D("x")


def test_an_event_larger_than_the_bound() -> None:
    made = started(D("x"))
    for _ in range(9):
        made.events(b"data: " + b"x" * 1_000_000)
    assert made.ended.failure is FailureKind.BAD_ANSWER


@pytest.mark.parametrize("events", [(), (ROLE,), (D("x"),), (D("x"), USAGE(3, 1)), (D("x"), DONE)])
@pytest.mark.parametrize("how", ["last chunk", "cut", "reset"])
def test_an_end_without_a_finish_reason_is_no_success(events: tuple[bytes, ...], how: str) -> None:
    made = started(*events)
    if how == "last chunk":
        made.feed(LAST)
    elif how == "cut":
        made.line.end()
    else:
        made.line.lose()
    assert (made.ended.outcome, made.ended.failure) == (Outcome.TRUNCATED, FailureKind.TRUNCATED)
    assert made.ended.committed is (D("x") in events)
    assert DONE not in made.reply.body
    assert not made.reply.ended


def test_a_connection_lost_before_anything() -> None:
    made = Try()
    made.line.lose()
    assert (made.ended.failure, made.ended.status) == (FailureKind.RESET, 0)


def test_no_http_at_all() -> None:
    made = Try()
    made.feed(b"220 smtp ready\r\n")
    assert made.ended.failure is FailureKind.BAD_ANSWER


# the end


@pytest.mark.parametrize("how", ["last chunk", "cut", "reset"])
def test_a_finished_stream_without_done_is_complete(how: str) -> None:
    made = started(D("x"), STOP)
    assert made.verdict is None, "a usage chunk may still come"
    made.events(USAGE(3, 1))
    {"last chunk": lambda: made.feed(LAST), "cut": made.line.end, "reset": made.line.lose}[how]()
    well_ended(made, D("x") + STOP + USAGE(3, 1) + DONE)
    assert made.ended.missing_done
    assert made.record.usage == Usage(3, 1)


def choice(index: int, text: str = "", finish_reason: str | None = None) -> bytes:
    return event({"model": "m", "choices": [{"index": index, "text": text, "finish_reason": finish_reason}]})


@pytest.mark.parametrize("how", ["last chunk", "cut", "reset", "silence"])
def test_one_finished_choice_of_two_does_not_finish_the_stream(how: str) -> None:
    made = started(choice(0, "a"), choice(1, "b"), choice(0, "", "stop"), choices=2)
    made.after(14.9)
    assert made.verdict is None, "the other choice goes on"
    made.events(choice(1, "c"))
    end = {"last chunk": lambda: made.feed(LAST), "cut": made.line.end, "reset": made.line.lose}
    end.get(how, lambda: made.after(15.1))()
    assert made.ended.failure is (FailureKind.STALL if how == "silence" else FailureKind.TRUNCATED)
    assert DONE not in made.reply.body


@pytest.mark.parametrize("together", [True, False])
def test_all_choices_finished_finish_the_stream(together: bool) -> None:
    ends = [{"index": index, "text": "", "finish_reason": "stop"} for index in range(2)]
    groups = [ends] if together else [[end] for end in ends]
    events = [choice(0, "a"), choice(1, "b"), *(event({"model": "m", "choices": group}) for group in groups)]
    made = started(*events, choices=2)
    assert made.verdict is None, "a usage chunk may still come"
    made.after(5.1)
    well_ended(made, b"".join(events) + DONE)


def test_an_engine_that_gives_fewer_choices_ends_with_done() -> None:
    made = started(choice(0, "a"), choice(0, "", "stop"), DONE, choices=2)
    well_ended(made, choice(0, "a") + choice(0, "", "stop") + DONE)


def test_null_is_held_back_and_passed_on() -> None:
    made = started(b"data: null\n\n")
    assert made.reply.body == b""
    made.events(D("x"), STOP, DONE)
    well_ended(made, b"data: null\n\n" + D("x") + STOP + DONE)


def test_done_without_its_last_blank_line() -> None:
    made = started(D("x"), STOP, b"data: [DONE]")
    made.feed(LAST)
    well_ended(made, D("x") + STOP + DONE)
    assert not made.ended.missing_done


def test_nothing_behind_done_reaches_the_client() -> None:
    made = started(D("x") + STOP + DONE + D("late"))
    well_ended(made, D("x") + STOP + DONE)
    made.events(D("later"))
    made.feed(LAST)
    assert made.reply.body == D("x") + STOP + DONE


def test_usage_that_we_asked_for_is_taken_out_but_recorded() -> None:
    nulls = event({"model": "m", "choices": [{"index": 0, "delta": {"content": "x"}}], "usage": None})
    made = started(nulls, STOP, USAGE(3, 2), DONE, drops_usage=True)
    well_ended(made, event({"model": "m", "choices": [{"index": 0, "delta": {"content": "x"}}]}) + STOP + DONE)
    assert made.record.usage == Usage(3, 2)


def test_timings_of_llamacpp_are_recorded() -> None:
    timings = {"prompt_n": 3, "prompt_ms": 12.5, "predicted_n": 2, "predicted_ms": 30.0}
    last = event({"choices": [{"finish_reason": "stop", "index": 0, "delta": {}}], "model": "m", "timings": timings})
    made = started(D("x"), last, DONE)
    well_ended(made, D("x") + last + DONE)
    assert made.record.usage == Usage(3, 2, 0)
    assert (made.record.engine_prefill_ms, made.record.engine_decode_ms) == (12.5, 30.0)


def test_the_models_name_is_the_clients_in_every_event() -> None:
    sent = [ROLE, D("a"), D("b"), STOP, USAGE(1, 2)]
    made = started(*sent, DONE, model="alias/größe", framed=True)
    well_ended(made, b"".join(sent).replace(b'"model":"m"', '"model":"alias/größe"'.encode()) + DONE)


# other shapes


def typed(kind: str, **members: object) -> bytes:
    return b"event: %b\n" % kind.encode() + event({"type": kind, **members})


def test_a_messages_stream_ends_without_a_sentinel() -> None:
    start = typed("message_start", message={"id": "1", "model": "m", "usage": {"input_tokens": 9, "output_tokens": 1}})
    text = typed("content_block_delta", index=0, delta={"type": "text_delta", "text": "Hi"})
    ending = typed("message_delta", delta={"stop_reason": "end_turn"}, usage={"output_tokens": 5})
    stop = typed("message_stop")
    made = started(start, typed("ping"), shape="messages")
    assert not made.reply.started
    made.events(text, ending, stop)
    made.feed(LAST)
    well_ended(made, start + typed("ping") + text + ending + stop)
    assert made.record.usage == Usage(9, 5)
    assert not made.ended.missing_done


@pytest.mark.parametrize("events", [(), ("content_block_delta",)])
def test_a_messages_stream_that_is_cut(events: tuple[str, ...]) -> None:
    text = typed("content_block_delta", index=0, delta={"type": "text_delta", "text": "Hi"})
    made = started(*[text] * len(events), shape="messages")
    made.line.end()
    assert made.ended.failure is FailureKind.TRUNCATED


def test_a_responses_stream() -> None:
    answer = {"id": "r", "model": "m", "usage": {"input_tokens": 4, "output_tokens": 2}, "error": None}
    created = typed("response.created", response={**answer, "usage": None})
    text = typed("response.output_text.delta", delta="Hi")
    completed = typed("response.completed", response=answer)
    made = started(created, text, completed, shape="responses")
    made.feed(LAST)
    well_ended(made, created + text + completed)
    assert made.record.usage == Usage(4, 2)


def test_a_responses_stream_that_fails() -> None:
    text = typed("response.output_text.delta", delta="Hi")
    made = started(text, typed("response.failed", response={"error": {"message": "no"}}), shape="responses")
    assert (made.ended.failure, made.ended.message) == (FailureKind.IN_BAND, "no")
    assert made.reply.body == text


def test_only_whole_events_reach_a_client() -> None:
    made = started(D("x") + D("y")[:-10])
    made.line.lose()
    assert [e.data for e in Framer().feed(made.reply.body)] == [D("x")[6:-2]]
