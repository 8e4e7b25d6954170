"""Answers that their clients may come back for, and clients that do (docs/resume.md): where the rooms meet for it."""

from hashlib import sha256
from typing import TYPE_CHECKING, Final

import msgspec

from forebay.admission.spending import price_of
from forebay.domain import Tenant, Usage
from forebay.edge.body import Asked
from forebay.errors import Refused
from forebay.identity.keys import key_of
from forebay.policy import Policy
from forebay.ports import Reply
from forebay.recording.record import CallRecord
from forebay.traffic import Call, Request, changed
from forebay.upstream.continuation.reasons import Reason
from forebay.upstream.continuation.resume import usage_so_far
from forebay.upstream.continuation.shapes import MAX_BODY_BYTES
from forebay.upstream.continuation.told import Finish, Head, Leg, Told
from forebay.upstream.continuation.transcript import MAX_TEXT_BYTES
from forebay.upstream.deadlines import Sending
from forebay.wire import splice
from forebay.wire.endpoints import Endpoint
from forebay.wire.members import read_members
from forebay.wire.resumed import Asking, Claim, Shown

if TYPE_CHECKING:
    from forebay.resume.office import Office

RECEIVED: Final = "forebay_received"
OFFERED: Final = b"x-forebay-resume: 1\r\n"
_REQUEST: Final = b"x-forebay-resume"
_TOKEN: Final = b"last-event-id"
_OBJECTS: Final = {"chat": b'"chat.completion.chunk"', "completions": b'"text_completion"'}
_NO_CLAIM: Final = Claim(b"", b"")

_as_text = msgspec.json.Decoder(str).decode


def refused_offer(reason: str) -> bytes:
    """Return the header line of an answer that its client cannot come back for."""
    return b"x-forebay-resume: 0; reason=%b\r\n" % reason.encode()


class Resuming:
    """Takes back what clients bring, and hands out what they may come back with; follows the policy.

    Args:
        office: seals and opens tokens; None without the extra.

    Attributes:
        resumed: answers that clients have come back for, by what was left of them: `text` or `end`.
    """

    def __init__(self, office: "Office | None") -> None:
        self._office = office
        self.resumed: dict[str, int] = {"text": 0, "end": 0}

    def apply(self, policy: Policy) -> None:
        """Follow a new policy."""
        if self._office is not None:
            self._office.apply(policy)

    def read(
        self, request: Request, asked: Asked, endpoint: Endpoint, tenant: Tenant, reply: Reply
    ) -> tuple[Request, Asked]:
        """Read what a client says that wants to be able to come back, or comes back; return the request without it.

        Raises:
            Refused: `resume_unavailable`, `resume_invalid`, `resume_mismatch`, `resume_expired`, `resume_used`,
                `invalid_value`.
        """
        if request.headers[_REQUEST] != b"1":
            return request, asked
        token = request.headers.get(_TOKEN, b"")
        if self._office is None:
            if token:
                raise Refused("resume_unavailable", "answers cannot be resumed here: forebay[resume] is not installed")
            reply.extra += refused_offer("not_installed")
            return request, asked
        request, asked, text = _without_received(request, asked)
        if not token:
            if text:
                raise Refused("resume_invalid", f"{RECEIVED} needs Last-Event-ID", param=RECEIVED)
            # A larger one is not kept, so that the answer to it cannot go on, which `offer` will say.
            large = len(asked.members.raw) > MAX_BODY_BYTES
            claim = _NO_CLAIM if large else self._office.claim(_asking(request, asked, endpoint, tenant))
            return request, changed(asked, claim=claim)
        if len(asked.members.raw) > MAX_BODY_BYTES or len(text) > MAX_TEXT_BYTES:
            raise Refused("resume_mismatch", f"the body or {RECEIVED} is too large for an answer that goes on")
        asking = _asking(request, asked, endpoint, tenant)
        shown = self._office.open(token, asking, text)
        return request, changed(asked, claim=self._office.claim(asking), shown=shown)

    def placed(self, call: Call, shown: Shown, policy: Policy, record: CallRecord) -> Call:
        """Return a call that goes on with an answer as it is served: by the same model, with what is left of its limit.

        Raises:
            Refused: `resume_mismatch`: the model is gone.
        """
        model = policy.models.get(shown.served)
        if model is None:
            raise Refused("resume_mismatch", "the model that began this answer is gone; send the request anew")
        record.resumed(shown.call_id, Usage(shown.prompt_tokens or call.prompt_tokens, shown.tokens))
        if model.name != call.model:
            record.answered_by(model.name)
        bound = call.bound_tokens if shown.limit_tokens is None else shown.limit_tokens
        left_tokens = max(0, bound - shown.tokens)
        return changed(
            call,
            model=model.name,
            max_tokens=shown.limit_tokens,
            prompt_tokens=call.prompt_tokens + shown.tokens,
            output_tokens=max(1, call.output_tokens - shown.tokens),
            bound_tokens=left_tokens,
            resumed=True,
            moved=True,
            money=0.0 if model.price is None else price_of(model.price, 0, None, left_tokens),
            # What a part of an answer takes teaches nothing about whole ones.
            work=changed(call.work, features=(), kin=()),
        )

    def offer(self, call: Call, claim: Claim, sending: Sending, reason: Reason) -> bytes:
        """Let a client come back for an answer that is about to begin; return the header line that says so.

        Args:
            call: whose answer it is.
            claim: of the call.
            sending: has a thread if the answer could go on.
            reason: why it could not, where it has none.
        """
        thread = sending.thread
        if call.notice:
            # Another node would not cut the history, and not end the answer with the notice.
            return refused_offer("degraded")
        if self._office is None or thread is None:
            return refused_offer(reason)
        if not thread.plan.text:
            return refused_offer(Reason.PROMPT_FORM)
        model = sending.rewriter.model
        begun = call.shown or Shown(b"", call.call_id, model, "", limit_tokens=call.max_tokens)
        thread.stamp = self._office.stamp(claim, begun)
        return OFFERED

    def rejoin(self, call: Call, shown: Shown, sending: Sending) -> Leg | Finish:
        """Return the request for the rest of an answer, or its end when nothing is left to say; the token is used.

        Raises:
            Refused: `resume_used`; `resume_mismatch`: it cannot go on here.
        """
        thread, office = sending.thread, self._office
        if thread is None or office is None:
            raise Refused("resume_mismatch", "the engines here cannot go on with this answer; send the request anew")
        leg = thread.resume(_told(shown, call.endpoint), sending.body)
        if leg is None:
            raise Refused("resume_mismatch", f"the answer cannot go on ({thread.given_up}); send the request anew")
        office.take(shown)
        if shown.finished:
            usage = usage_so_far(thread.told)
            leg = Finish("stop", usage, call.wants_usage and not shown.usage)
        self.resumed["end" if isinstance(leg, Finish) else "text"] += 1
        return leg

    def give_back(self, shown: Shown) -> None:
        """Let a client use its token once more: nothing came of it."""
        if self._office is not None:
            self._office.used.give_back(shown.leg)


def _without_received(request: Request, asked: Asked) -> tuple[Request, Asked, str]:
    """Take the text that the client has received out of a request: nobody else is to see it.

    Raises:
        Refused: `invalid_value`.
    """
    raw = asked.members.values.get(RECEIVED)
    if raw is None:
        return request, asked, ""
    try:
        text = _as_text(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Refused("invalid_value", f"{RECEIVED} must be a string", param=RECEIVED) from None
    body = splice.edit(asked.members, {RECEIVED: None})
    return changed(request, body=body), changed(asked, members=read_members(body)), text


def _asking(request: Request, asked: Asked, endpoint: Endpoint, tenant: Tenant) -> Asking:
    return Asking(tenant.name, sha256(key_of(request)).digest(), endpoint.name, asked.members.values)


def _told(shown: Shown, endpoint: Endpoint) -> Told:
    """Return what a client has as if this process had told it."""
    recent: list[str] = []
    end = len(shown.text)
    for chars in reversed(shown.recent_chars):
        recent.append(shown.text[max(0, end - chars) : end])
        end = max(0, end - chars)
    return Told(
        shown.text,
        tokens=shown.tokens,
        counted=shown.counted,
        recent=tuple(reversed(recent)),
        prompt_tokens=shown.prompt_tokens,
        cached_tokens=shown.cached_tokens,
        head=Head(shown.id, _OBJECTS.get(endpoint.shape, b""), shown.created, shown.model, shown.fingerprint),
    )
