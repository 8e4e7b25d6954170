"""A later leg in the relay, and the first one of an answer that may need one."""

import json

from notation import DONE, STOP, USAGE, D
from upstream.engine_side import HEAD, FakeRecord, FakeReply, Line, Promise, call_of, sending_of

from forebay.domain import FailureKind, Outcome
from forebay.traffic import changed
from forebay.upstream.continuation.shapes import Plan
from forebay.upstream.continuation.thread import Thread
from forebay.upstream.relay import Relay

PLAN = Plan("llamacpp", "chat", exact=False, text=True, collects_ids=False)
BODY = json.dumps({"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}]}).encode()


class Leg:
    """One leg of an answer, on a line of its own."""

    def __init__(self, reply: FakeReply, thread: Thread) -> None:
        self.line = Line()
        self.reply, self.promise = reply, Promise()
        sending = changed(sending_of(), body=BODY, thread=thread, plan=PLAN)
        self.relay = Relay(call_of(), sending, reply, FakeRecord(), self.line.clock)  # type: ignore[arg-type]
        self.relay.verdict = self.promise  # type: ignore[assignment]
        self.relay.begin(self.line.connection, b"request")

    def events(self, *payloads: bytes) -> None:
        self.line.feed(HEAD, *(b"%x\r\n%b\r\n" % (len(payload), payload) for payload in payloads))

    def finish(self) -> Outcome:
        self.line.feed(b"0\r\n\r\n")
        return self.promise.verdicts[0].outcome


def test_usage_without_an_end_is_not_passed_on() -> None:
    reply, thread = FakeReply(), Thread(PLAN, "chat")
    first = Leg(reply, thread)
    first.events(D("a"), USAGE(2, 1), DONE)
    assert first.finish() is Outcome.TRUNCATED
    assert b"usage" not in reply.body and b"[DONE]" not in reply.body
    assert thread.next(BODY, FailureKind.TRUNCATED, refused=False, overflow=False) is not None
    second = Leg(reply, thread)
    second.events(D("b"), STOP, USAGE(3, 1), DONE)
    assert second.finish() is Outcome.OK
    assert reply.body.count(b'"usage":{') == reply.body.count(b"[DONE]") == 1


def test_usage_before_the_end_comes_behind_it() -> None:
    reply = FakeReply()
    leg = Leg(reply, Thread(PLAN, "chat"))
    leg.events(D("a"), USAGE(2, 1), STOP, DONE)
    assert leg.finish() is Outcome.OK
    assert reply.body.index(b'"finish_reason":"stop"') < reply.body.index(b'"usage":{') < reply.body.index(b"[DONE]")


def test_a_leg_begins_slowly_for_a_client_that_is_full() -> None:
    reply, thread = FakeReply(), Thread(PLAN, "chat")
    first = Leg(reply, thread)
    first.events(D("a"))
    reply.blocked = True
    first.relay.client_ready(False)
    first.line.lose()
    assert thread.next(BODY, FailureKind.RESET, refused=False, overflow=False) is not None
    second = Leg(reply, thread)
    assert not second.line.transport.reading, "it would be read as fast as the engine is"
    second.relay.client_ready(True)
    assert second.line.transport.reading


def test_what_cannot_be_joined_is_no_fault_of_the_engine() -> None:
    thread = Thread(PLAN, "chat")
    reply = FakeReply()
    first = Leg(reply, thread)
    first.events(D("a long beginning of an answer"))
    first.line.lose()
    assert not thread.at_seam
    assert thread.next(BODY, FailureKind.RESET, refused=False, overflow=False) is not None
    second = Leg(reply, thread)
    second.events(D("\ufffd"))
    assert second.promise.verdicts[0].failure is FailureKind.BAD_ANSWER
    assert thread.at_seam
