"""One page for all processes: the gate asks the workers, waits a moment, and adds up what they say."""

import asyncio
import itertools
import logging
from collections.abc import Callable
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from forebay.crossing.messages import Gather, Kind, Page, PageIs, Sheets
from forebay.crossing.states import State, of_all
from forebay.recording import sheet
from forebay.recording.sheet import Sheet

log = logging.getLogger(__name__)

WAIT_S: Final = 0.3
"""For the workers' answers; of one that is silent its last one counts."""
LOOK_TICKS: Final = 10
"""All workers say what they count once a second, so that little is lost of one that dies."""

_LOOK_S = 0.02
_sheet = msgspec.msgpack.Decoder(Sheet).decode
_state = msgspec.json.Decoder(State).decode
_encode = msgspec.json.Encoder().encode


class Guests(Protocol):
    """A worker that can be asked.

    Attributes:
        number: of the worker; None until it has said which.
    """

    number: int | None
    pid: int
    connections: int

    def send(self, message: Struct) -> None:
        """Send it something."""


class Pages:
    """Gathers what workers say of themselves.

    Args:
        loop: the running loop.
        guests: returns the connected workers.
        assembled: says whether all workers have come that are to come.

    Attributes:
        own_sheet: returns the counts of this process.
        own_state: returns the status of this process.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, guests: Callable[[], list[Guests]], assembled: Callable[[], bool]
    ) -> None:
        self._loop = loop
        self._guests = guests
        self._assembled = assembled
        self._sheets: dict[Guests, Sheet] = {}
        self._states: dict[Guests, State] = {}
        self._departed = Sheet()
        self._rounds = itertools.count(1)
        self._open: dict[int, tuple[set[Guests], asyncio.Future[None]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.own_sheet: Callable[[], Sheet] = Sheet
        self.own_state: Callable[[], State] = dict

    def tick(self, ticks: int) -> None:
        """Ask the workers now and then; called ten times a second."""
        if ticks % LOOK_TICKS == 0:
            for guest in self._guests():
                guest.send(Gather(0, "metrics"))

    def came(self, guest: Guests, said: Sheets) -> None:
        """Take what a worker says."""
        if said.kind == "metrics":
            self._sheets[guest] = _sheet(said.data)
        else:
            self._states[guest] = _state(said.data)
        waiting = self._open.get(said.round)
        if waiting is not None:
            waiting[0].discard(guest)
            if not waiting[0] and not waiting[1].done():
                waiting[1].set_result(None)

    def left(self, guest: Guests) -> None:
        """Keep what a worker that is gone has counted."""
        self._states.pop(guest, None)
        last = self._sheets.pop(guest, None)
        if last is not None:
            self._departed = sheet.lasting(self._departed, last)
        for missing, done in self._open.values():
            missing.discard(guest)
            if not missing and not done.done():
                done.set_result(None)

    def asked(self, guest: Guests, page: Page) -> None:
        """Answer a worker that wants a page."""
        task = self._loop.create_task(self._answer(guest, page))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def read(self, kind: Kind) -> bytes | None:
        """Return a page over all processes."""
        while not self._assembled():  # noqa: ASYNC110 - for a second after the start
            await asyncio.sleep(_LOOK_S)
        await self._gather(kind)
        if kind == "metrics":
            whole = sheet.together(self.own_sheet(), list(self._sheets.values()), self._departed)
            return b"".join(sheet.slices(whole))
        states = []
        for guest, state in self._states.items():
            states.append({**state, "number": guest.number, "pid": guest.pid, "connections": guest.connections})
        return _encode(of_all(self.own_state(), sorted(states, key=lambda state: state["number"] or 0)))

    def close(self) -> None:
        """Answer nobody any more."""
        for task in self._tasks:
            task.cancel()

    async def _answer(self, guest: Guests, page: Page) -> None:
        body = await self.read(page.kind)
        if body is not None:
            guest.send(PageIs(page.id, body))

    async def _gather(self, kind: Kind) -> None:
        missing = {guest for guest in self._guests() if guest.number is not None}
        if not missing:
            return
        number = next(self._rounds)
        done: asyncio.Future[None] = self._loop.create_future()
        self._open[number] = (missing, done)
        try:
            for guest in list(missing):
                guest.send(Gather(number, kind))
            await asyncio.wait((done,), timeout=WAIT_S)
        finally:
            del self._open[number]
