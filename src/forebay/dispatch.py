"""From a permit to an answer: tries over replicas, then over fallback models, until one is the answer."""

import asyncio
import random

import msgspec
from msgspec import Struct

from forebay.domain import FailureKind, Outcome
from forebay.edge.body import Asked
from forebay.edge.prompt import choices
from forebay.engines.registry import ENGINES
from forebay.errors import Refused
from forebay.policy import Model, Policy, Pool
from forebay.ports import Permit, Record, Reply
from forebay.routing import attempts
from forebay.routing.attempts import Step, Tried
from forebay.routing.pool import Fleet, Lease
from forebay.traffic import Call, Verdict
from forebay.upstream.deadlines import Sending
from forebay.upstream.send import Upstream
from forebay.wire import splice
from forebay.wire.rewrite import Rewriter

_FIRST = Step("elsewhere")
_OPENAI_STREAMS = ("chat", "completions")
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
        first = policy.models[call.model]
        said = reply.extra
        ends: list[Ended] = []
        tried: tuple[Tried, ...] = ()
        for name in (call.model, *first.fallback):
            model = policy.models[name]
            pool = policy.pools[model.pool]
            if model is not first:
                try:
                    await permit.move(pool.name)
                except Refused:
                    continue
            sending, explained = prepare(call, asked, model, pool, policy)
            reply.extra = said + explained
            verdict, tried = await self._on_pool(call, name, pool, sending, tried, (reply, record))
            if verdict is not None:
                if not attempts.may_fall_back(verdict):
                    return Ended(verdict, name)
                ends.append(Ended(verdict, name))
            if len(tried) >= attempts.MAX_TRIES:
                break
        if not ends:
            raise self._nothing_to_try(first.pool)
        return min(ends, key=lambda end: attempts.rank(end.verdict))

    async def _on_pool(
        self,
        call: Call,
        model: str,
        pool: Pool,
        sending: Sending,
        tried: tuple[Tried, ...],
        partners: tuple[Reply, Record],
    ) -> tuple[Verdict | None, tuple[Tried, ...]]:
        """Try the replicas of one pool; return its best verdict so far, and all tries."""
        step, used = _FIRST, _NONE
        best: Verdict | None = None
        tokens = call.prompt_tokens + call.output_tokens
        while step.action == "elsewhere":
            lease = self._fleet.choose(pool.name, tokens, used) or await self._again(pool, tokens, used, step)
            if lease is None:
                break
            verdict, failure = await self._attempt(call, sending, lease, *partners)
            if failure is None or verdict.committed:
                return verdict, tried
            if best is None or attempts.rank(verdict) <= attempts.rank(best):
                best = verdict
            name = lease.state.replica.name
            used |= {name}
            tried += (Tried(model, name, failure, verdict.status, verdict.retry_after_s),)
            step = attempts.next_step(tried, pool.max_attempts, random.random())
        return best, tried

    async def _again(self, pool: Pool, tokens: int, used: frozenset[str], step: Step) -> Lease | None:
        """After the pause, take one of the replicas used before that may be asked again."""
        if used <= step.excluded or step.pause_s > attempts.MAX_PAUSE_S:
            return None
        await asyncio.sleep(step.pause_s)
        return self._fleet.choose(pool.name, tokens, step.excluded)

    async def _attempt(
        self, call: Call, sending: Sending, lease: Lease, reply: Reply, record: Record
    ) -> tuple[Verdict, FailureKind | None]:
        replica = lease.state.replica
        record.dispatched(sending.pool, replica.name)
        verdict = _ABANDONED
        try:
            verdict = await self._upstream.attempt(call, replica, sending, reply, record)
        finally:
            failure = None if verdict.outcome in _OVER else attempts.failure_of(verdict)
            counted = failure is not None and attempts.counts_against_replica(failure, verdict)
            answered = failure is None and verdict.outcome is not Outcome.CLIENT_CLOSED
            self._fleet.report(lease, failure if counted else None, answered=answered)
        if failure is not None:
            record.attempt_failed(failure, verdict.status)
        return verdict, failure

    def _nothing_to_try(self, pool: str) -> Refused:
        if any(state.loading for state in self._fleet.states(pool)):
            return Refused("engine_loading", "the engine is still loading its model", retry_after_s=2)
        return Refused("no_engine", "no engine can take this call now", retry_after_s=2)


def prepare(call: Call, asked: Asked, model: Model, pool: Pool, policy: Policy) -> tuple[Sending, bytes]:
    """Make what is sent for one model, and the header lines that say so to the client.

    These edits are the whole list of what Forebay changes in a request.
    """
    edits: dict[str, bytes | None] = {}
    explained = f"x-forebay-pool: {pool.name}\r\n"
    denied = ENGINES[pool.engine].denied_fields
    if not denied.isdisjoint(asked.members.values):
        edits = dict.fromkeys(sorted(denied.intersection(asked.members.values)))
        explained += f"x-forebay-stripped: {', '.join(edits)}\r\n"
    if model.name != call.model:
        explained += "x-forebay-degraded: fallback\r\n"
    name = model.upstream_model or model.name
    if name != asked.model and asked.model:
        edits["model"] = msgspec.json.encode(name)
    openai_stream = call.stream and call.endpoint.shape in _OPENAI_STREAMS
    # llama.cpp's last chunk carries the counts anyway, in `timings`.
    asks_usage = openai_stream and not call.wants_usage and pool.engine != "llamacpp"
    if asks_usage:
        edits["stream_options"] = splice.with_member(asked.members.text_of("stream_options"), "include_usage", b"true")
    sending = Sending(
        pool.name,
        splice.edit(asked.members, edits),
        model.timeouts,
        policy.stream,
        policy.limits.response_bytes,
        Rewriter(model.name, asks_usage),
        openai_stream,
        choices(asked) if openai_stream else 1,
    )
    return sending, explained.encode()
