"""How much text a body holds for the model."""

import msgspec
from msgspec import Raw, Struct

from forebay.edge.body import Asked

_PROMPT_KEYS = ("prompt", "input", "documents", "content", "query")


class _Message(Struct):
    content: Raw = Raw()


_read_messages = msgspec.json.Decoder(list[_Message]).decode


def text_bytes(asked: Asked) -> int:
    """Return the size of what the model will read, in bytes of JSON text: contents, without their wrapping."""
    messages = asked.members.text_of("messages")
    if messages is not None:
        try:
            return sum(max(0, len(message.content) - 2) for message in _read_messages(messages))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return len(messages)
    values = asked.members.values
    return sum(max(0, len(values[key]) - 2) for key in _PROMPT_KEYS if key in values)
