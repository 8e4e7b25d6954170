"""What one event says, as a value that the readers of all APIs share."""

from msgspec import Raw, Struct

from forebay.domain import Usage

# A member of any type is read as `Raw`, empty when absent: msgspec takes `Raw | None` to mean null alone.
ABSENT = Raw(b"")


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
        ends: choices that have one, when it brings any.
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
    ends: int = 1
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
