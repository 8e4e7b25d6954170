"""How an answer ends when the engine did not end it: errors, whole or inside the stream."""

from forebay.domain import FailureKind
from forebay.edge.render import JSON, engine_error_event, error_body, error_event, error_headers
from forebay.edge.reply import Reply
from forebay.errors import Failed, ForebayError
from forebay.ports import Answer, Header, Verdict
from forebay.wire.endpoints import Shape
from forebay.wire.facts import read_error

_CODES = {
    FailureKind.CONNECT: "engine_unreachable",
    FailureKind.RESET: "engine_failed",
    FailureKind.FIRST_BYTE: "first_byte_timeout",
    FailureKind.STALL: "engine_stalled",
    FailureKind.TOTAL: "total_timeout",
    FailureKind.TRUNCATED: "engine_truncated",
    FailureKind.BAD_ANSWER: "engine_bad_answer",
    FailureKind.STATUS: "engine_failed",
    FailureKind.IN_BAND: "engine_failed",
    FailureKind.LOADING: "engine_loading",
    FailureKind.CREDENTIAL: "engine_credential",
}
# How long a client should wait for an engine that says 503 without saying for how long.
RETRY_AFTER_S = 2


def error_of(failure: FailureKind, message: str) -> Failed:
    """Return the error that a client gets for a failure of the engine."""
    if failure is FailureKind.CREDENTIAL:
        message = "the engine refuses the credential that Forebay is configured with; its operator must act"
    retry_after_s = RETRY_AFTER_S if failure is FailureKind.LOADING else None
    return Failed(_CODES[failure], message or "the engine failed", retry_after_s=retry_after_s)


def end_with_error(reply: Reply, error: ForebayError, shape: Shape) -> None:
    """Answer with an error of ours; inside a stream that has begun it is the last event, without a sentinel."""
    if reply.gone or reply.ended:
        return
    if reply.started:
        reply.write(error_event(error, shape))
        reply.end()
    else:
        reply.whole(error.status, error_headers(error), error_body(error))


def end_with_answer(reply: Reply, verdict: Verdict, answer: Answer, shape: Shape) -> None:
    """Pass on an engine's own error: its status, its message and its Retry-After, in the one shape."""
    if reply.gone or reply.ended:
        return
    error = read_error(answer.body, f"the engine answered with status {answer.status}")
    if reply.started:
        reply.write(engine_error_event(error.message, shape))
        reply.end()
        return
    body = answer.body if answer.body.lstrip().startswith(b'{"error":{') else error.text()
    if not body.startswith(b"{"):
        body = error.text()
    headers: list[Header] = [h for h in answer.headers if h[0] != b"content-type" and h[0] != b"retry-after"]
    headers.append(JSON)
    if verdict.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % verdict.retry_after_s))
    elif answer.status == 503:
        headers.append((b"retry-after", b"%d" % RETRY_AFTER_S))
    reply.whole(answer.status, tuple(headers), body)
