"""What a request asks for beside an answer to a text: a closed list, so that it can be counted and cut off."""

from typing import Final

from forebay.wire.members import Members

LONG_TOKENS: Final = 8192
VERY_LONG_TOKENS: Final = 32_768
FEATURES: Final = ("tools", "guided", "logprobs", "images", "audio", "lora", "choices", "long", "very_long")
"""The closed list."""
_GUIDES: Final = (
    *("guided_json", "guided_regex", "guided_choice", "guided_grammar", "structured_outputs", "regex", "ebnf"),
    *("json_schema", "grammar"),
)
_OFF: Final = (b"null", b"false", b"[]", b"{}", b"0")


def mask_of(members: Members, prompt_tokens: int) -> int:
    """Return the features of a request as one number: a bit for each, in the order of `FEATURES`.

    Args:
        members: of its body.
        prompt_tokens: of its prompt.
    """
    raw = members.raw
    form = members.text_of("response_format")
    n = members.text_of("n")
    flags = (
        _asks(members, "tools") or _asks(members, "functions"),
        (form is not None and b"json" in form) or any(_asks(members, name) for name in _GUIDES),
        _asks(members, "logprobs") or _asks(members, "prompt_logprobs"),
        b'"image_url"' in raw or b'"input_image"' in raw,
        b'"input_audio"' in raw or b'"audio_url"' in raw,
        _asks(members, "lora"),
        n is not None and n != b"1",
        prompt_tokens >= LONG_TOKENS,
        prompt_tokens >= VERY_LONG_TOKENS,
    )
    return sum([flag << place for place, flag in enumerate(flags)])


def _asks(members: Members, name: str) -> bool:
    value = members.values.get(name)
    return value is not None and (len(value) > 5 or bytes(value) not in _OFF)


def places_of(mask: int) -> list[int]:
    """Return the places of a mask's features in `FEATURES`."""
    return [place for place in range(len(FEATURES)) if mask >> place & 1]
