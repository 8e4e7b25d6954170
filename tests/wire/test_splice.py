"""Edits of raw members against Python's own JSON, over random texts."""

import json
import string
from typing import Any, NamedTuple

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from wire.json_texts import char, space, spellings, value_text

from forebay.wire.members import DuplicateKey, InvalidJson, Members, TooDeep, read_members
from forebay.wire.splice import edit


class Member(NamedTuple):
    """One member as it stands in a text: its key, its key's spelling, and its value's text."""

    key: str
    spelling: str
    value: str


class Text(NamedTuple):
    """A JSON object with what it is made of."""

    raw: bytes
    members: tuple[Member, ...]


def written(members: list[Member], gaps: list[str]) -> bytes:
    gap = iter(gaps * (6 * len(members) + 4) if gaps else [""] * (6 * len(members) + 4))
    parts = [f"{next(gap)}{m.spelling}{next(gap)}:{next(gap)}{m.value}{next(gap)}" for m in members]
    return f"{next(gap)}{{{','.join(parts) or next(gap)}}}{next(gap)}".encode()


@st.composite
def objects(draw: st.DrawFn, keys: st.SearchStrategy[str] = st.text(char, max_size=5)) -> Text:  # noqa: B008
    """An object without duplicate keys."""
    names = draw(st.lists(keys, max_size=5, unique=True))
    members = [Member(name, draw(spellings(name)), draw(value_text)) for name in names]
    return Text(written(members, draw(st.lists(space, max_size=7))), tuple(members))


def raw_values(members: Members) -> dict[str, bytes]:
    return {key: bytes(value) for key, value in members.values.items()}


@settings(max_examples=100, deadline=None)
@given(objects())
def test_members_are_the_raw_texts_and_nothing_is_called_a_duplicate(text: Text) -> None:
    members = read_members(text.raw)
    assert raw_values(members) == {m.key: m.value.encode() for m in text.members}


NEW = b'{"new":[1,"\\u00e9"]}'


@settings(max_examples=120, deadline=None)
@given(objects(), st.data())
def test_edits_change_exactly_what_they_name(text: Text, data: st.DataObject) -> None:
    present = [m.key for m in text.members]
    keys = data.draw(st.lists(st.one_of(st.sampled_from(present or ["x"]), st.text(char, max_size=3)), unique=True))
    edits = {key: data.draw(st.sampled_from([None, NEW, b"1"])) for key in keys}
    out = edit(read_members(text.raw), edits)
    expected: dict[str, Any] = {m.key: m.value.encode() for m in text.members if edits.get(m.key, b"") is not None}
    expected.update({key: new for key, new in edits.items() if new is not None})
    assert raw_values(read_members(out)) == expected
    assert json.loads(out) == {key: json.loads(value) for key, value in expected.items()}
    kept_order = [m.key for m in text.members if m.key in expected]
    assert list(read_members(out).values)[: len(kept_order)] == kept_order
    untouched = [m.spelling for m in text.members if m.key not in edits]
    assert all(spelling.encode() in out for spelling in untouched)


@settings(max_examples=100, deadline=None)
@given(objects())
def test_no_edit_gives_the_same_bytes(text: Text) -> None:
    members = read_members(text.raw)
    assert edit(members, {}) == text.raw
    assert edit(members, {"no such member, surely": None}) == text.raw
    same: dict[str, bytes | None] = {key: bytes(value) for key, value in members.values.items()}
    assert edit(members, same) == text.raw


@settings(max_examples=120, deadline=None)
@given(objects(st.text(string.ascii_lowercase[:3] + '"\\:1,', min_size=1, max_size=7)), st.data())
def test_duplicates_are_refused_however_they_are_spelled(text: Text, data: st.DataObject) -> None:
    assume(text.members)
    first = data.draw(st.sampled_from(text.members))
    value = data.draw(st.one_of(st.just(first.value), st.just(first.value + "0"), value_text))
    assume(_is_json(value))
    again = Member(first.key, data.draw(spellings(first.key)), value)
    at = data.draw(st.integers(0, len(text.members)))
    members = [*text.members[:at], again, *text.members[at:]]
    with pytest.raises(DuplicateKey) as caught:
        read_members(written(members, data.draw(st.lists(space, max_size=5))))
    assert caught.value.key in {m.key for m in members}
    assert "\n" not in str(caught.value)


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize(
    "raw",
    [
        b'{"model":"cheap","model":"forbidden","messages":[]}',
        b'{"model":"forbidden","model":"cheap","messages":[]}',
        b'{"max_tokens":1,"max_tokens":9999}',
        b'{"max_tokens":12,"max_tokens":1}',
        b'{"max_tokens":1,"max_tokens":12}',
        b'{"stream":true,"x":1,"stream":true}',
        b'{"model":"a","mod\\u0065l":"a"}',
        b'{"\\u006dodel":"a","model":"a","x":2}',
        b'{ "a" : 1 , "b" : 2 , "a" : 1 }',
        b'{"c":1,"a":1,"a":1,"c":1,"a\\":1,\\"c":1}',
        b'{"":1,"":1}',
    ],
)
def test_duplicate_keys_of_the_recorded_cases(raw: bytes) -> None:
    with pytest.raises(DuplicateKey):
        read_members(raw)


INVALID = [
    b"", b" ", b"[]", b"null", b'"x"', b"1", b'{"a":1} x', b'{"a":1', b'{"a":1,}', b"{,}", b'{"a" 1}', b"{a:1}",
    b"{'a':1}", b'{"a":01}', b'{"a":+1}', b'{"a":.5}', b'{"a":1.}', b'{"a":NaN}', b'{"a":Infinity}', b'{"a":tru}',
    b'{"a":"x\ny"}', b'{"a":"\\q"}', b'{"a":"\\u12"}', b'{"a":1}{"a":1}', b"\xef\xbb\xbf{}", b'{"a":1}\x00',
    b'{"\xff":1}', b'{"\\ud83d":1}', b'{"a":1//x\n}', b'{"a":[1,]}', b'{"a":[1 2]}', b"{}}",
]  # fmt: skip


@pytest.mark.parametrize("raw", INVALID)
def test_invalid_json_is_refused(raw: bytes) -> None:
    with pytest.raises(InvalidJson) as caught:
        read_members(raw)
    assert "\n" not in str(caught.value)


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=30),
        st.lists(st.sampled_from([b"{", b"}", b"[", b"]", b'"a"', b'"', b":", b",", b"1", b"\\", b" ", b"null"])).map(
            b"".join
        ),
    )
)
def test_nothing_but_the_three_errors(raw: bytes) -> None:
    try:
        members = read_members(raw)
    except (InvalidJson, DuplicateKey, TooDeep):
        return
    json.loads(raw.decode("utf-8", "replace"))
    assert edit(members, {}) == raw


@settings(max_examples=200, deadline=None)
@given(objects(), st.data())
def test_a_cut_text_is_invalid(text: Text, data: st.DataObject) -> None:
    end = text.raw.rindex(b"}")
    cut = text.raw[: data.draw(st.integers(0, end))]
    with pytest.raises(InvalidJson):
        read_members(cut)


@pytest.mark.parametrize("escape", ["\\ud83d", "\\ude00"])
@pytest.mark.parametrize("after", ["", " and much more text behind it"])
def test_a_lone_surrogate_is_refused_or_untouched(escape: str, after: str) -> None:
    raw = f'{{"user":"cut {escape}{after}","model":"m"}}'.encode()
    try:
        members = read_members(raw)
    except InvalidJson:
        return
    assert edit(members, {"model": b'"n"'}) == raw.replace(b'"m"', b'"n"')


def test_a_surrogate_pair_is_one_character() -> None:
    assert bytes(read_members(b'{"a":"\\ud83d\\ude80"}').values["a"]) == b'"\\ud83d\\ude80"'


def test_text_of_takes_null_as_absent() -> None:
    members = read_members(b'{"a": null, "b": 0, "c": "null"}')
    assert members.text_of("a") is None
    assert members.text_of("b") == b"0"
    assert members.text_of("c") == b'"null"'
    assert members.text_of("d") is None
