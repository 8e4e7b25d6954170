"""How far automata may go: how many replicas may be out, how fast one comes back, who may act on a pool now (T11).

Pure, on the time it is told.

*Panic.* Never more than half of a pool is ejected: if more seem ill, it is the judgement that is ill, and all of
them stay in, as a doubt: they get what the others have no room for. Whoever cannot be reached at all, or refuses
us, is out in any case and counts for nothing here; a pool of one has no others to protect.

*Slow start.* A replica that comes back has cold caches and perhaps the old fault: its share of the load grows from
a tenth to the whole in ten seconds.
"""

from collections.abc import Sequence
from typing import Final, Literal

from msgspec import Struct

MAX_EJECTED_RATIO: Final = 0.5
RAMP_S: Final = 10.0
RAMP_FLOOR_RATIO: Final = 0.1
ACTION_EVERY_S: Final = 60.0
EXEMPT: Final = frozenset(("eject", "poison"))
MAX_POOLS: Final = 256
"""Pools that had an action in the last minute; more wait for a place."""
MAX_STANDING: Final = 1024
"""Actions in force at once; beyond, none is taken but those exempt, whose number their own rooms bound."""

Place = Literal["in", "doubt", "out"]


class Health(Struct, frozen=True):
    """What is known of one replica.

    Attributes:
        name: its name.
        ill: what we think of it: its breaker is open, or it is an outlier.
        gone: what is sure: nobody listens there, it is loading, it refuses our credential, or it is drained.
    """

    name: str
    ill: bool
    gone: bool = False


class Places(Struct, frozen=True):
    """Who takes part.

    Attributes:
        of: by name of the replica.
        panic: more than half seemed ill, so that illness counts only as a doubt.
    """

    of: dict[str, Place]
    panic: bool


def places(pool: Sequence[Health]) -> Places:
    """Say who of a pool gets calls.

    Args:
        pool: all its replicas.

    Returns:
        `in`: gets calls; `doubt`: gets those that the others have no room for; `out`: gets none.
    """
    there = [replica for replica in pool if not replica.gone]
    ill = sum(replica.ill for replica in there)
    panic = len(there) > 1 and ill > MAX_EJECTED_RATIO * len(there)
    of: dict[str, Place] = {}
    for replica in pool:
        if replica.gone or (replica.ill and not panic):
            of[replica.name] = "out"
        else:
            of[replica.name] = "doubt" if replica.ill else "in"
    return Places(of, panic)


def ramp_ratio(back_s: float, now_s: float) -> float:
    """Return the share of a full load that a replica may have, 0.1 to 1.

    Args:
        back_s: monotonic seconds at which it came back.
        now_s: monotonic seconds.
    """
    return min(1.0, max(RAMP_FLOOR_RATIO, (now_s - back_s) / RAMP_S))


def ramped_limit(limit: int, ratio: float) -> int:
    """Return how many calls a replica may have at once while it comes back; never less than one.

    Args:
        limit: of a full load.
        ratio: of `ramp_ratio`.
    """
    return max(1, int(limit * ratio))


def ramped_score(score: float, ratio: float) -> float:
    """Return the score of a replica that comes back, so that it gets about that share of the calls.

    The score of the choice is calls times their work, which grows with the square of the load: hence the square.

    Args:
        score: of the choice; the least is taken.
        ratio: of `ramp_ratio`.
    """
    return score / (ratio * ratio)


class Action(Struct, frozen=True):
    """One automatic action on a pool.

    Attributes:
        pool: its name.
        kind: such as `eject`, `poison`, `tenant`, `ladder`, `canary`, `timeout`.
        target: what it is done to; a name, never a prompt or a key.
        reason: for the timeline.
        taken_s: monotonic seconds.
        until_s: monotonic seconds at which it is to be undone by itself.
    """

    pool: str
    kind: str
    target: str
    reason: str
    taken_s: float
    until_s: float


class Arbiter:
    """Lets automata act on a pool one after the other: at most one action in a minute, but for ejection and poison.

    Several automata see the same signal, and the effect of one takes time to show. Every action has an end. To undo
    one is always allowed. It decides nothing itself, and whoever was turned away asks again.

    Attributes:
        denied: requests turned away, since the start.
    """

    __slots__ = ("_free_s", "_standing", "denied")

    def __init__(self) -> None:
        self._free_s: dict[str, float] = {}
        self._standing: dict[tuple[str, str, str], Action] = {}
        self.denied = 0

    def may(self, pool: str, kind: str, now_s: float) -> bool:
        """Say whether an automaton may act on a pool now; changes nothing.

        Args:
            pool: its name.
            kind: of the action.
            now_s: monotonic seconds.
        """
        if kind in EXEMPT:
            return True
        if len(self._standing) >= MAX_STANDING or (len(self._free_s) >= MAX_POOLS and pool not in self._free_s):
            return False
        return now_s >= self._free_s.get(pool, now_s)

    def take(self, action: Action) -> bool:
        """Take an action if it may be taken; the same on the same target again only moves its end, and is free.

        Args:
            action: with the time at which it is taken.
        """
        key = (action.pool, action.kind, action.target)
        if key not in self._standing:
            if len(self._free_s) >= MAX_POOLS:
                now_s = action.taken_s
                self._free_s = {pool: free_s for pool, free_s in self._free_s.items() if free_s > now_s}
            if not self.may(action.pool, action.kind, action.taken_s):
                self.denied += 1
                return False
            if action.kind not in EXEMPT:
                self._free_s[action.pool] = action.taken_s + ACTION_EVERY_S
        self._standing[key] = action
        return True

    def undo(self, pool: str, kind: str, target: str) -> Action | None:
        """End an action early; return it, or None when it was not in force."""
        return self._standing.pop((pool, kind, target), None)

    def ended(self, now_s: float) -> list[Action]:
        """Return the actions whose time is up, once: they are to be undone now."""
        over = [action for action in self._standing.values() if now_s >= action.until_s]
        for action in over:
            del self._standing[(action.pool, action.kind, action.target)]
        return over

    def standing(self) -> list[Action]:
        """Return the actions in force, oldest first."""
        return list(self._standing.values())
