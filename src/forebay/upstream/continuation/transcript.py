"""The transcript: what of an answer went to the client, kept as cheaply as can be.

While an answer runs, an event costs one append: its bytes are kept as they are and read only when the engine
dies, or when more than 64 KiB of them wait, which takes 0.2 ms and leaves the text and the ids alone.
"""

from array import array
from typing import Final

from forebay.upstream.continuation.chunks import Chunk, Piece, piece_of, plain_text, read_chunks, read_head
from forebay.upstream.continuation.reasons import Impossible, Reason
from forebay.upstream.continuation.told import Head, Leg, Told
from forebay.wire.resumed import Mark

FOLD_BYTES: Final = 65_536
MAX_TEXT_BYTES: Final = 1_048_576
# The ids of a prompt come in one event; those of a body of 1 MiB, four bytes a token, are below this.
MAX_EVENT_BYTES: Final = 4 * 1_048_576
_RECENT: Final = 64
_NO_HEAD: Final = Head()


class Transcript:
    """Collects one answer, over all its legs.

    Bounds: 64 KiB of unread events, 1 MiB of text with 8 bytes for each id; an answer that is longer, or has an
    event above 4 MiB, is given up: all of it is forgotten and `told().flaw` says so.

    Attributes:
        legs: that have joined, the first one not counted.
    """

    __slots__ = (
        "_base_tokens", "_cached_tokens", "_chars", "_clean", "_clean_chars", "_clean_ids", "_events", "_finished",
        "_flaw", "_head", "_ids", "_marked", "_marked_usages", "_prompt_ids", "_prompt_tokens", "_raw", "_raw_bytes",
        "_reasoning", "_recent", "_safe", "_safe_chars", "_says_events", "_text", "_text_bytes", "_tools", "_usages",
        "legs",
    )  # fmt: skip

    def __init__(self) -> None:
        self.legs = 0
        self._raw: list[bytes] = []
        self._raw_bytes = 0
        self._head = _NO_HEAD
        self._flaw: Reason | None = None
        self._text: list[str] = []
        self._reasoning: list[str] = []
        self._text_bytes = 0
        self._chars = 0
        self._recent: list[str] = []
        self._events = 0
        self._says_events = 0
        self._prompt_ids: array[int] | None = None
        self._ids: array[int] = array("q")
        self._safe = 0
        self._safe_chars = 0
        self._base_tokens = 0
        self._clean = False
        self._clean_ids = 0
        self._clean_chars = 0
        self._tools = False
        self._finished: str | None = None
        self._usages = self._marked = self._marked_usages = 0
        self._prompt_tokens: int | None = None
        self._cached_tokens: int | None = None

    @property
    def held_bytes(self) -> int:
        """Memory that it takes, about."""
        prompt = 0 if self._prompt_ids is None else len(self._prompt_ids)
        return self._raw_bytes + self._text_bytes + 8 * (len(self._ids) + prompt)

    def add(self, data: bytes) -> None:
        """Keep the data of an event that goes to the client, with its token ids."""
        if self._flaw is not None:
            return
        self._raw.append(data)
        self._raw_bytes += len(data)
        if self._raw_bytes > FOLD_BYTES:
            self._fold()

    def go_on(self, told: Told) -> None:
        """Begin with what the client of another call has been told."""
        self._text = [told.text]
        self._marked = 1
        self._text_bytes = len(told.text.encode(errors="surrogatepass"))
        self._chars = len(told.text)
        self._recent = list(told.recent)
        self._base_tokens = told.tokens
        self._prompt_tokens = told.prompt_tokens
        self._cached_tokens = told.cached_tokens
        self._head = told.head

    def mark(self) -> Mark | None:
        """Return where the answer stands, and what it says since the last time.

        None when it can no longer go on from its text.
        """
        self._fold()
        parts, usages = self._marked, self._marked_usages
        self._marked, self._marked_usages = len(self._text), self._usages
        if self._flaw is not None or self._tools or self._reasoning:
            return None
        head, counted = self._head, len(self._ids) > 0
        prompt_tokens = len(self._prompt_ids) if self._prompt_ids is not None else self._prompt_tokens
        return Mark(
            "".join(self._text[parts:]),
            (head.id, head.created, head.model, head.system_fingerprint),
            self._base_tokens + ((self._safe or len(self._ids)) if counted else self._says_events),
            counted,
            prompt_tokens,
            self._cached_tokens,
            self._finished,
            self._usages > usages,
        )

    def told(self) -> Told:
        """Return what the client has been told."""
        self._fold()
        counted = len(self._ids) > 0
        return Told(
            "".join(self._text),
            "".join(self._reasoning),
            self._prompt_ids,
            self._ids[:],
            self._safe,
            self._clean and self._safe_chars == self._chars,
            self._clean_ids,
            self._clean_chars,
            self._base_tokens + ((self._safe or len(self._ids)) if counted else self._says_events),
            counted,
            tuple(self._recent),
            self._tools,
            len(self._prompt_ids) if self._prompt_ids is not None else self._prompt_tokens,
            self._cached_tokens,
            self._head,
            self._flaw,
        )

    def begin(self, leg: Leg, repeated_tokens: int) -> None:
        """Let a new leg go on with the answer: it has been joined, and its events are added from here on.

        Args:
            leg: the new one.
            repeated_tokens: that it made in events of which the client gets nothing.
        """
        self._fold()
        if not self._chars:
            # Nothing had been said: the first leg begins once more, with the same prompt.
            self._ids = array("q")
            return
        self.legs += 1
        if leg.mode == "exact":
            self._safe = self._clean_ids = leg.cut
            self._safe_chars = self._clean_chars = self._chars - len(leg.tail)
            self._clean = True
            del self._ids[leg.cut :]
            return
        # The new leg's prompt is another one, so that ids can no longer be put behind the first one's.
        if self._prompt_ids is not None:
            self._prompt_tokens = len(self._prompt_ids)
            self._prompt_ids = None
        self._base_tokens = leg.made_tokens + repeated_tokens
        self._events = self._says_events = 0
        self._ids = array("q")
        self._safe = self._safe_chars = self._clean_ids = self._clean_chars = 0
        self._clean = False

    def give_up(self, reason: Reason) -> None:
        """Forget everything: what cannot be continued need not be kept."""
        self._flaw = reason
        self._raw = []
        self._raw_bytes = 0
        self._text = []
        self._reasoning = []
        self._recent = []
        self._ids = array("q")
        self._prompt_ids = None
        self._text_bytes = self._safe = 0

    def _fold(self) -> None:
        """Read the events that wait, and keep what they say."""
        raw = self._raw
        if not raw:
            return
        self._raw = []
        largest = self._raw_bytes > MAX_EVENT_BYTES
        self._raw_bytes = 0
        if largest:
            self.give_up(Reason.ANSWER_TOO_LONG)
            return
        try:
            if not self._head.id:
                self._head = read_head(raw[0])
            chunks = read_chunks(raw)
        except Impossible as impossible:
            self.give_up(impossible.reason)
            return
        for chunk in chunks:
            self._take(chunk)
        del self._recent[:-_RECENT]
        if self._text_bytes > MAX_TEXT_BYTES:
            self.give_up(Reason.ANSWER_TOO_LONG)

    def _take(self, chunk: Chunk) -> None:
        text = plain_text(chunk)
        if text is not None and chunk.choices is not None:
            ids = chunk.choices[0].token_ids
            if ids is None:
                self._events += 1
                count = 0
            else:
                self._ids.extend(ids)
                count = len(ids)
                self._events += count
            if text:
                self._text.append(text)
                self._say(text, count)
            return
        self._take_any(piece_of(chunk))

    def _take_any(self, piece: Piece) -> None:
        if piece.prompt_ids and self._prompt_ids is None and not self.legs:
            self._prompt_ids = array("q", piece.prompt_ids)
        if piece.finished is not None:
            self._finished = piece.finished
        if piece.prompt_tokens is not None and not piece.chosen:
            self._usages += 1
        if piece.prompt_tokens is not None and not self.legs:
            self._prompt_tokens = piece.prompt_tokens
            self._cached_tokens = piece.cached_tokens
        if piece.tools:
            self._tools = True
        self._events += piece.tokens
        ids = piece.ids
        if ids:
            self._ids.extend(ids)
        if piece.reasoning:
            self._reasoning.append(piece.reasoning)
        if piece.text:
            self._text.append(piece.text)
        if piece.says:
            self._say(piece.reasoning + piece.text, 0 if ids is None else len(ids))

    def _say(self, said: str, ids: int) -> None:
        """Note a boundary behind what an event of so many ids says."""
        chars = self._chars
        ascii_only = said.isascii()
        if ascii_only and not self._clean and self._safe and self._safe_chars == chars:
            # Had the last boundary been inside a character, that character would be in this text.
            self._clean_ids = self._safe
            self._clean_chars = chars
        self._text_bytes += len(said) if ascii_only else len(said.encode(errors="surrogatepass"))
        self._chars = self._safe_chars = chars + len(said)
        self._recent.append(said)
        self._says_events = self._events
        self._safe = len(self._ids)
        # One id with text: the engine had nothing left to wait for. Of several, the last may be half a character.
        self._clean = ids == 1
        if self._clean:
            self._clean_ids = self._safe
            self._clean_chars = self._chars
