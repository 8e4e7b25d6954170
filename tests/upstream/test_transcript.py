"""What is kept of an answer, and how its ids are taken out."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.upstream.continuation.reasons import Reason
from forebay.upstream.continuation.token_ids import chunk_of, without_ids
from forebay.upstream.continuation.told import Head
from forebay.upstream.continuation.transcript import FOLD_BYTES, MAX_EVENT_BYTES, MAX_TEXT_BYTES, Transcript
from forebay.wire import sse


def chunk(text: str | None, ids: list[int] | None = None, reason: str | None = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text} | delta, "finish_reason": reason, "token_ids": ids}
    head = {"id": "a", "object": "o", "created": 7, "model": "m", "system_fingerprint": "f"}
    return json.dumps(head | {"choices": [choice]}, ensure_ascii=False, separators=(",", ":")).encode()


HEAD = b'{"id":"a","object":"o","created":7,"model":"m","choices":'
ROLE = HEAD + b'[{"index":0,"delta":{"role":"assistant","content":""}}],"prompt_token_ids":[1,2,3]}'


def kept(*events: bytes) -> Transcript:
    transcript = Transcript()
    for event in events:
        transcript.add(event)
    return transcript


def test_an_answer_with_ids() -> None:
    told = kept(ROLE, chunk("a", [5]), chunk("", [6]), chunk("🐙", [7]), chunk("", [8])).told()
    assert told.prompt_ids is not None
    assert (told.text, told.prompt_ids.tolist(), told.ids.tolist()) == ("a🐙", [1, 2, 3], [5, 6, 7, 8])
    assert (told.safe, told.clean, told.tokens, told.counted, told.prompt_tokens) == (3, True, 3, True, 3)
    assert told.head == Head(b'"a"', b'"o"', b"7", b'"m"', b"")
    assert told.recent == ("a", "🐙")


def test_an_answer_without_ids_is_counted_by_events() -> None:
    told = kept(ROLE.replace(b',"prompt_token_ids":[1,2,3]', b""), chunk("a"), chunk(""), chunk("🐙"), chunk("")).told()
    assert (told.text, told.prompt_ids, told.tokens, told.counted, told.prompt_tokens) == ("a🐙", None, 3, False, None)


def test_of_several_ids_the_last_may_be_half_a_character() -> None:
    told = kept(ROLE, chunk("a", [5]), chunk("bc", [6, 7])).told()
    assert (told.safe, told.clean, told.clean_ids, told.clean_chars) == (3, False, 1, 1)
    told = kept(ROLE, chunk("bc", [6, 7]), chunk("de", [8, 9])).told()
    assert (told.clean, told.clean_ids, told.clean_chars) == (False, 2, 2)  # nothing came out of the boundary
    told = kept(ROLE, chunk("bc", [6, 7]), chunk("d🐙", [8, 9])).told()
    assert (told.clean, told.clean_ids) == (False, 0)
    assert kept(ROLE, chunk("bc", [6, 7]), chunk("🐙", [8])).told().clean


def test_thoughts_tools_and_usage() -> None:
    counts = b'{"prompt_tokens":9,"prompt_tokens_details":{"cached_tokens":4}}'
    usage = HEAD + b'[{"index":0,"delta":{"reasoning":"hm"}}],"usage":%b}' % counts
    told = kept(usage, chunk(None, reasoning_content="!"), chunk("x")).told()
    assert (told.reasoning, told.text, told.prompt_tokens, told.cached_tokens) == ("hm!", "x", 9, 4)
    assert not told.tools
    assert kept(chunk(None, tool_calls=[{"index": 0}])).told().tools
    assert kept(chunk(None, function_call={"name": "f"})).told().tools
    assert not kept(chunk("x", tool_calls=[], function_call=None)).told().tools


def test_odd_events_are_taken_as_they_are() -> None:
    assert kept(b"null", b"{}", b'{"choices":[]}', b'{"choices":null}', chunk("x")).told().text == "x"


@pytest.mark.parametrize("event", [b"[]", b"{", b'{"choices":[{"delta":{"content":3}}]}', b"\xff"])
def test_what_cannot_be_read_is_a_flaw(event: bytes) -> None:
    told = kept(chunk("x"), event, chunk("y")).told()
    assert (told.text, told.flaw) == ("", Reason.UNREADABLE)


@given(st.lists(st.tuples(st.text(max_size=3), st.lists(st.integers(0, 1 << 40), max_size=3)), max_size=60))
def test_folding_changes_nothing(pieces: list[tuple[str, list[int]]]) -> None:
    events = [chunk(text, ids or None) for text, ids in pieces]
    at_once = kept(*events)
    often = Transcript()
    for event in events:
        often.add(event)
        often.told()
    assert at_once.told() == often.told()
    assert at_once.told().text == "".join(text for text, _ in pieces)


def test_memory_is_bounded() -> None:
    transcript = Transcript()
    event = chunk(" word", [12345])
    for _ in range(20_000):
        transcript.add(event)
        assert transcript.held_bytes < FOLD_BYTES + len(event) + 20_000 * 13 + 1
    assert transcript.told().tokens == 20_000
    for _ in range(MAX_TEXT_BYTES // FOLD_BYTES + 1):
        transcript.add(chunk("x" * FOLD_BYTES))
    told = transcript.told()
    assert (told.flaw, told.text, transcript.held_bytes) == (Reason.ANSWER_TOO_LONG, "", 0)
    for _ in range(1000):
        transcript.add(event)
    assert transcript.held_bytes <= FOLD_BYTES
    assert kept(b"x" * (MAX_EVENT_BYTES + 1)).told().flaw is Reason.ANSWER_TOO_LONG


def test_ids_become_null() -> None:
    assert without_ids(chunk("a", [5])) == chunk("a")
    assert without_ids(ROLE).endswith(b'"prompt_token_ids":null}')
    both = b'{"choices":[{"text":"a","prompt_token_ids":[1,2],"token_ids":[3]}]}'
    assert without_ids(both) == b'{"choices":[{"text":"a","prompt_token_ids":null,"token_ids":null}]}'
    assert without_ids(both.replace(b"[3]", b"null")) == without_ids(both)
    plain = chunk("a")
    assert without_ids(plain) is plain


@given(st.text())
def test_text_that_looks_like_ids_stays(text: str) -> None:
    for said in (text, f'"token_ids":[{text}', f'{text}"prompt_token_ids":[1]', '"token_ids":[1]'):
        seen = json.loads(without_ids(chunk(said, [5, 6])))
        assert seen == json.loads(chunk(said))


def test_a_chunk_is_one_that_the_relay_takes_apart() -> None:
    data = chunk("a" * 300)
    assert sse.lone_event(chunk_of(data)) == data
