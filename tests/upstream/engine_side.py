"""One try without a network: connection, reply and record that do only what a test tells them."""

from collections.abc import Callable
from typing import Any

from edge.client_side import FakeTransport

from forebay.clock import ManualClock
from forebay.domain import FailureKind, Replica, Tenant, Usage
from forebay.policy import Stream, Timeouts
from forebay.ports import ReplyListener
from forebay.traffic import Call, Header, Verdict
from forebay.upstream.connection import Connection
from forebay.upstream.connections import Connections
from forebay.upstream.deadlines import Sending
from forebay.upstream.relay import Relay
from forebay.wire.endpoints import BY_PATH
from forebay.wire.rewrite import Rewriter

REPLICA = Replica("127.0.0.1:9", "127.0.0.1", 9)
TENANT = Tenant("a")
PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}


def call_of(shape: str = "chat", *, stream: bool = True, deadline_s: float = 700.0) -> Call:
    endpoint = BY_PATH[PATHS[shape]]
    return Call("call-1", endpoint, "m", stream, True, TENANT, 1, 1, ((b"user-agent", b"t"),), 100.0, deadline_s)


def sending_of(
    shape: str = "chat",
    *,
    timeouts: Timeouts = Timeouts(),  # noqa: B008
    stream: Stream = Stream(),  # noqa: B008
    model: str = "m",
    drops_usage: bool = False,
    max_answer_bytes: int = 1_000_000,
    choices: int = 1,
) -> Sending:
    rewriter = Rewriter(model, drops_usage)
    return Sending("main", b'{"model":"m"}', timeouts, stream, max_answer_bytes, rewriter, shape == "chat", choices)


class FakeReply:
    """Takes an answer and fails on whatever no real client could be sent."""

    def __init__(self, *, framed: bool = False) -> None:
        self.extra = b""
        self.timing: Callable[[], bytes] | None = None
        self.listener: ReplyListener | None = None
        self.status = 0
        self.gone = self.blocked = self.started = self.ended = self.aborted = False
        self.framed = framed
        self.headers: tuple[Header, ...] = ()
        self.length_bytes: int | None = None
        self.body = b""
        self.writes: list[bytes] = []

    def head(self, status: int, headers: tuple[Header, ...], length_bytes: int | None) -> None:
        assert not self.started, "a second head"
        self.started = True
        self.status, self.headers, self.length_bytes = status, headers, length_bytes

    def write(self, data: bytes) -> None:
        if not data:
            return
        assert self.started, "a body without a head"
        assert not self.ended, "a write behind the end"
        self.body += data
        self.writes.append(data)

    def pass_chunk(self, chunk: bytes) -> None:
        assert self.framed
        size, _, rest = chunk.partition(b"\r\n")
        assert len(rest) == int(size, 16) + 2
        assert rest.endswith(b"\r\n")
        self.write(rest[:-2])

    def end(self) -> None:
        assert not self.ended
        self.ended = True

    def abort(self) -> None:
        self.aborted = self.ended = True

    def whole(self, status: int, headers: tuple[Header, ...], body: bytes) -> None:
        self.head(status, headers, len(body))
        self.write(body)
        self.end()


class FakeRecord:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.usage: Usage | None = None
        self.input_estimate_tokens = 0
        self.output_events = 0
        self.continued = 0
        self.queue_ms: float | None = None
        self.engine_prefill_ms: float | None = None
        self.engine_decode_ms: float | None = None
        self.first_tokens = 0

    def dispatched(self, pool: str, replica: str) -> None: ...

    def attempt_failed(self, kind: FailureKind, status: int) -> None: ...

    def first_token(self) -> None:
        self.first_tokens += 1


class Promise:
    """As much of a future as a relay needs; a second result is a fault."""

    def __init__(self) -> None:
        self.verdicts: list[Verdict] = []

    def done(self) -> bool:
        return False

    def set_result(self, verdict: Verdict) -> None:
        assert not self.verdicts, "a second verdict"
        self.verdicts.append(verdict)


class Line:
    """A connection of a pool, over a transport that a test feeds."""

    def __init__(self, pool: Connections | None = None, clock: ManualClock | None = None) -> None:
        self.clock = clock or ManualClock(100.0)
        self.pool = pool or Connections(None, self.clock)  # type: ignore[arg-type]
        self.transport = FakeTransport()
        self.connection = Connection(REPLICA, self.pool)
        self.connection.connection_made(self.transport)  # type: ignore[arg-type]

    def feed(self, *reads: bytes) -> None:
        """Hand over reads as a loop does: none once the transport is closing."""
        for read in reads:
            if read and not self.transport.closing:
                self.connection.data_received(read)

    def end(self) -> None:
        """The engine closes."""
        self.connection.eof_received()
        self.lose()

    def lose(self) -> None:
        """The connection is gone."""
        self.transport.closing = True
        self.connection.connection_lost(None)

    @property
    def idle(self) -> bool:
        """Whether the pool would hand it out; it is put back."""
        taken = self.pool.take(REPLICA)
        if taken is not None:
            self.pool.give_back(taken)
        return taken is self.connection


class Try:
    """One relay on one line."""

    def __init__(self, shape: str = "chat", *, call: Call | None = None, framed: bool = False, **terms: Any) -> None:
        self.line = Line()
        self.clock = self.line.clock
        self.reply = FakeReply(framed=framed)
        self.record = FakeRecord()
        self.promise = Promise()
        sending = sending_of(shape, **terms)
        self.relay = Relay(call or call_of(shape), sending, self.reply, self.record, self.clock)
        self.relay.verdict = self.promise  # type: ignore[assignment]
        self.relay.begin(self.line.connection, b"request")

    def feed(self, *reads: bytes) -> None:
        self.line.feed(*reads)

    def events(self, *payloads: bytes) -> None:
        """Feed each payload as one chunk in one read."""
        self.feed(*(b"%x\r\n%b\r\n" % (len(payload), payload) for payload in payloads))

    def after(self, seconds: float) -> None:
        """Let time pass, in ticks of a tenth of a second at the end of it."""
        self.clock.advance(seconds)
        self.relay.tick(self.clock.now_s())

    @property
    def verdict(self) -> Verdict | None:
        return self.promise.verdicts[0] if self.promise.verdicts else None

    @property
    def ended(self) -> Verdict:
        verdict = self.verdict
        assert verdict is not None, "no verdict yet"
        return verdict


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
