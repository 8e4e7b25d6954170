"""The seam: where the next leg's events are joined to what the client has.

Its first events are held back until their text has been held against the prompt (a leak ends it), against what
must be said again (another text ends it) and against stop strings that have begun. From then on only identity and
usage change.
"""

from typing import Final

from forebay.domain import Usage
from forebay.upstream.continuation import edits
from forebay.upstream.continuation.chunks import Piece, read_piece
from forebay.upstream.continuation.leak import repeats_prompt
from forebay.upstream.continuation.reasons import Impossible, Reason
from forebay.upstream.continuation.told import Finish, Leg, Told
from forebay.upstream.continuation.transcript import Transcript
from forebay.wire.endpoints import Shape
from forebay.wire.sse import Event

MAX_HELD_EVENTS: Final = 1024
"""Events without text (roles, halves of characters) and those that may become a stop string: a handful."""
ANEW_CHARS: Final = 16
"""An answer that goes on with so many characters of its own beginning has begun anew."""
_REPLACEMENT: Final = "\ufffd"


class Seam:
    """Joins one leg.

    Attributes:
        joined: its events go to the client; before, nothing of it does.
        finish: set when a stop string that began before the seam ends the answer here: the engine is to be left.
    """

    __slots__ = (
        "_at", "_checked", "_fresh", "_held", "_leg", "_repeated_tokens", "_replaced", "_shape", "_told", "_tokens",
        "_transcript", "finish", "joined",
    )  # fmt: skip

    def __init__(self, leg: Leg, told: Told, transcript: Transcript, shape: Shape) -> None:
        self._leg = leg
        self._told = told
        self._transcript = transcript
        self._shape = shape
        self._held: list[tuple[Event, Piece]] = []
        # Characters of the leg's tail that have come again, and what the events held now say behind them.
        self._at = 0
        self._fresh = ""
        self._tokens = 0
        self._repeated_tokens = 0
        self._checked = False
        self._replaced = _REPLACEMENT in told.text or _REPLACEMENT in told.reasoning
        self.joined = False
        self.finish: Finish | None = None

    def join(self, event: Event) -> list[Event]:
        """Take one event of the leg; return those that go to the client now.

        The transcript gets them too. An engine's error and the sentinel are not for the seam.

        Raises:
            Impossible: the leg cannot be joined, and nothing of it has been returned.
        """
        if self.finish is not None:
            return []
        if self.joined:
            return [self._passed(event)]
        piece = read_piece(event.data)
        self._tokens += piece.tokens
        self._held.append((event, piece))
        if len(self._held) > MAX_HELD_EVENTS:
            raise Impossible(Reason.ANSWER_TOO_LONG)
        if piece.says and not self._checked:
            self._check_first(piece)
        self._fresh += piece.reasoning + piece.text
        last = piece.finished is not None
        if not (self._fresh or last or piece.tools):
            return []
        skip = self._repeated_chars(last=last or piece.tools)
        if skip is None or self._may_begin_anew(self._fresh[skip:], last=last):
            return []
        stop = self._stop_over_seam(self._fresh[skip:], last=last)
        if stop is None:
            return []
        return self._release(skip) if stop < 0 else self._stopped(skip, stop)

    def usage(self, leg: Usage) -> Usage:
        """Return the usage of the whole answer, from that of this leg."""
        told, made = self._told, self._leg.made_tokens
        prompt_tokens = told.prompt_tokens if told.prompt_tokens is not None else leg.prompt_tokens - made
        estimated = leg.estimated or (made > 0 and not told.counted)
        cached = told.cached_tokens
        return Usage(max(0, prompt_tokens), made + leg.completion_tokens, cached, estimated=estimated)

    def _check_first(self, piece: Piece) -> None:
        """Hold the first text against what it must not be."""
        self._checked = True
        said = piece.reasoning + piece.text
        if piece.reasoning and self._told.text:
            raise Impossible(Reason.CHANNEL)
        if said.startswith(_REPLACEMENT) and not self._replaced:
            raise Impossible(Reason.REPLACEMENT_CHARACTER)
        leg, told = self._leg, self._told
        if leg.mode == "exact" and repeats_prompt(said, self._tokens, leg.prompt, told.reasoning + told.text):
            raise Impossible(Reason.PROMPT_LEAK)

    def _repeated_chars(self, *, last: bool) -> int | None:
        """Return how much of the leg's text the client has already; None while that is not certain."""
        tail, fresh, at = self._leg.tail, self._fresh, self._at
        left = len(tail) - at
        if len(fresh) >= left and fresh.startswith(tail[at:]):
            return left
        if tail.startswith(fresh, at) and not last:
            if self._leg.mode != "exact":
                self._forget()
            return None
        if self._leg.mode != "text" or not tail.isspace():
            raise Impossible(Reason.DIVERGED)
        # White space alone, and other than before: the client keeps its own.
        rest = fresh.lstrip()
        return len(fresh) - len(rest) if rest or last else None

    def _may_begin_anew(self, new: str, *, last: bool) -> bool:
        """Say whether the leg may be an answer from the beginning: the engine overlooked what it was to go on from.

        Raises:
            Impossible: it surely is one.
        """
        shown = self._told.text
        if self._leg.mode != "text" or last or not new or not shown.startswith(new[:ANEW_CHARS]):
            return False
        if len(new) >= ANEW_CHARS:
            raise Impossible(Reason.DIVERGED)
        return len(new) < len(shown)

    def _forget(self) -> None:
        """Drop what is held: the client has all of it. In exact mode its ids are needed, and its tail is short."""
        self._at += len(self._fresh)
        self._repeated_tokens = self._tokens
        self._fresh = ""
        self._held = []

    def _stop_over_seam(self, new: str, *, last: bool) -> int | None:
        """Look for a stop string that began in what the client has.

        Returns:
            How much of the new text belongs to it; -1 when there is none; None while one may still come.
        """
        shown = self._told.text
        maybe = False
        for stop in self._leg.stops:
            for begun in range(min(len(stop) - 1, len(shown)), 0, -1):
                if not shown.endswith(stop[:begun]):
                    continue
                rest = stop[begun:]
                if new.startswith(rest):
                    return len(rest)
                maybe = maybe or rest.startswith(new)
        return None if maybe and not last else -1

    def _release(self, skip: int) -> list[Event]:
        """Return what was held, without what the client has."""
        self.joined = True
        self._transcript.begin(self._leg, self._repeated_tokens)
        held, self._held = self._held, []
        out = []
        for event, piece in held:
            taken = min(skip, len(piece.text))
            skip -= taken
            data = event.data
            if taken or (piece.role and self._told.head.id):
                if not self._has_more(piece, taken):
                    continue
                data = edits.with_text(data, self._shape, piece.text[taken:] if taken else None, role=False)
            out.append(self._passed(Event(data, event.name)))
        return out

    def _has_more(self, piece: Piece, taken: int) -> bool:
        """Say whether an event is of use without its role and its first characters."""
        rest = len(piece.text) > taken or piece.reasoning or piece.tools
        return bool(rest or piece.finished is not None or (piece.ids and self._leg.mode == "exact"))

    def _stopped(self, skip: int, stop: int) -> list[Event]:
        """End the answer at a stop string; of its end the client sees what it asked for."""
        self.joined = True
        text = self._fresh[skip : skip + stop] if self._leg.keeps_stop else ""
        told = self._told
        made = Usage(
            self._told.prompt_tokens or 0, self._leg.made_tokens + self._tokens, told.cached_tokens, estimated=True
        )
        self.finish = Finish("stop", made, self._leg.wants_usage)
        return edits.closing(self.finish, told.head, self._shape, text)

    def _passed(self, event: Event) -> Event:
        """Give an event the identity of the first leg and the usage of the whole answer."""
        members = edits.read(event.data)
        usage = None
        if members.text_of("usage") is not None:
            counts = edits.usage_in(members)
            usage = None if counts is None else self.usage(counts)
        data = edits.with_head(members, self._told.head, usage)
        self._transcript.add(data)
        return Event(data, event.name)
