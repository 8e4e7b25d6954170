"""Features that fail or kill engines: not sent where they are cut off, listed, and let in again (A7).

Keeps the counts of `routing.feature_breaker` and acts on them. While nothing has failed for two minutes and nothing is
cut off, `watches` is false and no call is looked at.
"""

import logging
from collections.abc import Iterator, Sequence
from typing import Final

from forebay.actions import Actions
from forebay.clock import Clock
from forebay.errors import Refused
from forebay.policy import Model
from forebay.ports import Lease, Retries
from forebay.routing.feature_breaker import ALL, FeatureBreakers, Key, Suspected
from forebay.routing.features import mask_of
from forebay.routing.pool import Fleet
from forebay.traffic import Call
from forebay.upstream.deadlines import Sending
from forebay.wire.members import Members

log = logging.getLogger(__name__)

MAX_RETRY_AFTER_S: Final = 600
_UNDO: Final = "one call is let through when the time is up; if it goes well, all are"


class Cutoffs:
    """Follows features.

    Attributes:
        watches: calls have to be told of.
        features: what is counted, and what is cut off.
    """

    def __init__(self, fleet: Fleet, retries: Retries, actions: Actions, clock: Clock) -> None:
        self._fleet = fleet
        self._retries = retries
        self._actions = actions
        self._clock = clock
        self.watches = False
        self.features = FeatureBreakers()

    def tick(self) -> None:
        """Forget what nobody asks for, and see whether calls have to be told of; called ten times a second."""
        now_s = self._clock.now_s()
        for key, feature in self.features.expire(now_s):
            self._note_back(key, feature, "no call has asked for it since its time was up")
        self.watches = self.features.watches(now_s)

    def admit(self, call: Call, members: Members, model: Model) -> None:
        """Turn away what asks for a feature that is cut off on the whole pool, when no other model may serve it.

        Raises:
            Refused: `feature_unavailable`.
        """
        if model.fallback:
            return
        key = (model.pool, call.endpoint.name, model.name)
        feature = self.features.refuses(key, ALL, mask_of(members, call.prompt_tokens), self._clock.now_s())
        if feature:
            raise self._refusal(key, feature)

    async def served(self, call: Call, sending: Sending, lease: Lease, used: frozenset[str]) -> Lease | None:
        """Return a lease on a replica where no feature of the call is cut off, None without one.

        Where a feature's time is up, the call is its probe.

        Args:
            call: to be sent.
            sending: as it is sent.
            lease: that it has; given back when it gets another.
            used: replicas that it must not get again.
        """
        key = (sending.pool, call.endpoint.name, sending.rewriter.model)
        mask, now_s = mask_of(sending.members, call.prompt_tokens), self._clock.now_s()
        if not mask:
            return lease
        states = self._fleet.states(sending.pool)
        cut = frozenset([s.replica.name for s in states if self.features.refuses(key, s.replica.name, mask, now_s)])
        taken: Lease | None = lease
        if lease.replica.name in cut:
            lease.report(None, answered=False)
            taken = await self._retries.take(sending.pool, call, used | cut)
        if taken is not None:
            self.features.begins(key, taken.replica.name, mask, now_s)
        return taken

    def missing(self, call: Call, members: Members, pool: str) -> Refused | None:
        """Say which feature of a call its replicas do not serve, if that may be why none was tried."""
        if not self.watches:
            return None
        key = (pool, call.endpoint.name, call.model)
        mask, now_s = mask_of(members, call.prompt_tokens), self._clock.now_s()
        for name in (ALL, *[state.replica.name for state in self._fleet.states(pool)]):
            feature = self.features.refuses(key, name, mask, now_s)
            if feature:
                return self._refusal(key, feature)
        return None

    def failed(self, key: Key, replica: str, mask: int) -> str:
        """Count a failure of an engine; return the feature to blame, or an empty text."""
        self.watches = True
        now_s, before = self._clock.now_s(), self.features.opened
        blamed = self.features.failed(key, replica, mask, now_s)
        if self.features.opened > before:
            self._note(key, blamed)
        return blamed

    def crashed(self, suspected: Sequence[Suspected]) -> None:
        """Hear whom a death is blamed on."""
        self.watches = True
        for key, feature in self.features.crashed(suspected, self._clock.now_s()):
            self._note(key, feature)

    def tell(self, key: Key, replica: str, mask: int, well: bool) -> None:
        """Count a call that was answered as it should be, or ended without a verdict."""
        if not well:
            self.features.cancelled(key, replica, mask)
            return
        for feature in self.features.answered(key, replica, mask, self._clock.now_s()):
            self._note_back(key, feature, "a call with it was answered")

    def readings(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield on how many replicas what is cut off, for the gauge."""
        sums: dict[tuple[str, ...], int] = {}
        for cut in self.features.shown(self._clock.now_s()):
            key = (cut.pool, cut.endpoint, cut.model, cut.feature)
            sums[key] = sums.get(key, 0) + (1 if cut.replica else sum(1 for _ in self._fleet.states(cut.pool)))
        yield from sums.items()

    def _note(self, key: Key, feature: str) -> None:
        """Put a feature that has just been cut off into the list of actions."""
        pool, endpoint, model = key
        cuts = [cut for cut in self.features.shown(self._clock.now_s()) if cut.feature == feature]
        newest = max([cut for cut in cuts if (cut.pool, cut.endpoint, cut.model) == key], key=lambda cut: cut.left_s)
        reason = f"{endpoint} on {newest.replica or 'all replicas'}: {newest.reason}"
        log.warning("feature %s of model %s is cut off in pool %s, %s", feature, model, pool, reason)
        self._actions.note((pool, "feature", f"{feature} ({model})"), "cut off", reason, newest.left_s, _UNDO)

    def _note_back(self, key: Key, feature: str, reason: str) -> None:
        """Put a feature that is let in again into the list of actions."""
        log.warning("feature %s of model %s is let in again in pool %s: %s", feature, key[2], key[0], reason)
        self._actions.note((key[0], "feature", f"{feature} ({key[2]})"), "back", reason)

    def _refusal(self, key: Key, feature: str) -> Refused:
        cuts = [cut for cut in self.features.shown(self._clock.now_s()) if cut.feature == feature]
        mine = [cut for cut in cuts if (cut.pool, cut.endpoint, cut.model) == key]
        left_s = min([cut.left_s for cut in mine], default=1.0)
        message = f"requests with `{feature}` are cut off for this model for now: {mine[0].reason}; others are served"
        return Refused("feature_unavailable", message, retry_after_s=min(MAX_RETRY_AFTER_S, max(1, round(left_s))))
