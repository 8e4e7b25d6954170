"""What is due in a try: a pure decision from times and terms."""

from typing import Final, Literal

from msgspec import Struct

from forebay.domain import FailureKind
from forebay.policy import Stream, Timeouts
from forebay.upstream.continuation.shapes import Plan
from forebay.upstream.continuation.thread import Thread
from forebay.wire.members import Members
from forebay.wire.rewrite import Rewriter

_NO_MEMBERS = Members(b"{}", {})

MESSAGES = {
    FailureKind.TOTAL: "the answer took longer than total_s",
    FailureKind.STALL: "the engine fell silent in the middle of its answer",
    FailureKind.FIRST_BYTE: "the engine sent nothing within first_byte_s",
}


class Sending:
    """What all tries of a call on one model have in common.

    Attributes:
        pool: its name.
        body: the request's.
        timeouts: deadlines of the model, in seconds.
        stream: how streams are kept alive and ended.
        max_answer_bytes: bound of an answer that is not streamed.
        rewriter: turns the engine's events and bodies into the client's.
        sends_done: whether streams of this endpoint end with the `[DONE]` sentinel.
        choices: that a stream must finish before it is complete.
        max_attempts: tries on the pool, the first included.
        plan: how an answer that breaks off could go on; None when it cannot.
        learned_s: the first content of this try is due by then, so that it moves on; 0 where only `timeouts` count.
        thread: follows the answer so that it can; None where it is not followed.
        members: of the request as the client sent it.
    """

    __slots__ = (
        "body", "choices", "learned_s", "max_answer_bytes", "max_attempts", "members", "plan", "pool", "rewriter",
        "sends_done", "stream", "thread", "timeouts",
    )  # fmt: skip

    def __init__(  # noqa: PLR0913 - its attributes
        self, pool: str, body: bytes, timeouts: Timeouts, stream: Stream, max_answer_bytes: int, rewriter: Rewriter,
        sends_done: bool, choices: int = 1, max_attempts: int = 3, plan: Plan | None = None,
        thread: Thread | None = None, learned_s: float = 0.0, members: Members = _NO_MEMBERS,
    ) -> None:  # fmt: skip
        self.pool: Final = pool
        self.body: Final = body
        self.timeouts: Final = timeouts
        self.stream: Final = stream
        self.max_answer_bytes: Final = max_answer_bytes
        self.rewriter: Final = rewriter
        self.sends_done: Final = sends_done
        self.choices: Final = choices
        self.max_attempts: Final = max_attempts
        self.plan: Final = plan
        self.thread: Final = thread
        self.learned_s: Final = learned_s
        self.members: Final = members


class Times(Struct, frozen=True):
    """Where a try stands, in monotonic seconds; 0 means not yet."""

    started_s: float
    last_s: float
    blocked_since_s: float
    finished_at_s: float
    deadline_s: float


def due(
    times: Times, now_s: float, terms: Sending, *, streamed: bool, committed: bool
) -> Literal["finish", "cut", "ping"] | FailureKind | None:
    """Say what must happen now.

    Args:
        times: where the try stands.
        now_s: monotonic seconds.
        terms: its deadlines.
        streamed: the client asked for a stream.
        committed: the client has been sent something.

    Returns:
        `finish` a stream that lacks only its sentinel, `cut` a client that takes nothing, `ping` a client
        that waits, a failure of the engine, or None.
    """
    if times.finished_at_s:
        return "finish" if now_s - times.finished_at_s > terms.stream.done_grace_s else None
    if times.blocked_since_s:
        return "cut" if now_s - times.blocked_since_s > terms.stream.write_stall_s else None
    if now_s > times.deadline_s:
        return FailureKind.TOTAL
    silence_s = now_s - times.last_s
    if committed:
        return FailureKind.STALL if silence_s > terms.timeouts.stall_s else None
    # A whole answer's first byte comes when its last token is made, so the default, meant for the first
    # token, does not bind it; an operator who sets the deadline means both.
    bound = streamed or terms.timeouts.first_byte_for_whole
    waited_s = now_s - times.started_s
    if (bound and waited_s > terms.timeouts.first_byte_s) or 0.0 < terms.learned_s < waited_s:
        return FailureKind.FIRST_BYTE
    return "ping" if streamed and terms.stream.ping_s and silence_s > terms.stream.ping_s else None
