"""From a permit to an answer: tries over replicas, then over fallback models, until one is the answer."""

import asyncio
import random

from msgspec import Struct

from forebay.continuing import Continuer
from forebay.domain import FailureKind, Outcome
from forebay.edge.body import Asked
from forebay.errors import Refused
from forebay.inquest import Inquest
from forebay.lessons import Lessons
from forebay.policy import Model, Policy
from forebay.ports import Lease, Permit, Record, Reply, Retries
from forebay.preparing import prepare
from forebay.routing import attempts
from forebay.routing.attempts import End, Step, Tried
from forebay.routing.pool import Fleet
from forebay.traffic import Call, Verdict
from forebay.upstream.deadlines import Sending
from forebay.upstream.send import Upstream
from forebay.upstream.trial import Trial

_GONE = (FailureKind.CONNECT, FailureKind.RESET)
_OVER = (Outcome.OK, Outcome.CLIENT_CLOSED)
_NONE: frozenset[str] = frozenset()
_ABANDONED = Verdict(False, Outcome.CLIENT_CLOSED)


class Ended(Struct, frozen=True):
    """How a call ended: the verdict that the client gets, and the model that it comes from."""

    verdict: Verdict
    model: str


class Dispatcher:
    """Runs the tries of calls.

    Args:
        fleet: the replicas and their health.
        retries: whether and where a call is tried again.
        upstream: runs one try.
        continuer: lets an answer go on whose engine has died; knows who judges deaths.
    """

    def __init__(
        self, fleet: Fleet, retries: Retries, upstream: Upstream, continuer: Continuer, lessons: Lessons
    ) -> None:
        self._fleet = fleet
        self._continuer = continuer
        self._inquest: Inquest = continuer.inquest
        self._lessons = lessons
        self._retries = retries
        self._upstream = upstream

    async def run(
        self, call: Call, asked: Asked, policy: Policy, permit: Permit, reply: Reply, record: Record
    ) -> Ended:
        """Find an answer: on the model's pool, else on those of its fallbacks.

        Raises:
            Refused: `no_engine`, `engine_loading`: nothing could be tried at all.
        """
        first = policy.models[call.model]
        said = reply.extra
        ends: list[Ended] = []
        tried: tuple[Tried, ...] = ()
        self._retries.note_call(permit.pool, call.tenant.name)
        begun = False
        for name in _models_for(call, first):
            model = policy.models[name]
            pool = policy.pools[model.pool]
            if begun:
                try:
                    await self._move(permit, pool.name, ends, policy)
                except Refused:
                    continue
            elif pool.name != permit.pool:
                # The gate had no room here and let it in further down.
                continue
            begun = True
            sending, explained = prepare(call, asked, model, policy, self._fleet.token_ids(pool.name))
            reply.extra = said + explained
            if sending.plan is not None:
                sending = self._continuer.follow(call, sending)
            lease, permit.lease = permit.lease, None
            try:
                verdict, tried = await self._on_pool(call, name, sending, tried, (lease, reply, record))
            finally:
                self._continuer.leave(sending)
            if verdict is not None:
                if not attempts.may_fall_back(verdict):
                    return Ended(verdict, name)
                ends.append(Ended(verdict, name))
            if len(tried) >= attempts.MAX_TRIES:
                break
        if not ends:
            raise self._inquest.cutoffs.missing(call, asked.members, first.pool) or self._nothing_to_try(first.pool)
        return min(ends, key=lambda end: attempts.rank(end.verdict))

    async def _move(self, permit: Permit, pool: str, ends: list[Ended], policy: Policy) -> None:
        """Move to the pool of a fallback.

        Raises:
            Refused: it has no room, or its context is no larger than one that was too small for the prompt.
        """
        if ends and attempts.is_context_overflow(ends[-1].verdict):
            tokens = self._fleet.context_tokens(policy.models[ends[-1].model].pool)
            if not attempts.is_roomier(tokens, self._fleet.context_tokens(pool)):
                raise Refused("no_engine", "the context of the fallback is not larger")
        await permit.move(pool)

    async def _on_pool(
        self,
        call: Call,
        model: str,
        sending: Sending,
        tried: tuple[Tried, ...],
        partners: tuple[Lease | None, Reply, Record],
    ) -> tuple[Verdict | None, tuple[Tried, ...]]:
        """Try the replicas of one pool; return its best verdict so far, and all tries."""
        lease, reply, record = partners
        if call.claim is not None:
            reply.extra += self._continuer.offer(call, call.claim, sending)
        if call.shown is not None and lease is not None:
            return await self._continuer.take_up(call, sending, lease, self._attempt, (reply, record)), tried
        used = _NONE
        best: Verdict | None = None
        while lease is not None:
            if self._inquest.alert:
                lease = await self._inquest.placed(call, sending, lease, used, (reply, record))
                if lease is None:
                    break
            terms = sending if used else self._lessons.terms(call, sending, lease)
            verdict, failure = await self._attempt(call, terms, lease, reply, record)
            if failure is None:
                return verdict, tried
            if verdict.committed:
                died = (verdict, lease.replica.name)
                return await self._continuer.go_on(call, sending, died, self._attempt, (reply, record)), tried
            if best is None or attempts.rank(verdict) <= attempts.rank(best):
                best = verdict
            name = lease.replica.name
            used |= {name}
            tried += (Tried(model, name, failure, verdict.status, verdict.retry_after_s),)
            step = attempts.next_step(tried, sending.max_attempts, random.random())
            if step.action != "elsewhere" or not await self._may_retry(call, sending.pool, failure):
                break
            await self._inquest.settled(call, name)
            lease = await self._retries.take(sending.pool, call, used) or await self._again(
                call, sending.pool, used, step
            )
        return best, tried

    async def _may_retry(self, call: Call, pool: str, failure: FailureKind) -> bool:
        """Ask the retry budget; a replica that is gone has freed the load that its calls put on others."""
        return failure in _GONE or await self._retries.may_retry(pool, call.tenant.name)

    async def _again(self, call: Call, pool: str, used: frozenset[str], step: Step) -> Lease | None:
        """After the pause, take one of the replicas used before that may be asked again."""
        if used <= step.excluded or step.pause_s > attempts.MAX_PAUSE_S:
            return None
        await asyncio.sleep(step.pause_s)
        return await self._retries.take(pool, call, step.excluded)

    async def _attempt(
        self, call: Call, sending: Sending, lease: Lease, reply: Reply, record: Record
    ) -> tuple[Verdict, FailureKind | None]:
        replica = lease.replica
        record.dispatched(sending.pool, replica.name)
        record.lease = lease
        verdict, before = _ABANDONED, record.output_events
        try:
            verdict = await self._upstream.attempt(call, replica, sending, reply, record)
        finally:
            failure = None if verdict.outcome in _OVER else attempts.failure_of(verdict)
            # What could not be joined to an answer is no fault of its engine.
            joins = sending.thread is None or not sending.thread.at_seam
            counted = failure is not None and joins and attempts.counts_against_replica(failure, verdict)
            answered = failure is None and verdict.outcome is not Outcome.CLIENT_CLOSED
            if failure is not None or self._inquest.alert:
                events = record.output_events
                end = End(failure, counted, verdict.outcome is Outcome.OK, events - before, events)
                counted = self._inquest.ended(call, sending, lease, end)
            hits = None if record.usage is None else record.usage.cached_tokens
            lease.report(failure if counted else None, answered=answered, cached_tokens=hits, again=failure is not None)
            self._lessons.ended(Trial(call, sending, lease, verdict, failure))
        if failure is not None:
            record.attempt_failed(failure, verdict.status)
        return verdict, failure

    def _nothing_to_try(self, pool: str) -> Refused:
        if any(state.loading for state in self._fleet.states(pool)):
            return Refused("engine_loading", "the engine is still loading its model", retry_after_s=2)
        return Refused("no_engine", "no engine can take this call now", retry_after_s=2)


def _models_for(call: Call, first: Model) -> tuple[str, ...]:
    """Return the models that may answer, in order; a call that was moved, or comes back for its rest, has no other."""
    if call.moved or call.shown is not None:
        return (call.model,)
    return (call.model, *first.fallback)
