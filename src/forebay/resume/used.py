"""Which runs of answers clients have come back for: each may be gone on with once on a node."""

from collections import OrderedDict
from typing import Final

MAX_LEGS: Final = 65_536
"""2 MB; beyond it the oldest is forgotten, whose token may then be used once more while it lasts."""
KEEP_S: Final = 3600.0
"""Longer than an answer runs and its last token lasts."""


class Used:
    """Remembers legs for an hour; bounded."""

    def __init__(self) -> None:
        self._until_s: OrderedDict[bytes, float] = OrderedDict()

    def __len__(self) -> int:
        """Return how many are remembered."""
        return len(self._until_s)

    def __contains__(self, leg: bytes) -> bool:
        """Say whether a leg has been gone on with."""
        return leg in self._until_s

    def take(self, leg: bytes, now_s: float) -> bool:
        """Use a leg; False when it has been used already."""
        legs = self._until_s
        while legs and next(iter(legs.values())) <= now_s:
            legs.popitem(last=False)
        if leg in legs:
            return False
        while len(legs) >= MAX_LEGS:
            legs.popitem(last=False)
        legs[leg] = now_s + KEEP_S
        return True

    def give_back(self, leg: bytes) -> None:
        """Let a leg be used again: nothing came of it."""
        self._until_s.pop(leg, None)
