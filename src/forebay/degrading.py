"""A tenant whose traffic goes bad, while that of the others is well, is served by another model for a while (D3).

Watched are the models whose operator has named one to degrade to. A move is an automatic action: it waits for its turn
at the arbiter, has an end, and comes back by itself. It never makes a call fail: where the other pool has no replica,
or its engine lacks the endpoint, the call stays at home.
"""

import logging
from collections.abc import Callable, Iterator

from msgspec import Struct

from forebay.actions import Actions
from forebay.clock import Clock
from forebay.degrade.tenants import SLICE_S, Change, Tenants
from forebay.domain import FailureKind, Outcome
from forebay.engines.registry import ENGINES
from forebay.policy import Degrade, Policy
from forebay.ports import Reply
from forebay.recording.record import CallRecord
from forebay.routing import attempts
from forebay.routing.ejection import Action
from forebay.routing.pool import Fleet
from forebay.timing import ran_out
from forebay.traffic import Call, changed
from forebay.upstream.trial import Trial

log = logging.getLogger(__name__)

MAX_SHOWN = 100
STEP = "tenant"
_HEADER = b"x-forebay-degraded: tenant\r\n"
_UNDO = "comes back by itself; take `degrade` out of the model to bring all home now"
# What a replica's death or refusal does to a call says nothing about whose call it was.
_NOBODYS = (
    FailureKind.CONNECT,
    FailureKind.RESET,
    FailureKind.TRUNCATED,
    FailureKind.LOADING,
    FailureKind.CREDENTIAL,
)


class Watch(Struct, frozen=True):
    """The tenants of one model."""

    model: str
    pool: str
    degrade: Degrade
    tenants: Tenants


def _unknown(call: Call, pool: str) -> bool | None:
    """Say nothing about a pool's room."""
    return None


class Degrading:
    """Moves tenants and brings them back; follows the policy.

    Attributes:
        has_headroom: says whether a pool has room for calls of others; None when nobody knows.
    """

    def __init__(self, fleet: Fleet, actions: Actions, clock: Clock) -> None:
        self._fleet = fleet
        self._actions = actions
        self._clock = clock
        self._watched: dict[str, Watch] = {}
        self.has_headroom: Callable[[Call, str], bool | None] = _unknown
        actions.on_end[STEP] = self._time_is_up

    def apply(self, policy: Policy) -> None:
        """Follow a new policy: whoever was moved from a model that is watched no more, or otherwise, comes home."""
        watched: dict[str, Watch] = {}
        for model in policy.models.values():
            if model.degrade is None:
                continue
            old = self._watched.get(model.name)
            same = old is not None and (old.pool, old.degrade) == (model.pool, model.degrade)
            new = Watch(model.name, model.pool, model.degrade, Tenants(model.degrade.ttl_s))
            watched[model.name] = old if old is not None and same else new
        for watch in self._watched.values():
            if watched.get(watch.model) is not watch:
                for shown in watch.tenants.shown(self._clock.now_s()):
                    self._home(watch, shown.tenant, "the configuration has changed")
        self._watched = watched

    def placed(self, call: Call, policy: Policy, reply: Reply, record: CallRecord) -> Call:
        """Return the call as it is served: with the other model, when its tenant has been moved.

        The answer says so, in `X-Forebay-Degraded` and in the model that it names.
        """
        watch = self._watched.get(call.model)
        if watch is None or watch.tenants.goes_home(call.tenant.name, self._clock.now_s()):
            return call
        model = policy.models.get(watch.degrade.model)
        if model is None or not self._fleet.usable(model.pool) or self.has_headroom(call, model.pool) is False:
            return call
        if call.endpoint.name not in ENGINES[policy.pools[model.pool].engine].endpoints:
            return call
        reply.extra += _HEADER
        record.degraded(STEP)
        record.answered_by(model.name)
        # What it takes there teaches nothing about the model that it was estimated for.
        return changed(call, model=model.name, work=changed(call.work, features=(), kin=()))

    def ended(self, trial: Trial) -> None:
        """Count a try that has ended."""
        call, lease, failure = trial.call, trial.lease, trial.failure
        watch = self._watched.get(call.model)
        if watch is None or trial.sending.pool != watch.pool:
            return
        if failure is None:
            if trial.verdict.outcome is not Outcome.OK:
                return
        elif not _is_his(trial, failure):
            return
        watch.tenants.note(
            call.tenant.name, lease.replica.name, lease.uncached_tokens, lease.started_s, failure is not None
        )

    def tick(self) -> None:
        """Decide who moves and who returns; called once a second."""
        now_s = self._clock.now_s()
        for watch in self._watched.values():
            for change in watch.tenants.tick(now_s):
                self._follow(watch, change, now_s)

    def moved(self) -> Iterator[tuple[tuple[str, ...], float]]:
        """Yield the tenants that are moved, for the gauge."""
        for watch in self._watched.values():
            for shown in watch.tenants.shown(self._clock.now_s()):
                yield (shown.tenant,), 1.0

    def shown(self) -> list[dict[str, object]]:
        """Describe the tenants that are moved, at most `MAX_SHOWN`."""
        rows: list[dict[str, object]] = [
            {
                "tenant": shown.tenant,
                "model": watch.model,
                "served_by": watch.degrade.model,
                "reason": shown.reason,
                "left_s": round(shown.left_s, 1),
                "probes": shown.calls,
                "bad_probes": shown.bad,
                "expected_bad_probes": round(shown.expected_bad, 2),
            }
            for watch in self._watched.values()
            for shown in watch.tenants.shown(self._clock.now_s())
        ]
        return rows[:MAX_SHOWN]

    def _follow(self, watch: Watch, change: Change, now_s: float) -> None:
        if change.direction == "returned":
            self._actions.arbiter.undo(watch.pool, STEP, _target(watch, change.tenant))
            self._note(watch, change.tenant, "returned", change.reason)
            return
        # Two slices longer than he is moved for: it is decided when a slice has ended.
        until_s = change.until_s + 2.0 * SLICE_S
        action = Action(watch.pool, STEP, _target(watch, change.tenant), change.reason, now_s, until_s)
        if self._actions.arbiter.take(action):
            watch.tenants.move(change, now_s)
            self._note(watch, change.tenant, change.direction, change.reason, change.until_s - now_s)

    def _time_is_up(self, action: Action) -> None:
        """Bring home whom nobody has decided about in time."""
        for watch in self._watched.values():
            for shown in watch.tenants.shown(self._clock.now_s()):
                if watch.pool == action.pool and _target(watch, shown.tenant) == action.target:
                    self._home(watch, shown.tenant, "the time is up")

    def _home(self, watch: Watch, tenant: str, reason: str) -> None:
        watch.tenants.release(tenant, self._clock.now_s())
        self._actions.arbiter.undo(watch.pool, STEP, _target(watch, tenant))
        self._note(watch, tenant, "returned", reason)

    def _note(self, watch: Watch, tenant: str, what: str, reason: str, ttl_s: float | None = None) -> None:
        log.warning("tenant %s of model %s is %s: %s", tenant, watch.model, what, reason)
        where = (watch.pool, STEP, _target(watch, tenant))
        self._actions.note(where, what, reason, ttl_s, _UNDO if ttl_s is not None else "")


def _is_his(trial: Trial, failure: FailureKind) -> bool:
    """Say whether a failure counts for the tenant whose call it was.

    Not what is nobody's; not overload, which is the engine's; not a deadline of the call's own (T34), nor a learned
    one, which is made of what the calls of others take.
    """
    if failure in _NOBODYS or (failure is FailureKind.FIRST_BYTE and trial.sending.learned_s):
        return False
    if failure is FailureKind.TOTAL:
        return ran_out(trial.call, trial.sending, failure)
    return attempts.counts_against_replica(failure, trial.verdict)


def _target(watch: Watch, tenant: str) -> str:
    return f"{tenant} ({watch.model})"
