"""From errors and heads to bytes: the one place that knows how HTTP looks on our side."""

import msgspec
from msgspec import Struct

from forebay.errors import ForebayError
from forebay.traffic import Header
from forebay.wire.endpoints import Shape

REASONS = {
    100: b"Continue", 200: b"OK", 201: b"Created", 204: b"No Content", 400: b"Bad Request", 401: b"Unauthorized",
    403: b"Forbidden", 404: b"Not Found", 405: b"Method Not Allowed", 408: b"Request Timeout",
    409: b"Conflict", 413: b"Content Too Large", 422: b"Unprocessable Content", 429: b"Too Many Requests",
    431: b"Request Header Fields Too Large", 500: b"Internal Server Error", 502: b"Bad Gateway",
    503: b"Service Unavailable", 504: b"Gateway Timeout",
}  # fmt: skip
JSON: Header = (b"content-type", b"application/json")
_STATUS_LINES = {status: b"HTTP/1.1 %d %b\r\n" % (status, reason) for status, reason in REASONS.items()}
_encode = msgspec.json.Encoder().encode


class _ErrorBody(Struct):
    message: str
    type: str
    param: str | None
    code: str


class _Error(Struct):
    error: _ErrorBody


class _AnthropicError(Struct):
    error: _ErrorBody
    type: str = "error"


class _ResponsesError(Struct):
    error: _ErrorBody
    code: str
    message: str
    param: str | None
    sequence_number: int = 0
    type: str = "error"


def status_line(status: int) -> bytes:
    """Return the first line of an answer."""
    return _STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status


def error_body(error: ForebayError) -> bytes:
    """Return an error in the OpenAI shape."""
    return _encode(_Error(_body_of(error)))


def error_headers(error: ForebayError) -> tuple[Header, ...]:
    """Return the headers that go with an error."""
    headers: list[Header] = [JSON]
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    headers.append((b"x-should-retry", b"true" if error.spec.retry else b"false"))
    return tuple(headers)


def error_event(error: ForebayError, shape: Shape) -> bytes:
    """Return an error as the last event of a stream, as clients of its API expect it."""
    return event_of(_body_of(error), shape)


def engine_error_event(message: str, shape: Shape) -> bytes:
    """Return an engine's own error as the last event of a stream."""
    return event_of(_ErrorBody(message, "engine_error", None, "engine_failed"), shape)


def event_of(body: _ErrorBody, shape: Shape) -> bytes:
    """Frame an error body as the last event of a stream."""
    if shape == "messages":
        return b"event: error\ndata: %b\n\n" % _encode(_AnthropicError(body))
    if shape == "responses":
        return b"event: error\ndata: %b\n\n" % _encode(_ResponsesError(body, body.code, body.message, body.param))
    return b"data: %b\n\n" % _encode(_Error(body))


def _body_of(error: ForebayError) -> _ErrorBody:
    return _ErrorBody(error.message, error.spec.type, error.param, error.code)
