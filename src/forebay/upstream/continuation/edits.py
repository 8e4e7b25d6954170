"""Edits of events: another identity, another usage, less text; and events of our own that end an answer."""

import msgspec
from msgspec import Raw

from forebay.domain import Usage
from forebay.upstream.continuation.reasons import Impossible, Reason
from forebay.upstream.continuation.told import Finish, Head
from forebay.wire import splice
from forebay.wire.endpoints import Shape
from forebay.wire.members import DuplicateKey, InvalidJson, Members, TooDeep, read_members
from forebay.wire.shapes import TokenCounts
from forebay.wire.sse import Event
from forebay.wire.usage import usage_of

_items = msgspec.json.Decoder(list[Raw]).decode
_counts_in = msgspec.json.Decoder(TokenCounts).decode
_encode = msgspec.json.encode
_SHARED = ("id", "object", "created", "model", "system_fingerprint")


def read(data: bytes) -> Members:
    """Read an event's members.

    Raises:
        Impossible: `unreadable`.
    """
    try:
        return read_members(data)
    except (InvalidJson, DuplicateKey, TooDeep):
        raise Impossible(Reason.UNREADABLE) from None


def with_head(members: Members, head: Head, usage: Usage | None) -> bytes:
    """Return an event's data as if the first leg had sent it: its identity, and the usage of the whole answer.

    llama.cpp's timings are left out: they are those of one leg.
    """
    edits: dict[str, bytes | None] = {}
    for key, text in zip(
        _SHARED, (head.id, head.object, head.created, head.model, head.system_fingerprint), strict=True
    ):
        if text and key in members.values and bytes(members.values[key]) != text:
            edits[key] = text
    if "timings" in members.values:
        edits["timings"] = None
    counts = members.text_of("usage")
    if counts is not None and usage is not None:
        edits["usage"] = _counts(counts, usage)
    return splice.edit(members, edits)


def usage_in(members: Members) -> Usage | None:
    """Return the usage that an event states; None when it states none, or in a form that we do not know."""
    text = members.text_of("usage")
    try:
        return None if text is None else usage_of(_counts_in(text))
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def with_text(data: bytes, shape: Shape, text: str | None, *, role: bool = True) -> bytes:
    """Return an event's data with another text in its first choice, and without a role if it is not to have one.

    Args:
        data: of the event.
        shape: of the endpoint.
        text: the new one; None keeps it.
        role: whether a role may stay.
    """
    members = read(data)
    choices = _items(members.values["choices"])
    choice = read(bytes(choices[0]))
    if shape == "completions":
        new = choice.raw if text is None else splice.edit(choice, {"text": _encode(text)})
    else:
        delta = read(bytes(choice.values["delta"]))
        edits: dict[str, bytes | None] = {} if text is None else {"content": _encode(text)}
        if not role and "role" in delta.values:
            edits["role"] = None
        new = splice.edit(choice, {"delta": splice.edit(delta, edits)})
    return splice.edit(members, {"choices": b"[%b]" % b",".join([new, *map(bytes, choices[1:])])})


def closing(finish: Finish, head: Head, shape: Shape, text: str = "") -> list[Event]:
    """Return the events that end an answer without an engine: the finish reason, and usage where it is wanted.

    Args:
        finish: how it ends.
        head: what all its events share.
        shape: of the endpoint.
        text: that is still to be said.
    """
    said = b'"text":%b' if shape == "completions" else b'"delta":{"content":%b}'
    choice = b'{"index":0,%b,"logprobs":null,"finish_reason":"%b"}' % (said % _encode(text), finish.reason.encode())
    events = [Event(_chunk(head, choice, b""))]
    if finish.wants_usage:
        events.append(Event(_chunk(head, b"", b',"usage":' + _counts(b"{}", finish.usage))))
    return events


def _chunk(head: Head, choice: bytes, more: bytes) -> bytes:
    texts = zip(_SHARED, (head.id, head.object, head.created, head.model), strict=False)
    shared = b"".join([b'"%b":%b,' % (key.encode(), text) for key, text in texts if text])
    return b'{%b"choices":[%b]%b}' % (shared, choice, more)


def _counts(text: bytes, usage: Usage) -> bytes:
    members = read(text)
    edits: dict[str, bytes | None] = {
        "prompt_tokens": b"%d" % usage.prompt_tokens,
        "completion_tokens": b"%d" % usage.completion_tokens,
        "total_tokens": b"%d" % (usage.prompt_tokens + usage.completion_tokens),
    }
    if usage.cached_tokens is not None:
        edits["prompt_tokens_details"] = b'{"cached_tokens":%d}' % usage.cached_tokens
    elif members.text_of("prompt_tokens_details") is not None:
        edits["prompt_tokens_details"] = b"null"
    return splice.edit(members, edits)
