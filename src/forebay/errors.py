"""Every refusal and every failure, in one closed list.

`Refused` never reached an engine; `Failed` did. Both carry a code of the list below; the code decides
status, OpenAI error type, whether an SDK should retry, and the metric label. `edge` alone turns them
into HTTP.
"""

from typing import NamedTuple


class Code(NamedTuple):
    """What one error code means on the wire."""

    status: int
    type: str
    retry: bool = False


_BAD = "invalid_request_error"
_OVER = "rate_limit_error"
_DOWN = "engine_error"

CODES: dict[str, Code] = {
    # the request as HTTP
    "bad_request": Code(400, _BAD),
    "request_timeout": Code(408, _BAD, retry=True),
    "body_too_large": Code(413, _BAD),
    "headers_too_large": Code(431, _BAD),
    "method_not_allowed": Code(405, _BAD),
    "route_not_found": Code(404, _BAD),
    "host_not_allowed": Code(403, _BAD),
    # the request as JSON
    "invalid_json": Code(400, _BAD),
    "duplicate_key": Code(400, _BAD),
    "json_too_deep": Code(400, _BAD),
    "invalid_value": Code(400, _BAD),
    "missing_value": Code(400, _BAD),
    # a client that comes back for the rest of an answer
    "resume_invalid": Code(400, _BAD),
    "resume_mismatch": Code(409, _BAD),
    "resume_expired": Code(409, _BAD),
    "resume_used": Code(409, _BAD),
    "resume_unavailable": Code(503, _BAD, retry=True),
    # who and what
    "missing_api_key": Code(401, "authentication_error"),
    "invalid_api_key": Code(401, "authentication_error"),
    "model_not_allowed": Code(403, "permission_error"),
    "model_not_found": Code(404, _BAD),
    "endpoint_not_supported": Code(404, _BAD),
    # the same request again
    "idempotency_key_reused": Code(422, _BAD),
    "idempotency_in_progress": Code(409, _BAD, retry=True),
    "idempotency_answer_lost": Code(409, _BAD),
    "client_too_slow": Code(408, _BAD, retry=True),
    # limits
    "concurrency_limit": Code(429, _OVER, retry=True),
    "requests_limit": Code(429, _OVER, retry=True),
    "insufficient_quota": Code(429, _OVER, retry=True),
    "quota_exhausted": Code(429, _OVER),
    "overloaded": Code(429, _OVER, retry=True),
    "rule_rejected": Code(422, _BAD),
    "hygiene_rejected": Code(400, _BAD),
    "degraded": Code(503, "overloaded_error"),
    "request_quarantined": Code(422, _BAD),
    "queue_full": Code(429, _OVER, retry=True),
    "queue_timeout": Code(429, _OVER, retry=True),
    # engines
    "engine_unreachable": Code(502, _DOWN, retry=True),
    "engine_failed": Code(502, _DOWN, retry=True),
    "engine_bad_answer": Code(502, _DOWN, retry=True),
    "engine_truncated": Code(502, _DOWN, retry=True),
    "engine_credential": Code(502, _DOWN),
    "engine_stalled": Code(504, "timeout_error", retry=True),
    "first_byte_timeout": Code(504, "timeout_error", retry=True),
    "total_timeout": Code(504, "timeout_error"),
    "no_engine": Code(503, "overloaded_error", retry=True),
    "engine_loading": Code(503, "overloaded_error", retry=True),
    "gate_unavailable": Code(503, "overloaded_error", retry=True),
    "feature_unavailable": Code(503, "overloaded_error", retry=True),
    "too_many_connections": Code(503, "overloaded_error", retry=True),
    "internal_error": Code(500, "server_error"),
}


class ForebayError(Exception):
    """An error with a code of the closed list.

    Args:
        code: a key of `CODES`.
        message: for the client; never holds a prompt, a key or an engine's address.
        param: the field of the request at fault, when there is one.
        retry_after_s: whole seconds after which a retry makes sense.

    Raises:
        KeyError: the code is not in the list.
    """

    def __init__(self, code: str, message: str, *, param: str | None = None, retry_after_s: int | None = None) -> None:
        super().__init__(message)
        self.spec = CODES[code]
        self.code = code
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s

    @property
    def status(self) -> int:
        """The HTTP status of this code."""
        return self.spec.status


class Refused(ForebayError):
    """The call never reached an engine."""


class Failed(ForebayError):
    """The call reached an engine, or tried to."""


class ConfigError(Exception):
    """A document that cannot be used: one line per fault.

    Args:
        faults: lines of the form `PATH:LINE: where: what is wrong and what to do`.
    """

    def __init__(self, faults: list[str]) -> None:
        super().__init__("\n".join(faults))
        self.faults = faults
