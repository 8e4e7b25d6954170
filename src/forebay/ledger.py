"""Keeps what tenants have spent in a month over restarts: a snapshot each minute, and the journal's lines since.

The data plane answers before anything has been read: what an earlier process has spent is added once it is
known, and until then no snapshot replaces the one of before. The disk is touched only in threads that die
with the process, so one that hangs holds up neither a call nor the end. Once a minute it also foresees what the month
will come to.
"""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TypeVar

from msgspec import Struct

from forebay.admission.quota import Quota
from forebay.admission.spending import Seed, Seeder, month_of, pack, unpack
from forebay.clock import Clock
from forebay.cost import days
from forebay.cost.days import Bill, Days
from forebay.policy import Price
from forebay.recording.lines import CloseLine
from forebay.recording.reading import Reader

log = logging.getLogger(__name__)

PERIOD_S = 60.0
# A write that takes longer is shown as a failure: the disk hangs.
STUCK_S = 1.0
# 65,536 tenants with names of 256 bytes take half of it.
MAX_BYTES = 33_554_432
# The thread that reads the journal leaves the interpreter to the loop after so many lines, some 0.5 ms of work.
_LINES_AT_ONCE = 64
_PAUSE_S = 0.0005

_DAY_S = 86_400.0

_Made = TypeVar("_Made")


class Counted(Struct, frozen=True):
    """Calls whose spending is counted already, or will be told: their lines in the journal are passed over.

    Attributes:
        run_ids: what the ids of the calls begin with.
        since_s: seconds since the epoch; what ended earlier is not among them.
    """

    run_ids: tuple[str, ...]
    since_s: float = 0.0

    def covers(self, line: CloseLine) -> bool:
        """Say whether a call is one of them."""
        return line.ts >= self.since_s and line.call_id.startswith(self.run_ids)


class MonthLedger:
    """Reads at the start what has been spent in this month, and writes it down from then on.

    Args:
        quota: of the data plane.
        clock: monotonic and wall time.
        data_dir: the journal is in `journal`; the snapshot is kept as `run/month.json`, the days as `run/days.json`.
        loop: the data plane's, which alone touches the quota.

    Attributes:
        state: `starting` until what was spent has been read, then `ok` or `failing: reason`.
        left_out: calls that were not added because their tenants are too many.
        bills: what the month will come to, by tenant, as of the last minute; of those that have spent the most.
    """

    def __init__(self, quota: Quota, clock: Clock, data_dir: Path, loop: asyncio.AbstractEventLoop) -> None:
        self._quota = quota
        self._clock = clock
        self._journal = data_dir / "journal"
        self._path = data_dir / "run" / "month.json"
        self._days_path = data_dir / "run" / "days.json"
        self._days = Days()
        self._loop = loop
        self._writing: asyncio.Future[str | None] | None = None
        self._handed: Seed | None = None
        self.state = "starting"
        self.left_out = 0
        self.bills: dict[str, Bill] = {}

    async def start(self, counted: tuple[Counted, ...], prices: Mapping[str, Price]) -> None:
        """Add what earlier processes have spent in this month; for a task of its own, because it takes a while.

        Args:
            counted: calls of this process, and of one that it took over.
            prices: by model; a model without one costs nothing.
        """
        wall_s = self._clock.wall_s()
        read = await self._in_thread(lambda: self._read(counted, prices, wall_s))
        if read is None:
            self._note("the journal could not be read")
            return
        seeder, self._days = read
        self.left_out = seeder.left_out
        self._quota.restore(seeder.seed())
        self.state = "ok"
        await self.foresee()

    async def run(self) -> None:
        """Look ahead and write a snapshot every minute until cancelled."""
        while True:
            await asyncio.sleep(PERIOD_S)
            await self.foresee()
            await self.save()

    async def foresee(self) -> None:
        """Make the bills anew; the loop gets a turn between two tenants."""
        wall_s = self._clock.wall_s()
        seed = self._quota.snapshot(self._clock.now_s(), wall_s)
        if seed is None or seed.month != month_of(wall_s):
            # A clock that stepped is not believed yet, and says nothing of days either.
            return
        today, passed_ratio = _day_of(wall_s)
        self._days.note(seed.spent, today, passed_ratio)
        made: dict[str, Bill] = {}
        for tenant, bill in self._days.bills(today, passed_ratio):
            made[tenant] = bill
            await asyncio.sleep(0)
        self.bills = made

    async def stop(self) -> None:
        """Write the last snapshot, for at most two seconds; after the last call has been settled."""
        await self.save()

    async def hand_over(self) -> float:
        """Write the last snapshot and leave the file to another process.

        Returns:
            Seconds since the epoch: what was spent until then is in the snapshot or in the journal.
        """
        seed = self._quota.snapshot(self._clock.now_s(), self._clock.wall_s())
        # Not read to its end yet: the journal has all of it, and what is spent from now on is lost.
        self._handed = seed or Seed(0, {}, self._clock.wall_s())
        await self._save(seed)
        return self._handed.until_s

    def since_handed(self) -> Seed:
        """Return what was spent since `hand_over`."""
        before = self._handed
        now = self._quota.snapshot(self._clock.now_s(), self._clock.wall_s())
        if now is None or before is None or not before.month:
            return Seed(0, {})
        if now.month != before.month:
            return now
        return Seed(now.month, {name: _less(spent, before.spent.get(name)) for name, spent in now.spent.items()})

    def add(self, seed: Seed) -> None:
        """Count what a process that was taken over has spent since."""
        self._quota.add(seed)

    async def save(self) -> None:
        """Write a snapshot, and say in `state` what became of it; nothing before what was spent has been read."""
        if self._handed is None:
            await self._save(self._quota.snapshot(self._clock.now_s(), self._clock.wall_s()))

    async def _save(self, seed: Seed | None) -> None:
        if self._writing is not None and not await self._ended(self._writing):
            return
        if seed is not None:
            of_days = self._days.pack()
            self._writing = self._in_thread(lambda: _write(self._path, pack(seed)) or _write(self._days_path, of_days))
            await self._ended(self._writing)

    async def _ended(self, writing: "asyncio.Future[str | None]") -> bool:
        """Wait a second for a write and note how it ended; False when it goes on."""
        # Not awaited itself: a cancelled wait must not forget that the thread is still at the file.
        await asyncio.wait((writing,), timeout=STUCK_S)
        if not writing.done():
            self._note("the disk does not answer")
            return False
        failure = writing.result()
        self._note("the writing thread has failed" if failure is None else failure)
        return True

    def _note(self, failure: str) -> None:
        """Show a failure, empty for none; a change is logged."""
        state = f"failing: {failure}" if failure else "ok"
        if state == self.state:
            return
        if failure:
            log.error("what tenants have spent cannot be kept in %s: %s", self._path, failure)
        elif self.state != "starting":
            log.info("what tenants have spent is kept again in %s", self._path)
        self.state = state

    def _read(self, counted: tuple[Counted, ...], prices: Mapping[str, Price], wall_s: float) -> tuple[Seeder, Days]:
        """Add up what was spent; in a thread. What cannot be read is left out."""
        seeder = Seeder(wall_s, prices, _kept(self._path, unpack, "what was spent is added up from the journal"))
        reader = Reader(self._journal)
        try:
            for number, line in enumerate(reader.closes(seeder.since_s)):
                if not number % _LINES_AT_ONCE:
                    time.sleep(_PAUSE_S)
                _add(seeder, line, counted)
        except OSError as error:
            log.error("the journal could not be read to its end, so less counts as spent than was: %s", _reason(error))
        if seeder.left_out:
            log.error("calls left out of what was spent, because their tenants are too many: %d", seeder.left_out)
        return seeder, _kept(self._days_path, days.unpack, "the forecast begins anew") or Days()

    def _in_thread(self, work: Callable[[], _Made]) -> "asyncio.Future[_Made | None]":
        """Run work in a thread of its own that nobody waits for at the end; None when it raised."""
        done: asyncio.Future[_Made | None] = self._loop.create_future()

        def deliver(made: _Made | None) -> None:
            if not done.done():
                done.set_result(made)

        def run() -> None:
            made: _Made | None = None
            try:
                made = work()
            finally:
                with suppress(RuntimeError):  # the loop is closed: nobody is interested any more
                    self._loop.call_soon_threadsafe(deliver, made)

        threading.Thread(target=run, name="ledger", daemon=True).start()
        return done


def _less(spent: tuple[int, int], before: tuple[int, int] | None) -> tuple[int, int]:
    """Return what was spent beyond an earlier sum: tokens and billionths, not negative."""
    return spent if before is None else (max(0, spent[0] - before[0]), max(0, spent[1] - before[1]))


def _add(seeder: Seeder, line: CloseLine, counted: tuple[Counted, ...]) -> None:
    """Add a call if it counts: what an engine worked on, within the month, of an earlier process."""
    if line.total_tokens is None or line.tenant is None:
        return
    if seeder.covers(line.ts) and not any(calls.covers(line) for calls in counted):
        seeder.add(line.tenant, line.model or "", line.input_length or 0, line.cached_tokens, line.output_length or 0)


def _kept(path: Path, read: Callable[[bytes], _Made], otherwise: str) -> _Made | None:
    """Read what an earlier process kept; None, with a line that says what happens then, without anything good."""
    try:
        with path.open("rb") as file:
            data = file.read(MAX_BYTES + 1)
        if len(data) > MAX_BYTES:
            raise ValueError(f"is larger than {MAX_BYTES} bytes")
        return read(data)
    except FileNotFoundError:
        return None
    except OSError as error:
        reason = _reason(error)
    except ValueError as fault:
        reason = str(fault)
    log.warning("%s is ignored, %s: %s", path, otherwise, reason)
    return None


def _day_of(wall_s: float) -> tuple[date, float]:
    """Return the day of a wall time, in UTC, and the part of it that has passed."""
    return datetime.fromtimestamp(wall_s, UTC).date(), wall_s % _DAY_S / _DAY_S


def _write(path: Path, data: bytes) -> str:
    """Replace a file: a reader sees the old one or the new one; return what went wrong, empty for nothing."""
    draft = path.with_suffix(".new")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # One name for all drafts, so that killed processes leave one at most; for this user alone: it names tenants.
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(path)
    except OSError as error:
        with suppress(OSError):
            draft.unlink()
        return _reason(error)
    return ""


def _reason(error: OSError) -> str:
    return os.strerror(error.errno) if error.errno else type(error).__name__
