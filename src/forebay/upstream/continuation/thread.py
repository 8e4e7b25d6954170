"""One answer over all its legs: what the relay asks at each event, and what is decided when an engine dies."""

from collections.abc import Callable

from msgspec.structs import replace

from forebay.domain import FailureKind, Usage
from forebay.ports import Stamp
from forebay.upstream.continuation.moves import AtLimit, Continue, Death, GiveUp, next_leg
from forebay.upstream.continuation.reasons import Impossible, Reason
from forebay.upstream.continuation.resume import MAX_TAIL_CHARS, at_limit, resume_request
from forebay.upstream.continuation.seam import Seam
from forebay.upstream.continuation.shapes import Plan
from forebay.upstream.continuation.token_ids import chunk_of, without_ids
from forebay.upstream.continuation.told import Finish, Leg, Mode, Told
from forebay.upstream.continuation.transcript import Transcript
from forebay.wire.endpoints import Shape
from forebay.wire.sse import Event


class Thread:
    """Follows one answer.

    Attributes:
        plan: how it could go on.
        moves: legs beyond the first.
        told: what the client had when the latest engine died.
        given_up: why it cannot go on; None while it can.
        on_joined: called when the first events of a new leg go to the client.
        stamp: gives the events ids with which the client may come back; None where it has not asked for them.
    """

    __slots__ = ("_barred", "_failed", "_mode", "_seam", "_shape", "_transcript", "given_up", "moves", "on_joined",
                 "plan", "stamp", "told")  # fmt: skip

    def __init__(self, plan: Plan, shape: Shape) -> None:
        self.plan = plan
        self.moves = 0
        self.told = Told()
        self.given_up: Reason | None = None
        self.on_joined: Callable[[], None] | None = None
        self.stamp: Stamp | None = None
        self._shape: Shape = shape
        self._transcript = Transcript()
        self._seam: Seam | None = None
        self._mode: Mode | None = None
        self._barred: frozenset[Mode] = frozenset()
        self._failed: Reason | None = None

    @property
    def held_bytes(self) -> int:
        """Memory that it takes, about."""
        return self._transcript.held_bytes

    @property
    def goes_on(self) -> bool:
        """Whether the running leg is not the first one, so that the client has been sent something already."""
        return self._seam is not None

    @property
    def waits(self) -> bool:
        """Whether nothing of the running leg has gone to the client yet, though it is not the first one."""
        return self._seam is not None and not self._seam.joined

    @property
    def ended(self) -> Finish | None:
        """The end of the answer, when a stop string over the seam has ended it: the engine is to be left."""
        return None if self._seam is None else self._seam.finish

    @property
    def at_seam(self) -> bool:
        """Whether the running leg ended because it could not be joined: no fault of the engine that made it."""
        return self._failed is not None

    def token(self, text: bytes, read: bytes) -> bytes:
        """Keep a read that is one more token; return the chunk that the client gets."""
        self._transcript.add(text)
        bare = without_ids(text) if self.plan.collects_ids else text
        if self.stamp is not None:
            return chunk_of(bare, self.stamp.after(self._transcript.mark()))
        return read if bare is text else chunk_of(bare)

    def events(self, event: Event) -> list[Event]:
        """Keep an event, or join it to the answer; return those that go to the client.

        Raises:
            Impossible: the leg cannot be joined, and nothing of it has gone to the client.
        """
        seam = self._seam
        if seam is None:
            self._transcript.add(event.data)
            return self._stamped([self._bare(event)])
        waited = not seam.joined
        try:
            joined = seam.join(event)
        except Impossible as impossible:
            self._failed = impossible.reason
            raise
        if waited and seam.joined and self.on_joined is not None:
            self.on_joined()
        return self._stamped([self._bare(e) for e in joined])

    def usage(self, usage: Usage) -> Usage:
        """Return the usage of the whole answer from that of the running leg."""
        return usage if self._seam is None else self._seam.usage(usage)

    def forget(self, reason: Reason) -> None:
        """Keep nothing more of it: it cannot go on."""
        self.given_up = reason
        self._transcript.give_up(reason)

    def next(self, sent: bytes, failure: FailureKind, *, refused: bool, overflow: bool) -> Leg | Finish | None:
        """Decide what follows the death of an engine; None when the answer cannot go on, for the reason `given_up`.

        Args:
            sent: body of the first leg's request.
            failure: of the engine.
            refused: it answered the leg's request with a 4xx of its own.
            overflow: that answer says that the prompt is too long.
        """
        if self.given_up is not None:
            return None
        self.told = self._transcript.told()
        death = Death(failure, self.moves, self._mode, self._failed, refused, overflow, self._barred)
        self._failed = None
        try:
            match next_leg(death, self.told, self.plan):
                case GiveUp(reason):
                    self.given_up = reason
                    return None
                case AtLimit():
                    return at_limit(sent, self.told)
                case Continue(barred):
                    self._barred = barred
                    self.moves += 1
                    return self._begin(resume_request(sent, self.told, self.plan, barred))
        except Impossible as impossible:
            self.given_up = impossible.reason
        return None

    def resume(self, told: Told, sent: bytes) -> Leg | Finish | None:
        """Begin where the client of another call stands; None when that cannot be, for the reason `given_up`.

        Args:
            told: what it has been told.
            sent: body of the request, as a first leg would send it.
        """
        self._transcript.go_on(told)
        self.told = told
        # How many tokens its last word has can be told only if the latest events are known.
        if sum(map(len, told.recent)) < min(len(told.text), MAX_TAIL_CHARS):
            self._barred = frozenset(("words",))
        try:
            return self._begin(resume_request(sent, told, self.plan, self._barred))
        except Impossible as impossible:
            self.given_up = impossible.reason
        return None

    def recounted(self, leg: Leg, sent: bytes, tokens: int) -> Leg | Finish:
        """Return a leg that has not been sent as it is when what its prompt has of the answer has been counted.

        Args:
            leg: as `next` or `resume` returned it.
            sent: body of the first leg's request.
            tokens: of `leg.kept`, as an engine counts them; never fewer than the events that brought it.
        """
        more = max(0, tokens - leg.made_tokens)
        self.told = replace(self.told, tokens=self.told.tokens + more, counted=True)
        return self._begin(resume_request(sent, self.told, self.plan, self._barred))

    def _stamped(self, events: list[Event]) -> list[Event]:
        """Give the last of some events an id, which is for all of them."""
        if self.stamp is not None and events:
            last = events[-1]
            events[-1] = Event(last.data, last.name, self.stamp.after(self._transcript.mark()))
        return events

    def _begin(self, leg: Leg | Finish) -> Leg | Finish:
        if isinstance(leg, Leg):
            self._mode = leg.mode
            self._seam = Seam(leg, self.told, self._transcript, self._shape)
        return leg

    def _bare(self, event: Event) -> Event:
        if not self.plan.collects_ids:
            return event
        bare = without_ids(event.data)
        return event if bare is event.data else Event(bare, event.name)
