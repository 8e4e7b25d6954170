"""One answer for several clients: what is written to it goes to each of them, and to who comes late from the start.

The engine is paced by the fastest client. One that falls too far behind is cut off with an error, so that nobody waits
for it. The work goes on while anybody is there.
"""

import asyncio
from collections.abc import Callable
from typing import Literal

from msgspec import Struct

from forebay.edge.ending import end_with_error
from forebay.errors import Failed
from forebay.ports import Reply, ReplyListener
from forebay.traffic import Header
from forebay.wire.endpoints import Shape

MAX_CLIENTS = 64
# Of one answer: kept for who comes late, and ahead of a client that is slow.
MAX_ANSWER_BYTES = 1_048_576
# Of all answers that run; beyond it they are not kept, and nobody joins them any more.
MAX_ALL_BYTES = 268_435_456

Over = Literal["ended", "left", "slow"]
"""How a client's part came to its end."""


class Stock:
    """What all shared answers keep together.

    Attributes:
        held_bytes: of answers that have begun.
    """

    __slots__ = ("held_bytes",)

    def __init__(self) -> None:
        self.held_bytes = 0


class Said(Struct, frozen=True):
    """A complete answer, to be given again.

    Attributes:
        extra: header lines of ours that are the same for whoever gets it.
        length_bytes: None for a stream.
    """

    status: int
    headers: tuple[Header, ...]
    extra: bytes
    length_bytes: int | None
    body: bytes


class Seat:
    """One client of a shared answer.

    Attributes:
        reply: its side of the exchange.
        over: done when its part has ended; None for the client whose call does the work.
        behind_bytes: written since it took no more.
    """

    __slots__ = ("_shared", "behind_bytes", "on_first", "over", "reply")

    def __init__(
        self,
        shared: "Shared",
        reply: Reply,
        over: "asyncio.Future[Over] | None",
        on_first: Callable[[], None] | None,
    ) -> None:
        self._shared = shared
        self.reply = reply
        self.over = over
        self.on_first = on_first
        self.behind_bytes = 0

    def client_gone(self) -> None:
        """The client left."""
        self._shared.leave(self, "left")

    def client_ready(self, ready: bool) -> None:
        """The client's buffer filled up, or has room again."""
        if ready:
            self.behind_bytes = 0
        self._shared.pace()

    def finish(self, how: Over) -> None:
        """Tell how its part has ended, the first time."""
        if self.over is not None and not self.over.done():
            self.over.set_result(how)


class Shared:
    """Writes one answer to all of its clients; a `ports.Reply` for who makes the answer.

    Args:
        shape: of the errors in its stream.
        stock: shared by all answers.
        linger_s: so long the work goes on when all clients have left.
        work: makes the answer; cancelled when nobody waits for it any more and no engine can be told so.
    """

    __slots__ = (
        "_begun", "_head", "_kept", "_kept_bytes", "_linger_s", "_lingering", "_seats", "_shape", "_stock", "_work",
        "blocked", "ended", "extra", "framed", "gone", "listener", "started", "status", "timing",
    )  # fmt: skip

    def __init__(self, shape: Shape, stock: Stock, linger_s: float, work: "asyncio.Task[object] | None") -> None:
        self._shape = shape
        self._stock = stock
        self._linger_s = linger_s
        self._lingering: asyncio.TimerHandle | None = None
        self._work = work
        self._seats: list[Seat] = []
        self._head: tuple[tuple[Header, ...], int | None] = ((), None)
        self._kept: list[bytes] | None = []
        self._kept_bytes = 0
        self._begun = False
        self.extra = b""
        self.timing: Callable[[], bytes] | None = None
        self.listener: ReplyListener | None = None
        self.status = 0
        self.gone = False
        self.blocked = False
        self.started = False
        self.framed = False
        self.ended = False

    @property
    def open(self) -> bool:
        """Whether one more client may have it: all of the answer is still there, and a place."""
        return not self.gone and self._kept is not None and len(self._seats) < MAX_CLIENTS

    @property
    def clients(self) -> int:
        """How many have it now."""
        return len(self._seats)

    def board(
        self, reply: Reply, over: "asyncio.Future[Over] | None" = None, on_first: Callable[[], None] | None = None
    ) -> None:
        """Give the answer to one more client: at once what has been said, then the rest as it comes.

        Args:
            reply: its side of the exchange.
            over: gets how its part has ended; `close` is due for it to come to its end.
            on_first: called when the first content goes to it.
        """
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        seat = Seat(self, reply, over, on_first)
        reply.listener = seat
        self._seats.append(seat)
        if self.started:
            self._begin(reply)
            if self._begun and on_first is not None:
                on_first()
            reply.write(b"".join(self._kept or ()))
        if self.ended:
            reply.end()
        self.pace()

    def leave(self, seat: Seat, how: Over) -> None:
        """Go on without a client; without any, end the work."""
        if seat not in self._seats:
            return
        self._seats.remove(seat)
        seat.reply.listener = None
        seat.finish(how)
        if self._seats or self.ended:
            self.pace()
        elif self._linger_s:
            self.pace()
            self._lingering = asyncio.get_running_loop().call_later(self._linger_s, self._abandon)
        else:
            self._abandon()

    def pace(self) -> None:
        """Slow the engine down while all clients are full."""
        blocked = bool(self._seats)
        for seat in self._seats:
            blocked = blocked and seat.reply.blocked
        if blocked is not self.blocked:
            self.blocked = blocked
            if self.listener is not None:
                self.listener.client_ready(not blocked)

    def said(self) -> Said | None:
        """Return the whole answer; None when it was too long to be kept."""
        if self._kept is None:
            return None
        headers, length_bytes = self._head
        return Said(self.status, headers, self.extra, length_bytes, b"".join(self._kept))

    def close(self) -> None:
        """Let go of clients and memory: the work is over."""
        if not self.ended:
            self.abort()
        if self._lingering is not None:
            self._lingering.cancel()
            self._lingering = None
        self._forget()
        seats, self._seats = self._seats, []
        for seat in seats:
            seat.reply.listener = None
            seat.finish("ended")

    # who makes the answer

    def head(self, status: int, headers: tuple[Header, ...], length_bytes: int | None) -> None:
        """Begin the answer."""
        self.started = True
        self.status = status
        self.framed = length_bytes is None
        self._head = (headers, length_bytes)
        for seat in self._seats:
            self._begin(seat.reply)

    def write(self, data: bytes) -> None:
        """Send a part of the body to all."""
        if not data:
            return
        self._keep(data)
        for seat in self._seats:
            seat.reply.write(data)
        self._follow(len(data))

    def pass_chunk(self, chunk: bytes) -> None:
        """Send a part of the body that is already one HTTP chunk."""
        data = chunk[chunk.index(b"\r\n") + 2 : -2]
        self._keep(data)
        for seat in self._seats:
            if seat.reply.framed:
                seat.reply.pass_chunk(chunk)
            else:
                seat.reply.write(data)
        self._follow(len(data))

    def end(self) -> None:
        """Finish the answer."""
        if self.ended:
            return
        self.ended = True
        for seat in list(self._seats):
            seat.reply.end()

    def abort(self) -> None:
        """Cut the connections of all: the answer can no longer be finished honestly."""
        if self.ended:
            return
        # Who came now would take what there is for the whole.
        self.gone = self.ended = True
        for seat in list(self._seats):
            seat.reply.abort()

    def whole(self, status: int, headers: tuple[Header, ...], body: bytes) -> None:
        """Send a complete answer."""
        self.head(status, headers, len(body))
        self.write(body)
        self.end()

    def _begin(self, reply: Reply) -> None:
        headers, length_bytes = self._head
        reply.extra += self.extra
        reply.timing = self.timing
        reply.head(self.status, headers, length_bytes)

    def _keep(self, data: bytes) -> None:
        """Keep a part for who comes late; comments of ours are no content."""
        if not self._begun and not data.startswith(b":"):
            self._begun = True
            for seat in self._seats:
                if seat.on_first is not None:
                    seat.on_first()
        if self._kept is None:
            return
        self._kept_bytes += len(data)
        self._stock.held_bytes += len(data)
        if self._kept_bytes > MAX_ANSWER_BYTES or self._stock.held_bytes > MAX_ALL_BYTES:
            self._forget()
        else:
            self._kept.append(data)

    def _forget(self) -> None:
        if self._kept is not None:
            self._kept = None
            self._stock.held_bytes -= self._kept_bytes

    def _follow(self, size_bytes: int) -> None:
        """Count what clients have before them that take no more, and go on without those that are too slow."""
        if not self.framed or self.blocked:
            return
        for seat in list(self._seats):
            if seat.reply.blocked:
                seat.behind_bytes += size_bytes
                if seat.behind_bytes > MAX_ANSWER_BYTES:
                    self._cut(seat)

    def _cut(self, seat: Seat) -> None:
        self.leave(seat, "slow")
        slow = Failed("client_too_slow", "others have the same answer, and could not wait for this client")
        end_with_error(seat.reply, slow, self._shape)

    def _abandon(self) -> None:
        """Nobody is there any more: the engine must stop working, or whoever waits for one."""
        self._lingering = None
        if self._seats or self.ended:
            return
        self.gone = True
        if self.listener is not None:
            self.listener.client_gone()
        elif self._work is not None:
            self._work.cancel()
