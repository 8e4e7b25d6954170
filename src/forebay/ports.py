"""The seams between rooms: who may be asked for what, without knowing who answers."""

from collections.abc import Callable
from typing import Protocol

from msgspec import Struct

from forebay.domain import FailureKind, Replica, Spend, Usage, Value
from forebay.policy import LevelOverride
from forebay.traffic import Call, Header
from forebay.wire.resumed import Mark


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
        timing: the value of `Server-Timing` when the head is written.
        started: the head has been written, so that errors can only travel inside the body.
        framed: the body is chunked.
        blocked: the client takes no more for now.
    """

    extra: bytes
    timing: Callable[[], bytes] | None
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

    def whole(self, status: int, headers: tuple[Header, ...], body: bytes) -> None:
        """Send a complete answer."""


class Lease(Protocol):
    """A try's place on one replica: counts as its load until it is reported on, once.

    Attributes:
        uncached_tokens: of the prompt, as foreseen.
        started_s: monotonic seconds at which it was taken.
        first_token_s: monotonic seconds of a stream's first token; None before.
    """

    uncached_tokens: int
    started_s: float
    first_token_s: float | None

    @property
    def prefilling(self) -> bool:
        """Whether its prompt is still to be computed, as far as one can see."""
        ...

    @property
    def replica(self) -> Replica:
        """Which one."""
        ...

    def first_token(self) -> None:
        """Tell that a stream's first token came: the prompt is computed, which makes room for the next."""

    def report(
        self, failure: FailureKind | None, *, answered: bool, cached_tokens: int | None = None, again: bool = False
    ) -> None:
        """Tell how the try ended; a second time changes nothing.

        Args:
            failure: the engine's fault, or None.
            answered: the engine answered as it should; False with no failure means that nobody waited any more.
            cached_tokens: of the prompt, as the engine counted them.
            again: the call may be tried once more, and takes its place before those that wait: they are let in when
                the next place is free, or with the next tick.
        """


class Stamp(Protocol):
    """Gives the events of an answer ids with which its client may come back for the rest.

    Attributes:
        given: ids so far.
    """

    given: int

    def after(self, mark: Mark | None) -> bytes | None:
        """Return the id of an event; None when it gets none, empty when the client is to forget the one before.

        Args:
            mark: where the answer stands behind the event; None when it cannot be gone on with any more.
        """
        ...


class Record(Protocol):
    """The facts of one call, closed exactly once.

    Attributes:
        continued: how often the answer went on from another replica.
        hygiene: what was odd about the request.
        output_flags: what the output watch saw.
        lease: of the latest try; hears of the first token.
    """

    usage: Usage | None
    input_estimate_tokens: int
    output_events: int
    queue_ms: float | None
    engine_prefill_ms: float | None
    engine_decode_ms: float | None
    continued: int
    hygiene: tuple[str, ...]
    output_flags: tuple[str, ...]
    lease: Lease | None

    def dispatched(self, pool: str, replica: str) -> None:
        """A try begins."""

    def attempt_failed(self, kind: FailureKind, status: int) -> None:
        """The latest try failed."""

    def first_token(self) -> None:
        """The first content went to the client."""


class Outlook(Struct, frozen=True):
    """What a call may expect of a pool.

    Attributes:
        first_token_s: seconds from now to its first token; None while the replicas' speed is unknown.
        alone_s: the same with nobody else there.
        drain_s: seconds until what is ahead of it is done.
    """

    first_token_s: float | None = None
    alone_s: float = 0.0
    drain_s: float = 0.0


class Berths(Protocol):
    """Room on the replicas, as the queue sees it.

    Attributes:
        on_room: called with a pool's name when one of its replicas may take more than before; returns whether
            short calls went in that waited for it.
    """

    on_room: Callable[[str], bool] | None

    def take(self, pool: str, call: Call, excluded: frozenset[str] = ..., *, held: bool = True) -> Lease | None:
        """Take the best replica that may get the call now; None when there is none.

        Args:
            pool: its name.
            call: to be sent.
            excluded: names of replicas that this call must not get again.
            held: obey the hold, which keeps the queue here; False obeys health and the configured limit alone.
        """
        ...

    def is_long(self, pool: str, call: Call) -> bool:
        """Say whether a call takes the long lane of a pool: by the part of its prompt that no replica has cached."""
        ...

    def usable(self, pool: str) -> int:
        """Return how many replicas of a pool may be used now."""
        ...

    def reserve(self, pool: str, count: int) -> None:
        """Keep so many replicas of a pool free of long prompts."""
        ...

    def outlook(self, pool: str, prompt_tokens: int, ahead_tokens: float, ahead_calls: int) -> Outlook:
        """Foresee the first token of a call that would come behind others in the queue.

        Args:
            pool: its name.
            prompt_tokens: of the call, uncached.
            ahead_tokens: prompt tokens of those that wait before it.
            ahead_calls: their number.
        """
        ...


class Permit(Protocol):
    """The right to occupy an engine: held to the last byte.

    Attributes:
        pool: whose.
        lease: the replica for the first try there; None when no replica is usable.
        value: what the call is treated as; less than it claimed when its tenant claims too much.
    """

    pool: str
    lease: Lease | None
    value: Value

    async def move(self, pool: str) -> None:
        """Wait for a replica of another pool, without being counted again by the tenant's limits.

        Raises:
            Refused: the other pool has no room.
        """

    def release(self, used: Spend | None) -> None:
        """Give it back and settle the reservation.

        Args:
            used: tokens and money; None keeps what was reserved.
        """


class Gate(Protocol):
    """Who lets calls in."""

    def at_once(self, call: Call, pool: str) -> Permit | None:
        """Take the right to run a call on a pool if that needs no waiting.

        Raises:
            Refused: the tenant has no room.
        """
        ...

    async def acquire(self, call: Call, pool: str) -> Permit:
        """Wait for, and take, the right to run a call on a pool.

        Raises:
            Refused: the tenant or the pool has no room.
        """


class Retries(Protocol):
    """Further tries of calls that have been let in: whether they may be, and where.

    Where the gate is in another process both are asked there; a first try asks nothing of it.
    """

    def note_call(self, pool: str, tenant: str) -> None:
        """Count the first try of a call on a pool."""

    async def may_retry(self, pool: str, tenant: str) -> bool:
        """Take one more try from the budgets of the pool and of the tenant; False when they are used up."""
        ...

    async def take(self, pool: str, call: Call, excluded: frozenset[str]) -> Lease | None:
        """Take a replica for one more try, beyond the hold; None when there is none.

        Args:
            pool: its name.
            call: to be sent.
            excluded: names of replicas that this call must not get again.
        """
        ...


class PoolView(Struct, frozen=True, array_like=True):
    """How a pool does, as the process with the gate sees it.

    Attributes:
        level: of the ladder, that it has come to by itself.
        queued: calls that wait for it here.
        queues_inside: calls wait in its engines' own queues.
        kv_ratio: KV usage by the engines' word; None while that is not known.
    """

    level: int = 0
    queued: int = 0
    queues_inside: bool = False
    kv_ratio: float | None = None


class Levels(Protocol):
    """The levels of the ladder on this node, for whoever keeps several nodes in step; all of it is memory."""

    def report(self) -> dict[str, int]:
        """Return the level that each pool has come to by itself here, by name."""
        ...

    def share(self, levels: tuple[LevelOverride, ...]) -> None:
        """Take the levels that people have set elsewhere, instead of those taken before; they count beside the node's.

        Whoever calls this takes out what has ended.
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
