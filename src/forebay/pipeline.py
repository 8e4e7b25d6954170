"""THE REQUEST PATH, outermost first: read this file as the table of contents of the data plane.

A request comes from `edge`, whole. It gets a record (`recording`), a tenant (`identity`), a meaning
(`edge.body`), a permit (`admission`) that is held to the last byte, and tries on replicas (`dispatch`:
`routing` chooses, `upstream` relays inside transport callbacks). Whatever happens, the permit is given
back and the record is closed exactly once.
"""

import asyncio
import itertools
import logging
import secrets

from forebay.admission import work
from forebay.clock import Clock
from forebay.dispatch import Dispatcher, Ended
from forebay.domain import FailureKind, Outcome, Tenant, Usage
from forebay.edge import body, ending, routes
from forebay.edge.body import Asked
from forebay.edge.local import LocalAnswers, cors_lines
from forebay.edge.reply import Reply
from forebay.engines.registry import ENGINES
from forebay.errors import ForebayError, Refused
from forebay.identity.address import client_address
from forebay.identity.keys import identify
from forebay.policy import Policy, PolicyHolder
from forebay.ports import Call, Gate, Permit, Request
from forebay.recording.record import CallRecord, Recorder
from forebay.wire.endpoints import Endpoint

log = logging.getLogger(__name__)

# What engines may see of a client's headers: a closed list, so that no credential, cookie or header that
# steers an engine (priority, data-parallel rank, session) can pass.
FORWARDED = (
    b"accept", b"user-agent", b"traceparent", b"tracestate", b"anthropic-version", b"anthropic-beta",
)  # fmt: skip


class Pipeline:
    """Serves requests; `handle` is the edge's handler."""

    def __init__(
        self,
        clock: Clock,
        policy: PolicyHolder,
        gate: Gate,
        dispatcher: Dispatcher,
        recorder: Recorder,
        local: LocalAnswers,
    ) -> None:
        self._clock = clock
        self._policy = policy
        self._gate = gate
        self._dispatcher = dispatcher
        self._recorder = recorder
        self._local = local
        self._run_id = secrets.token_hex(5)
        self._sequence = itertools.count(1)

    async def handle(self, request: Request, reply: Reply) -> None:
        """Serve one request; every error becomes an answer."""
        policy = self._policy.current
        if b"origin" in request.headers:
            reply.extra += cors_lines(request, policy)
        try:
            route = routes.find(request.method, request.path, internal=request.peer == "unix")
        except Refused as refusal:
            self._recorder.unrouted(refusal.code, refusal.status)
            ending.end_with_error(reply, refusal, "whole")
            return
        if route.endpoint is None:
            self._local.answer(route, request, reply, policy)
        else:
            await self.serve(request, reply, route.endpoint, policy)

    async def serve(self, request: Request, reply: Reply, endpoint: Endpoint, policy: Policy) -> None:
        """Serve one inference call."""
        call_id = f"{self._run_id}-{next(self._sequence):x}"
        request_id = _request_id(request) or call_id
        address = client_address(request.peer, request.headers.get(b"x-forwarded-for"), policy.trusted_proxies)
        record = self._recorder.open(call_id, request_id, endpoint.name, address)
        reply.extra += f"x-request-id: {request_id}\r\nx-forebay-call-id: {call_id}\r\n".encode()
        permit: Permit | None = None
        try:
            tenant = identify(request, policy)
            asked = body.read(request.body, endpoint, policy.limits.json_depth)
            call = _understand(request, endpoint, asked, tenant, policy, call_id)
            record.identified(tenant.name, call.model, call.stream)
            record.input_estimate_tokens = call.prompt_tokens
            pool = policy.models[call.model].pool
            permit = await self._gate.acquire(call, pool)
            record.queue_ms = (self._clock.now_s() - request.received_s) * 1000.0
            reply.timing = record.server_timing
            ended = await self._dispatcher.run(call, asked, policy, permit, reply, record)
            _conclude(ended, call, reply, record)
        except ForebayError as error:
            record.refused(error.code)
            record.close(error.status, Outcome.REFUSED, error.code)
            ending.end_with_error(reply, error, endpoint.shape)
        except asyncio.CancelledError:
            record.close(499, Outcome.CLIENT_CLOSED)
            raise
        except Exception:
            log.exception("call %s failed inside Forebay", call_id)
            record.close(500, Outcome.ENGINE_ERROR, "internal_error")
            ending.end_with_error(reply, Refused("internal_error", "Forebay failed on this call"), endpoint.shape)
        finally:
            if permit is not None:
                permit.release(_used_tokens(record))


def _understand(
    request: Request, endpoint: Endpoint, asked: Asked, tenant: Tenant, policy: Policy, call_id: str
) -> Call:
    """Turn a request into a call: the model must exist and be allowed."""
    name = asked.model
    if not name and endpoint.name in ("tokenize", "detokenize") and len(policy.models) == 1:
        name = next(iter(policy.models))
    if not name:
        raise Refused("missing_value", "model is required", param="model")
    model = policy.models.get(name)
    if model is None:
        raise Refused("model_not_found", f"there is no model {name[:128]!r}", param="model")
    if tenant.models is not None and name not in tenant.models:
        raise Refused("model_not_allowed", f"this key may not use the model {name[:128]!r}", param="model")
    engine = ENGINES[policy.pools[model.pool].engine]
    if endpoint.name not in engine.endpoints:
        raise Refused("endpoint_not_supported", f"the engine of this model ({engine.kind}) has no {endpoint.path}")
    headers = request.headers
    return Call(
        call_id=call_id,
        endpoint=endpoint,
        model=name,
        stream=asked.stream,
        wants_usage=asked.wants_usage,
        tenant=tenant,
        prompt_tokens=work.estimate_prompt_tokens(len(request.body)),
        output_tokens=work.expected_output_tokens(asked.max_tokens) if endpoint.streams else 0,
        headers=tuple([(key, headers[key]) for key in FORWARDED if key in headers]),
        received_s=request.received_s,
        deadline_s=request.received_s + model.timeouts.total_s,
    )


def _conclude(ended: Ended, call: Call, reply: Reply, record: CallRecord) -> None:
    """Give the client the end that the tries came to, and close the record with it."""
    verdict = ended.verdict
    outcome, failure = verdict.outcome, verdict.failure
    if outcome is Outcome.OK and ended.model.name != call.model:
        outcome = Outcome.FALLBACK
        record.answered_by(ended.model.name)
        record.degraded("fallback")
    if outcome in (Outcome.OK, Outcome.FALLBACK):
        record.close(reply.status, outcome)
    elif failure is None:
        record.close(499, outcome)
    elif verdict.answer is not None and not _hides(failure, verdict.answer.status):
        ending.end_with_answer(reply, verdict, verdict.answer, call.endpoint.shape)
        record.close(reply.status, outcome, "engine_failed")
    else:
        if verdict.answer is not None:
            failure = FailureKind.CREDENTIAL
        error = ending.error_of(failure, verdict.message)
        ending.end_with_error(reply, error, call.endpoint.shape)
        record.close(reply.status, outcome, error.code)


def _hides(failure: FailureKind, status: int) -> bool:
    """Say whether an engine's answer is about our credential, which is not the caller's business."""
    return failure is FailureKind.STATUS and status in (401, 403)


def _request_id(request: Request) -> str:
    """Return the client's request id if it is 1-128 visible ASCII characters."""
    raw = request.headers.get(b"x-request-id", b"")
    if 0 < len(raw) <= 128 and raw.isascii() and raw.decode("ascii").isprintable() and b" " not in raw:
        return raw.decode("ascii")
    return ""


def _used_tokens(record: CallRecord) -> int | None:
    usage: Usage | None = record.settled_usage()
    return None if usage is None else usage.prompt_tokens + usage.completion_tokens
