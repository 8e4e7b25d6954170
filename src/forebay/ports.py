"""The seams between rooms: who may be asked for what, without knowing who answers."""

from typing import Protocol

from msgspec import Struct

from forebay.domain import FailureKind, Outcome, Tenant, Usage
from forebay.wire.endpoints import Endpoint

Header = tuple[bytes, bytes]


class Request(Struct, frozen=True):
    """One request as it arrived.

    Attributes:
        path: decoded no further than the client sent it; without the query.
        headers: by lower-case name; names that came twice are joined by ", " unless `repeated` has them.
        repeated: lower-case names that came more than once.
        body: whole, de-chunked.
        peer: address of the connection's other end.
        received_s: monotonic seconds at the last byte of the request.
    """

    method: bytes
    path: bytes
    query: bytes
    headers: dict[bytes, bytes]
    repeated: frozenset[bytes]
    body: bytes
    peer: str
    received_s: float


class Call(Struct, frozen=True):
    """One request that has been understood.

    Attributes:
        wants_usage: the client asked for the usage chunk of a stream itself.
        prompt_tokens: estimate.
        output_tokens: estimate or the client's own cap.
        headers: those of the client that engines may see.
        deadline_s: monotonic seconds after which nobody waits any more.
    """

    call_id: str
    endpoint: Endpoint
    model: str
    stream: bool
    wants_usage: bool
    tenant: Tenant
    prompt_tokens: int
    output_tokens: int
    headers: tuple[Header, ...]
    received_s: float
    deadline_s: float


class Answer(Struct, frozen=True):
    """An engine's own final answer that is no success: status, headers and body as it sent them."""

    status: int
    headers: tuple[Header, ...]
    body: bytes


class Verdict(Struct, frozen=True):
    """How one try ended.

    Attributes:
        committed: the client has been sent something of it, so no other try may follow.
        outcome: how the call ended, when it did.
        failure: what went wrong with the engine, None when nothing did.
        status: HTTP status of the engine's answer, 0 without one.
        answer: the engine's own answer when it is an error and nothing was sent yet.
        retry_after_s: what the engine asked for, in seconds.
        message: for the client; names no address.
        missing_done: the stream was complete but for its sentinel.
    """

    committed: bool
    outcome: Outcome
    failure: FailureKind | None = None
    status: int = 0
    answer: Answer | None = None
    retry_after_s: float | None = None
    message: str = ""
    missing_done: bool = False


class ReplyListener(Protocol):
    """Who must know what happens on the client's side of an answer."""

    def client_gone(self) -> None:
        """The client closed its connection."""

    def client_ready(self, ready: bool) -> None:
        """The client's buffer filled up, or has room again."""


class Reply(Protocol):
    """The client's side of one exchange.

    Attributes:
        extra: header lines of ours, ready to be sent.
        started: the head has been written, so that errors can only travel inside the body.
        framed: the body is chunked.
        blocked: the client takes no more for now.
    """

    extra: bytes

    listener: ReplyListener | None
    status: int
    gone: bool
    blocked: bool
    started: bool
    framed: bool
    ended: bool

    def head(self, status: int, headers: tuple[Header, ...], length_bytes: int | None) -> None:
        """Begin the answer; without a length its end is marked by framing."""

    def write(self, data: bytes) -> None:
        """Send a part of the body; never blocks, `listener` is told when to pause."""

    def pass_chunk(self, chunk: bytes) -> None:
        """Send a part of the body that is already one HTTP chunk; only when `framed`."""

    def end(self) -> None:
        """Finish the answer."""

    def abort(self) -> None:
        """Cut the client's connection: the answer can no longer be finished honestly."""


class Record(Protocol):
    """The facts of one call, closed exactly once."""

    usage: Usage | None
    input_estimate_tokens: int
    output_events: int
    queue_ms: float | None
    engine_prefill_ms: float | None
    engine_decode_ms: float | None

    def dispatched(self, pool: str, replica: str) -> None:
        """A try begins."""

    def attempt_failed(self, kind: FailureKind, status: int) -> None:
        """The latest try failed."""

    def first_token(self) -> None:
        """The first content went to the client."""


class Permit(Protocol):
    """The right to occupy an engine: a lease, held to the last byte."""

    async def move(self, pool: str) -> None:
        """Exchange the place for one on another pool.

        Raises:
            Refused: the other pool has no room.
        """

    def release(self, used_tokens: int | None) -> None:
        """Give it back and settle the reservation.

        Args:
            used_tokens: prompt and completion tokens; None keeps what was reserved.
        """


class Gate(Protocol):
    """Who lets calls in."""

    async def acquire(self, call: Call, pool: str) -> Permit:
        """Wait for, and take, the right to run a call on a pool.

        Raises:
            Refused: the tenant or the pool has no room.
        """
