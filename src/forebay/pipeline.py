"""THE REQUEST PATH, outermost first: read this file as the table of contents of the data plane.

A request comes from `edge`, whole. It gets a record (`recording`), a tenant (`identity`), a meaning
(`edge.body`, `understanding`), a place (`placing`: a permit of `admission`, held to the last byte), and tries on
replicas (`dispatch`: `routing` chooses, `upstream` relays inside transport callbacks). Whatever happens,
the permit is given back and the record is closed exactly once.
"""

import asyncio
import itertools
import logging
import secrets
from collections.abc import Coroutine
from typing import Any

from forebay import cleaning
from forebay.admission.hygiene import is_clean
from forebay.dispatch import Dispatcher, Ended
from forebay.domain import Outcome
from forebay.edge import ending, routes
from forebay.edge.body import read_small
from forebay.edge.headers import explained
from forebay.edge.local import LocalAnswers, cors_lines
from forebay.edge.reply import Reply as ClientReply
from forebay.errors import ForebayError, Refused
from forebay.identity.address import client_address
from forebay.identity.keys import identify
from forebay.joining import KEY
from forebay.placing import Placing
from forebay.policy import Model, Policy, PolicyHolder
from forebay.ports import Permit, Reply
from forebay.recording.record import CallRecord, Recorder
from forebay.traffic import Call, Request
from forebay.understanding import Understanding, request_id
from forebay.wire.endpoints import Endpoint

log = logging.getLogger(__name__)


class Pipeline:
    """Serves requests; `handle` is the edge's handler.

    Attributes:
        run_id: what the ids of its calls begin with.
    """

    def __init__(
        self,
        policy: PolicyHolder,
        understanding: Understanding,
        placing: Placing,
        dispatcher: Dispatcher,
        recorder: Recorder,
        local: LocalAnswers,
    ) -> None:
        self._policy = policy
        self._placing = placing
        self._joining = placing.joining
        self._dispatcher = dispatcher
        self._recorder = recorder
        self._local = local
        self._understanding = understanding
        self.run_id = secrets.token_hex(5)
        self._sequence = itertools.count(1)

    def handle(self, request: Request, reply: ClientReply) -> Coroutine[Any, Any, None] | None:
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
        return self._local.answer(route, request, reply, policy)

    # Long, because the path is to be seen step by step in one place.
    async def serve(self, request: Request, own: Reply, endpoint: Endpoint, policy: Policy) -> None:  # noqa: PLR0915
        """Serve one inference call; every error becomes an answer."""
        call_id = f"{self.run_id}-{next(self._sequence):x}"
        asked_id = request_id(request) or call_id
        address = client_address(request.peer, request.headers.get(b"x-forwarded-for"), policy.trusted_proxies)
        record = self._recorder.open(call_id, asked_id, endpoint.name, address)
        own.extra += f"x-request-id: {asked_id}\r\nx-forebay-call-id: {call_id}\r\n".encode()
        reply, joins = own, policy.single_flight or KEY in request.headers
        permit: Permit | None = None
        call: Call | None = None
        try:
            tenant = identify(request, policy)
            asked = read_small(request.body, endpoint, policy.limits.json_depth)
            asked = asked or await cleaning.read(request, endpoint, policy)
            if b"x-forebay-resume" in request.headers:
                request, asked = self._placing.resuming.read(request, asked, endpoint, tenant, own)
            call = self._understanding.call(request, endpoint, asked, tenant, policy, call_id)
            if call.doubtful:
                call = await self._understanding.exact(call, request, asked, policy)
            record.understood(call)
            if joins:
                shared = await self._joining.enter(request, call, own, record, policy)
                if shared is None:
                    return
                reply = shared
            if not is_clean(request.body):
                asked = await cleaning.cleaned(request, asked, call, policy, record)
            call, asked = self._placing.placed(call, asked, policy, reply, record)
            permit = self._placing.at_once(call, policy) or await self._placing.let_in(call, policy)
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
                self._settle(call, permit, policy.models[record.model], record)
            self._joining.leave(record)

    def _settle(self, call: Call, permit: Permit, model: Model, record: CallRecord) -> None:
        """Give a permit back with what its call really took."""
        permit.release(self._understanding.learn(call, model, record.settled_usage(), complete=record.complete))


def _close(ended: Ended, call: Call, reply: Reply, record: CallRecord) -> None:
    """Give the client the end that the tries came to, and close the record with it."""
    outcome = ended.verdict.outcome
    if outcome is Outcome.OK and ended.model != call.model:
        outcome = Outcome.FALLBACK
        record.answered_by(ended.model)
        record.degraded("fallback")
    status, code = ending.conclude(ended.verdict, reply, call.endpoint)
    record.close(status, outcome, code)
