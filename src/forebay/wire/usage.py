"""Token counts as engines state them: OpenAI's, Anthropic's, and llama.cpp's timings."""

from typing import Final

from forebay.domain import Usage
from forebay.wire.said import Timings
from forebay.wire.shapes import TokenCounts

MOST_TOKENS: Final = 4_294_967_296
"""No answer has so many; limits, sums and messages between processes would not bear any number."""


def usage_of(counts: TokenCounts | None, timings: Timings | None = None) -> Usage | None:
    """Read the tokens that an answer states, in either form; None when it states none, or what cannot be."""
    usage = _stated(counts, timings)
    if usage is None or not (_can_be(usage.prompt_tokens) and _can_be(usage.completion_tokens)):
        return None
    return usage if usage.cached_tokens is None or _can_be(usage.cached_tokens) else None


def _can_be(tokens: int) -> bool:
    return 0 <= tokens <= MOST_TOKENS


def _stated(counts: TokenCounts | None, timings: Timings | None) -> Usage | None:
    if counts is None:
        if timings is None:
            return None
        return Usage(timings.cache_n + timings.prompt_n, timings.predicted_n, timings.cache_n)
    prompt = counts.prompt_tokens if counts.prompt_tokens is not None else _input_of(counts)
    completion = counts.completion_tokens if counts.completion_tokens is not None else counts.output_tokens
    details = counts.prompt_tokens_details or counts.input_tokens_details
    cached = details.cached_tokens if details is not None else counts.cache_read_input_tokens
    if prompt is None and completion is None:
        prompt = counts.total_tokens
    return Usage(prompt or 0, completion or 0, cached)


def _input_of(counts: TokenCounts) -> int | None:
    """Anthropic's input_tokens leaves out what was read from the cache or written to it; OpenAI's does not."""
    if counts.input_tokens is None:
        return None
    return counts.input_tokens + (counts.cache_read_input_tokens or 0) + (counts.cache_creation_input_tokens or 0)


def merge_usage(old: Usage | None, new: Usage) -> Usage:
    """Combine two readings of one answer: Anthropic streams state input and output apart."""
    if old is None:
        return new
    return Usage(
        max(old.prompt_tokens, new.prompt_tokens),
        max(old.completion_tokens, new.completion_tokens),
        new.cached_tokens if new.cached_tokens is not None else old.cached_tokens,
    )
