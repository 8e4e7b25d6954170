"""From a permit to an answer: tries over replicas, then over fallback models, until one is the answer."""

import asyncio
import random

import msgspec
from msgspec import Struct

from forebay.domain import FailureKind, Outcome
from forebay.edge.body import Asked
from forebay.engines.registry import ENGINES
from forebay.errors import Refused
from forebay.policy import Model, Policy, Pool
from forebay.ports import Call, Permit, Record, Reply, Verdict
from forebay.routing import attempts
from forebay.routing.attempts import Step, Tried
from forebay.routing.pool import Fleet, Lease
from forebay.upstream.relay import Terms
from forebay.upstream.send import Try, Upstream
from forebay.wire import splice
from forebay.wire.rewrite import Rewriter

_FIRST = Step("elsewhere")
_INCLUDE_USAGE = b'{"include_usage":true}'
_SHAPES_WITH_USAGE_CHUNK = ("chat", "completions")
_SHAPES_WITH_DONE = ("chat", "completions")


class Ended(Struct, frozen=True):
    """How a call ended: the verdict that the client gets, and the model that it comes from."""

    verdict: Verdict
    model: Model


class _Sending(Struct, frozen=True):
    """What is the same for all tries of a call on one model; `explained` are header lines for the client."""

    model: Model
    pool: Pool
    body: bytes
    terms: Terms
    explained: bytes


class Dispatcher:
    """Runs the tries of calls.

    Args:
        fleet: the replicas and their health.
        upstream: runs one try.
    """

    def __init__(self, fleet: Fleet, upstream: Upstream) -> None:
        self._fleet = fleet
        self._upstream = upstream

    async def run(
        self, call: Call, asked: Asked, policy: Policy, permit: Permit, reply: Reply, record: Record
    ) -> Ended:
        """Find an answer: on the model's pool, else on those of its fallbacks.

        Raises:
            Refused: `no_engine`, `engine_loading`: nothing could be tried at all.
        """
        tried: tuple[Tried, ...] = ()
        ends: list[Ended] = []
        first = policy.models[call.model]
        said = reply.extra
        for name in (call.model, *first.fallback):
            model = policy.models[name]
            sending = prepare(call, asked, model, policy)
            reply.extra = said + sending.explained
            if name != call.model:
                try:
                    await permit.move(model.pool)
                except Refused:
                    continue
            end, tried = await self._on_model(call, sending, tried, reply, record)
            if end is not None:
                ends.append(end)
                if not _may_fall_back(end.verdict):
                    return end
            if len(tried) >= attempts.MAX_TRIES:
                break
        if not ends:
            raise self._nothing_to_try(first.pool)
        return min(ends, key=_rank)

    async def _on_model(
        self, call: Call, sending: _Sending, tried: tuple[Tried, ...], reply: Reply, record: Record
    ) -> tuple[Ended | None, tuple[Tried, ...]]:
        """Try the replicas of one model; return the best end so far and all tries."""
        step = _FIRST
        used: frozenset[str] = frozenset()
        ends: list[Ended] = []
        while step.action == "elsewhere":
            lease = await self._lease(call, sending.pool, used, step)
            if lease is None:
                break
            used |= {lease.state.replica.name}
            verdict, failure = await self._attempt(call, sending, lease, reply, record)
            ends.append(Ended(verdict, sending.model))
            if failure is None or verdict.committed:
                return ends[-1], tried
            tried += (
                Tried(sending.model.name, lease.state.replica.name, failure, verdict.status, verdict.retry_after_s),
            )
            step = attempts.next_step(tried, sending.pool.max_attempts, random.random())
        return min(ends, key=_rank, default=None), tried

    async def _lease(self, call: Call, pool: Pool, used: frozenset[str], step: Step) -> Lease | None:
        tokens = call.prompt_tokens + call.output_tokens
        lease = self._fleet.choose(pool.name, tokens, used)
        if lease is not None or not used or step.pause_s > attempts.MAX_PAUSE_S:
            return lease
        if used <= step.excluded:
            return None
        await asyncio.sleep(step.pause_s)
        return self._fleet.choose(pool.name, tokens, step.excluded)

    async def _attempt(
        self, call: Call, sending: _Sending, lease: Lease, reply: Reply, record: Record
    ) -> tuple[Verdict, FailureKind | None]:
        replica = lease.state.replica
        record.dispatched(sending.pool.name, replica.name)
        try:
            tried = Try(replica, sending.pool.name, sending.body, sending.terms)
            verdict = await self._upstream.attempt(call, tried, reply, record)
        except BaseException:
            self._fleet.report(lease, None, answered=False)
            raise
        failure = attempts.failure_of(verdict)
        counted = failure is not None and attempts.counts_against_replica(failure, verdict.status)
        answered = failure is None and verdict.outcome is not Outcome.CLIENT_CLOSED
        self._fleet.report(lease, failure if counted else None, answered=answered)
        if failure is not None:
            record.attempt_failed(failure, verdict.status)
        return verdict, failure

    def _nothing_to_try(self, pool: str) -> Refused:
        if any(state.loading for state in self._fleet.states(pool)):
            return Refused("engine_loading", "the engine is still loading its model", retry_after_s=2)
        return Refused("no_engine", "no engine can take this call now", retry_after_s=2)


def prepare(call: Call, asked: Asked, model: Model, policy: Policy) -> _Sending:
    """Make the body and the terms for one model: the whole list of what Forebay changes in a request."""
    pool = policy.pools[model.pool]
    engine = ENGINES[pool.engine]
    edits: dict[str, bytes | None] = {}
    explained = f"x-forebay-pool: {pool.name}\r\n"
    if not engine.denied_fields.isdisjoint(asked.members.values):
        edits = dict.fromkeys(sorted(engine.denied_fields & asked.members.values.keys()))
        explained += f"x-forebay-stripped: {', '.join(edits)}\r\n"
    if model.name != call.model:
        explained += "x-forebay-degraded: fallback\r\n"
    name = model.upstream_model or model.name
    if name != asked.model and "model" in asked.members.values:
        edits["model"] = msgspec.json.encode(name)
    asks_usage = (
        call.stream
        and not call.wants_usage
        and call.endpoint.shape in _SHAPES_WITH_USAGE_CHUNK
        and pool.engine != "llamacpp"  # its last chunk carries the counts anyway, in `timings`
    )
    if asks_usage:
        edits["stream_options"] = _with_usage(asked.members.text_of("stream_options"))
    terms = Terms(
        model.timeouts,
        policy.stream,
        policy.limits.response_bytes,
        Rewriter(model.name, asks_usage),
        call.endpoint.shape in _SHAPES_WITH_DONE,
    )
    return _Sending(model, pool, splice.edit(asked.members, edits), terms, explained.encode())


def _with_usage(options: bytes | None) -> bytes:
    if options is None:
        return _INCLUDE_USAGE
    return splice.edit(splice.read_members(options), {"include_usage": b"true"})


def _may_fall_back(verdict: Verdict) -> bool:
    """Say whether another model may still answer: nothing was sent, and the fault is not the caller's."""
    if verdict.committed or verdict.outcome in (Outcome.OK, Outcome.CLIENT_CLOSED):
        return False
    return attempts.failure_of(verdict) not in (None, FailureKind.TOTAL) or attempts.is_context_overflow(verdict)


def _rank(end: Ended) -> tuple[bool, float]:
    """Order failed ends by what helps the client most: an engine's own answer, with the shortest wait."""
    verdict = end.verdict
    return verdict.answer is None, verdict.retry_after_s if verdict.retry_after_s is not None else 1e9
