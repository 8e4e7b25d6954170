"""What crosses arrives as it was sent, and says nothing of a prompt."""

from admission.before_gate import call

from forebay.crossing import messages
from forebay.crossing.messages import FORMAT, Ask, Granted, HeldLease, HeldPermit, Joined, Place, need_of
from forebay.domain import Tenant
from forebay.traffic import changed


def test_a_call_arrives_with_all_that_the_gate_decides_by() -> None:
    tenant = Tenant("t", concurrency=3, tokens_per_minute=7, money=1.5, high_share_ratio=0.5)
    sent = call(tenant, tokens=40, output=9, value="high", deadline_s=77.5)
    ask = messages.from_worker(messages.encode(Ask(5, "main", need_of(sent))))
    assert isinstance(ask, Ask) and ask.id == 5
    came = messages.call_of(ask.need)
    assert came.tenant == tenant
    for name in ("call_id", "model", "stream", "prompt_tokens", "output_tokens", "value", "deadline_s", "bound_tokens"):
        assert getattr(came, name) == getattr(sent, name), name
    work = came.work
    assert (work.prompt_tokens, work.output_tokens, work.likely_output_tokens, work.blocks) == (40, 9, 9, ())


def test_announcements_and_grants() -> None:
    need = need_of(call())
    joined = Joined(FORMAT, 1, 99, (HeldPermit(3, "main", need),), (HeldLease(3, "main", "r0", need, 8, 1.5, True),))
    assert messages.from_worker(messages.encode(joined)) == joined
    for granted in (Granted(1, Place(2, 30, 1.25), "low"), Granted(1, None, "medium")):
        assert messages.from_gate(messages.encode(granted)) == granted


def test_a_request_is_few_bytes() -> None:
    assert len(messages.encode(Ask(123_456, "main", need_of(call(Tenant("a-tenant")))))) < 120


def test_the_gate_knows_a_call_that_goes_on() -> None:
    assert messages.call_of(need_of(changed(call(), resumed=True))).resumed
    assert not messages.call_of(need_of(call())).resumed
