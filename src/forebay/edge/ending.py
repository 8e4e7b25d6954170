"""How an answer ends when the engine did not end it: errors, whole or inside the stream."""

from forebay.domain import FailureKind, Outcome
from forebay.edge.render import JSON, engine_error_event, error_body, error_event, error_headers
from forebay.errors import Failed, ForebayError
from forebay.ports import Reply
from forebay.traffic import Answer, Header, Verdict
from forebay.wire.answers import complete, read_error
from forebay.wire.endpoints import Endpoint, Shape

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


_REPLACED = (b"content-type", b"content-encoding", b"retry-after")
# FastAPI's and llama.cpp's words for a path that they do not have.
_NO_SUCH_PATH = ("Not Found", "File Not Found")


def conclude(verdict: Verdict, reply: Reply, endpoint: Endpoint) -> tuple[int, str]:
    """Give the client the end that the tries came to; return the status that it got, and the error's code."""
    failure = verdict.failure
    if verdict.outcome is Outcome.OK:
        return reply.status, ""
    if failure is None:
        return 499, ""
    answer = verdict.answer
    # What an engine says about our own credential is not the caller's business.
    if answer is not None and failure is FailureKind.STATUS and answer.status in (401, 403):
        failure, answer = FailureKind.CREDENTIAL, None
    if answer is None:
        error = error_of(failure, verdict.message)
        end_with_error(reply, error, endpoint.shape)
        return reply.status, error.code
    return end_with_answer(reply, verdict, answer, endpoint)


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


def end_with_answer(reply: Reply, verdict: Verdict, answer: Answer, endpoint: Endpoint) -> tuple[int, str]:
    """Pass on an engine's own error: its status, its message and its Retry-After, in the one shape."""
    if reply.gone or reply.ended:
        return 499, ""
    error = read_error(answer.body, f"the engine answered with status {answer.status}")
    if reply.started:
        reply.write(engine_error_event(error.message, endpoint.shape))
        reply.end()
        return reply.status, "engine_failed"
    if answer.status in (404, 405, 501) and (error.message in _NO_SUCH_PATH or answer.status != 404):
        missing = Failed("endpoint_not_supported", f"the engine of this model does not serve {endpoint.path}")
        end_with_error(reply, missing, endpoint.shape)
        return reply.status, missing.code
    body = complete(answer.body) or error.text()
    headers: list[Header] = [h for h in answer.headers if h[0] not in _REPLACED]
    headers.append(JSON)
    # A refusal inside a stream has no header that could say when.
    unsaid = answer.status == 503 or (answer.status == 429 and verdict.failure is FailureKind.IN_BAND)
    if verdict.retry_after_s is not None or unsaid:
        headers.append((b"retry-after", b"%d" % (verdict.retry_after_s or RETRY_AFTER_S)))
    reply.whole(answer.status, tuple(headers), body)
    return answer.status, "engine_failed"
