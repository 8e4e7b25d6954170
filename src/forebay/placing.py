"""Where a call is served: by one like it that runs, by its own model or another one, and the pool that lets it in."""

from contextlib import suppress

from forebay.degrading import Degrading
from forebay.edge.body import Asked
from forebay.errors import Refused
from forebay.inquest import Inquest
from forebay.joining import Joining
from forebay.policy import Policy
from forebay.ports import Gate, Permit, Reply
from forebay.recording.record import CallRecord
from forebay.resuming import Resuming
from forebay.sparing import Sparing
from forebay.traffic import Call

_NO_ROOM = ("queue_full", "queue_timeout", "overloaded")


class Placing:
    """Finds calls their place.

    Args:
        gate: lets calls in.
        degrading: knows the tenants that are served by another model.
        joining: knows the calls that need not be run.
        sparing: serves calls as the ladder says.
        resuming: knows what clients have that come back for the rest of an answer.
        inquest: knows what engines die of.
    """

    def __init__(
        self, gate: Gate, degrading: Degrading, joining: Joining, sparing: Sparing, resuming: Resuming, inquest: Inquest
    ) -> None:
        self._gate = gate
        self._degrading = degrading
        self.joining = joining
        self.resuming = resuming
        self._sparing = sparing
        self._inquest = inquest
        # Who is moved for either reason goes into the same room.
        degrading.has_headroom = sparing.has_headroom

    def placed(self, call: Call, asked: Asked, policy: Policy, reply: Reply, record: CallRecord) -> tuple[Call, Asked]:
        """Return a call, and what it asks for, as they are served; an answer that is degraded says so.

        Raises:
            Refused: `degraded`, `overloaded`: a level of the ladder has no room for it; `resume_mismatch`;
                `request_quarantined`, `feature_unavailable`: engines die or fail of it.
        """
        if self._inquest.alert:
            self._inquest.admit(call, asked.members, policy)
        if call.shown is not None:
            return self.resuming.placed(call, call.shown, policy, record), asked
        call = self._degrading.placed(call, policy, reply, record)
        if self._sparing.laddering.engaged:
            call, asked = self._sparing.served(call, asked, policy, reply, record)
        return call, asked

    def at_once(self, call: Call, policy: Policy) -> Permit | None:
        """Take the right to run a call if that needs no waiting.

        Raises:
            Refused: the tenant has no room.
        """
        return self._gate.at_once(call, policy.models[call.model].pool)

    async def let_in(self, call: Call, policy: Policy) -> Permit:
        """Wait for a permit on the model's pool, else on the pools of its fallbacks.

        Raises:
            Refused: the tenant has no room, or none of the pools has.
        """
        model = policy.models[call.model]
        try:
            return await self._gate.acquire(call, model.pool)
        except Refused as refusal:
            if refusal.code in _NO_ROOM and call.shown is None and not call.moved:
                for name in model.fallback:
                    with suppress(Refused):
                        return await self._gate.acquire(call, policy.models[name].pool)
            raise
