"""What a request's body asks for: the few members that Forebay reads, checked; the rest stays raw."""

import asyncio

import msgspec
from msgspec import Raw, Struct

from forebay.edge.shapes import StreamOptions
from forebay.errors import Refused
from forebay.wire.depth import check_depth
from forebay.wire.endpoints import Endpoint, Shape
from forebay.wire.members import DuplicateKey, InvalidJson, Members, TooDeep, read_members

_MAX_NAME_CHARS = 512
_LIMIT_KEYS = ("max_completion_tokens", "max_tokens", "max_output_tokens")
# Above this size the loop gets a turn between two passes over the body, each of a few milliseconds at most.
SLICE_BYTES = 262_144

_as_text = msgspec.json.Decoder(str).decode


_as_stream_options = msgspec.json.Decoder(StreamOptions).decode


class Asked(Struct, frozen=True):
    """What a body asks for.

    Attributes:
        members: the body, ready to be edited.
        model: the name that the client used; empty when it named none.
        wants_usage: `stream_options.include_usage` is true.
        max_tokens: the client's own cap of the output.
        counted: tokens of the prompt as an engine counted them; 0 when none could, None while none was asked.
    """

    members: Members
    model: str
    stream: bool
    wants_usage: bool
    max_tokens: int | None
    counted: int | None = None


def read_small(body: bytes, endpoint: Endpoint, json_depth: int) -> Asked | None:
    """Read a body at once if it is well formed and small: the common case, with no coroutine.

    Returns:
        None for a body that `read` must look at: it is large, or no JSON object that may be passed on.

    Raises:
        Refused: `invalid_value`, `missing_value`.
    """
    if len(body) > SLICE_BYTES:
        return None
    try:
        if not body.isascii():
            body.decode()
        members = read_members(body)
        check_depth(body, json_depth)
    except (UnicodeDecodeError, InvalidJson, DuplicateKey, TooDeep):
        return None
    return _asked(members, endpoint)


async def read(body: bytes, endpoint: Endpoint, json_depth: int) -> Asked:
    """Read a body; `null` means absent.

    Args:
        body: as received.
        endpoint: that it is sent to.
        json_depth: levels of nesting that are allowed.

    Raises:
        Refused: `invalid_json`, `duplicate_key`, `json_too_deep`, `invalid_value`, `missing_value`.
    """
    sliced = len(body) > SLICE_BYTES
    try:
        if not body.isascii():
            body.decode()
        if sliced:
            await asyncio.sleep(0)
        members = read_members(body)
        if sliced:
            await asyncio.sleep(0)
        check_depth(body, json_depth)
        if sliced:
            await asyncio.sleep(0)
    except UnicodeDecodeError:
        raise Refused("invalid_json", "the body is not UTF-8") from None
    except InvalidJson as error:
        raise Refused("invalid_json", str(error)) from None
    except DuplicateKey as double:
        raise Refused("duplicate_key", str(double), param=double.key[:64]) from None
    except TooDeep:
        raise Refused("json_too_deep", f"the body is nested deeper than {json_depth} levels") from None
    return _asked(members, endpoint)


def limit_key(asked: Asked, shape: Shape) -> str:
    """Return the member that bounds the length of the answer: the one that the body has, else its API's usual one."""
    for key in _LIMIT_KEYS:
        if key in asked.members.values:
            return key
    return "max_output_tokens" if shape == "responses" else "max_tokens"


def _asked(members: Members, endpoint: Endpoint) -> Asked:
    values = members.values
    shape = endpoint.shape
    if shape == "chat" or shape == "messages":
        _check_messages(values)
    stream = "stream" in values and endpoint.streams and _flag(values["stream"], "stream")
    wants_usage = stream and "stream_options" in values and _wants_usage(members)
    return Asked(members, _model(values), stream, wants_usage, _max_tokens(values))


def _model(values: dict[str, Raw]) -> str:
    raw = values.get("model")
    if raw is None or bytes(raw) == b"null":
        return ""
    try:
        name = _as_text(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Refused("invalid_value", "model must be a string", param="model") from None
    if len(name) > _MAX_NAME_CHARS:
        raise Refused("invalid_value", f"model is longer than {_MAX_NAME_CHARS} characters", param="model")
    return name


def _flag(raw: Raw, key: str) -> bool:
    text = bytes(raw)
    if text not in (b"true", b"false", b"null"):
        raise Refused("invalid_value", f"{key} must be true or false", param=key)
    return text == b"true"


def _check_messages(values: dict[str, Raw]) -> None:
    # Looked at, not copied: the messages may be all of a large body.
    first = bytes(memoryview(values["messages"])[:4]) if "messages" in values else b"null"
    if first == b"null":
        raise Refused("missing_value", "messages is required", param="messages")
    if not first.startswith(b"["):
        raise Refused("invalid_value", "messages must be an array", param="messages")


def _wants_usage(members: Members) -> bool:
    text = members.text_of("stream_options")
    if text is None:
        return False
    try:
        # A doubled include_usage could be read two ways.
        read_members(text)
        return _as_stream_options(text).include_usage is True
    except DuplicateKey as error:
        raise Refused("duplicate_key", str(error), param="stream_options") from None
    except (InvalidJson, msgspec.DecodeError):
        expected = "an object with include_usage true or false"
        raise Refused("invalid_value", f"stream_options must be {expected}", param="stream_options") from None


def _max_tokens(values: dict[str, Raw]) -> int | None:
    for key in _LIMIT_KEYS:
        if key in values:
            text = bytes(values[key])
            if text.isdigit() and len(text) < 19:
                return int(text)
            if text != b"null":
                raise Refused("invalid_value", f"{key} must be a whole number, not negative", param=key)
    return None
