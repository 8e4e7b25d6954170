"""What the relay lets the output watch see, and where it says what was seen."""

import json

import pytest
from notation import DONE, STOP, USAGE, D, completion, part
from upstream.engine_side import HEAD, Try, call_of

from forebay.domain import Outcome
from forebay.traffic import changed
from forebay.wire.endpoints import ENDPOINTS

ROLE = part({"role": "assistant", "content": ""})


def started(*events: bytes, framed: bool = False) -> Try:
    """A try whose engine has sent its head and these events, each in its own read."""
    made = Try(framed=framed)
    made.feed(HEAD)
    made.events(*events)
    return made


@pytest.mark.parametrize("framed", [True, False])
@pytest.mark.parametrize("apart", [True, False])
def test_a_loop_is_flagged_whichever_way_its_chunks_take(framed: bool, apart: bool) -> None:
    sent = [D("first"), *[D(" and"), D(" so"), D(" on")] * 20, STOP, DONE]
    made = started(*sent, framed=framed) if apart else started(b"".join(sent), framed=framed)
    assert made.ended.outcome is Outcome.OK
    assert made.reply.body == b"".join(sent)
    assert made.record.output_flags == ("loop",)


def test_a_good_answer_has_no_flags() -> None:
    made = started(ROLE, *[D(f" word{number}") for number in range(100)], STOP, USAGE(3, 100), DONE, framed=True)
    assert made.ended.outcome is Outcome.OK
    assert made.record.output_flags == ()


def test_broken_characters_and_the_token_limit_are_flagged() -> None:
    made = started(D("a"), D("\ufffd"), part({}, "length"), DONE, framed=True)
    assert made.ended.outcome is Outcome.OK
    assert made.record.output_flags == ("replacement_character", "cut_off")


def test_an_answer_without_words_is_flagged_as_empty() -> None:
    made = started(ROLE, STOP, USAGE(3, 1), DONE)
    assert made.ended.outcome is Outcome.OK
    assert made.reply.body == ROLE + STOP + USAGE(3, 1) + DONE
    assert made.record.output_flags == ("empty",)


def test_a_loop_that_its_client_leaves_is_flagged() -> None:
    made = started(*[D("no")] * 100)
    made.relay.client_gone()
    assert made.ended.outcome is Outcome.CLIENT_CLOSED
    assert made.record.output_flags == ("loop",)


def test_a_try_that_sent_nothing_flags_nothing() -> None:
    made = started(ROLE)
    made.record.output_flags = ("of another try",)
    made.line.end()
    assert made.ended.outcome is Outcome.TRUNCATED
    assert made.record.output_flags == ("of another try",)


@pytest.mark.parametrize(
    ("path", "content", "flags"), [("chat", "", ("empty",)), ("chat", "Hi.", ()), ("embeddings", "", ())]
)
def test_a_whole_answer_is_judged_where_it_is_one(path: str, content: str, flags: tuple[str, ...]) -> None:
    call = changed(call_of(stream=False), endpoint=next(e for e in ENDPOINTS if e.name == path))
    made = Try(call=call)
    body = json.dumps(completion(text=content)).encode()
    made.feed(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
    assert made.reply.body == body
    assert getattr(made.record, "output_flags", ()) == flags
