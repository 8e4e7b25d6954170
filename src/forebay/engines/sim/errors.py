"""Errors in the shapes that vLLM sends them."""

from http import HTTPStatus

import msgspec

_TYPES = {400: "BadRequestError", 404: "NotFoundError", 500: "InternalServerError"}


class SimError(Exception):
    """A request that is answered with an error.

    Args:
        status: HTTP status.
        message: for the caller.
        param: the field at fault.
    """

    def __init__(self, status: int, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param


def type_of(status: int) -> str:
    """Return vLLM's error type for a status."""
    if status in _TYPES:
        return _TYPES[status]
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def error_fields(
    message: str, error_type: str, param: str | None = None, code: int | str = 500
) -> dict[str, int | str | None]:
    """Return the fields of an error object, in vLLM's order."""
    return {"message": message, "type": error_type, "param": param, "code": code}


def error_body(status: int, message: str, param: str | None = None) -> bytes:
    """Return the JSON body of an error answer."""
    return msgspec.json.encode({"error": error_fields(message, type_of(status), param, status)})


def messages_error_body(error_type: str, message: str) -> bytes:
    """Return the JSON body of an error answer of `/v1/messages`."""
    return msgspec.json.encode({"type": "error", "error": {"type": error_type, "message": message}})
