"""The seams between rooms: who may be asked for what, without knowing who answers."""

from typing import Protocol

from forebay.domain import FailureKind, Usage
from forebay.traffic import Call, Header


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


class Receiver(Protocol):
    """Who takes one answer; each answer ends with `on_end` or `on_lost`, once."""

    def on_head(self, status: int, headers: list[Header]) -> None:
        """The head arrived (interim 1xx answers are left out)."""

    def takes(self, read: bytes) -> bool:
        """Take a whole read that begins where a chunk of the body begins, or leave it to the parser.

        Only a read that is exactly one chunk may be taken: the parser never learns of it.
        """

    def on_body(self, data: bytes) -> None:
        """A part of the body arrived, de-chunked."""

    def on_end(self) -> None:
        """The answer is complete."""

    def on_lost(self, kind: FailureKind) -> None:
        """The connection ended, or spoke no HTTP, before the answer was complete."""
