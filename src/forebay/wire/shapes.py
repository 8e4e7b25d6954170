"""The members that are read of engines' answers, as structs that msgspec decodes into.

They stand apart from the code that uses them, because that is compiled for wheels and their annotations must
stay readable (decisions/0006).
"""

from msgspec import Raw, Struct

from forebay.wire.said import ABSENT, Timings


class CachedTokens(Struct):
    """The part of a prompt that needed no work."""

    cached_tokens: int | None = None


class TokenCounts(Struct):
    """The union of the usage objects of the OpenAI and Anthropic APIs."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: CachedTokens | None = None
    input_tokens_details: CachedTokens | None = None
    cache_read_input_tokens: int | None = None
    cache_creation_input_tokens: int | None = None


class Choice(Struct):
    """A choice of a chunk before the answer has begun."""

    finish_reason: str | None = None
    delta: dict[str, Raw] | None = None
    text: str | None = None


class ClosingChoice(Struct, gc=False):
    """A choice of a chunk of a running answer: only its end matters."""

    finish_reason: str | None = None


class Opening(Struct):
    """A chunk before the answer has begun."""

    choices: tuple[Choice, ...] | None = None
    usage: TokenCounts | None = None
    error: Raw = ABSENT
    model: str | None = None
    timings: Timings | None = None


class Running(Struct, gc=False):
    """A chunk of a running answer."""

    choices: tuple[ClosingChoice, ...] | None = None
    usage: TokenCounts | None = None
    error: Raw = ABSENT
    model: str | None = None
    timings: Timings | None = None


class Whole(Struct):
    """An answer that is not streamed."""

    usage: TokenCounts | None = None
    model: str | None = None
    timings: Timings | None = None


class ErrorBody(Struct):
    """An engine's error, nested or flat."""

    error: Raw = ABSENT
    message: Raw = ABSENT
    detail: Raw = ABSENT
    type: Raw = ABSENT
    code: Raw = ABSENT
    param: Raw = ABSENT
