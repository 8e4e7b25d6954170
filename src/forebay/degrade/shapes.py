"""The members of messages that the ladder looks at, as structs that msgspec decodes into.

They stand apart because the code that uses them is compiled for wheels (decisions/0006).
"""

import msgspec
from msgspec import Raw, Struct

_ABSENT = Raw(b"")
_FAULTS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class Heard(Struct):
    """A message of a chat."""

    role: str = ""
    content: Raw = _ABSENT
    tool_calls: Raw = _ABSENT
    function_call: Raw = _ABSENT
    audio: Raw = _ABSENT


class Part(Struct):
    """A part of a message."""

    type: Raw = _ABSENT


_list = msgspec.json.Decoder(list[Raw]).decode
_message = msgspec.json.Decoder(Heard).decode
_parts = msgspec.json.Decoder(list[Part]).decode


def read_messages(raw: Raw) -> list[tuple[Heard, Raw]] | None:
    """Return each message of a chat with its raw text; None when one cannot be read."""
    try:
        return [(_message(text), text) for text in _list(raw)]
    except _FAULTS:
        return None


def read_parts(raw: Raw) -> list[Part] | None:
    """Return the parts of a message; None when they cannot be read."""
    try:
        return _parts(raw)
    except _FAULTS:
        return None
