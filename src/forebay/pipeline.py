"""THE REQUEST PATH, outermost first: read this file as the table of contents of the data plane.

A request comes from `edge`, whole. It gets a record (`recording`), a tenant (`identity`), a meaning
(`edge.body`, `understanding`), a permit (`admission`) that is held to the last byte, and tries on
replicas (`dispatch`: `routing` chooses, `upstream` relays inside transport callbacks). Whatever happens,
the permit is given back and the record is closed exactly once.
"""

import asyncio
import itertools
import logging
import secrets
from collections.abc import Coroutine
from typing import Any

from forebay.clock import Clock
from forebay.dispatch import Dispatcher, Ended
from forebay.domain import Outcome
from forebay.edge import body, ending, routes
from forebay.edge.local import LocalAnswers, cors_lines
from forebay.edge.reply import Reply
from forebay.errors import ForebayError, Refused
from forebay.identity.address import client_address
from forebay.identity.keys import identify
from forebay.policy import Policy, PolicyHolder
from forebay.ports import Gate, Permit
from forebay.recording.record import CallRecord, Recorder
from forebay.traffic import Call, Request
from forebay.understanding import request_id, understand
from forebay.wire.endpoints import Endpoint

log = logging.getLogger(__name__)


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

    def handle(self, request: Request, reply: Reply) -> Coroutine[Any, Any, None] | None:
        """Serve one request: answer what Forebay knows itself, and return the work of a call."""
        policy = self._policy.current
        if b"origin" in request.headers:
            reply.extra += cors_lines(request, policy)
        try:
            route = routes.find(request.method, request.path, internal=request.peer == "unix")
        except Refused as refusal:
            self._recorder.unrouted(refusal.code, refusal.status)
            ending.end_with_error(reply, refusal, "whole")
            return None
        if route.endpoint is not None:
            return self.serve(request, reply, route.endpoint, policy)
        self._local.answer(route, request, reply, policy)
        return None

    async def serve(self, request: Request, reply: Reply, endpoint: Endpoint, policy: Policy) -> None:
        """Serve one inference call; every error becomes an answer."""
        call_id = f"{self._run_id}-{next(self._sequence):x}"
        asked_id = request_id(request) or call_id
        address = client_address(request.peer, request.headers.get(b"x-forwarded-for"), policy.trusted_proxies)
        record = self._recorder.open(call_id, asked_id, endpoint.name, address)
        reply.extra += f"x-request-id: {asked_id}\r\nx-forebay-call-id: {call_id}\r\n".encode()
        permit: Permit | None = None
        try:
            tenant = identify(request, policy)
            asked = await body.read(request.body, endpoint, policy.limits.json_depth)
            call = understand(request, endpoint, asked, tenant, policy, call_id)
            record.identified(tenant.name, call.model, call.stream)
            record.input_estimate_tokens = call.prompt_tokens
            permit = await self._gate.acquire(call, policy.models[call.model].pool)
            record.queue_ms = (self._clock.now_s() - request.received_s) * 1000.0
            reply.timing = record.server_timing
            ended = await self._dispatcher.run(call, asked, policy, permit, reply, record)
            _close(ended, call, reply, record)
        except ForebayError as error:
            ending.end_with_error(reply, error, endpoint.shape)
            record.close(error.status, Outcome.REFUSED, error.code)
        except asyncio.CancelledError:
            record.close(499, Outcome.CLIENT_CLOSED)
            raise
        except Exception:
            # A bug in one call must not take the others down.
            log.exception("call %s failed inside Forebay", call_id)
            ending.end_with_error(reply, Refused("internal_error", "Forebay failed on this call"), endpoint.shape)
            record.close(500, Outcome.ENGINE_ERROR, "internal_error")
        finally:
            if permit is not None:
                used = record.settled_usage()
                permit.release(used.prompt_tokens + used.completion_tokens)


def _close(ended: Ended, call: Call, reply: Reply, record: CallRecord) -> None:
    """Give the client the end that the tries came to, and close the record with it."""
    outcome = ended.verdict.outcome
    if outcome is Outcome.OK and ended.model != call.model:
        outcome = Outcome.FALLBACK
        record.answered_by(ended.model)
        record.degraded("fallback")
    status, code = ending.conclude(ended.verdict, reply, call.endpoint)
    record.close(status, outcome, code)
