"""What the client has been told, and what the next leg is: the values of a continuation."""

from array import array
from typing import Literal

from msgspec import Struct

from forebay.domain import Usage
from forebay.upstream.continuation.reasons import Reason

Mode = Literal["exact", "words", "text", "restart"]
"""How a leg goes on: from token ids, from the text less its last word, from all of the text, or from the beginning.

What the client has and the leg's prompt has not is said again, and must come out the same.
"""


class Head(Struct, frozen=True):
    """The members that all events of an answer share, as JSON texts; empty when the engine leaves one out."""

    id: bytes = b""
    object: bytes = b""
    created: bytes = b""
    model: bytes = b""
    system_fingerprint: bytes = b""


class Told(Struct, frozen=True):
    """What a client has been told when its engine dies.

    Attributes:
        text: of the answer.
        reasoning: of the thoughts before it.
        prompt_ids: of the first leg's prompt; None when the engine sent none, or when a leg has been text.
        ids: of the answer's tokens.
        safe: how many of `ids` made what the client has; those behind it had no text yet.
        clean: the last of them surely ends a character.
        clean_ids: the last boundary that surely lies between two characters, in tokens.
        clean_chars: the same in characters of thoughts and text.
        tokens: of the answer, up to `safe`.
        counted: by the engine's ids, or by an engine that was asked; else by events, which may be fewer than tokens.
        recent: what the latest events brought, the last 64.
        tools: a tool call has begun.
        prompt_tokens: as the engine counted them; None when it has not said.
        cached_tokens: likewise.
        head: what all its events share.
        flaw: why it cannot be continued, whatever the request was.
    """

    text: str = ""
    reasoning: str = ""
    prompt_ids: "array[int] | None" = None
    ids: "array[int]" = array("q")
    safe: int = 0
    clean: bool = False
    clean_ids: int = 0
    clean_chars: int = 0
    tokens: int = 0
    counted: bool = False
    recent: tuple[str, ...] = ()
    tools: bool = False
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    head: Head = Head()
    flaw: Reason | None = None

    @property
    def says(self) -> bool:
        """Whether the client has text of either kind."""
        return bool(self.text or self.reasoning)


class Leg(Struct, frozen=True):
    """The next leg of an answer.

    Attributes:
        body: of its request.
        mode: how it goes on.
        cut: tokens of the answer that its prompt has, in exact mode.
        tail: end of what the client has that its prompt lacks: it must say that again, and the client must not see it.
        kept: text of the answer that its prompt has, where it goes on from text.
        made_tokens: of the answer up to the cut: what usage adds to its own count.
        prompt: what its prompt says, in order, to tell a leak of it.
        stops: stop strings that the client gave.
        keeps_stop: the client wants to see the stop string itself.
        wants_usage: the client, or we, asked for the usage event.
    """

    body: bytes
    mode: Mode
    cut: int = 0
    tail: str = ""
    kept: str = ""
    made_tokens: int = 0
    prompt: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    keeps_stop: bool = False
    wants_usage: bool = False


class Finish(Struct, frozen=True):
    """Nothing is left to say: the answer ends now.

    Attributes:
        reason: finish reason for the client.
        usage: of the whole answer.
        wants_usage: the stream ends with the usage event.
    """

    reason: Literal["length", "stop"]
    usage: Usage
    wants_usage: bool = False
