"""Where an answer stands behind each event, for clients that may come back; and answers that begin where one stood."""

import json
from typing import Any

import pytest

from forebay.domain import FailureKind
from forebay.upstream.continuation.shapes import Plan
from forebay.upstream.continuation.thread import Thread
from forebay.upstream.continuation.told import Finish, Head, Leg, Told
from forebay.upstream.continuation.transcript import FOLD_BYTES, Transcript
from forebay.wire.resumed import Mark
from forebay.wire.sse import Event

PLAN = Plan("vllm", "chat", exact=True, text=True, collects_ids=True)
BODY = json.dumps(
    {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 10}
).encode()


def event(text: str = "", ids: list[int] | None = None, **more: Any) -> bytes:
    delta = {"content": text} | more.pop("delta", {})
    choice = {"index": 0, "delta": delta, "finish_reason": more.pop("finish", None), "token_ids": ids}
    whole = {"id": "c1", "created": 5, "model": "up", "choices": [choice]} | more
    return json.dumps(whole, separators=(",", ":")).encode()


USAGE = json.dumps(
    {"id": "c1", "created": 5, "model": "up", "choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 2}}
).encode()


def marks(*events: bytes) -> list[Mark | None]:
    transcript, seen = Transcript(), []
    for data in events:
        transcript.add(data)
        seen.append(transcript.mark())
    return seen


class Numbers:
    """A stamp that numbers what it is shown."""

    def __init__(self) -> None:
        self.given = 0
        self.marks: list[Mark | None] = []

    def after(self, mark: Mark | None) -> bytes | None:
        self.marks.append(mark)
        if mark is None or not mark.text:
            return None
        self.given += 1
        return b"%d" % self.given


def test_each_event_is_marked_by_itself() -> None:
    role, one, half, two, end, usage = marks(
        event(delta={"role": "assistant"}, prompt_token_ids=[7, 8, 9]),
        event(" one", [1]),
        event("", [2]),
        event(" twö", [3, 4]),
        event("", [], finish="length"),
        USAGE,
    )
    assert role and one and half and two and end and usage
    assert [m.text for m in (role, one, half, two, end, usage)] == ["", " one", "", " twö", "", ""]
    assert one.head == (b'"c1"', b"5", b'"up"', b"")
    assert (one.tokens, half.tokens, two.tokens, two.counted, two.prompt_tokens) == (1, 1, 4, True, 3)
    assert (two.finished, end.finished, usage.finished) == (None, "length", "length")
    assert (end.usage, usage.usage) == (False, True)


def test_without_ids_events_are_counted() -> None:
    one, two = marks(event(" one"), event(" two"))
    assert one and two and (one.tokens, two.tokens, two.counted, two.prompt_tokens) == (1, 2, False, None)


def test_an_event_that_is_read_at_once_because_it_is_large() -> None:
    large, small = marks(event("x" * FOLD_BYTES, [1]), event("y", [2]))
    assert large and small and (len(large.text), small.text) == (FOLD_BYTES, "y")


@pytest.mark.parametrize(
    "delta", [{"reasoning_content": "hm"}, {"tool_calls": [{"index": 0, "function": {"name": "f"}}]}], ids=str
)
def test_thoughts_and_tools_cannot_be_resumed(delta: dict[str, Any]) -> None:
    one, other = marks(event(" one", [1]), event("", [2], delta=delta))
    assert one is not None and other is None


def test_what_is_not_kept_cannot_be_resumed() -> None:
    transcript = Transcript()
    transcript.add(b"no json")
    assert transcript.mark() is None


def test_events_have_ids_on_either_way_through_the_relay() -> None:
    thread = Thread(PLAN, "chat")
    thread.stamp = Numbers()
    first = thread.events(Event(event(" one", [1]), b"name"))
    assert [(e.id, e.name) for e in first] == [(b"1", b"name")] and b"[1]" not in first[0].data
    read = thread.token(event(" two", [2]), b"whole read")
    size, _, rest = read.partition(b"\r\n")
    assert rest.startswith(b"id: 2\ndata: {") and len(rest) == int(size, 16) + 2
    assert thread.events(Event(event("", [3])))[0].id is None


def told(**more: Any) -> Told:
    head = Head(b'"c1"', b'"chat.completion.chunk"', b"5", b'"up"')
    return Told(" one two", tokens=2, counted=True, prompt_tokens=3, recent=(" one", " two"), head=head, **more)


def test_an_answer_begins_where_another_one_stood() -> None:
    thread = Thread(PLAN, "chat")
    thread.stamp = numbers = Numbers()
    leg = thread.resume(told(), BODY)
    assert isinstance(leg, Leg) and leg.mode == "text"
    sent = json.loads(leg.body)
    assert sent["messages"][-1] == {"role": "assistant", "content": " one two"}
    assert (sent["max_tokens"], sent["continue_final_message"], leg.made_tokens) == (8, True, 2)
    assert thread.goes_on and thread.waits
    assert thread.events(Event(event(delta={"role": "assistant"}, id="c2"))) == []
    (joined,) = thread.events(Event(event(" three and more", [9], id="c2", created=6)))
    assert json.loads(joined.data)["id"] == "c1" and joined.id == b"1"
    mark = numbers.marks[-1]
    assert mark and (mark.text, mark.tokens, mark.head[0]) == (" three and more", 3, b'"c1"')


def test_its_engine_may_die_too() -> None:
    thread = Thread(PLAN, "chat")
    assert isinstance(thread.resume(told(), BODY), Leg)
    thread.events(Event(event(" three and more", [9])))
    leg = thread.next(BODY, FailureKind.TRUNCATED, refused=False, overflow=False)
    assert isinstance(leg, Leg) and json.loads(leg.body)["messages"][-1]["content"] == " one two three and more"
    assert (leg.made_tokens, thread.moves) == (3, 1)


def test_nothing_is_left_of_the_limit() -> None:
    thread = Thread(PLAN, "chat")
    finish = thread.resume(told(), BODY.replace(b": 10", b": 2"))
    assert isinstance(finish, Finish) and (finish.reason, finish.usage.completion_tokens) == ("length", 2)


GREEDY = BODY.replace(b'"stream"', b'"temperature":0,"stream"')


def test_the_last_word_comes_again_where_its_tokens_are_known() -> None:
    leg = Thread(PLAN, "chat").resume(told(), GREEDY)
    assert isinstance(leg, Leg) and (leg.mode, leg.tail, leg.made_tokens) == ("words", " two", 1)


def test_the_last_word_is_kept_where_its_tokens_are_not_known() -> None:
    short = Told(" one two", tokens=2, recent=("o",), head=told().head)
    leg = Thread(PLAN, "chat").resume(short, GREEDY)
    assert isinstance(leg, Leg) and (leg.mode, leg.made_tokens) == ("text", 2)


def test_what_cannot_go_on_says_why() -> None:
    thread = Thread(Plan("vllm", "chat", exact=True, text=False, collects_ids=True), "chat")
    assert isinstance(thread.resume(told(), BODY), Leg), "it begins anew, and what the client has is left out"
    assert thread.resume(told(), b"no json") is None and thread.given_up == "unreadable"
