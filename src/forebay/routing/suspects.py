"""What comes before and after a judgement of `poison`: was it a death at all, and whose turn is it to be tried.

Pure, on the time it is told.
"""

from collections.abc import Iterable
from typing import Final

from forebay.domain import FailureKind
from forebay.routing.poison import DEATH_WINDOW_S, Flight, Judged, Quarantine

TRIAL_S: Final = 10.0
"""A suspect that has neither died nor decoded for this long no longer keeps the next one out."""
MAX_WAITING: Final = 256
"""Suspects that wait in one pool; more are turned away."""
SETTLE_S: Final = 0.1
"""How long a lost call waits for the others of its replica before it asks for its finding."""
DEATH_LOSSES: Final = 3
MAX_FLIGHTS: Final = 4096
"""Calls that are judged for one death; those beyond count as lost with no verdict."""

# How the calls of a dead or hanging engine end. Not CONNECT: a call that found nobody cannot have killed him.
_LOSSES: Final = frozenset((FailureKind.RESET, FailureKind.TRUNCATED, FailureKind.IN_BAND))
_SILENCES: Final = frozenset((FailureKind.STALL, FailureKind.FIRST_BYTE))


class _Case:
    """Calls lost on one replica within a short time."""

    __slots__ = ("fresh", "in_flight", "judged", "last_s", "lost", "unreachable")

    def __init__(self, now_s: float) -> None:
        self.last_s = now_s
        self.in_flight = 0
        self.lost = 0
        self.fresh: list[Flight] = []
        self.judged: dict[str, Judged] = {}
        self.unreachable = False

    def is_death(self) -> bool:
        if not (self.fresh or self.judged):
            return False
        return self.unreachable or self.lost >= DEATH_LOSSES or 2 <= self.in_flight <= self.lost


class Deaths:
    """Tells the death of a replica from the loss of a call, and gathers who was in flight.

    It is a death when a call was lost and the replica cannot be reached, when several calls were lost and none is
    left, or when three were. A call that met silence is only counted with a replica that cannot be reached: a
    slow engine is no dead one.
    """

    __slots__ = ("_cases",)

    def __init__(self) -> None:
        self._cases: dict[str, _Case] = {}

    def lost(self, replica: str, kind: FailureKind, flight: Flight, in_flight: int, now_s: float) -> bool:
        """Tell how a call failed; return whether its replica may have died of it.

        Args:
            replica: on which it ran.
            kind: how it failed.
            flight: what it was.
            in_flight: calls on the replica, this one included.
            now_s: monotonic seconds.
        """
        if kind not in _LOSSES and kind not in _SILENCES:
            return False
        case = self._case(replica, now_s)
        case.in_flight = max(case.in_flight, in_flight)
        case.lost += kind in _LOSSES
        if len(case.fresh) + len(case.judged) < MAX_FLIGHTS:
            case.fresh.append(flight)
        return True

    def unreachable(self, replica: str, now_s: float) -> None:
        """Tell that nobody listens there: a refused connection, or a health poll without an answer."""
        self._case(replica, now_s).unreachable = True

    def finding(self, replica: str, call_id: str, quarantine: Quarantine, now_s: float) -> Judged | None:
        """Return what is thought of a lost call; None when its replica lives, as far as one knows.

        Asked `SETTLE_S` after the loss, so that all calls of a replica are judged together.

        Args:
            replica: on which it ran.
            call_id: whose.
            quarantine: that judges and remembers.
            now_s: monotonic seconds.
        """
        case = self._cases.get(replica)
        if case is None or not case.is_death():
            return None
        if case.fresh:
            case.judged.update(quarantine.died(replica, case.fresh, now_s))
            case.fresh = []
        return case.judged.get(call_id)

    def _case(self, replica: str, now_s: float) -> _Case:
        case = self._cases.get(replica)
        if case is None or now_s - case.last_s > DEATH_WINDOW_S:
            for name in [name for name, old in self._cases.items() if now_s - old.last_s > DEATH_WINDOW_S]:
                del self._cases[name]
            case = self._cases[replica] = _Case(now_s)
        case.last_s = now_s
        return case


def site_of(usable: Iterable[str]) -> str:
    """Return the replica to which a pool's suspects go; empty without any.

    Always the same one while it lives, so that suspects together endanger one. Innocents that move away from a dead
    replica must go to others where there are any: had one of them killed after all, a suspect would be taken for it.

    Args:
        usable: names of the replicas that may get calls.
    """
    return min(usable, default="")


class _Court:
    """The suspects of one pool."""

    __slots__ = ("first", "tried", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[str, float] = {}
        self.tried: dict[str, float] = {}
        self.first = ""

    def choose(self) -> None:
        self.first = max(self.waiting, key=self.waiting.__getitem__) if self.waiting else ""


class Trials:
    """Whose turn it is among the suspects: one per pool at a time, the newest first, all at `site_of` it.

    A call enters, asks for its turn now and then, and leaves once it has decoded enough, has ended in any way, or is
    suspected no more.
    """

    __slots__ = ("_courts",)

    def __init__(self) -> None:
        self._courts: dict[str, _Court] = {}

    def enter(self, pool: str, call_id: str, started_s: float) -> bool:
        """Line a suspect up; False when too many wait already.

        Args:
            pool: its name.
            call_id: whose.
            started_s: monotonic seconds at which it was first sent: the newest is the likeliest culprit.
        """
        court = self._courts.get(pool)
        if court is None:
            court = self._courts[pool] = _Court()
        if len(court.waiting) >= MAX_WAITING:
            return False
        court.waiting[call_id] = started_s
        court.choose()
        return True

    def turn(self, pool: str, call_id: str, now_s: float) -> bool:
        """Say whether a waiting suspect may go now; if so, its trial has begun."""
        court = self._courts.get(pool)
        if court is None or court.first != call_id or any(now_s < since + TRIAL_S for since in court.tried.values()):
            return False
        del court.waiting[call_id]
        court.tried[call_id] = now_s
        court.choose()
        return True

    def leave(self, pool: str, call_id: str) -> None:
        """Tell that a call is no suspect in this pool any more, or gone; a second time changes nothing."""
        court = self._courts.get(pool)
        if court is None:
            return
        court.waiting.pop(call_id, None)
        court.tried.pop(call_id, None)
        court.choose()
        if not court.tried and not court.waiting:
            del self._courts[pool]

    def waiting(self) -> dict[str, int]:
        """Return how many suspects wait, by pool."""
        return {pool: len(court.waiting) for pool, court in self._courts.items()}
