"""The relay: one engine's answer to one client, inside the transport's callbacks.

A try goes through three phases. *Opening*: nothing has been sent to the client; events are held back
until the first one with content, so that a failure can still be answered by another replica. *Running*:
each event is read for the few facts that matter and passed on at once. *Settled*: the verdict is out and
whatever still arrives is dropped. An engine's error event is never passed on first: it settles the try.
"""

import asyncio
from typing import Literal

from forebay.clock import Clock
from forebay.domain import FailureKind, Outcome
from forebay.ports import Record, Reply
from forebay.traffic import Answer, Call, Header, Verdict
from forebay.upstream.connection import Connection
from forebay.upstream.continuation.reasons import Impossible
from forebay.upstream.deadlines import MESSAGES, Sending, Times, due
from forebay.upstream.watch import Watch, flags_of_whole
from forebay.upstream.whole import error_in_band, is_event_stream, is_json, retry_after_s, send_whole
from forebay.wire import answers, facts, rewrite, sse
from forebay.wire.said import EventFacts, Timings
from forebay.wire.usage import merge_usage

# What may be held back before the first content: role chunks, Anthropic's and Responses' preambles.
MAX_HELD_EVENTS = 64
MAX_ERROR_BYTES = 1_048_576
PING = b": keep-alive\n\n"
# Behind an id: some clients take the blank line for the end of an event without data, and fail (openai-python).
QUIET_PING = b": keep-alive\n"
EVENT_STREAM: Header = (b"content-type", b"text/event-stream; charset=utf-8")
_DONE = sse.render(sse.Event(sse.DONE))


class Relay:
    """Feeds one try's answer to the client.

    Attributes:
        verdict: gets how the try ended.
        committed: the client has been sent something of this try.
        settled: the verdict is out.
    """

    __slots__ = (
        "_blocked_since_s", "_body", "_body_bytes", "_call", "_clock", "_connection", "_done", "_express",
        "_finished_at_s", "_framer", "_headers", "_held", "_last_s", "_mode", "_record", "_reply",
        "_sending", "_started_s", "_status", "_followed", "_unfinished", "_watch", "committed", "settled", "verdict",
    )  # fmt: skip

    def __init__(self, call: Call, sending: Sending, reply: Reply, record: Record, clock: Clock) -> None:
        self._call = call
        self._sending = sending
        self._reply = reply
        self._record = record
        self._clock = clock
        self.verdict: asyncio.Future[Verdict] | None = None
        self._connection: Connection | None = None
        self._mode: Literal["stream", "whole", "error"] = "whole"
        self._status = 0
        self._headers: list[Header] = []
        self._framer: sse.Framer | None = None
        self._held: list[sse.Event] = []
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._started_s = self._last_s = clock.now_s()
        self._finished_at_s = self._blocked_since_s = 0.0
        self._unfinished = sending.choices
        self._watch = Watch()
        self._express = self._done = False
        self._followed = sending.thread
        self.committed = self._followed is not None and self._followed.goes_on
        self.settled = False

    def begin(self, connection: Connection, head: bytes) -> None:
        """Send the request on a connection and wait for its answer."""
        self._connection = connection
        self._reply.listener = self
        connection.send(head, self._sending.body, self)
        if self._reply.blocked:
            # An earlier leg's text still waits for a slow client.
            self.client_ready(False)

    # the engine's side

    def on_head(self, status: int, headers: list[Header]) -> None:
        """Decide by status and type how the body is read."""
        self._last_s = self._clock.now_s()
        self._status = status
        self._headers = headers
        if not 200 <= status < 300:
            self._mode = "error"
        elif self._call.stream and is_event_stream(headers):
            self._mode = "stream"
            self._framer = sse.Framer()

    def takes(self, read: bytes) -> bool:
        """Pass on a read that is one more token and nothing else, as it is: the common case by far."""
        if not self._express:
            return False
        text = sse.lone_event(read)
        if text is None or not facts.is_plain_token(text, self._sending.rewriter.model):
            return False
        if self._sending.rewriter.drops_usage and rewrite.NULL_USAGE in text:
            return False
        self._last_s = self._clock.now_s()
        self._record.output_events += 1
        self._watch.token(text)
        self._reply.pass_chunk(read if self._followed is None else self._followed.token(text, read))
        return True

    def on_body(self, data: bytes) -> None:
        """Take a part of the body."""
        self._last_s = self._clock.now_s()
        if self._framer is not None:
            self._take_events(self._framer, data)
            return
        self._body_bytes += len(data)
        bound = self._sending.max_answer_bytes if self._mode == "whole" else MAX_ERROR_BYTES
        if self._body_bytes > bound:
            self._fail(FailureKind.BAD_ANSWER, f"the engine's answer is larger than {bound} bytes")
        else:
            self._body.append(data)

    def on_end(self) -> None:
        """The answer is complete as HTTP: see whether it is complete as an answer."""
        if self._framer is not None:
            rest = self._framer.rest()
            if self._finished_at_s:
                self._finish_stream(missing_done=rest is None or rest.data != sse.DONE)
            else:
                self._fail(FailureKind.TRUNCATED, "the engine ended its answer without a finish_reason")
        elif self._mode == "error":
            answer = Answer(self._status, tuple(self._headers), b"".join(self._body))
            self._settle(Outcome.ENGINE_ERROR, FailureKind.STATUS, answer=answer)
        else:
            self._end_whole()

    def on_lost(self, kind: FailureKind) -> None:
        """The connection broke."""
        if self._finished_at_s:
            self._finish_stream()
        else:
            self._fail(kind, "the engine broke off its answer" if self._status else "the engine broke the connection")

    # the client's side

    def client_gone(self) -> None:
        """The client left: the engine must stop working for it."""
        self._settle(Outcome.CLIENT_CLOSED, None)

    def client_ready(self, ready: bool) -> None:
        """Slow the engine down to the client's pace."""
        self._blocked_since_s = 0.0 if ready else self._clock.now_s()
        if self._connection is not None:
            self._connection.pause(not ready)
            self._last_s = self._clock.now_s()

    # time

    def tick(self, now_s: float) -> None:
        """Check the deadlines; called about ten times a second."""
        times = Times(self._started_s, self._last_s, self._blocked_since_s, self._finished_at_s, self._call.deadline_s)
        answering = self.committed and not (self._followed is not None and self._followed.waits)
        match due(times, now_s, self._sending, streamed=self._call.stream, committed=answering):
            case "finish":
                self._finish_stream()
            case "cut":
                self._settle(Outcome.CLIENT_CLOSED, None, message="the client took nothing for write_stall_s")
                self._reply.abort()
            case "ping":
                self._ping(now_s)
            case FailureKind() as late:
                self._fail(late, MESSAGES[late])

    def _ping(self, now_s: float) -> None:
        """Keep proxies on the way from giving up; from here on errors travel inside the stream."""
        self._last_s = now_s
        if not self._reply.started:
            self._reply.head(200, (EVENT_STREAM,), None)
        self._reply.write(PING if self._call.claim is None else QUIET_PING)

    # streams

    def _take_events(self, framer: sse.Framer, data: bytes) -> None:
        try:
            events = framer.feed(data)
        except sse.FrameError as error:
            self._fail(FailureKind.BAD_ANSWER, str(error))
            return
        pieces: list[bytes] = []
        for event in events:
            if self.settled or self._done:
                break
            pieces.append(self._take(event))
        self._reply.write(b"".join(pieces))
        if self._done:
            self._finish_stream(missing_done=False)
        # A read can be passed on as it is only where no event is under way.
        self._express = self.committed and not self.settled and self._reply.framed and framer.is_idle()
        if self._followed is not None and self._followed.goes_on:
            self._express = False

    def _take(self, event: sse.Event) -> bytes:
        """Read one event; return what goes to the client now."""
        seen = facts.read_event(event, self._call.endpoint.shape, opening=not self.committed)
        if seen.error is not None or not seen.valid or seen.finished == "abort":
            self._fail_in_band(seen)
            return b""
        if seen.usage is not None:
            merged = merge_usage(self._record.usage, seen.usage)
            self._record.usage = merged if self._followed is None else self._followed.usage(seen.usage)
            self._note_timings(seen.timings)
        if seen.finished is not None:
            self._unfinished -= seen.ends
        if (seen.finished is not None and self._unfinished <= 0) or (seen.done and not self._sending.sends_done):
            self._finished_at_s = self._last_s
        if seen.done and self._sending.sends_done:
            # Written by us at the end, and only behind a finish_reason; of how many choices, the engine knows best.
            self._done = self._unfinished < self._sending.choices
            return b""
        self._watch.event(event.data, seen)
        if not self.committed:
            if not seen.carries and len(self._held) < MAX_HELD_EVENTS:
                self._held.append(event)
                return b""
            return self._commit(event, seen)
        self._record.output_events += seen.carries
        return self._out(event, seen)

    def _out(self, event: sse.Event, seen: EventFacts) -> bytes:
        """Return what goes to the client for an event: as it is rewritten, or as a continued answer has it."""
        thread, rewriter = self._followed, self._sending.rewriter
        if thread is None:
            return rewriter.event(event, seen)
        if seen.usage_only and not self._finished_at_s:
            # Without its end an answer goes on elsewhere, and the usage of all of it comes then.
            self._held.append(event)
            return b""
        try:
            events = thread.events(event)
        except Impossible as impossible:
            self._fail(FailureKind.BAD_ANSWER, f"the answer could not be continued: {impossible.reason}")
            return b""
        if thread.ended is not None:
            self._record.usage = thread.ended.usage
            self._done = True
        shape = self._call.endpoint.shape
        return b"".join([rewriter.event(e, facts.read_event(e, shape, opening=True)) for e in events])

    def _commit(self, event: sse.Event, seen: EventFacts) -> bytes:
        """The first content is here: from now on this try is the answer."""
        self.committed = True
        self._record.first_token()
        self._record.output_events += 1
        if not self._reply.started:
            self._reply.head(self._status, tuple(self._headers), None)
        held, self._held = self._held, []
        shape = self._call.endpoint.shape
        pieces = [self._out(e, facts.read_event(e, shape, opening=True)) for e in held]
        return b"".join((*pieces, self._out(event, seen)))

    def _finish_stream(self, *, missing_done: bool = True) -> None:
        """All is said: write the sentinel, whether the engine remembered it or not."""
        if self.settled:
            return
        held, self._held = self._held, []
        shape = self._call.endpoint.shape
        self._reply.write(b"".join([self._out(e, facts.read_event(e, shape, opening=True)) for e in held]))
        if self._sending.sends_done:
            self._reply.write(_DONE)
        self._settle(Outcome.OK, None, missing_done=missing_done and self._sending.sends_done)
        self._reply.end()

    def _fail_in_band(self, seen: EventFacts) -> None:
        if not seen.valid:
            self._fail(FailureKind.BAD_ANSWER, "the engine sent an event that is not JSON")
        elif seen.error is None:
            self._fail(FailureKind.IN_BAND, "the engine aborted the answer")
        else:
            message, answer = error_in_band(seen.error)
            self._settle(
                Outcome.ENGINE_ERROR,
                FailureKind.IN_BAND,
                answer=None if self.committed else answer,
                message=message,
            )

    # whole answers

    def _end_whole(self) -> None:
        body = b"".join(self._body)
        seen = answers.read_whole(body)
        if not seen.valid and is_json(self._headers):
            self._fail(FailureKind.BAD_ANSWER, "the engine's answer is not JSON")
            return
        self._record.usage = seen.usage
        self._note_timings(seen.timings)
        if self._call.endpoint.streams:
            self._record.output_flags = flags_of_whole(body, self._call.endpoint.shape)
        self._record.first_token()
        self.committed = True
        send_whole(self._reply, self._status, tuple(self._headers), self._sending.rewriter.body(body, seen))
        self._settle(Outcome.OK, None)
        self._reply.end()

    def _note_timings(self, timings: Timings | None) -> None:
        if timings is not None:
            self._record.engine_prefill_ms = timings.prompt_ms
            self._record.engine_decode_ms = timings.predicted_ms

    # ends

    def _fail(self, kind: FailureKind, message: str) -> None:
        outcome = Outcome.TIMEOUT if kind in MESSAGES else Outcome.ENGINE_ERROR
        self._settle(Outcome.TRUNCATED if kind is FailureKind.TRUNCATED else outcome, kind, message=message)

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
        if self.committed and self._framer is not None:
            self._record.output_flags = self._watch.flags(finished=outcome is Outcome.OK)
        connection, self._connection = self._connection, None
        if connection is not None:
            if self._blocked_since_s:
                # Paused for a slow client: the next call on this connection must not inherit that.
                connection.pause(False)
            if outcome is Outcome.OK and (self._followed is None or self._followed.ended is None):
                connection.release(self)
            else:
                connection.drop(self)
        wait_s = retry_after_s(self._headers) if answer is not None else None
        if self.verdict is not None and not self.verdict.done():
            self.verdict.set_result(
                Verdict(self.committed, outcome, failure, self._status, answer, wait_s, message, missing_done)
            )
