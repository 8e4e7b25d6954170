"""Whose turn it is among the suspects of a death: one after the other, all on the same replica (T29).

Pure, on the time it is told.
"""

from collections.abc import Iterable
from typing import Final

TRIAL_S: Final = 5.0
"""A suspect that has neither died nor decoded for this long no longer keeps the next one out."""
ALONE: Final = 4
"""Trials that must go well before two run at once, then four, and so on: the culprit is nearly always of the newest."""
MAX_WAITING: Final = 256
"""Suspects that wait in one pool; more are turned away."""


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

    __slots__ = ("first", "over", "tried", "waiting")

    def __init__(self) -> None:
        self.waiting: dict[str, float] = {}
        self.tried: dict[str, float] = {}
        self.first = ""
        self.over = 0

    def has_room(self, now_s: float) -> bool:
        running = sum(now_s < since_s + TRIAL_S for since_s in self.tried.values())
        return running < (1 if self.over < ALONE else 2 ** min(8, self.over - ALONE + 1))

    def choose(self) -> None:
        self.first = max(self.waiting, key=self.waiting.__getitem__) if self.waiting else ""


class Trials:
    """Whose turn it is among the suspects: one per pool at a time, the newest first, all at `site_of` it.

    With every trial that goes well the culprit is less likely among those who are left, so later ones go together.
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
        if court is None or court.first != call_id or not court.has_room(now_s):
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
        court.over += court.tried.pop(call_id, None) is not None
        court.choose()
        if not court.tried and not court.waiting:
            del self._courts[pool]

    def died(self, pool: str) -> None:
        """Tell that a replica died: from now on one goes at a time again."""
        if pool in self._courts:
            self._courts[pool].over = 0

    def waiting(self) -> dict[str, int]:
        """Return how many suspects wait, by pool."""
        return {pool: len(court.waiting) for pool, court in self._courts.items()}
