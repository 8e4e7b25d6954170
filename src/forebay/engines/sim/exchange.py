"""One call at a simulated engine: from the whole request to the last byte, with one fault or none."""

import asyncio
from collections.abc import Callable
from typing import NamedTuple

from msgspec import Struct

from forebay.engines.sim.core import Core
from forebay.engines.sim.errors import error_body
from forebay.engines.sim.faults import (
    AbortFinish,
    AnyAction,
    BadChunk,
    BadEvent,
    Cut,
    Die,
    ErrorEvent,
    Freeze,
    Garbage,
    Hang,
    How,
    NoDone,
    NoFinish,
    Reset,
    ShortBody,
    SlowStart,
    Stall,
    Tripped,
)
from forebay.engines.sim.http import Connection
from forebay.engines.sim.model import QueueFull
from forebay.engines.sim.record import Seen
from forebay.engines.sim.refusals import refusal
from forebay.engines.sim.shapes import Dialect

_BROKEN_CHUNK = b"zz\r\nthis is no chunk\r\n"


class Work(Struct, frozen=True):
    """What a call wants from the engine, and how it is answered.

    Attributes:
        prompt_tokens: that the engine computes.
        max_tokens: that it generates.
        priority: the lower, the sooner.
        stream: answer event by event.
        has_prefix: the caller gave the beginning of the answer.
        dialect: writes the answer.
    """

    prompt_tokens: int
    max_tokens: int
    priority: int
    stream: bool
    has_prefix: bool
    dialect: Dialect


class Stage(NamedTuple):
    """What every exchange of one server shares.

    Attributes:
        core: makes the tokens.
        loop: for what has to wait.
        elapsed_s: gives the seconds since the server started, for the log.
        answered: is told the status of an answer, once, at its headers.
        die: ends the engine.
    """

    core: Core
    loop: asyncio.AbstractEventLoop
    elapsed_s: Callable[[], float]
    answered: Callable[[Seen, int], None]
    die: Callable[[], None]


class Exchange:
    """Answers one call; the connection tells it when the caller leaves, the core when tokens are made.

    Args:
        stage: what it plays on.
        work: what to do.
        action: what goes wrong.
        seen: the log's entry, kept up to date.
        connection: where the answer goes.
    """

    def __init__(self, stage: Stage, work: Work, action: AnyAction, seen: Seen, connection: Connection) -> None:
        self._stage = stage
        self._work = work
        self._action = action
        self._seen = seen
        self._connection = connection
        self._trip_at = action.after_tokens if isinstance(action, Tripped) else None
        self._seq_id: int | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._opened = False
        self._over = False
        self._made = 0
        self._sent = 0
        self._events = 0
        self._last = False

    def start(self) -> None:
        """Begin: refuse, misbehave before the first byte, or give the engine its work."""
        self._connection.listener = self
        refused = refusal(self._action, self._work.has_prefix)
        if refused is not None:
            self._answer(refused.status, refused.body, refused.headers)
            return
        match self._action:
            case Reset(how=how):
                self._cut(how)
                return
            case Hang(hold_s=hold_s):
                self._hold(hold_s)
                return
            case Garbage(text=text):
                self._connection.raw(text.encode())
                self._cut("fin")
                return
            case Freeze(hold_s=hold_s):
                self._stage.core.freeze(hold_s)
        if self._work.stream:
            self._stage.answered(self._seen, 200)
            self._connection.begin()
        if isinstance(self._action, SlowStart):
            self._timer = self._stage.loop.call_later(self._action.delay_s, self._submit)
        elif self._trip_at == 0:
            self._trip()
        else:
            self._submit()

    def token(self, made: int, last: bool) -> None:
        """Take note of a token, and send it unless the caller reads too slowly: then tokens are sent together."""
        self._made = made
        self._last = last
        if not self._connection.paused:
            self._progress()

    def client_ready(self) -> None:
        """Send what was held back."""
        if self._made > self._sent:
            self._progress()

    def client_gone(self) -> None:
        """Drop the sequence: the caller left."""
        if not self._over:
            self._seen.disconnected_s = self._stage.elapsed_s()
            self._leave()

    def _submit(self) -> None:
        work = self._work
        try:
            self._seq_id = self._stage.core.submit(work.prompt_tokens, work.max_tokens, work.priority, self)
        except QueueFull as full:
            if not work.stream:
                self._answer(503, error_body(503, str(full)))
                return
            # As vLLM does: the status is out before the queue is asked.
            fault = ErrorEvent(after_tokens=0, message=str(full), type="Service Unavailable", code=503)
            self._finish(work.dialect.error(fault) + work.dialect.done)

    def _progress(self) -> None:
        stop = self._made
        tripped = self._trip_at is not None and stop >= self._trip_at
        if tripped and self._trip_at is not None:
            stop = self._trip_at
        ends = self._last and not tripped
        if self._work.stream:
            self._stream(stop, ends)
        self._seen.tokens = self._sent = stop
        if tripped:
            self._trip()
        elif ends and not self._work.stream:
            self._whole()

    def _stream(self, stop: int, ends: bool) -> None:
        """Send the tokens up to `stop`, and the end of the stream if this is it."""
        dialect = self._work.dialect
        reason = None if isinstance(self._action, NoFinish) else "length"
        events = [] if self._opened else dialect.opening()
        self._opened = True
        if stop > self._sent:
            events += dialect.delta(self._sent, stop, reason if ends else None)
        if not ends:
            self._connection.send(self._joined(events))
            return
        events += dialect.closing(stop, reason)
        match self._action:
            case NoDone(hold=True, hold_s=hold_s):
                self._connection.send(self._joined(events))
                self._hold(hold_s)
                return
            case NoDone() | NoFinish(done=False):
                pass
            case _:
                events.append(dialect.done)
        self._finish(self._joined(events))

    def _whole(self, reason: str = "length") -> None:
        """Send an answer that is not streamed."""
        action = self._action
        body = self._work.dialect.whole(self._sent, None if isinstance(action, NoFinish) else reason)
        if isinstance(action, BadEvent):
            body = action.text.encode()
        if isinstance(action, ShortBody):
            self._stage.answered(self._seen, 200)
            self._leave()
            self._connection.promise(200, body[: len(body) // 2], len(body))
            return
        self._answer(200, body)

    def _trip(self) -> None:
        """Do what was to be done after so many tokens."""
        dialect, stream = self._work.dialect, self._work.stream
        match self._action:
            case Cut(how=how):
                self._cut(how)
            case Die():
                self._stage.die()
            case Stall(hold_s=hold_s):
                self._hold(hold_s)
            case BadChunk():
                self._connection.raw(_BROKEN_CHUNK)
                self._cut("fin")
            case ErrorEvent() as fault if stream:
                self._finish(dialect.error(fault) + (dialect.done if fault.done else b""))
            case ErrorEvent(code=code, message=message):
                self._answer(code if 400 <= code <= 599 else 500, error_body(code, message))
            case AbortFinish() if stream:
                opening = [] if self._opened else dialect.opening()
                self._finish(b"".join([*opening, *dialect.closing(self._sent, "abort"), dialect.done]))
            case AbortFinish():
                self._whole("abort")

    def _joined(self, events: list[bytes]) -> bytes:
        """Return the events as one piece, the one that the script names broken."""
        if isinstance(self._action, BadEvent):
            at = self._action.event - 1 - self._events
            self._events += len(events)
            if 0 <= at < len(events):
                events[at] = b"data: %b\n\n" % self._action.text.encode()
        return b"".join(events)

    def _answer(self, status: int, body: bytes, headers: tuple[tuple[bytes, bytes], ...] = ()) -> None:
        self._stage.answered(self._seen, status)
        self._leave()
        self._connection.respond(status, body, headers)

    def _finish(self, data: bytes) -> None:
        self._leave()
        self._connection.send(data, last=True)

    def _cut(self, how: How) -> None:
        self._leave()
        self._connection.cut(how)

    def _hold(self, hold_s: float | None) -> None:
        """Say nothing more; close after a while or wait for the caller to leave."""
        self._drop_sequence()
        self._made = self._sent
        if hold_s is not None:
            self._timer = self._stage.loop.call_later(hold_s, self._cut, "fin")

    def _leave(self) -> None:
        """Mark the call as over and give back what it holds."""
        self._over = True
        if self._seen.disconnected_s is None:
            self._seen.ended_s = self._stage.elapsed_s()
        if self._timer is not None:
            self._timer.cancel()
        self._drop_sequence()

    def _drop_sequence(self) -> None:
        if self._seq_id is not None:
            self._stage.core.abort(self._seq_id)
            self._seq_id = None
