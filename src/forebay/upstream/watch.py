"""The output watch: what an engine says is judged by its form, never by its meaning, and never kept.

Four flags: `loop` (the same tokens over and over), `replacement_character` (U+FFFD: the tokenizer or its
decoder is broken), `empty` (it ended without saying anything) and `cut_off` (by its token limit). A stream is
seen chunk by chunk, as a hash of what varies in it, in bounded memory; a whole answer once, at its ends.
"""

from typing import Final

import msgspec
from msgspec import Raw

from forebay.wire.endpoints import Shape
from forebay.wire.said import EventFacts

FLAGS: Final = ("loop", "replacement_character", "empty", "cut_off")
MAX_PERIOD_TOKENS: Final = 64
MIN_REPEATS: Final = 8
MIN_LOOP_TOKENS: Final = 48
# Of whole answers, where there are no tokens to count: four bytes each.
MIN_LOOP_BYTES: Final = 4 * MIN_LOOP_TOKENS
MAX_PERIOD_BYTES: Final = 4 * MAX_PERIOD_TOKENS
END_BYTES: Final = 65_536
"""Of a whole answer, and of a text in it, that much is looked at from either end; of a chunk, from its beginning."""

_RING: Final = MAX_PERIOD_TOKENS - 1  # as a mask, because it is one of a power of two
# 60 bits of a hash, and by how much it moves for each token that follows: after four it is gone.
_HASH: Final = (1 << 60) - 1
_CONTEXT_SHIFT: Final = 15
_CONTEXT_TOKENS: Final = 4
_ANCHOR_BYTES: Final = 16
_MAX_PARSED_BYTES: Final = 1_048_576  # takes two milliseconds
_CUT_OFF: Final = frozenset(("length", "max_tokens", "incomplete"))
_CUT_OFF_TEXTS: Final = frozenset((b'"length"', b'"max_tokens"', b'"incomplete"'))
_NOTHING: Final = frozenset((b"", b'""', b"null", b"[]", b"{}"))
_NOT_SAID: Final = frozenset(("role", "id", "type", "status"))
_RAW: Final = b"\xef\xbf\xbd"
_ESCAPED: Final = b"\\ufffd"
_QUOTE: Final = 0x22
_BACKSLASH: Final = 0x5C  # looking for a number is several times as fast as for a text of one byte

# What stands right before and somewhere behind the text in a chunk: of chats and completions, of the typed events.
_AROUND_TEXT: Final = ((b'"choices"', b'"created"'), (b'"delta"', b'"sequence_number"'))
# Of whole answers: the key of the text, which is the first of its name, that of the reason why it ended, the last
# of its name, and the reason that says it was cut off.
_AT_A_GLANCE: Final[dict[str, tuple[bytes, bytes, bytes]]] = {
    "chat": (b'"content"', b'"finish_reason"', b'"length"'),
    "completions": (b'"text"', b'"finish_reason"', b'"length"'),
    "messages": (b'"content"', b'"stop_reason"', b'"max_tokens"'),
    "responses": (b'"output"', b'"incomplete_details"', b"{"),
}

_members = msgspec.json.Decoder(dict[str, Raw]).decode
_items = msgspec.json.Decoder(list[Raw]).decode


class Watch:
    """Watches one stream.

    A loop is a cycle of up to 64 tokens that comes 8 times and for 48 tokens at least. One cycle length at a
    time is suspected: the distance to the last place where the last four chunks stood as well. While the
    suspicion holds, a chunk costs one comparison. Chunks are equal when their text is, with all that stands
    beside it in `choices`: with log probabilities they hardly ever are.
    """

    __slots__ = (
        "_around_bytes", "_context", "_count", "_cut_off", "_loop", "_matched", "_measured", "_period", "_places",
        "_replaced", "_ring", "_said", "_start", "_stop",
    )  # fmt: skip

    def __init__(self) -> None:
        self._ring = [0] * MAX_PERIOD_TOKENS
        self._places: dict[int, int] = {}
        self._count = 0
        self._context = 0
        self._period = 0
        self._matched = 0
        self._start = 0
        self._stop = END_BYTES
        self._around_bytes = 0
        self._measured = False
        self._loop = self._replaced = self._said = self._cut_off = False

    def event(self, data: bytes, seen: EventFacts) -> None:
        """See any event of the answer.

        Args:
            data: of the event.
            seen: what it says.
        """
        if seen.finished is not None and seen.finished in _CUT_OFF:
            self._cut_off = True
        if seen.carries:
            if not self._said:
                self._said = _says_something(data)
            self.token(data)

    def token(self, data: bytes) -> None:
        """See an event that is one more piece of the answer."""
        if not self._measured:
            self._measure(data)
        said = data[self._start : self._stop] if len(data) > self._around_bytes else data
        if (_BACKSLASH in said and _ESCAPED in said) if said.isascii() else _RAW in said:
            self._replaced = True
        token = hash(said) & _HASH
        self._context = token ^ (self._context >> _CONTEXT_SHIFT)
        count = self._count
        self._count = count + 1
        period = self._period
        ring = self._ring
        if period and ring[(count - period) & _RING] == token:
            self._matched += 1
            if self._matched >= MIN_LOOP_TOKENS - period and self._matched >= (MIN_REPEATS - 1) * period:
                self._confirm(data)
        else:
            self._suspect(count)
        ring[count & _RING] = token

    def flags(self, *, finished: bool) -> tuple[str, ...]:
        """Return what was seen, in the order of `FLAGS`.

        Args:
            finished: the answer ended as it should; only then it can be empty.
        """
        return _named(self._loop, self._replaced, finished and not self._said, self._cut_off)

    def _suspect(self, count: int) -> None:
        """Look for an earlier place where the same four tokens stood: one alone comes too often to tell."""
        self._period = 0
        places = self._places
        place = places.get(self._context)
        if place is not None and count - place <= MAX_PERIOD_TOKENS:
            self._period = count - place
            self._matched = _CONTEXT_TOKENS
        elif len(places) >= MAX_PERIOD_TOKENS:
            places.clear()
        places[self._context] = count

    def _confirm(self, data: bytes) -> None:
        # Engines send chunks without text while they make up their mind about a tool call: no loop.
        self._loop = self._loop or _says_something(data)
        self._matched = 0

    def _measure(self, data: bytes) -> None:
        """See where in a chunk the text stands: what is before and behind it has the same length in all of them.

        Times and numbers that an engine writes anew into each chunk stand there, so that equal tokens look equal.
        """
        for before, after in _AROUND_TEXT:
            start = data.find(before)
            if start >= 0:
                behind = data.find(after, start)
                self._start = start
                self._stop = behind - len(data) if behind >= 0 else -1
                self._around_bytes = start - self._stop
                self._measured = True
                return


def flags_of_whole(body: bytes, shape: Shape) -> tuple[str, ...]:
    """Judge an answer that is not streamed; of a large one its ends.

    Most answers show at a glance that nothing is wrong; only the others are parsed. A loop shows where it makes
    up most of an answer, or where the answer was cut off. Above 1 MiB only characters are looked at.
    """
    ends = body if len(body) <= 2 * END_BYTES else body[:END_BYTES] + body[-END_BYTES:]
    replaced = (not ends.isascii() and _RAW in ends) or (_BACKSLASH in ends and _ESCAPED in ends)
    if _is_plain(ends, shape) or len(body) > _MAX_PARSED_BYTES:
        return _named(False, replaced, False, False)
    try:
        parts, reasons = _parts_of(body)
        said = [text for part in parts for text in _texts_of(part)]
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return _named(False, replaced, False, False)
    return _named(any(map(ends_in_loop, said)), replaced, not said, not _CUT_OFF_TEXTS.isdisjoint(reasons))


def _is_plain(body: bytes, shape: Shape) -> bool:
    """Say whether an answer is surely neither empty nor cut off nor, for the most part, a loop."""
    keys = _AT_A_GLANCE.get(shape)
    if keys is None:
        return True
    text_key, reason_key, cut_off = keys
    text_at = body.find(text_key)
    if text_at < 0 or _may_be_empty(body, text_at + len(text_key)):
        return False
    if cut_off in body:
        reason_at = body.rfind(reason_key)
        if reason_at < 0 or cut_off in body[reason_at + len(reason_key) : reason_at + len(reason_key) + 16]:
            return False
    return not (_repeats_at(body, len(body) >> 1) or _repeats_at(body, (len(body) >> 2) * 3))


def _may_be_empty(body: bytes, at: int) -> bool:
    """Say whether nothing may stand behind a key."""
    if body.startswith(b':"', at) and at + 2 < len(body) and body[at + 2] != _QUOTE:
        return False  # a text, in an answer without spaces: the common case
    begins = body[at : at + 7]
    return b'""' in begins or b"[]" in begins or b"null" in begins


def _repeats_at(text: bytes, at: int) -> bool:
    """Say whether what stands here stands here again soon: it does at any place of a loop."""
    return text.find(text[at : at + _ANCHOR_BYTES], at + 1, at + MAX_PERIOD_BYTES + _ANCHOR_BYTES) >= 0


def ends_in_loop(text: bytes) -> bool:
    """Say whether a JSON text ends in a piece of at most 256 bytes that comes 8 times, and for 192 bytes at least."""
    text = text[-END_BYTES:].rstrip(b'"]}')
    end = len(text) - _ANCHOR_BYTES
    at = text.rfind(text[end:], max(0, end - MAX_PERIOD_BYTES), len(text) - 1) if end > 0 else -1
    if at < 0:
        return False
    period = end - at
    needed = max(MIN_REPEATS * period, MIN_LOOP_BYTES)
    return len(text) >= needed and text[-needed:-period] == text[period - needed :]


def _named(loop: bool, replaced: bool, empty: bool, cut_off: bool) -> tuple[str, ...]:
    if not (loop or replaced or empty or cut_off):
        return ()  # as it is nearly always
    return tuple([name for name, is_set in zip(FLAGS, (loop, replaced, empty, cut_off), strict=True) if is_set])


def _says_something(data: bytes) -> bool:
    """Say whether an event brings words, thoughts or a tool call."""
    if b'"choices"' not in data:
        return b'"content_block_delta"' in data or b'.delta"' in data
    try:
        parts, _ = _parts_of(data)
        return any(map(_texts_of, parts))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True


def _parts_of(body: bytes) -> tuple[list[dict[str, Raw]], list[bytes]]:
    """Return the objects of an answer that say something, and the reasons why it ended.

    Raises:
        msgspec.DecodeError: it has another form.
    """
    top = _members(body)
    if "choices" not in top:
        said = _list(top, "content") or _list(top, "output")
        return said, [bytes(top[key]) for key in ("stop_reason", "status") if key in top]
    choices = _list(top, "choices")
    reasons = [bytes(choice["finish_reason"]) for choice in choices if "finish_reason" in choice]
    return [_part_of(choice) for choice in choices], reasons


def _part_of(choice: dict[str, Raw]) -> dict[str, Raw]:
    for key in ("delta", "message"):
        if key in choice:
            return _members(choice[key]) if bytes(choice[key]) != b"null" else {}
    return {"text": choice["text"]} if "text" in choice else {}


def _list(owner: dict[str, Raw], key: str) -> list[dict[str, Raw]]:
    raw = owner.get(key)
    return [] if raw is None or bytes(raw) == b"null" else [_members(item) for item in _items(raw)]


def _texts_of(part: dict[str, Raw]) -> list[bytes]:
    """Return the JSON texts of the members that say something; those of a Responses message stand one level down."""
    texts = [bytes(raw) for key, raw in part.items() if key not in _NOT_SAID and key != "content"]
    content = bytes(part.get("content", b""))
    if content.startswith(b"["):
        texts += [bytes(raw) for inner in _list(part, "content") for key, raw in inner.items() if key not in _NOT_SAID]
    else:
        texts.append(content)
    return [text for text in texts if text not in _NOTHING]
