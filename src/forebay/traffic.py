"""The values that travel along the request path: what came, what it means, what an engine said."""

from msgspec import Struct

from forebay.domain import FailureKind, Outcome, Tenant
from forebay.wire.endpoints import Endpoint

Header = tuple[bytes, bytes]
"""Name in lower case, and value."""


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
