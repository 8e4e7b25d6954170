"""Breakers of what Forebay itself asks engines for beside calls: one that fails is left alone for a while (A7).

Pure, on the time it is told. No call waits for an errand that is left alone, and none is held against its replica.
"""

from collections.abc import Iterator
from typing import Final, Literal

from msgspec import Struct

from forebay.domain import FailureKind
from forebay.policy import BreakerPolicy
from forebay.routing.breaker import Breaker

Errand = Literal["count", "telemetry"]
ERRANDS: Final[tuple[Errand, ...]] = ("count", "telemetry")
POLICY: Final = BreakerPolicy(failures=3, open_s=10.0)
"""Three failures in a row; then ten seconds of rest, doubled up to thirty."""


class LeftAlone(Struct, frozen=True):
    """An errand that is not run on a replica for now."""

    errand: Errand
    replica: str
    left_s: float


class Errands:
    """All errands on all replicas."""

    __slots__ = ("_breakers",)

    def __init__(self) -> None:
        # Only of those that have failed, so that replicas which are well cost nothing.
        self._breakers: dict[tuple[Errand, str], Breaker] = {}

    def keep(self, replicas: frozenset[str]) -> None:
        """Forget replicas that have left the policy: their number is the bound."""
        self._breakers = {key: breaker for key, breaker in self._breakers.items() if key[1] in replicas}

    def may(self, errand: Errand, replica: str, now_s: float) -> bool:
        """Say whether an errand may be run now; changes nothing."""
        breaker = self._breakers.get((errand, replica))
        return breaker is None or breaker.allows(now_s)

    def begin(self, errand: Errand, replica: str, now_s: float) -> None:
        """Tell that it is run: after a rest it is the probe."""
        breaker = self._breakers.get((errand, replica))
        if breaker is not None:
            breaker.begin(now_s)

    def ended(self, errand: Errand, replica: str, well: bool, now_s: float) -> None:
        """Tell how it went."""
        key = (errand, replica)
        breaker = self._breakers.get(key)
        if well:
            self._breakers.pop(key, None)
            return
        if breaker is None:
            breaker = self._breakers[key] = Breaker(POLICY)
        breaker.failed(FailureKind.STATUS, now_s)

    def left_alone(self, now_s: float) -> Iterator[LeftAlone]:
        """Yield what is not run now."""
        for (errand, replica), breaker in self._breakers.items():
            if not breaker.allows(now_s):
                yield LeftAlone(errand, replica, max(0.0, breaker.until_s - now_s))
