"""The few members of a body whose values Forebay reads, and what they may be."""

import msgspec
from msgspec import Raw

from forebay.edge.shapes import StreamOptions
from forebay.errors import Refused
from forebay.wire.endpoints import Shape
from forebay.wire.members import DuplicateKey, InvalidJson, Members, read_members

_MAX_NAME_CHARS = 512

_as_text = msgspec.json.Decoder(str).decode
_as_stream_options = msgspec.json.Decoder(StreamOptions).decode


def model_of(values: dict[str, Raw]) -> str:
    """Return the name of the model; empty without one.

    Raises:
        Refused: `invalid_value`.
    """
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


def is_set(raw: Raw, key: str) -> bool:
    """Read a member that is true, false or null.

    Raises:
        Refused: `invalid_value`.
    """
    text = bytes(raw)
    if text not in (b"true", b"false", b"null"):
        raise Refused("invalid_value", f"{key} must be true or false", param=key)
    return text == b"true"


def check_messages(values: dict[str, Raw]) -> None:
    """Refuse a chat whose messages are absent, or no array.

    Raises:
        Refused: `missing_value`, `invalid_value`.
    """
    # Looked at, not copied: the messages may be all of a large body.
    first = bytes(memoryview(values["messages"])[:4]) if "messages" in values else b"null"
    if first == b"null":
        raise Refused("missing_value", "messages is required", param="messages")
    if not first.startswith(b"["):
        raise Refused("invalid_value", "messages must be an array", param="messages")


def asks_usage(members: Members) -> bool:
    """Say whether `stream_options.include_usage` is true.

    Raises:
        Refused: `duplicate_key`, `invalid_value`.
    """
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


def limit_keys(shape: Shape) -> tuple[str, ...]:
    """Return the members that bound the answer of an endpoint, the one that wins first.

    Engines ignore the members of another API, so a limit that is read from one would be no limit. In a chat vLLM takes
    `max_completion_tokens` before `max_tokens`.
    """
    if shape == "chat":
        return ("max_completion_tokens", "max_tokens")
    return ("max_output_tokens",) if shape == "responses" else ("max_tokens",)


def limit_of(values: dict[str, Raw], shape: Shape) -> int | None:
    """Return the longest answer that is asked for, in tokens; None without a limit.

    Raises:
        Refused: `invalid_value`.
    """
    for key in limit_keys(shape):
        if key in values:
            text = bytes(values[key])
            if text.isdigit() and len(text) < 19:
                return int(text)
            if text != b"null":
                raise Refused("invalid_value", f"{key} must be a whole number, not negative", param=key)
    return None
