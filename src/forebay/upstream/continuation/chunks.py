"""The events of chats and completions, read for what a continuation needs of them."""

import msgspec
from msgspec import Raw, Struct

from forebay.upstream.continuation.reasons import Impossible, Reason
from forebay.upstream.continuation.told import Head
from forebay.wire.said import ABSENT, given
from forebay.wire.shapes import TokenCounts


class Delta(Struct, gc=False):
    """What a chat's event adds; vLLM has renamed `reasoning_content` to `reasoning`."""

    role: Raw = ABSENT
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: Raw = ABSENT
    function_call: Raw = ABSENT


class Choice(Struct, gc=False):
    """One choice of an event."""

    delta: Delta | None = None
    text: str | None = None
    finish_reason: str | None = None
    token_ids: list[int] | None = None
    prompt_token_ids: list[int] | None = None


class Chunk(Struct, gc=False):
    """One event."""

    choices: tuple[Choice, ...] | None = None
    prompt_token_ids: list[int] | None = None
    usage: TokenCounts | None = None


class _Shared(Struct):
    id: Raw = ABSENT
    object: Raw = ABSENT
    created: Raw = ABSENT
    model: Raw = ABSENT
    system_fingerprint: Raw = ABSENT


class Piece(Struct, frozen=True):
    """What one event brings.

    Attributes:
        text: of the answer.
        reasoning: of the thoughts before it.
        ids: of its tokens.
        prompt_ids: of the prompt; only one event of an answer has them.
        role: it states the role.
        chosen: it is about the answer, and not about usage alone.
        tools: a part of a tool call.
        finished: the finish reason.
        prompt_tokens: as usage counts them, in a stream with continuous usage.
        cached_tokens: likewise.
    """

    text: str = ""
    reasoning: str = ""
    ids: list[int] | None = None
    prompt_ids: list[int] | None = None
    role: bool = False
    chosen: bool = False
    tools: bool = False
    finished: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None

    @property
    def tokens(self) -> int:
        """How many tokens it stands for: ids if there are any, else one; engines send an event for each."""
        return len(self.ids) if self.ids else int(self.chosen and (self.says or not self.role))

    @property
    def says(self) -> bool:
        """Whether it has text of either kind."""
        return bool(self.text or self.reasoning)


_chunk = msgspec.json.Decoder(Chunk).decode
_chunks = msgspec.json.Decoder(list[Chunk | None]).decode
_shared = msgspec.json.Decoder(_Shared | None).decode
_EMPTY = (b"", b"[]", b"{}")
_NOTHING = Chunk()


def read_chunks(events: list[bytes]) -> list[Chunk]:
    """Read the data of many events at once.

    Raises:
        Impossible: `unreadable`.
    """
    try:
        return [chunk or _NOTHING for chunk in _chunks(b"[%b]" % b",".join(events))]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Impossible(Reason.UNREADABLE) from None


def read_head(data: bytes) -> Head:
    """Read what an event shares with all others of its answer.

    Raises:
        Impossible: `unreadable`.
    """
    try:
        seen = _shared(data) or _Shared()
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Impossible(Reason.UNREADABLE) from None
    return Head(*map(bytes, (seen.id, seen.object, seen.created, seen.model, seen.system_fingerprint)))


def read_piece(data: bytes) -> Piece:
    """Read the data of one event.

    Raises:
        Impossible: `unreadable`.
    """
    try:
        return piece_of(_chunk(data))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise Impossible(Reason.UNREADABLE) from None


def piece_of(chunk: Chunk) -> Piece:
    """Return what an event brings: of its first choice, the only one of an answer that is continued."""
    choice = chunk.choices[0] if chunk.choices else None
    prompt_tokens = cached_tokens = None
    if chunk.usage is not None:
        prompt_tokens = chunk.usage.prompt_tokens
        details = chunk.usage.prompt_tokens_details
        cached_tokens = details.cached_tokens if details is not None else None
    if choice is None:
        prompt_ids = chunk.prompt_token_ids
        return Piece(prompt_ids=prompt_ids, prompt_tokens=prompt_tokens, cached_tokens=cached_tokens)
    delta = choice.delta
    return Piece(
        choice.text or (delta.content if delta is not None else None) or "",
        "" if delta is None else delta.reasoning or delta.reasoning_content or "",
        choice.token_ids,
        chunk.prompt_token_ids or choice.prompt_token_ids,
        delta is not None and bool(given(delta.role)),
        True,
        delta is not None and _calls_tools(delta),
        choice.finish_reason,
        prompt_tokens,
        cached_tokens,
    )


def plain_text(chunk: Chunk) -> str | None:
    """Return the text of an event that brings nothing else but ids; None for any other."""
    choices = chunk.choices
    if not choices or chunk.usage is not None or chunk.prompt_token_ids is not None:
        return None
    choice = choices[0]
    if choice.finish_reason is not None or choice.prompt_token_ids is not None:
        return None
    delta = choice.delta
    if delta is None:
        return choice.text
    if delta.reasoning is not None or delta.reasoning_content is not None or delta.role:
        return None
    return None if delta.tool_calls or delta.function_call else delta.content


def _calls_tools(delta: Delta) -> bool:
    return given(delta.tool_calls) not in _EMPTY or given(delta.function_call) not in _EMPTY
