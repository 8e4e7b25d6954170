"""Clients that come back, without a network: what is read of a request, how the call is placed, what is offered."""

import asyncio
import hashlib
import json
import sys
from typing import Any

import pytest
from recording.scrape import policy as policy_of
from recording.test_record import Lines
from resume.before_office import Node, mark
from upstream.engine_side import FakeReply, sending_of

from forebay import cleaning
from forebay.clock import ManualClock
from forebay.continuing import _ping
from forebay.domain import Outcome, Tenant, Usage
from forebay.edge.body import Asked
from forebay.errors import Refused
from forebay.recording.metrics import Metrics
from forebay.recording.record import CallRecord, Recorder
from forebay.resume import extra
from forebay.resuming import OFFERED, Resuming
from forebay.traffic import Call, Request, changed
from forebay.upstream.continuation.reasons import Reason
from forebay.upstream.continuation.shapes import Plan
from forebay.upstream.continuation.thread import Thread
from forebay.upstream.continuation.told import Finish, Leg
from forebay.upstream.relay import PING, QUIET_PING
from forebay.wire.endpoints import BY_PATH
from forebay.wire.resumed import Shown

CHAT = BY_PATH["/v1/chat/completions"]
TENANT = Tenant("a")
BODY = {"model": "m", "stream": True, "max_tokens": 50, "messages": [{"role": "user", "content": "hi"}]}
PLAN = Plan("vllm", "chat", exact=True, text=True, collects_ids=True)


def request_of(body: Any, **headers: str) -> Request:
    lines = {name.replace("_", "-").encode(): value.encode() for name, value in headers.items()}
    text = json.dumps(body).encode()
    return Request(b"POST", b"/v1/chat/completions", b"", lines, frozenset(), text, "127.0.0.1", 0.0)


class World:
    """One node, and what a request becomes on it."""

    def __init__(self, *, without: bool = False) -> None:
        self.node = Node()
        self.resuming = Resuming(None if without else self.node.office)
        self.reply: Any = FakeReply()

    def read(self, body: Any, **headers: str) -> tuple[Request, Asked]:
        request = request_of(body, **{"x_forebay_resume": "1", "authorization": "Bearer key"} | headers)
        asked = asyncio.run(cleaning.read(request, CHAT, policy_of()))
        return self.resuming.read(request, asked, CHAT, TENANT, self.reply)

    def token(self, text: str) -> str:
        _, asked = self.read(BODY)
        assert asked.claim is not None and asked.shown is None
        stamp = self.node.office.stamp(asked.claim, Shown(b"", "first", "m", "", limit_tokens=50))
        token = stamp.after(mark(text, 2, prompt_tokens=9))
        assert token
        return token.decode()

    def back(self, text: str = "hello") -> tuple[Request, Asked]:
        return self.read(BODY | {"forebay_received": text}, last_event_id=self.token(text))


def code_of(world: World, body: Any, **headers: str) -> str:
    with pytest.raises(Refused) as caught:
        world.read(body, **headers)
    return caught.value.code


def test_a_request_comes_back_as_it_was_sent_first() -> None:
    world = World()
    first, _ = world.read(BODY)
    request, asked = world.back()
    assert json.loads(request.body) == BODY == json.loads(asked.members.raw)
    assert first.body == request.body
    assert asked.shown is not None and (asked.shown.text, asked.shown.call_id) == ("hello", "first")


def test_whoever_has_not_said_1_has_not_asked() -> None:
    world = World()
    _, asked = world.read(BODY, x_forebay_resume="yes")
    assert asked.claim is None and world.reply.extra == b""


def test_what_is_refused() -> None:
    world = World()
    assert code_of(world, BODY | {"forebay_received": "hello"}) == "resume_invalid"
    assert code_of(world, BODY | {"forebay_received": 1}) == "invalid_value"
    assert code_of(world, BODY, last_event_id="1") == "resume_invalid"
    large = BODY | {"forebay_received": "x" * 1_048_577}
    assert code_of(world, large, last_event_id=world.token("hello")) == "resume_mismatch"
    assert code_of(world, BODY | {"pad": "x" * 1_048_576}, last_event_id=world.token("hello")) == "resume_mismatch"


def test_an_empty_text_may_always_be_sent() -> None:
    request, asked = World().read(BODY | {"forebay_received": ""})
    assert json.loads(request.body) == BODY and asked.claim is not None


def test_without_the_extra_it_is_said_or_refused() -> None:
    world = World(without=True)
    _, asked = world.read(BODY)
    assert asked.claim is None and world.reply.extra == b"x-forebay-resume: 0; reason=not_installed\r\n"
    assert code_of(world, BODY, last_event_id="1") == "resume_unavailable"


def call_of(asked: Asked, **more: Any) -> Call:
    call = Call("c2", CHAT, "m", True, True, TENANT, 10, 40, (), 0.0, 600.0)
    return changed(call, max_tokens=20, bound_tokens=20, claim=asked.claim, shown=asked.shown, **more)


def record_of() -> CallRecord:
    clock = ManualClock()
    metrics = Metrics(clock)
    metrics.apply(policy_of())
    return Recorder(clock, Lines(), metrics).open("c2", "r2", "chat", "10.0.0.1")


def test_a_call_that_goes_on_has_what_is_left() -> None:
    world = World()
    _, asked = world.back()
    assert asked.shown is not None
    record = record_of()
    call = world.resuming.placed(call_of(asked), asked.shown, policy_of(), record)
    assert (call.max_tokens, call.bound_tokens, call.prompt_tokens, call.output_tokens) == (50, 48, 12, 38)
    assert call.resumed and call.work.features == () and call.work.kin == ()
    assert (record.row.resumed_from, record.row.resumed_tokens) == ("first", 11)


def test_the_row_of_a_call_that_goes_on_has_the_rest_alone() -> None:
    record = record_of()
    record.resumed("first", Usage(9, 2))
    record.dispatched("main", "h:1")
    record.usage = Usage(9, 7, 4)
    record.close(200, Outcome.OK)
    row = record.row
    assert (row.input_length, row.output_length, row.total_tokens, row.cached_tokens) == (0, 5, 5, None)
    assert record.settled_usage() == Usage(0, 5)


def test_one_that_breaks_off_counts_what_it_sent() -> None:
    record = record_of()
    record.resumed("first", Usage(9, 2))
    record.dispatched("main", "h:1")
    record.output_events = 3
    record.close(499, Outcome.CLIENT_CLOSED)
    assert (record.row.input_length, record.row.output_length) == (0, 3)


def test_the_model_must_be_there() -> None:
    world = World()
    _, asked = world.back()
    assert asked.shown is not None
    gone = Shown(b"leg", "first", "gone", "hello")
    with pytest.raises(Refused, match="gone"):
        world.resuming.placed(call_of(asked), gone, policy_of(), record_of())


def test_what_is_offered() -> None:
    world = World()
    _, asked = world.read(BODY)
    claim = asked.claim
    assert claim is not None
    call, bare = call_of(asked), sending_of()
    followed = changed(bare, thread=Thread(PLAN, "chat"))
    assert world.resuming.offer(call, claim, bare, Reason.LOGPROBS) == b"x-forebay-resume: 0; reason=logprobs\r\n"
    assert world.resuming.offer(call, claim, followed, Reason.NO_IDS) == OFFERED
    assert followed.thread is not None and followed.thread.stamp is not None
    by_ids = changed(bare, thread=Thread(Plan("vllm", "chat", exact=True, text=False, collects_ids=True), "chat"))
    assert b"prompt_form" in world.resuming.offer(call, claim, by_ids, Reason.NO_IDS)
    cut = changed(call, notice="The beginning was left out.")
    assert b"degraded" in world.resuming.offer(cut, claim, followed, Reason.NO_IDS)


def rejoined(world: World, shown: Shown) -> Leg | Finish:
    sending = changed(sending_of(), body=json.dumps(BODY).encode(), thread=Thread(PLAN, "chat"))
    call = changed(call_of(world.read(BODY)[1]), shown=shown)
    return world.resuming.rejoin(call, shown, sending)


def test_it_goes_on_from_the_text_once() -> None:
    world = World()
    shown = Shown(hashlib.md5(b"leg").digest(), "first", "m", "hello", tokens=2)
    leg = rejoined(world, shown)
    assert isinstance(leg, Leg) and json.loads(leg.body)["messages"][-1]["content"] == "hello"
    with pytest.raises(Refused, match="already"):
        rejoined(world, shown)
    world.resuming.give_back(shown)
    assert isinstance(rejoined(world, shown), Leg)
    assert world.resuming.resumed == {"text": 2, "end": 0}


@pytest.mark.parametrize(("usage", "wants"), [(False, True), (True, False)])
def test_of_a_complete_text_the_end_is_left(usage: bool, wants: bool) -> None:
    world = World()
    end = rejoined(world, Shown(b"leg", "first", "m", "hello", tokens=2, prompt_tokens=9, finished="stop", usage=usage))
    assert isinstance(end, Finish) and (end.usage.prompt_tokens, end.usage.completion_tokens) == (9, 2)
    assert end.wants_usage == wants
    assert world.resuming.resumed == {"text": 0, "end": 1}


def test_behind_ids_a_comment_has_no_empty_line() -> None:
    """openai-python takes the empty line for the end of an event without data, once it has seen an id (case 005)."""
    reply: Any = FakeReply()
    reply.head(200, (), None)
    sending = changed(sending_of(), thread=Thread(PLAN, "chat"))
    _ping(sending, reply)
    assert sending.thread is not None
    sending.thread.stamp = Node().stamp()
    _ping(sending, reply)
    assert reply.writes == [PING, QUIET_PING] and QUIET_PING.count(b"\n") == 1


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert extra.missing() == ""
    for name in [name for name in sys.modules if name.startswith("forebay.resume.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography.exceptions", None)
    assert "forebay[resume]" in extra.missing() and "cryptography" in extra.missing()
