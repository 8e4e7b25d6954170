"""The errors that a fault answers with before the engine is asked: pure."""

from typing import NamedTuple

import msgspec

from forebay.engines.sim.errors import error_body, error_fields, type_of
from forebay.engines.sim.faults import AnyAction, ContentPolicy, ContextLength, Drain, Loading, RefusePrefix, Status


class Refusal(NamedTuple):
    """An answer that needs no engine."""

    status: int
    body: bytes
    headers: tuple[tuple[bytes, bytes], ...] = ()


def refusal(action: AnyAction, has_prefix: bool) -> Refusal | None:
    """Return the error that an action answers with, None when the call goes on.

    Args:
        action: whose turn it is.
        has_prefix: the caller gave the beginning of the answer.
    """
    match action:
        case Status():
            return _status(action)
        case ContextLength():
            message = "This model's maximum context length is exceeded. Please reduce the length of the messages."
            return _openai(message, "messages", "context_length_exceeded")
        case ContentPolicy():
            message = "Your request was rejected as a result of our safety system."
            return _openai(message, None, "content_policy_violation")
        case RefusePrefix() if has_prefix:
            return Refusal(400, error_body(400, "The last message must not be from the assistant.", "messages"))
        case Drain():
            return Refusal(500, error_body(500, "cannot schedule new futures after shutdown"))
        case Loading():
            fields = error_fields("Loading model", "unavailable_error", code=503)
            return Refusal(503, msgspec.json.encode({"error": fields}))
    return None


def _openai(message: str, param: str | None, code: str) -> Refusal:
    fields = error_fields(message, "invalid_request_error", param, code)
    return Refusal(400, msgspec.json.encode({"error": fields}))


def _status(action: Status) -> Refusal:
    headers: tuple[tuple[bytes, bytes], ...] = ()
    if action.retry_after != "":
        value = action.retry_after
        headers = ((b"retry-after", (value if isinstance(value, str) else f"{value:g}").encode()),)
    if action.body is not None:
        return Refusal(action.status, action.body.encode(), headers)
    error_type = action.type or type_of(action.status)
    fields = error_fields(action.message or error_type, error_type, action.param, action.code or action.status)
    body = msgspec.json.encode({"object": "error", **fields} if action.flat else {"error": fields})
    return Refusal(action.status, body, headers)
