"""What the events of chats and completions say: the few facts that Forebay acts on.

Decoding goes into structs that name only those members, so that everything else is skipped, not built:
0.25 microseconds for the event of one token.
"""

import msgspec
from msgspec import Raw

from forebay.wire.endpoints import Shape
from forebay.wire.said import ABSENT, EventFacts, given
from forebay.wire.shapes import Choice, ClosingChoice, Opening, Running
from forebay.wire.sse import DONE, Event
from forebay.wire.typed import read_typed
from forebay.wire.usage import usage_of

_opening = msgspec.json.Decoder(Opening).decode
_running = msgspec.json.Decoder(Running).decode
_choices = msgspec.json.Decoder(tuple[ClosingChoice, ...]).decode
_any_object = msgspec.json.Decoder(dict[str, Raw]).decode

_EMPTY_VALUES = (b'""', b"null", b"[]")
_DONE_FACTS = EventFacts(done=True)


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
            return read_typed(event)
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
        and (choices[0].finish_reason is None if len(choices) == 1 else not _count_finished(choices))
        and seen.usage is None
        and not seen.error
        and seen.timings is None
        and seen.model == model
    )


def _count_finished(choices: tuple[ClosingChoice | Choice, ...]) -> int:
    return sum(bool(choice.finish_reason) for choice in choices)


def _read_running(event: Event) -> EventFacts:
    seen = _running(event.data)
    choices = seen.choices
    facts = EventFacts(carries=True, model=seen.model)
    if choices:
        for choice in choices:
            if choice.finish_reason:
                facts.finished = choice.finish_reason
        if len(choices) > 1:
            facts.ends = _count_finished(choices)
    if seen.usage is not None or seen.timings is not None or seen.error or event.name or not choices:
        _add_rare(facts, event, seen)
    return facts


def _read_opening(event: Event) -> EventFacts:
    seen = _opening(event.data)
    facts = EventFacts(model=seen.model)
    for choice in seen.choices or ():
        if choice.finish_reason:
            facts.finished = choice.finish_reason
        if choice.text or choice.finish_reason or _delta_carries(choice.delta):
            facts.carries = True
    if seen.choices is not None and len(seen.choices) > 1:
        facts.ends = _count_finished(seen.choices)
    _add_rare(facts, event, seen)
    return facts


def _delta_carries(delta: dict[str, Raw] | None) -> bool:
    if not delta:
        return False
    return any(key != "role" and bytes(value) not in _EMPTY_VALUES for key, value in delta.items())


def _add_rare(facts: EventFacts, event: Event, seen: Opening | Running) -> None:
    error = given(seen.error)
    if error:
        facts.error = error
    elif event.name == b"error":
        facts.error = event.data
    facts.timings = seen.timings
    facts.usage = usage_of(seen.usage, seen.timings)
    facts.usage_only = seen.usage is not None and not seen.choices


def _read_unknown(event: Event) -> EventFacts:
    """An event whose known members have other types: relayed as it is when it is a JSON object."""
    if event.data == b"null":
        # llama.cpp begins a stream of several prompts with it.
        return EventFacts()
    try:
        members = _any_object(event.data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return EventFacts(valid=False)
    error = given(members.get("error", ABSENT))
    if not error and event.name == b"error":
        error = event.data
    return EventFacts(carries=True, finished=_finish_of(members.get("choices", ABSENT)), error=error or None)


def _finish_of(choices: Raw) -> str | None:
    """Read the end of an answer even where something beside it has a type that we do not know."""
    try:
        reasons = [choice.finish_reason for choice in _choices(choices)]
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return next((reason for reason in reversed(reasons) if reason is not None), None)
