"""How an answer ends when the engine did not end it, in every shape."""

import json
from typing import Any

import pytest
from edge.client_side import DATE, FakeTransport, Seen, read_answers

from forebay.domain import FailureKind, Outcome
from forebay.edge.ending import RETRY_AFTER_S, conclude, end_with_answer, end_with_error, error_of
from forebay.edge.reply import Reply
from forebay.errors import CODES, ForebayError, Refused
from forebay.traffic import Answer, Header, Verdict
from forebay.wire.endpoints import ENDPOINTS, Endpoint, Shape
from forebay.wire.sse import Event, Framer

BY_SHAPE: dict[Shape, Endpoint] = {endpoint.shape: endpoint for endpoint in reversed(ENDPOINTS)}
SHAPES = tuple(BY_SHAPE)


def new_reply() -> tuple[Reply, FakeTransport]:
    transport = FakeTransport()
    return Reply(transport, lambda _: None, date=DATE, chunked=True, keep_alive=True, bodiless=False), transport  # type: ignore[arg-type]


def begun_reply() -> tuple[Reply, FakeTransport]:
    reply, transport = new_reply()
    reply.head(200, ((b"content-type", b"text/event-stream"),), None)
    reply.write(b"data: x\n\n")
    return reply, transport


def only(transport: FakeTransport) -> Seen:
    (answer,) = read_answers(transport.sent)
    return answer


def last_event(transport: FakeTransport) -> Event:
    first, last = Framer().feed(only(transport).body)
    assert first.data == b"x"
    return last


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("code", CODES)
def test_an_error_before_anything_was_sent(code: str, shape: Shape) -> None:
    reply, transport = new_reply()
    end_with_error(reply, ForebayError(code, 'say "what"', param="p", retry_after_s=3), shape)
    answer = only(transport)
    assert reply.ended
    assert answer.status == CODES[code].status
    assert answer.headers[b"content-type"] == b"application/json"
    assert answer.headers[b"retry-after"] == b"3"
    assert answer.headers[b"x-should-retry"] == (b"true" if CODES[code].retry else b"false")
    assert (b"www-authenticate" in answer.headers) == (answer.status == 401)
    body = {"message": 'say "what"', "type": CODES[code].type, "param": "p", "code": code}
    assert json.loads(answer.body) == {"error": body}


@pytest.mark.parametrize("shape", SHAPES)
def test_an_error_inside_a_stream_is_its_last_event(shape: Shape) -> None:
    reply, transport = begun_reply()
    end_with_error(reply, Refused("internal_error", "it broke"), shape)
    event = last_event(transport)
    payload = json.loads(event.data)
    assert payload["error"] == {"message": "it broke", "type": "server_error", "param": None, "code": "internal_error"}
    if shape in ("messages", "responses"):
        assert event.name == b"error"
        assert payload["type"] == "error"
    else:
        assert event.name == b""
        assert list(payload) == ["error"]
    if shape == "responses":
        assert (payload["code"], payload["message"]) == ("internal_error", "it broke")


def test_nothing_is_added_to_an_answer_that_has_ended_or_lost_its_client() -> None:
    for spoil in (lambda r: r.whole(200, (), b"a"), lambda r: r.client_gone()):
        reply, transport = new_reply()
        spoil(reply)
        sent = transport.sent
        end_with_error(reply, Refused("internal_error", "x"), "chat")
        ended = end_with_answer(reply, Verdict(False, Outcome.ENGINE_ERROR), Answer(400, (), b""), BY_SHAPE["chat"])
        assert ended == (499, "")
        assert transport.sent == sent


@pytest.mark.parametrize("failure", FailureKind)
def test_every_failure_of_an_engine_has_its_error(failure: FailureKind) -> None:
    error = error_of(failure, "")
    assert error.message
    assert error.status in (502, 503, 504)
    assert error_of(failure, "why").message == "why" or failure is FailureKind.CREDENTIAL
    assert error.retry_after_s == (RETRY_AFTER_S if failure is FailureKind.LOADING else None)


def test_a_refused_credential_is_the_operators_business() -> None:
    assert error_of(FailureKind.CREDENTIAL, "Invalid API key sk-123").message.endswith("its operator must act")


# an engine's own error


def pass_on(answer: Answer, shape: Shape = "chat", *, begun: bool = False, **verdict: Any) -> FakeTransport:
    reply, transport = begun_reply() if begun else new_reply()
    made = Verdict(begun, Outcome.ENGINE_ERROR, FailureKind.STATUS, **verdict)
    status, code = end_with_answer(reply, made, answer, BY_SHAPE[shape])
    assert reply.ended
    assert status == reply.status
    assert code in ("engine_failed", "endpoint_not_supported")
    return transport


NESTED = b'{"error":{"message":"prompt has 9000 tokens","type":"BadRequestError","param":null,"code":400}}'
FLAT = b'{"object":"error","message":"prompt has 9000 tokens","type":"BadRequestError","code":400}'


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("body", [NESTED, FLAT, b" \n" + NESTED, NESTED.replace(b":", b": ")])
def test_an_engines_error_keeps_status_and_message_in_the_one_shape(body: bytes, shape: Shape) -> None:
    answer = only(
        pass_on(Answer(400, ((b"content-type", b"application/problem+json"), (b"x-kept", b"1")), body), shape)
    )
    assert answer.status == 400
    assert answer.headers[b"content-type"] == b"application/json"
    assert answer.headers[b"x-kept"] == b"1"
    assert b"retry-after" not in answer.headers
    error = {"message": "prompt has 9000 tokens", "type": "BadRequestError", "param": None, "code": 400}
    assert json.loads(answer.body) == {"error": error}


def test_a_nested_error_goes_on_byte_for_byte() -> None:
    body = b'{"error":{"message":"m","type":"t","param":null,"extra":1.50,"code":"c"}}'
    assert only(pass_on(Answer(400, (), body))).body == body


@pytest.mark.parametrize("body", [b"", b"gateway timeout", b"<html>", b"[1]", b'{"error":"text"}', b'{"detail":"no"}'])
def test_any_body_becomes_an_error_object(body: bytes) -> None:
    answer = only(pass_on(Answer(418, (), body)))
    assert answer.status == 418
    assert isinstance(json.loads(answer.body)["error"]["message"], str)
    assert json.loads(answer.body)["error"]["message"]


@pytest.mark.parametrize(
    ("status", "asked_s", "header"),
    [(429, 7.0, b"7"), (503, 2.0, b"2"), (503, None, b"2"), (429, None, None), (400, None, None)],
)
def test_retry_after(status: int, asked_s: float | None, header: bytes | None) -> None:
    headers: tuple[Header, ...] = ((b"retry-after", b"99"),) if asked_s else ()
    answer = only(pass_on(Answer(status, headers, NESTED), retry_after_s=asked_s))
    assert answer.headers.get(b"retry-after") == header


@pytest.mark.parametrize("shape", SHAPES)
def test_an_engines_error_inside_a_stream(shape: Shape) -> None:
    event = last_event(pass_on(Answer(500, (), NESTED), shape, begun=True))
    error = json.loads(event.data)["error"]
    assert error["message"] == "prompt has 9000 tokens"
    assert event.name == (b"error" if shape in ("messages", "responses") else b"")


def test_the_coding_of_a_body_that_was_replaced_is_gone() -> None:
    answer = only(pass_on(Answer(500, ((b"content-encoding", b"gzip"),), b"\x1f\x8b\x08")))
    assert b"content-encoding" not in answer.headers


@pytest.mark.parametrize(
    ("status", "body", "code"),
    [
        (404, b'{"detail":"Not Found"}', "endpoint_not_supported"),
        (405, b'{"detail":"Method Not Allowed"}', "endpoint_not_supported"),
        (501, b"", "endpoint_not_supported"),
        (404, b'{"error":{"message":"The model `x` does not exist."}}', None),
        (400, b'{"detail":"Not Found"}', None),
    ],
)
def test_a_path_that_the_engine_does_not_know(status: int, body: bytes, code: str | None) -> None:
    answer = only(pass_on(Answer(status, (), body)))
    assert json.loads(answer.body)["error"].get("code") == code
    assert answer.status == (404 if code else status)


# the end that the tries came to


def test_an_answer_that_was_given_needs_no_other_end() -> None:
    reply, transport = begun_reply()
    reply.end()
    sent = transport.sent
    assert conclude(Verdict(True, Outcome.OK), reply, BY_SHAPE["chat"]) == (200, "")
    assert transport.sent == sent


def test_a_client_that_left_gets_nothing() -> None:
    reply, transport = new_reply()
    assert conclude(Verdict(False, Outcome.CLIENT_CLOSED), reply, BY_SHAPE["chat"]) == (499, "")
    assert transport.sent == b""


@pytest.mark.parametrize("failure", [kind for kind in FailureKind if kind is not FailureKind.STATUS])
def test_a_failure_without_an_answer_is_our_error(failure: FailureKind) -> None:
    for made in (new_reply, begun_reply):
        reply, transport = made()
        status, code = conclude(Verdict(False, Outcome.ENGINE_ERROR, failure, message="why"), reply, BY_SHAPE["chat"])
        assert code in CODES
        assert only(transport).status == status == (CODES[code].status if made is new_reply else 200)
        assert code.encode() in only(transport).body


@pytest.mark.parametrize("status", [401, 403])
def test_what_an_engine_says_of_our_credential_stays_with_us(status: int) -> None:
    reply, transport = new_reply()
    answer = Answer(status, ((b"www-authenticate", b"Basic"),), b'{"error":{"message":"bad key sk-123"}}')
    verdict = Verdict(False, Outcome.ENGINE_ERROR, FailureKind.STATUS, status, answer)
    assert conclude(verdict, reply, BY_SHAPE["chat"]) == (502, "engine_credential")
    assert b"sk-123" not in transport.sent
    assert b"www-authenticate" not in transport.sent


def test_an_engines_own_answer_is_passed_on() -> None:
    reply, transport = new_reply()
    verdict = Verdict(False, Outcome.ENGINE_ERROR, FailureKind.STATUS, 400, Answer(400, (), NESTED))
    assert conclude(verdict, reply, BY_SHAPE["chat"]) == (400, "engine_failed")
    assert only(transport).body == NESTED
