"""What whole answers and errors say."""

import msgspec
from msgspec import Raw, Struct

from forebay.domain import Usage
from forebay.wire.members import DuplicateKey, InvalidJson, TooDeep, read_members
from forebay.wire.said import Timings, given
from forebay.wire.shapes import ErrorBody, Whole
from forebay.wire.splice import edit, with_member
from forebay.wire.usage import usage_of

_whole = msgspec.json.Decoder(Whole).decode
_error_body = msgspec.json.Decoder(ErrorBody).decode


class WholeFacts(Struct, frozen=True):
    """What a whole answer says; `valid` is whether it is a JSON object or array."""

    usage: Usage | None = None
    model: str | None = None
    timings: Timings | None = None
    valid: bool = True


def read_whole(body: bytes) -> WholeFacts:
    """Read the facts of an answer that is not streamed."""
    try:
        seen = _whole(body)
    except msgspec.ValidationError:
        return WholeFacts()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return WholeFacts(valid=False)
    return WholeFacts(usage_of(seen.usage, seen.timings), seen.model, seen.timings)


class EngineError(Struct, frozen=True):
    """An engine's error in the one shape that clients read; values are JSON texts."""

    message: str
    type: bytes = b"null"
    param: bytes = b"null"
    code: bytes = b"null"

    def text(self) -> bytes:
        """Return `{"error": {...}}` as JSON."""
        return b'{"error":{"message":%b,"type":%b,"param":%b,"code":%b}}' % (
            msgspec.json.encode(self.message),
            self.type,
            self.param,
            self.code,
        )


def read_error(body: bytes, fallback_message: str) -> EngineError:
    """Read an engine's error: nested, flat, FastAPI's `detail`, or anything else."""
    try:
        seen = _error_body(body)
        nested = given(seen.error)
        if nested:
            if not nested.startswith(b"{"):
                return EngineError(_text(seen.error) or fallback_message)
            seen = _error_body(nested)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return EngineError(fallback_message)
    message = _text(seen.message) or _text(seen.detail) or fallback_message
    return EngineError(message, *(bytes(raw) or b"null" for raw in (seen.type, seen.param, seen.code)))


def _text(raw: Raw) -> str:
    text = given(raw)
    if not text:
        return ""
    try:
        return msgspec.json.decode(text, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return text.decode(errors="replace")


def complete(body: bytes) -> bytes:
    """Return `{"error": {...}}` with the four members that clients rely on; empty if it is not that at all."""
    try:
        members = read_members(body)
        text = bytes(members.values["error"])
        missing = [key for key in ("message", "type", "param", "code") if key not in read_members(text).values]
    except (InvalidJson, DuplicateKey, TooDeep, KeyError):
        return b""
    for key in missing:
        text = with_member(text, key, b"null")
    return edit(members, {"error": text}) if missing else body
