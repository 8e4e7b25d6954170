"""What an answer says: the few facts that Forebay acts on, read from events and whole bodies.

Decoding goes into structs that name only those members, so that everything else is skipped, not built:
0.25 microseconds for the event of one token.
"""

import msgspec
from msgspec import Raw, Struct

from forebay.domain import Usage
from forebay.wire.endpoints import Shape
from forebay.wire.sse import DONE, Event

# A member of any type is read as `Raw`, empty when absent: msgspec takes `Raw | None` to mean null alone.
_ABSENT = Raw(b"")


class _CachedTokens(Struct):
    cached_tokens: int | None = None


class _Usage(Struct):
    """The union of the usage objects of the OpenAI and Anthropic APIs."""

    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None
    total_tokens: int | None = None
    prompt_tokens_details: _CachedTokens | None = None
    input_tokens_details: _CachedTokens | None = None
    cache_read_input_tokens: int | None = None


class Timings(Struct):
    """llama.cpp's own account of one answer: tokens, and milliseconds."""

    cache_n: int = 0
    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0


class _Choice(Struct):
    finish_reason: str | None = None
    delta: dict[str, Raw] | None = None
    text: str | None = None


class _ClosingChoice(Struct, gc=False):
    finish_reason: str | None = None


class _Delta(Struct):
    stop_reason: str | None = None


class _Inner(Struct):
    """`message` of an Anthropic event, `response` of a Responses event."""

    model: str | None = None
    usage: _Usage | None = None
    error: Raw = _ABSENT


class _Opening(Struct):
    choices: tuple[_Choice, ...] | None = None
    usage: _Usage | None = None
    error: Raw = _ABSENT
    model: str | None = None
    timings: Timings | None = None


class _Running(Struct, gc=False):
    choices: tuple[_ClosingChoice, ...] | None = None
    usage: _Usage | None = None
    error: Raw = _ABSENT
    model: str | None = None
    timings: Timings | None = None


class _Typed(Struct):
    type: str = ""
    model: str | None = None
    usage: _Usage | None = None
    error: Raw = _ABSENT
    delta: Raw = _ABSENT
    message: Raw = _ABSENT
    response: _Inner | None = None


class _Whole(Struct):
    usage: _Usage | None = None
    model: str | None = None
    timings: Timings | None = None


class _ErrorBody(Struct):
    """An engine's error, nested or flat."""

    error: Raw = _ABSENT
    message: Raw = _ABSENT
    detail: Raw = _ABSENT
    type: Raw = _ABSENT
    code: Raw = _ABSENT
    param: Raw = _ABSENT


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


_opening = msgspec.json.Decoder(_Opening).decode
_running = msgspec.json.Decoder(_Running).decode
_typed = msgspec.json.Decoder(_Typed).decode
_inner = msgspec.json.Decoder(_Inner).decode
_delta = msgspec.json.Decoder(_Delta).decode
_whole = msgspec.json.Decoder(_Whole).decode
_error_body = msgspec.json.Decoder(_ErrorBody).decode
_choices = msgspec.json.Decoder(tuple[_ClosingChoice, ...]).decode
_any_object = msgspec.json.Decoder(dict[str, Raw]).decode

_EMPTY_VALUES = (b'""', b"null", b"[]")
_DONE_FACTS = EventFacts(done=True)
_TYPED_ENDS = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.cancelled": "cancelled",
}
_TYPED_QUIET = frozenset(
    ("ping", "message_start", "content_block_start", "response.created", "response.in_progress", "response.queued")
)


def read_event(event: Event, shape: Shape, *, opening: bool) -> EventFacts:
    """Read one event of a streamed answer.

    Args:
        event: as framed.
        shape: of the endpoint.
        opening: whether the answer has not begun yet, so that `carries` must be known.
    """
    if event.data == DONE:
        return _DONE_FACTS
    try:
        if shape == "messages" or shape == "responses":
            return _read_typed(event)
        if opening:
            return _read_opening(event)
        return _read_running(event)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _read_unknown(event)


def is_plain_token(text: bytes, model: str) -> bool:
    """Say whether an event's data is one more piece of an answer and nothing else.

    That is: valid JSON with choices, none of which is finished, no usage, no error, no timings, and the
    model's name as the client knows it.
    """
    try:
        seen = _running(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    choices = seen.choices
    return (
        choices is not None
        and len(choices) > 0
        and (choices[0].finish_reason is None if len(choices) == 1 else _none_finished(choices))
        and seen.usage is None
        and not seen.error
        and seen.timings is None
        and seen.model == model
    )


def _none_finished(choices: tuple[_ClosingChoice, ...]) -> bool:
    return all(choice.finish_reason is None for choice in choices)


def _read_running(event: Event) -> EventFacts:
    seen = _running(event.data)
    choices = seen.choices
    facts = EventFacts(carries=True, model=seen.model)
    if choices:
        for choice in choices:
            if choice.finish_reason is not None:
                facts.finished = choice.finish_reason
    if seen.usage is not None or seen.timings is not None or seen.error or event.name or not choices:
        _add_rare(facts, event, seen)
    return facts


def _read_opening(event: Event) -> EventFacts:
    seen = _opening(event.data)
    facts = EventFacts(model=seen.model)
    for choice in seen.choices or ():
        if choice.finish_reason is not None:
            facts.finished = choice.finish_reason
        if choice.text or choice.finish_reason is not None or _delta_carries(choice.delta):
            facts.carries = True
    _add_rare(facts, event, seen)
    return facts


def _delta_carries(delta: dict[str, Raw] | None) -> bool:
    if not delta:
        return False
    return any(key != "role" and bytes(value) not in _EMPTY_VALUES for key, value in delta.items())


def _add_rare(facts: EventFacts, event: Event, seen: _Opening | _Running) -> None:
    error = _given(seen.error)
    if error:
        facts.error = error
    elif event.name == b"error":
        facts.error = event.data
    facts.timings = seen.timings
    facts.usage = _usage(seen.usage) or _usage_from_timings(seen.timings)
    facts.usage_only = seen.usage is not None and not seen.choices


def _read_typed(event: Event) -> EventFacts:
    seen = _typed(event.data)
    kind = seen.type
    facts = EventFacts(carries=kind not in _TYPED_QUIET, model=seen.model, usage=_usage(seen.usage))
    if kind == "error" or event.name == b"error":
        facts.error = _given(seen.error) or event.data
    elif kind == "message_start" and seen.message:
        inner = _inner(seen.message)
        facts.model, facts.usage = inner.model, _usage(inner.usage)
    elif kind == "message_delta" and seen.delta:
        facts.finished = _delta(seen.delta).stop_reason
    elif seen.response is not None:
        facts.model, facts.usage = seen.response.model, _usage(seen.response.usage)
        facts.finished = _TYPED_ENDS.get(kind)
        if kind == "response.failed":
            facts.error = _given(seen.response.error) or b"{}"
    facts.done = kind == "message_stop" or facts.finished is not None and kind.startswith("response.")
    return facts


def _read_unknown(event: Event) -> EventFacts:
    """An event whose known members have other types: relayed as it is when it is a JSON object."""
    try:
        members = _any_object(event.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return EventFacts(valid=False)
    error = _given(members.get("error", _ABSENT))
    if not error and event.name == b"error":
        error = event.data
    return EventFacts(carries=True, finished=_finish_of(members.get("choices", _ABSENT)), error=error or None)


def _finish_of(choices: Raw) -> str | None:
    """Read the end of an answer even where something beside it has a type that we do not know."""
    try:
        reasons = [choice.finish_reason for choice in _choices(choices)]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return next((reason for reason in reversed(reasons) if reason is not None), None)


def _given(raw: Raw) -> bytes:
    """Return a member's JSON text; empty when it is absent or null."""
    text = bytes(raw)
    return b"" if text == b"null" else text


class WholeFacts(Struct, frozen=True):
    """What a whole answer says; `valid` is whether it is a JSON object or array."""

    usage: Usage | None = None
    model: str | None = None
    timings: Timings | None = None
    valid: bool = True


def read_whole(body: bytes) -> WholeFacts:
    """Read the facts of an answer that is not streamed."""
    try:
        seen = _whole(body)
    except msgspec.ValidationError:
        return WholeFacts()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return WholeFacts(valid=False)
    return WholeFacts(_usage(seen.usage) or _usage_from_timings(seen.timings), seen.model, seen.timings)


def _usage(seen: _Usage | None) -> Usage | None:
    if seen is None:
        return None
    prompt = seen.prompt_tokens if seen.prompt_tokens is not None else seen.input_tokens
    completion = seen.completion_tokens if seen.completion_tokens is not None else seen.output_tokens
    details = seen.prompt_tokens_details or seen.input_tokens_details
    cached = details.cached_tokens if details is not None else seen.cache_read_input_tokens
    if prompt is None and completion is None:
        prompt = seen.total_tokens
    return Usage(prompt or 0, completion or 0, cached)


def _usage_from_timings(timings: Timings | None) -> Usage | None:
    if timings is None:
        return None
    return Usage(timings.cache_n + timings.prompt_n, timings.predicted_n, timings.cache_n)


def merge_usage(old: Usage | None, new: Usage) -> Usage:
    """Combine two readings of one answer: Anthropic streams state input and output apart."""
    if old is None:
        return new
    return Usage(
        max(old.prompt_tokens, new.prompt_tokens),
        max(old.completion_tokens, new.completion_tokens),
        new.cached_tokens if new.cached_tokens is not None else old.cached_tokens,
    )


class EngineError(Struct, frozen=True):
    """An engine's error in the one shape that clients read; values are JSON texts."""

    message: str
    type: bytes = b"null"
    param: bytes = b"null"
    code: bytes = b"null"

    def text(self) -> bytes:
        """Return `{"error": {...}}` as JSON."""
        return b'{"error":{"message":%b,"type":%b,"param":%b,"code":%b}}' % (
            msgspec.json.encode(self.message),
            self.type,
            self.param,
            self.code,
        )


def read_error(body: bytes, fallback_message: str) -> EngineError:
    """Read an engine's error: nested, flat, FastAPI's `detail`, or anything else."""
    try:
        seen = _error_body(body)
        nested = _given(seen.error)
        if nested:
            if not nested.startswith(b"{"):
                return EngineError(_text(seen.error) or fallback_message)
            seen = _error_body(nested)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return EngineError(fallback_message)
    message = _text(seen.message) or _text(seen.detail) or fallback_message
    return EngineError(message, *(bytes(raw) or b"null" for raw in (seen.type, seen.param, seen.code)))


def _text(raw: Raw) -> str:
    text = _given(raw)
    if not text:
        return ""
    try:
        return msgspec.json.decode(text, type=str)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return text.decode(errors="replace")
