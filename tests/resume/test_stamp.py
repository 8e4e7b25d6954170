"""The ids of one answer: which events get one, and when there are no more."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from resume.before_office import HEAD, NEW, Node, asking, mark

from forebay.resume.keyring import MAX_TOKEN_BYTES
from forebay.resume.stamp import FORGET
from forebay.wire.resumed import Shown


def test_events_that_say_something_get_an_id() -> None:
    stamp = Node().stamp()
    assert stamp.after(mark("", 0)) is None, "a role, or half a character"
    assert stamp.after(mark("hi", 1))
    assert stamp.after(mark("", 1, finished="stop"))
    assert stamp.after(mark("", 1, finished="stop", usage=True))
    assert stamp.given == 3


def test_an_answer_that_cannot_go_on_any_more_is_forgotten_once() -> None:
    stamp = Node().stamp()
    assert stamp.after(mark("hi", 1))
    assert stamp.after(None) == FORGET
    assert stamp.after(mark("more", 2)) is None and stamp.after(None) is None
    assert stamp.given == 1


@pytest.mark.parametrize("head", [(b'"%b"' % (b"x" * 800), b"1", b"2", b""), (b"", b"", b'"%b"' % (b"m" * 900), b"")])
def test_a_token_that_would_be_too_long_is_none(head: tuple[bytes, bytes, bytes, bytes]) -> None:
    stamp = Node().stamp()
    assert stamp.after(mark("hi", 1).__class__("hi", head, 1, True)) == FORGET
    assert stamp.after(mark("hi", 2)) is None


def test_a_number_that_fits_nowhere_ends_it() -> None:
    assert Node().stamp().after(mark("hi", 1 << 40)) == FORGET


words = st.lists(st.text(min_size=1, max_size=300), min_size=1, max_size=40)


@given(words, st.integers(0, 39))
def test_what_was_shown_comes_back_from_every_event(said: list[str], at: int) -> None:
    node = Node()
    stamp, tokens = node.stamp(), []
    for number, word in enumerate(said, start=1):
        token = stamp.after(mark(word, number, prompt_tokens=9))
        assert token is not None and 0 < len(token) <= MAX_TOKEN_BYTES
        tokens.append(token)
    at %= len(said)
    text = "".join(said[: at + 1])
    shown = node.office.open(tokens[at], asking(), text)
    assert (shown.text, shown.tokens, shown.counted, shown.prompt_tokens) == (text, at + 1, True, 9)
    assert (shown.id, shown.created, shown.model, shown.fingerprint) == HEAD
    assert (shown.call_id, shown.served, shown.limit_tokens) == ("call-1", "m", NEW.limit_tokens)
    assert shown.recent_chars == bytes(min(len(word), 255) for word in said[max(0, at - 23) : at + 1])
    assert (shown.finished, shown.usage, shown.cached_tokens) == ("", False, None)


@given(words, words)
def test_a_resumed_answer_has_the_text_of_both(before: list[str], after: list[str]) -> None:
    node = Node()
    first = node.stamp()
    for number, word in enumerate(before, start=1):
        token = first.after(mark(word, number))
    text = "".join(before)
    assert token
    shown = node.office.open(token, asking(), text)
    second = node.stamp(shown)
    for number, word in enumerate(after, start=len(before) + 1):
        token = second.after(mark(word, number))
    assert token
    again = node.office.open(token, asking(), text + "".join(after))
    assert (again.call_id, again.tokens) == ("call-1", len(before) + len(after))
    assert again.leg != shown.leg
    assert again.recent_chars == bytes(min(len(word), 255) for word in (before + after)[-24:])


def test_the_name_of_the_model_may_be_long() -> None:
    shown = Shown(b"", "call-1", "m" * 256, "")
    token = Node().stamp(shown).after(mark("hi", 1))
    assert token and len(token) <= MAX_TOKEN_BYTES
