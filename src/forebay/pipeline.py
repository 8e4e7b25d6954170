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
from contextlib import suppress
from typing import Any

from forebay import cleaning
from forebay.admission.hygiene import is_clean
from forebay.degrading import Degrading
from forebay.dispatch import Dispatcher, Ended
from forebay.domain import Outcome
from forebay.edge import ending, routes
from forebay.edge.headers import explained
from forebay.edge.local import LocalAnswers, cors_lines
from forebay.edge.reply import Reply
from forebay.errors import ForebayError, Refused
from forebay.identity.address import client_address
from forebay.identity.keys import identify
from forebay.policy import Policy, PolicyHolder
from forebay.ports import Gate, Permit
from forebay.recording.record import CallRecord, Recorder
from forebay.traffic import Call, Request
from forebay.understanding import Understanding, request_id
from forebay.wire.endpoints import Endpoint

log = logging.getLogger(__name__)

_NO_ROOM = ("queue_full", "queue_timeout", "overloaded")


class Pipeline:
    """Serves requests; `handle` is the edge's handler.

    Attributes:
        run_id: what the ids of its calls begin with.
    """

    def __init__(  # noqa: PLR0913 - one for each step of the path
        self,
        policy: PolicyHolder,
        understanding: Understanding,
        gate: Gate,
        dispatcher: Dispatcher,
        recorder: Recorder,
        local: LocalAnswers,
        degrading: Degrading,
    ) -> None:
        self._policy = policy
        self._gate = gate
        self._dispatcher = dispatcher
        self._recorder = recorder
        self._local = local
        self._degrading = degrading
        self._understanding = understanding
        self.run_id = secrets.token_hex(5)
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

    async def serve(  # noqa: PLR0915 - the path, step by step, in one place
        self, request: Request, reply: Reply, endpoint: Endpoint, policy: Policy
    ) -> None:
        """Serve one inference call; every error becomes an answer."""
        call_id = f"{self.run_id}-{next(self._sequence):x}"
        asked_id = request_id(request) or call_id
        address = client_address(request.peer, request.headers.get(b"x-forwarded-for"), policy.trusted_proxies)
        record = self._recorder.open(call_id, asked_id, endpoint.name, address)
        reply.extra += f"x-request-id: {asked_id}\r\nx-forebay-call-id: {call_id}\r\n".encode()
        permit: Permit | None = None
        call: Call | None = None
        try:
            tenant = identify(request, policy)
            asked = await cleaning.read(request, endpoint, policy)
            call = self._understanding.call(request, endpoint, asked, tenant, policy, call_id)
            if call.doubtful:
                call = await self._understanding.exact(call, request, asked, policy)
            record.understood(call)
            if not is_clean(request.body):
                asked = await cleaning.cleaned(request, asked, call, policy, record)
            call = self._degrading.placed(call, policy, reply, record)
            permit = self._gate.at_once(call, policy.models[call.model].pool) or await self._let_in(call, policy)
            reply.extra += explained(request, call, permit)
            record.admitted(request.received_s)
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
            if permit is not None and call is not None:
                used = record.settled_usage()
                model = policy.models[record.model]
                permit.release(self._understanding.learn(call, model, used, complete=record.complete))

    async def _let_in(self, call: Call, policy: Policy) -> Permit:
        """Wait for a permit on the model's pool, else on the pools of its fallbacks."""
        model = policy.models[call.model]
        try:
            return await self._gate.acquire(call, model.pool)
        except Refused as refusal:
            if refusal.code in _NO_ROOM:
                for name in model.fallback:
                    with suppress(Refused):
                        return await self._gate.acquire(call, policy.models[name].pool)
            raise


def _close(ended: Ended, call: Call, reply: Reply, record: CallRecord) -> None:
    """Give the client the end that the tries came to, and close the record with it."""
    outcome = ended.verdict.outcome
    if outcome is Outcome.OK and ended.model != call.model:
        outcome = Outcome.FALLBACK
        record.answered_by(ended.model)
        record.degraded("fallback")
    status, code = ending.conclude(ended.verdict, reply, call.endpoint)
    record.close(status, outcome, code)
