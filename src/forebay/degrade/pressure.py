"""How full a pool's KV room is and will be, and whether calls suffer from it. Pure, on signals with their ages.

KV usage alone is no distress: an engine fills its room by design, and a well used one lives at 90 % and more with
nobody waiting (T16). So there are two questions here, and the ladder (`ladder`) needs a yes to both. A signal that is
absent or too old answers neither: it is never taken for zero, and never for evidence (T19).
"""

import math
from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

from forebay.domain import ABSENT, Signal

STALE_S: Final = 10.0
"""Telemetry that is older is no evidence: five polls have been missed."""
SUFFERING_S: Final = 2.0
"""Calls wait, or are foreseen to be late, for at least this long before that counts."""

Pain = Literal["waiting", "preemptions", "first_token"]
PAINS: Final[tuple[Pain, ...]] = ("waiting", "preemptions", "first_token")


class Load(Struct, frozen=True):
    """What is known of one replica's KV room.

    Attributes:
        usage: 0..1, as the engine said last.
        room_tokens: size of the room; None while unknown.
        reserved_tokens: of prompts that are not cached and of foreseen answers, of our calls in flight.
        polled_reserved_tokens: what that was when `usage` was read.
        next_tokens: of the call that waits for room here first; 0 while none waits.
    """

    usage: Signal
    room_tokens: int | None
    reserved_tokens: int
    polled_reserved_tokens: int
    next_tokens: int = 0


class Pressure(Struct, frozen=True):
    """How a pool does.

    Attributes:
        measured: KV usage by the engines' own word, with what was sent since; ratio.
        reserved: KV usage when all calls in flight, and the next one, have the answers that are foreseen; `estimated`.
        pains: in which ways calls suffer.
    """

    measured: Signal = ABSENT
    reserved: Signal = ABSENT
    pains: tuple[Pain, ...] = ()

    @property
    def kv_ratio(self) -> float | None:
        """The higher of both; None when neither is known."""
        known = [signal.value for signal in (self.measured, self.reserved) if signal.value is not None]
        return max(known) if known else None


def is_fresh(signal: Signal) -> bool:
    """Say whether a signal is evidence."""
    return signal.value is not None and signal.age_s <= STALE_S


def measured(load: Load) -> Signal:
    """Return a replica's KV usage now: what it said, and the reservations that came and went since.

    Source: trap T16; the reconciliation of a polled figure with one's own account is Llumnix's (arXiv:2406.03243).
    """
    if load.usage.value is None or not is_fresh(load.usage):
        return ABSENT
    since_tokens = load.reserved_tokens - load.polled_reserved_tokens
    since = since_tokens / load.room_tokens if load.room_tokens else 0.0
    return Signal(max(0.0, load.usage.value + since), load.usage.source, load.usage.age_s)


def reserved(load: Load) -> Signal:
    """Return the part of a replica's room that our own calls will take; absent where its size is unknown.

    The call that waits first counts as well: where calls are large beside the room it is full long before 100 %.
    """
    if not load.room_tokens:
        return ABSENT
    return Signal(max(0.0, (load.reserved_tokens + load.next_tokens) / load.room_tokens), "estimated")


def pool_pressure(loads: Sequence[Load], pains: tuple[Pain, ...]) -> Pressure:
    """Return the pressure on a pool.

    Args:
        loads: of the replicas that may be used.
        pains: in which ways its calls suffer.
    """
    known = all(load.room_tokens for load in loads)
    weights = [float(load.room_tokens or 1) if known else 1.0 for load in loads]
    return Pressure(
        _mean([measured(load) for load in loads], weights), _mean([reserved(load) for load in loads], weights), pains
    )


def _mean(signals: Sequence[Signal], weights: Sequence[float]) -> Signal:
    """Return the mean of the signals that are there: calls go where there is room, so one full replica is not yet it.

    It is as old as the oldest, and estimated if one is.
    """
    found = [(s, s.value, w) for s, w in zip(signals, weights, strict=True) if s.value is not None]
    if not found:
        return ABSENT
    # Not sum(): compiled, it takes its result for the whole number that it begins with.
    value = math.fsum([value * weight for _, value, weight in found]) / math.fsum([weight for _, _, weight in found])
    source: Literal["engine", "estimated"] = "engine" if all(s.source == "engine" for s, _, _ in found) else "estimated"
    return Signal(value, source, max(s.age_s for s, _, _ in found))


class Lasting:
    """Since when something has held, as it is looked at now and then."""

    __slots__ = ("_since_s",)

    def __init__(self) -> None:
        self._since_s: float | None = None

    def for_s(self, holds: bool, now_s: float) -> float:
        """Tell whether it holds now; return for how many seconds it has."""
        if not holds:
            self._since_s = None
            return 0.0
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s


class EngineWatch:
    """What the readings of one engine say about suffering: calls in its own queue, and preemptions that rise."""

    __slots__ = ("_polled_at_s", "_preemptions", "_risen", "_waited_s", "_waiting")

    def __init__(self) -> None:
        self._polled_at_s: float | None = None
        self._preemptions: float | None = None
        self._risen = False
        self._waiting = Lasting()
        self._waited_s = 0.0

    def read(self, waiting: float | None, preemptions: float | None, polled_at_s: float) -> None:
        """Take a reading; the same one a second time changes nothing.

        Args:
            waiting: calls in the engine's own queue; None when it does not say.
            preemptions: since it started, likewise.
            polled_at_s: monotonic seconds of the reading.
        """
        if polled_at_s == self._polled_at_s:
            return
        fresh = self._polled_at_s is not None and polled_at_s - self._polled_at_s <= STALE_S
        if not fresh:
            # Nobody knows what was in between.
            self._waiting.for_s(False, polled_at_s)
        self._polled_at_s = polled_at_s
        self._waited_s = self._waiting.for_s(waiting is not None and waiting > 0, polled_at_s)
        before, self._preemptions = self._preemptions, preemptions
        self._risen = fresh and before is not None and preemptions is not None and preemptions > before

    def pains(self, now_s: float) -> tuple[Pain, ...]:
        """Return in which ways its calls suffer, by its latest reading if that is fresh."""
        if self._polled_at_s is None or now_s - self._polled_at_s > STALE_S:
            return ()
        pains: list[Pain] = []
        if self._waited_s >= SUFFERING_S:
            pains.append("waiting")
        if self._risen:
            pains.append("preemptions")
        return tuple(pains)
