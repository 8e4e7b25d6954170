"""Who of a pool takes part now, and with what share: worked out when a breaker changes and ten times a second.

What the choice reads is left with each replica: `kept` in although its breaker is open, because more than half of
the pool would be out (panic); `ramp`, while it comes back; `weight`, by which its score is multiplied.
"""

import math
from collections.abc import Collection
from typing import Final

from msgspec import Struct

from forebay.domain import FailureKind
from forebay.routing.ejection import Health, places, ramp_ratio, ramped_score
from forebay.routing.replica import ReplicaState

DOUBT_WEIGHT: Final = 16.0
"""A replica that panic keeps gets calls when the others have no room, or are four to sixteen times as loaded: the
score grows with the square of the load while prompts wait, else with the load. The room of some engines has no number,
and the few that are left must not drown."""

_SURE: Final = (FailureKind.CONNECT, FailureKind.LOADING, FailureKind.CREDENTIAL)


class Rotation(Struct, frozen=True):
    """How a pool stands.

    Attributes:
        takers: replicas that get calls.
        panic: more than half of those that can be reached seemed ill, so that illness counts only as a doubt.
    """

    takers: int = 0
    panic: bool = False


def arrange(states: Collection[ReplicaState], now_s: float) -> Rotation:
    """Say for each replica of a pool whether it takes part, and with what share.

    Args:
        states: all its replicas.
        now_s: monotonic seconds.
    """
    panic = _keep(states)
    takers = [state for state in states if state.usable(now_s)]
    fullest = max((_ratio(state, now_s) for state in takers), default=1.0)
    fastest = max((state.speed.tokens_per_s for state in states), default=0.0)
    for state in states:
        # In steps of two: equal machines that only measure a little differently still take turns.
        known = state.speed.known and fastest > 0.0
        state.slowness = 2.0 ** round(math.log2(fastest / state.speed.tokens_per_s)) if known else 1.0
        # A share is one beside the others: who comes back together, or alone, has nobody to leave the load to.
        state.ramp = min(1.0, _ratio(state, now_s) / fullest)
        state.weight = ramped_score(state.slowness, state.ramp)
        if state.kept and not state.breaker.allows(now_s):
            state.weight *= DOUBT_WEIGHT
    return Rotation(len(takers), panic)


def _keep(states: Collection[ReplicaState]) -> bool:
    """Mark who stays in although its breaker is open; return whether there is panic."""
    if all(state.breaker.state == "closed" for state in states):
        for state in states:
            state.kept = False
        return False
    decided = places([Health(s.replica.name, s.breaker.state != "closed", _gone(s)) for s in states])
    for state in states:
        state.kept = decided.of[state.replica.name] == "doubt"
    return decided.panic


def _gone(state: ReplicaState) -> bool:
    """Say whether it is sure that a replica is no help: its calls and its health poll agree, or it said so itself."""
    if state.drained:
        return True
    breaker = state.breaker
    return breaker.state != "closed" and (breaker.reason in _SURE or state.up is False)


def _ratio(state: ReplicaState, now_s: float) -> float:
    """Return the share that a replica may have by itself, and note whether it has just come back."""
    if state.up is False:
        state.was_down = True
    elif state.up and state.was_down:
        state.was_down = False
        state.back_s = now_s
    if state.back_s is None:
        return 1.0
    ratio = ramp_ratio(state.back_s, now_s)
    if ratio >= 1.0:
        state.back_s = None
    return ratio
