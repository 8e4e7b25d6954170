"""The relay: one engine's answer to one client, event by event, inside the transport's callbacks.

A try goes through three phases. *Opening*: nothing has been sent to the client; events are held back
until the first one with content, so that a failure can still be answered by another replica. *Running*:
each event is read for the few facts that matter and passed on at once. *Settled*: the verdict is out and
whatever still arrives is dropped. An engine's error event is never passed on first: it settles the try.
"""

from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from forebay.clock import Clock
from forebay.domain import FailureKind, Outcome
from forebay.policy import Stream, Timeouts
from forebay.ports import Answer, Call, Header, Record, Reply, Verdict
from forebay.upstream.connections import Connection
from forebay.wire import facts, rewrite, sse
from forebay.wire.rewrite import Rewriter

# What may be held back before the first content: role chunks, Anthropic's and Responses' preambles.
MAX_HELD_EVENTS = 64
MAX_ERROR_BYTES = 1_048_576
PING = b": keep-alive\n\n"
_EVENT_STREAM: Header = (b"content-type", b"text/event-stream; charset=utf-8")
_DONE_EVENT = sse.Event(sse.DONE)


class Terms(Struct, frozen=True):
    """What a try must keep to.

    Attributes:
        timeouts: deadlines of this model, in seconds.
        stream: how streams are kept alive and ended.
        max_answer_bytes: bound of an answer that is not streamed.
        rewriter: turns the engine's events and bodies into the client's.
        sends_done: whether streams of this endpoint end with the `[DONE]` sentinel.
    """

    timeouts: Timeouts
    stream: Stream
    max_answer_bytes: int
    rewriter: Rewriter
    sends_done: bool


class Relay:
    """Feeds one try's answer to the client and says how the try ended.

    Args:
        call: the call it serves.
        terms: deadlines and edits.
        reply: the client's side.
        record: the facts of the call.
        clock: monotonic time.
        on_verdict: called once, when the try has ended.
    """

    __slots__ = (
        "_blocked_since_s", "_body", "_body_bytes", "_call", "_clock", "_connection", "_done", "_express",
        "_finished_at_s", "_framer", "_headers", "_held", "_last_s", "_mode", "_on_verdict", "_record",
        "_reply", "_started_s", "_status", "_terms", "committed", "settled",
    )  # fmt: skip

    def __init__(
        self,
        call: Call,
        terms: Terms,
        reply: Reply,
        record: Record,
        clock: Clock,
        on_verdict: Callable[[Verdict], None],
    ) -> None:
        self._call = call
        self._terms = terms
        self._reply = reply
        self._record = record
        self._clock = clock
        self._on_verdict = on_verdict
        self._connection: Connection | None = None
        self._mode: Literal["stream", "whole", "error"] = "whole"
        self._status = 0
        self._headers: tuple[Header, ...] = ()
        self._framer = sse.Framer()
        self._held: list[sse.Event] = []
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._started_s = self._last_s = clock.now_s()
        self._finished_at_s = 0.0
        self._blocked_since_s = 0.0
        self._express = False
        self._done = False
        self.committed = False
        self.settled = False

    def begin(self, connection: Connection, parts: list[bytes]) -> None:
        """Send the request on a connection and wait for its answer."""
        self._connection = connection
        self._reply.listener = self
        connection.send(parts, self)

    # the engine's side

    def on_head(self, status: int, headers: list[Header]) -> None:
        """Decide by status and type how the body is read."""
        self._last_s = self._clock.now_s()
        self._status = status
        self._headers = tuple(headers)
        if not 200 <= status < 300:
            self._mode = "error"
        elif self._call.stream and _is_event_stream(headers):
            self._mode = "stream"

    def takes(self, read: bytes) -> bool:
        """Pass on a read that is one more token and nothing else, as it is: the common case by far."""
        if not self._express:
            return False
        text = sse.lone_event(read)
        if text is None or not facts.is_plain_token(text, self._terms.rewriter.model):
            return False
        if self._terms.rewriter.drops_usage and rewrite.NULL_USAGE in text:
            return False
        self._last_s = self._clock.now_s()
        self._record.output_events += 1
        self._reply.pass_chunk(read)
        return True

    def on_body(self, data: bytes) -> None:
        """Pass on what can be passed on."""
        if self._mode == "stream":
            self._take_events(data)
            return
        self._last_s = self._clock.now_s()
        self._body_bytes += len(data)
        bound = self._terms.max_answer_bytes if self._mode == "whole" else MAX_ERROR_BYTES
        if self._body_bytes > bound:
            self._fail(FailureKind.BAD_ANSWER, f"the engine's answer is larger than {bound} bytes")
        else:
            self._body.append(data)

    def on_end(self) -> None:
        """The answer is complete as HTTP: see whether it is complete as an answer."""
        if self._mode == "stream":
            self._end_stream()
        elif self._mode == "error":
            answer = Answer(self._status, self._headers, b"".join(self._body))
            self._settle(Outcome.ENGINE_ERROR, FailureKind.STATUS, answer=answer)
        else:
            self._end_whole()

    def on_lost(self, kind: FailureKind) -> None:
        """The connection broke."""
        if self._finished_at_s:
            self._finish_stream()
            return
        self._fail(kind, "the engine broke off its answer" if self._status else "the engine broke the connection")

    # the client's side

    def client_gone(self) -> None:
        """The client left: the engine must stop working for it."""
        self._settle(Outcome.CLIENT_CLOSED, None)

    def client_ready(self, ready: bool) -> None:
        """Slow the engine down to the client's pace."""
        self._blocked_since_s = 0.0 if ready else self._clock.now_s()
        if self._connection is not None and not self.settled:
            self._connection.pause(not ready)
            self._last_s = self._clock.now_s()

    # time

    def tick(self, now_s: float) -> None:
        """Check the deadlines; called about ten times a second."""
        timeouts, stream = self._terms.timeouts, self._terms.stream
        if self._finished_at_s:
            if now_s - self._finished_at_s > stream.done_grace_s:
                self._finish_stream()
        elif self._blocked_since_s:
            if now_s - self._blocked_since_s > stream.write_stall_s:
                self._settle(Outcome.CLIENT_CLOSED, None, message="the client took nothing for write_stall_s")
                self._reply.abort()
        elif now_s > self._call.deadline_s:
            self._fail(FailureKind.TOTAL, "the answer took longer than total_s")
        elif self.committed:
            if now_s - self._last_s > timeouts.stall_s:
                self._fail(FailureKind.STALL, "the engine fell silent in the middle of its answer")
        elif self._waits_too_long(now_s):
            self._fail(FailureKind.FIRST_BYTE, "the engine sent nothing within first_byte_s")
        elif self._call.stream and stream.ping_s and now_s - self._last_s > stream.ping_s:
            self._ping(now_s)

    def _waits_too_long(self, now_s: float) -> bool:
        # A whole answer's first byte comes when its last token is made, so the default, meant for the
        # first token, does not bind it; an operator who sets the deadline means both.
        timeouts = self._terms.timeouts
        if not self._call.stream and not timeouts.first_byte_for_whole:
            return False
        return now_s - self._started_s > timeouts.first_byte_s

    def _ping(self, now_s: float) -> None:
        """Keep proxies on the way from giving up; from here on errors travel inside the stream."""
        self._last_s = now_s
        if not self._reply.started:
            self._reply.head(200, (_EVENT_STREAM,), None)
        self._reply.write(PING)

    # streams

    def _take_events(self, data: bytes) -> None:
        self._last_s = self._clock.now_s()
        try:
            events = self._framer.feed(data)
        except sse.FrameError as error:
            self._fail(FailureKind.BAD_ANSWER, str(error))
            return
        pieces: list[bytes] = []
        for event in events:
            if self.settled or self._done:
                break
            pieces.append(self._take(event))
        out = b"".join(pieces)
        if out:
            self._reply.write(out)
        if self._done:
            self._finish_stream(missing_done=False)
        # A read can be passed on as it is only where no event is under way.
        self._express = self.committed and not self.settled and self._reply.framed and self._framer.is_idle()

    def _take(self, event: sse.Event) -> bytes:
        """Read one event; return what goes to the client now."""
        seen = facts.read_event(event, self._call.endpoint.shape, opening=not self.committed)
        if seen.error is not None or not seen.valid or seen.finished == "abort":
            self._fail_in_band(seen)
            return b""
        if seen.usage is not None:
            self._record.usage = facts.merge_usage(self._record.usage, seen.usage)
            self._note_timings(seen.timings)
        if seen.finished is not None or (seen.done and not self._terms.sends_done):
            self._finished_at_s = self._last_s
        if seen.done and self._terms.sends_done:
            # Written by us at the end, and only behind a finish_reason.
            self._done = bool(self._finished_at_s)
            return b""
        if not self.committed:
            if not seen.carries and len(self._held) < MAX_HELD_EVENTS:
                self._held.append(event)
                return b""
            return self._commit(event, seen)
        if seen.carries:
            self._record.output_events += 1
        return self._terms.rewriter.event(event, seen)

    def _commit(self, event: sse.Event, seen: facts.EventFacts) -> bytes:
        """The first content is here: from now on this try is the answer."""
        self.committed = True
        self._record.first_token()
        self._record.output_events += 1
        if not self._reply.started:
            self._reply.head(self._status, self._headers, None)
        held, self._held = self._held, []
        shape = self._call.endpoint.shape
        pieces = [self._terms.rewriter.event(e, facts.read_event(e, shape, opening=True)) for e in held]
        return b"".join((*pieces, self._terms.rewriter.event(event, seen)))

    def _end_stream(self) -> None:
        rest = self._framer.rest()
        if self._finished_at_s:
            self._finish_stream(missing_done=rest is None or rest.data != sse.DONE)
        else:
            self._fail(FailureKind.TRUNCATED, "the engine ended its answer without a finish_reason")

    def _finish_stream(self, *, missing_done: bool = True) -> None:
        """All is said: write the sentinel, whether the engine remembered it or not."""
        if self.settled:
            return
        if self._terms.sends_done:
            self._reply.write(sse.render(_DONE_EVENT))
        self._settle(Outcome.OK, None, missing_done=missing_done and self._terms.sends_done)
        self._reply.end()

    def _fail_in_band(self, seen: facts.EventFacts) -> None:
        if not seen.valid:
            self._fail(FailureKind.BAD_ANSWER, "the engine sent an event that is not JSON")
        elif seen.error is not None:
            error = facts.read_error(b'{"error":%b}' % seen.error, "the engine reported an error")
            answer = None if self.committed else Answer(_status_in(error), (), error.text())
            self._settle(Outcome.ENGINE_ERROR, FailureKind.IN_BAND, answer=answer, message=error.message)
        else:
            self._fail(FailureKind.IN_BAND, "the engine aborted the answer")

    # whole answers

    def _end_whole(self) -> None:
        body = b"".join(self._body)
        seen = facts.read_whole(body)
        if not seen.valid and _is_json(self._headers):
            self._fail(FailureKind.BAD_ANSWER, "the engine's answer is not JSON")
            return
        if seen.usage is not None:
            self._record.usage = seen.usage
        self._note_timings(seen.timings)
        self._record.first_token()
        body = self._terms.rewriter.body(body, seen)
        self.committed = True
        if self._reply.started:
            # A ping has opened an event stream, but the engine answered whole: its body is the one event.
            self._reply.write(b"data: %b\n\n" % body.replace(b"\n", b" "))
        else:
            self._reply.head(self._status, self._headers, len(body))
            self._reply.write(body)
        self._settle(Outcome.OK, None)
        self._reply.end()

    def _note_timings(self, timings: facts.Timings | None) -> None:
        if timings is not None:
            self._record.engine_prefill_ms = timings.prompt_ms
            self._record.engine_decode_ms = timings.predicted_ms

    # ends

    def _fail(self, kind: FailureKind, message: str) -> None:
        outcome = {
            FailureKind.TOTAL: Outcome.TIMEOUT,
            FailureKind.STALL: Outcome.TIMEOUT,
            FailureKind.FIRST_BYTE: Outcome.TIMEOUT,
            FailureKind.TRUNCATED: Outcome.TRUNCATED,
        }.get(kind, Outcome.ENGINE_ERROR)
        self._settle(outcome, kind, message=message)

    def _settle(
        self,
        outcome: Outcome,
        failure: FailureKind | None,
        *,
        answer: Answer | None = None,
        message: str = "",
        missing_done: bool = False,
    ) -> None:
        if self.settled:
            return
        self.settled = True
        self._express = False
        self._reply.listener = None
        connection, self._connection = self._connection, None
        if connection is not None:
            if outcome is Outcome.OK:
                connection.release(self)
            else:
                connection.drop(self)
        self._on_verdict(
            Verdict(
                self.committed,
                outcome,
                failure,
                self._status,
                answer,
                _retry_after_s(self._headers) if answer is not None else None,
                message,
                missing_done,
            )
        )


def _is_event_stream(headers: list[Header]) -> bool:
    return any(name == b"content-type" and value.lower().startswith(b"text/event-stream") for name, value in headers)


def _is_json(headers: tuple[Header, ...]) -> bool:
    return any(name == b"content-type" and b"json" in value.lower() for name, value in headers)


def _status_in(error: facts.EngineError) -> int:
    """The HTTP status that an error event stands for: vLLM refuses streams with 200 and a code inside."""
    return int(error.code) if error.code.isdigit() and 400 <= int(error.code) < 600 else 502


def _retry_after_s(headers: tuple[Header, ...]) -> float | None:
    for name, value in headers:
        if name == b"retry-after" and value.isdigit():
            return float(value)
    return None
