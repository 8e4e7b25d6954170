"""The ladder of one pool: a level from 0 to 3 that rises at once and falls slowly. Pure, on the time that it is told.

A level is due where the KV room is that full *and* calls suffer. By the engines' own word it rises at once, to the
level that is due. By our own reservations alone it rises by one level, and by the next only when `PROVEN_S` have not
helped: what calls may come to hold is more than what they hold.

It falls by one level when for `CALM_S` the room has been less full than the level's threshold by `MARGIN`, and never
sooner than `CALM_S` after a change. Where the room stays full and nobody suffers any more it falls too, after
`QUIET_S`; if that brings the pain back, the next time only after `RELAPSED_S`: a ladder must not swing with what it
does itself.

Source: traps T16 and T7; the thresholds are those of the policy.
"""

from typing import Final

from forebay.degrade.pressure import Pressure

TOP: Final = 3
MARGIN: Final = 0.05
CALM_S: Final = 30.0
PROVEN_S: Final = 10.0
QUIET_S: Final = 60.0
RELAPSED_S: Final = 600.0

Ratios = tuple[float, float, float]


def level_at(kv_ratio: float | None, ratios: Ratios) -> int:
    """Return the level that a KV usage stands for; 0 when it is not known."""
    if kv_ratio is None:
        return 0
    return sum(kv_ratio >= ratio for ratio in ratios)


class Ladder:
    """The automaton.

    Attributes:
        level: 0 to 3.
        reason: why it is where it is, for people.
    """

    __slots__ = ("_calm_since_s", "_changed_s", "_quiet_fall_s", "_quiet_s", "_quiet_since_s", "level", "reason")

    def __init__(self) -> None:
        self.level = 0
        self.reason = ""
        self._changed_s = 0.0
        self._calm_since_s: float | None = None
        self._quiet_since_s: float | None = None
        self._quiet_s = QUIET_S
        self._quiet_fall_s: float | None = None

    def update(self, pressure: Pressure, ratios: Ratios, now_s: float) -> bool:
        """Follow the pressure; return whether the level has changed.

        Args:
            pressure: on the pool.
            ratios: KV usage from which on the levels are due.
            now_s: monotonic seconds; never goes back.
        """
        due = self._due(pressure, ratios, now_s)
        if due > self.level:
            self._rise(due, pressure, now_s)
            return True
        if not self.level:
            return False
        why = self._falls(pressure, ratios, now_s)
        if why:
            self.level -= 1
            self.reason = why
            self._changed_s = now_s
        return bool(why)

    def _due(self, pressure: Pressure, ratios: Ratios, now_s: float) -> int:
        if not pressure.pains:
            return 0
        due = level_at(pressure.measured.value, ratios)
        foreseen = level_at(pressure.reserved.value, ratios)
        if foreseen <= max(due, self.level):
            return due
        proven = not self.level or now_s - self._changed_s >= PROVEN_S
        return max(due, self.level + 1) if proven else due

    def _rise(self, due: int, pressure: Pressure, now_s: float) -> None:
        fell_s = self._quiet_fall_s
        if fell_s is not None:
            self._quiet_s = RELAPSED_S if now_s - fell_s < RELAPSED_S else QUIET_S
        elif not self.level and now_s - self._changed_s >= RELAPSED_S:
            self._quiet_s = QUIET_S
        self._quiet_fall_s = self._calm_since_s = self._quiet_since_s = None
        self.level, self._changed_s = due, now_s
        self.reason = f"KV {_percent(pressure.kv_ratio)}, {' and '.join(_WORDS[pain] for pain in pressure.pains)}"

    def _falls(self, pressure: Pressure, ratios: Ratios, now_s: float) -> str:
        """Say why it falls by one now; empty when it does not."""
        kv_ratio = pressure.kv_ratio
        calm = kv_ratio is None or kv_ratio < ratios[self.level - 1] - MARGIN
        self._calm_since_s = _since(calm, self._calm_since_s, now_s)
        self._quiet_since_s = _since(not pressure.pains, self._quiet_since_s, now_s)
        if now_s - self._changed_s < CALM_S:
            return ""
        if self._calm_since_s is not None and now_s - self._calm_since_s >= CALM_S:
            return f"KV {_percent(kv_ratio)} for {CALM_S:.0f} s"
        if self._quiet_since_s is None or now_s - max(self._quiet_since_s, self._changed_s) < self._quiet_s:
            return ""
        self._quiet_fall_s = now_s
        return f"no call has suffered for {now_s - self._quiet_since_s:.0f} s"


_WORDS: Final = {"waiting": "calls wait", "preemptions": "calls are preempted", "first_token": "first tokens are late"}


def _since(holds: bool, since_s: float | None, now_s: float) -> float | None:
    if not holds:
        return None
    return now_s if since_s is None else since_s


def _percent(ratio: float | None) -> str:
    return "unknown" if ratio is None else f"{ratio:.0%}"
