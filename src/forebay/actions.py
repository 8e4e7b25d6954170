"""What Forebay did by itself, for how long and how it is undone: one arbiter for all automata, and a bounded list.

Actions go through the arbiter, which lets at most one act on a pool in a minute and holds their ends. Replicas that are
put out and pools in panic do not: they follow health at once, and only stand in the list.
"""

from collections import deque
from collections.abc import Callable, Iterator
from typing import Final

from msgspec import Struct

from forebay.clock import Clock, timestamp
from forebay.policy import Policy
from forebay.routing.ejection import Action, Arbiter
from forebay.routing.pool import Fleet
from forebay.routing.replica import ReplicaState

KEPT: Final = 100
"""Lines of each kind, so that a replica that flaps does not push the rest out."""
MAX_KINDS: Final = 16

_OUT_UNDO: Final = "a probe that goes well brings it back; drain it to keep it out"
_PANIC_UNDO: Final = "ends when no more than half seem ill"


class Done(Struct, frozen=True):
    """One line of the list.

    Attributes:
        at: RFC 3339.
        pool: that it was done to.
        kind: of the automaton, such as `tenant`, `eject`, `panic`.
        what: it did, such as `moved`.
        target: a name, never a prompt or a key.
        reason: what was seen.
        ttl_s: seconds until it is looked at again or undone by itself; None when it is an end.
        undo: how it ends, and how a person ends it.
    """

    at: str
    pool: str
    kind: str
    what: str
    target: str
    reason: str
    ttl_s: float | None = None
    undo: str = ""


class Actions:
    """Takes, ends and lists automatic actions; follows the policy.

    Attributes:
        arbiter: says who may act now.
        on_end: by kind, called with an action whose time is up: it is to be undone.
    """

    def __init__(self, fleet: Fleet, clock: Clock) -> None:
        self._fleet = fleet
        self._clock = clock
        self._done: dict[str, deque[tuple[int, Done]]] = {}
        self._count = 0
        self._out: set[tuple[str, str]] = set()
        self._panics: frozenset[str] = frozenset()
        self.arbiter = Arbiter()
        self.on_end: dict[str, Callable[[Action], None]] = {}
        fleet.on_turn = self.turned

    def apply(self, policy: Policy) -> None:
        """Forget replicas that have left the policy."""
        known = {(pool.name, replica.name) for pool in policy.pools.values() for replica in pool.replicas}
        self._out &= known

    def note(
        self, where: tuple[str, str, str], what: str, reason: str, ttl_s: float | None = None, undo: str = ""
    ) -> None:
        """Put a line into the list; the oldest of its kind goes beyond `KEPT`.

        Args:
            where: pool, kind and target.
            what: was done.
            reason: what was seen.
            ttl_s: seconds until it is looked at again or undone by itself.
            undo: how it ends.
        """
        pool, kind, target = where
        lines = self._done.get(kind)
        if lines is None:
            if len(self._done) >= MAX_KINDS:
                return
            lines = self._done[kind] = deque(maxlen=KEPT)
        wall_s = self._clock.wall_s()
        line = Done(timestamp(wall_s), pool, kind, what, target, reason, ttl_s and round(ttl_s, 1), undo)
        self._count += 1
        lines.append((self._count, line))

    def tick(self) -> None:
        """End what is over, and see which pools are in panic; called once a second."""
        for action in self.arbiter.ended(self._clock.now_s()):
            self.on_end[action.kind](action)
        panics = frozenset(pool for pool, rotation in self._fleet.rotations.items() if rotation.panic)
        for pool in sorted(panics - self._panics):
            self.note((pool, "panic", pool), "begun", "more than half of the replicas seemed ill", undo=_PANIC_UNDO)
        for pool in sorted(self._panics - panics):
            self.note((pool, "panic", pool), "ended", "no more than half of the replicas seem ill")
        self._panics = panics

    def turned(self, state: ReplicaState) -> None:
        """Note a replica whose breaker has opened or closed; one that opens again after a probe is still out."""
        breaker = state.breaker
        where = (state.pool.name, "eject", state.replica.name)
        key = (state.pool.name, state.replica.name)
        reason = str(breaker.reason or "a call was answered")
        if breaker.state == "closed":
            self._out.discard(key)
            self.note(where, "back", reason)
        elif key not in self._out:
            self._out.add(key)
            self.note(where, "out", reason, max(0.0, breaker.until_s - self._clock.now_s()), _OUT_UNDO)

    def shown(self) -> list[Done]:
        """Return the list, newest first; at most `KEPT` of each kind."""
        lines = sorted(self._lines(), key=lambda line: line[0], reverse=True)
        return [done for _, done in lines]

    def _lines(self) -> Iterator[tuple[int, Done]]:
        for lines in self._done.values():
            yield from lines
