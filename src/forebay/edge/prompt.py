"""How much text a body holds for the model, and how many answers to it are due."""

import re

import msgspec
from msgspec import Raw, Struct

from forebay.edge.body import Asked

_PROMPT_KEYS = ("prompt", "input", "documents", "content", "query")


# An image costs hundreds to thousands of tokens whatever its size in bytes; exact rules are the engine's.
IMAGE_BYTES = 4096


class _Part(Struct):
    text: Raw = Raw()


class _Message(Struct):
    content: Raw = Raw()


_read_messages = msgspec.json.Decoder(list[_Message]).decode
_read_parts = msgspec.json.Decoder(list[_Part]).decode
_read_prompts = msgspec.json.Decoder(list[Raw]).decode
_COUNT = re.compile(rb"[1-9][0-9]{0,3}")
# A flat array of numbers is one prompt, as token ids.
_SEVERAL_PROMPTS = re.compile(rb'\[\s*["\[]')


def text_bytes(asked: Asked) -> int:
    """Return the size of what the model will read, in bytes of JSON text.

    Contents count without their wrapping; a part that is no text counts as 4 KiB, never as its base64 text.
    """
    messages = asked.members.text_of("messages")
    if messages is not None:
        try:
            return sum(_content_bytes(message.content) for message in _read_messages(messages))
        except (msgspec.DecodeError, UnicodeDecodeError):
            return len(messages)
    values = asked.members.values
    return sum(max(0, len(values[key]) - 2) for key in _PROMPT_KEYS if key in values)


def choices(asked: Asked) -> int:
    """Return how many choices an answer must have: `n` for each prompt; what cannot be read counts as one."""
    count = asked.members.text_of("n")
    each = int(count) if count is not None and _COUNT.fullmatch(count) else 1
    prompt = asked.members.text_of("prompt")
    if prompt is None or not _SEVERAL_PROMPTS.match(prompt):
        return each
    return each * len(_read_prompts(prompt))


def _content_bytes(content: Raw) -> int:
    if bytes(memoryview(content)[:1]) != b"[":
        return max(0, len(content) - 2)
    return sum(max(0, len(part.text) - 2) if part.text else IMAGE_BYTES for part in _read_parts(content))
