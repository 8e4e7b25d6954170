"""What the typed events of the Anthropic messages and the OpenAI responses APIs say."""

import msgspec
from msgspec import Raw, Struct

from forebay.wire.said import ABSENT, EventFacts, given
from forebay.wire.shapes import TokenCounts
from forebay.wire.sse import Event
from forebay.wire.usage import usage_of


class _Delta(Struct):
    stop_reason: str | None = None


class _Inner(Struct):
    """`message` of an Anthropic event, `response` of a Responses event."""

    model: str | None = None
    usage: TokenCounts | None = None
    error: Raw = ABSENT


class _Typed(Struct):
    type: str = ""
    model: str | None = None
    usage: TokenCounts | None = None
    error: Raw = ABSENT
    delta: Raw = ABSENT
    message: Raw = ABSENT
    response: _Inner | None = None


_typed = msgspec.json.Decoder(_Typed).decode
_inner = msgspec.json.Decoder(_Inner).decode
_delta = msgspec.json.Decoder(_Delta).decode
_TYPED_ENDS = {
    "response.completed": "completed",
    "response.incomplete": "incomplete",
    "response.cancelled": "cancelled",
}
_TYPED_QUIET = frozenset(
    ("ping", "message_start", "content_block_start", "response.created", "response.in_progress", "response.queued")
)


def read_typed(event: Event) -> EventFacts:
    """Read one event.

    Raises:
        msgspec.DecodeError: its data is not JSON, or its members have other types.
    """
    seen = _typed(event.data)
    kind = seen.type
    facts = EventFacts(carries=kind not in _TYPED_QUIET, model=seen.model, usage=usage_of(seen.usage))
    if kind == "error" or event.name == b"error":
        facts.error = given(seen.error) or event.data
    elif kind == "message_start" and seen.message:
        inner = _inner(seen.message)
        facts.model, facts.usage = inner.model, usage_of(inner.usage)
    elif kind == "message_delta" and seen.delta:
        facts.finished = _delta(seen.delta).stop_reason
    elif seen.response is not None:
        facts.model, facts.usage = seen.response.model, usage_of(seen.response.usage)
        facts.finished = _TYPED_ENDS.get(kind)
        if kind == "response.failed":
            facts.error = given(seen.response.error) or b"{}"
    facts.done = kind == "message_stop" or facts.finished is not None and kind.startswith("response.")
    return facts
