"""From the engine's words to the client's: the model's name, a usage chunk that nobody asked for, a notice at the end.

This is the whole list of what Forebay changes in an answer; `docs/request-path.md` repeats it for users.
"""

import msgspec
from msgspec import Struct

from forebay.wire import splice, sse
from forebay.wire.answers import WholeFacts
from forebay.wire.members import DuplicateKey, InvalidJson, TooDeep, read_members
from forebay.wire.notice import with_notice
from forebay.wire.said import EventFacts

NULL_USAGE = b'"usage":null'


class Rewriter(Struct, frozen=True):
    """The edits of one call's answer.

    Attributes:
        model: the name that the client used.
        drops_usage: the usage chunk was asked for by us, so it is taken out again.
        notice: text that is added to the end of a chat's answer; empty for none.
    """

    model: str
    drops_usage: bool
    notice: str = ""

    def event(self, event: sse.Event, seen: EventFacts) -> bytes:
        """Return what the client gets for one event; empty when it gets nothing."""
        if self.drops_usage:
            if seen.usage_only:
                return b""
            if NULL_USAGE in event.data:
                data = event.data.replace(b"," + NULL_USAGE, b"", 1).replace(NULL_USAGE + b",", b"", 1)
                event = sse.Event(data, event.name, event.id)
        if seen.model is not None and seen.model != self.model:
            event = sse.Event(_rename(event.data, seen.model, self.model), event.name, event.id)
        if self.notice and seen.finished is not None:
            event = sse.Event(with_notice(event.data, b"delta", self.notice), event.name)
        return sse.render(event)

    def body(self, body: bytes, seen: WholeFacts) -> bytes:
        """Return what the client gets for a whole answer."""
        if self.notice:
            body = with_notice(body, b"message", self.notice)
        if seen.model is None or seen.model == self.model:
            return body
        return _rename(body, seen.model, self.model)


def _rename(text: bytes, old: str, new: str) -> bytes:
    """Replace the model's name.

    The quoted pattern cannot stand inside a JSON string, where its quotes would be escaped; only when
    another member of that name may exist is the object read for the one at the top.
    """
    needle = b'"model":' + msgspec.json.encode(old)
    if text.count(needle) == 1:
        return text.replace(needle, b'"model":' + msgspec.json.encode(new))
    try:
        members = read_members(text)
    except (InvalidJson, DuplicateKey, TooDeep):
        return text
    return splice.edit(members, {"model": msgspec.json.encode(new)}) if "model" in members.values else text
