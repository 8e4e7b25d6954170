"""Whether an answer whose engine failed goes on elsewhere: a pure decision."""

from typing import Final

from msgspec import Struct

from forebay.domain import FailureKind
from forebay.upstream.continuation.reasons import Reason
from forebay.upstream.continuation.shapes import Plan
from forebay.upstream.continuation.told import Mode, Told

MAX_MOVES: Final = 2
"""Of one call, beyond its first engine (trap T30)."""


class Death(Struct, frozen=True):
    """How a leg of an answer ended before the answer did.

    Attributes:
        failure: of the engine.
        moves: that have been made for this call, this leg's included when it was not the first.
        mode: of the leg; None for the first.
        seam: why the leg could not be joined, when that is what ended it.
        refused: the engine answered the leg's request with a 4xx of its own, before any event.
        overflow: that answer says that the prompt is too long now.
        barred: modes that had failed before this leg.
    """

    failure: FailureKind
    moves: int = 0
    mode: Mode | None = None
    seam: Reason | None = None
    refused: bool = False
    overflow: bool = False
    barred: frozenset[Mode] = frozenset()


class Continue(Struct, frozen=True):
    """Go on with another replica of the same pool, or with this one if it is well.

    Attributes:
        barred: modes that the next leg must not use.
    """

    barred: frozenset[Mode] = frozenset()


class GiveUp(Struct, frozen=True):
    """End the stream with a typed error."""

    reason: Reason


class AtLimit(Struct, frozen=True):
    """The answer fills the engine's context: it ends with finish reason `length`."""


def next_leg(death: Death, told: Told, plan: Plan | Reason) -> Continue | AtLimit | GiveUp:
    """Decide what follows the death of an engine that the client has seen text of.

    Every failure of an engine is a reason to go on, whether it came as an error event, as an `abort` that nobody
    asked for, as an end without a reason, as silence or as a reset; a deadline of the call is not.

    Args:
        death: how the leg ended.
        told: what the client has.
        plan: of the request, or why there is none.
    """
    if isinstance(plan, Reason):
        return GiveUp(plan)
    if death.failure is FailureKind.TOTAL:
        return GiveUp(Reason.DEADLINE)
    if told.flaw is not None:
        return GiveUp(told.flaw)
    if told.tools:
        return GiveUp(Reason.TOOL_CALLS)
    if death.overflow:
        return AtLimit()
    barred = death.barred
    if death.seam is not None or death.refused:
        # A leak is never tried again, and who diverges from the beginning would diverge again.
        if death.seam is Reason.PROMPT_LEAK or death.mode is None or death.mode == "restart":
            return GiveUp(death.seam or Reason.PREFIX_REFUSED)
        barred |= {death.mode}
    if death.moves >= MAX_MOVES:
        return GiveUp(death.seam or Reason.MOVES_SPENT)
    return Continue(barred)
