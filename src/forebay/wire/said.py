"""What engines say, as values: the facts that the readers of events and answers share."""

from msgspec import Raw, Struct

from forebay.domain import Usage

# A member of any type is read as `Raw`, empty when absent: msgspec takes `Raw | None` to mean null alone.
ABSENT = Raw(b"")


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


class Timings(Struct):
    """llama.cpp's own account of one answer: tokens, and milliseconds."""

    cache_n: int = 0
    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0


class EventFacts(Struct, gc=False):
    """What one event says.

    Attributes:
        carries: it brings something that a client waits for (text, reasoning, a tool call, an end).
        finished: the finish reason that it brings.
        usage: token counts that it brings.
        usage_only: it is the extra chunk that `include_usage` asks for and holds nothing else.
        error: the engine's error as JSON text.
        done: it is the sentinel, or the last event of its API.
        model: the model name that it states.
        timings: the engine's own durations.
        valid: it is JSON (or the sentinel).
    """

    carries: bool = False
    finished: str | None = None
    usage: Usage | None = None
    usage_only: bool = False
    error: bytes | None = None
    done: bool = False
    model: str | None = None
    timings: Timings | None = None
    valid: bool = True


def given(raw: Raw) -> bytes:
    """Return a member's JSON text; empty when it is absent or null."""
    text = bytes(raw)
    return b"" if text == b"null" else text


def usage_of(counts: TokenCounts | None, timings: Timings | None = None) -> Usage | None:
    """Read the tokens that an answer states, in either form; None when it states none."""
    if counts is None:
        if timings is None:
            return None
        return Usage(timings.cache_n + timings.prompt_n, timings.predicted_n, timings.cache_n)
    prompt = counts.prompt_tokens if counts.prompt_tokens is not None else counts.input_tokens
    completion = counts.completion_tokens if counts.completion_tokens is not None else counts.output_tokens
    details = counts.prompt_tokens_details or counts.input_tokens_details
    cached = details.cached_tokens if details is not None else counts.cache_read_input_tokens
    if prompt is None and completion is None:
        prompt = counts.total_tokens
    return Usage(prompt or 0, completion or 0, cached)


def merge_usage(old: Usage | None, new: Usage) -> Usage:
    """Combine two readings of one answer: Anthropic streams state input and output apart."""
    if old is None:
        return new
    return Usage(
        max(old.prompt_tokens, new.prompt_tokens),
        max(old.completion_tokens, new.completion_tokens),
        new.cached_tokens if new.cached_tokens is not None else old.cached_tokens,
    )
