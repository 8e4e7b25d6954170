"""What a request's body asks for: the few members that Forebay reads, checked; the rest stays raw."""

import msgspec
from msgspec import Raw, Struct

from forebay.errors import Refused
from forebay.wire import depth
from forebay.wire.endpoints import Endpoint
from forebay.wire.members import DuplicateKey, InvalidJson, Members, TooDeep, read_members

_MAX_NAME_CHARS = 512


class _StreamOptions(Struct):
    include_usage: bool | None = None


class _Read(Struct):
    """The members that Forebay reads; null means absent."""

    model: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    max_completion_tokens: int | None = None
    max_tokens: int | None = None
    max_output_tokens: int | None = None
    messages: Raw = Raw()


_EXPECTED = {
    "model": "a string",
    "stream": "true or false",
    "stream_options": "an object with include_usage true or false",
    "max_completion_tokens": "a whole number",
    "max_tokens": "a whole number",
    "max_output_tokens": "a whole number",
}
_read_known = msgspec.json.Decoder(_Read).decode


class Asked(Struct, frozen=True):
    """What a body asks for.

    Attributes:
        members: the body, ready to be edited.
        model: the name that the client used; empty when it named none.
        wants_usage: `stream_options.include_usage` is true.
        max_tokens: the client's own cap of the output.
    """

    members: Members
    model: str
    stream: bool
    wants_usage: bool
    max_tokens: int | None


def read(body: bytes, endpoint: Endpoint, json_depth: int) -> Asked:
    """Read a body; `null` means absent.

    Args:
        body: as received.
        endpoint: that it is sent to.
        json_depth: levels of nesting that are allowed.

    Raises:
        Refused: `invalid_json`, `duplicate_key`, `json_too_deep`, `invalid_value`, `missing_value`.
    """
    try:
        if not body.isascii():
            body.decode()
        members = read_members(body)
        depth.check_depth(body, json_depth)
    except UnicodeDecodeError:
        raise Refused("invalid_json", "the body is not UTF-8") from None
    except InvalidJson as error:
        raise Refused("invalid_json", str(error)) from None
    except DuplicateKey as error:
        raise Refused("duplicate_key", str(error), param=error.key[:64]) from None
    except TooDeep:
        raise Refused("json_too_deep", f"the body is nested deeper than {json_depth} levels") from None
    known = _known(body, members)
    if endpoint.shape in ("chat", "messages"):
        _check_messages(known.messages)
    stream = endpoint.streams and known.stream is True
    return Asked(
        members,
        known.model or "",
        stream,
        stream and _wants_usage(known.stream_options, members),
        _max_tokens(known),
    )


def _known(body: bytes, members: Members) -> _Read:
    try:
        known = _read_known(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise _fault_of(members) from None
    if known.model is not None and len(known.model) > _MAX_NAME_CHARS:
        raise Refused("invalid_value", f"model is longer than {_MAX_NAME_CHARS} characters", param="model")
    return known


def _fault_of(members: Members) -> Refused:
    """Find the member that could not be read: each is tried alone."""
    for key, expected in _EXPECTED.items():
        text = members.text_of(key)
        try:
            if text is not None:
                _read_known(b'{"%b":%b}' % (key.encode(), text))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return Refused("invalid_value", f"{key} must be {expected}", param=key)
    return Refused("invalid_json", "the body is not valid JSON")


def _check_messages(messages: Raw) -> None:
    text = bytes(messages)
    if text in (b"", b"null"):
        raise Refused("missing_value", "messages is required", param="messages")
    if not text.startswith(b"["):
        raise Refused("invalid_value", "messages must be an array", param="messages")


def _wants_usage(options: _StreamOptions | None, members: Members) -> bool:
    if options is None:
        return False
    try:
        # A doubled include_usage could be read two ways.
        read_members(members.text_of("stream_options") or b"{}")
    except DuplicateKey as error:
        raise Refused("duplicate_key", str(error), param="stream_options") from None
    return options.include_usage is True


def _max_tokens(known: _Read) -> int | None:
    count = known.max_completion_tokens
    if count is None:
        count = known.max_tokens if known.max_tokens is not None else known.max_output_tokens
    if count is not None and count < 0:
        raise Refused("invalid_value", "the limit of output tokens must not be negative", param="max_tokens")
    return count
