"""The depth check against a count of brackets, over random texts."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire.json_texts import array_text, object_text, space

from forebay.wire.depth import check_depth
from forebay.wire.members import DuplicateKey, TooDeep, read_members


def reference_depth(raw: str) -> int:
    """Levels of arrays and objects, counted character by character."""
    depth = deepest = 0
    inside = escaped = False
    for c in raw:
        if inside:
            inside, escaped = (escaped or c != '"'), (c == "\\" and not escaped)
        elif c == '"':
            inside = True
        elif c in "[{":
            depth += 1
            deepest = max(deepest, depth)
        elif c in "]}":
            depth -= 1
    return deepest


def too_deep(raw: bytes, limit: int) -> bool:
    try:
        check_depth(raw, limit)
    except TooDeep:
        return True
    return False


nested_text = st.recursive(
    st.sampled_from(["1", '"[[[["', '"\\"{{{"', '"\\\\"', "{}", "[]", '""']),
    lambda inner: st.lists(st.tuples(space, inner, space), max_size=3).flatmap(
        lambda items: st.sampled_from([array_text(items), object_text(items)])
    ),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(nested_text, space, space, st.integers(1, 8))
def test_depth_is_the_reference_depth(value: str, before: str, after: str, limit: int) -> None:
    raw = f'{before}{{"x":{value}}}{after}'
    assert too_deep(raw.encode(), limit) is (reference_depth(raw) > limit)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 140), st.integers(1, 140), st.sampled_from(["[", '{"a":']), space)
def test_depth_at_the_limit(levels: int, limit: int, opener: str, before: str) -> None:
    closer = "]" if opener == "[" else "}"
    raw = before + '{"x":' + opener * levels + "1" + closer * levels + "}"
    assert too_deep(raw.encode(), limit) is (levels + 1 > limit)


@pytest.mark.parametrize("before", [b"", b" ", b"\r\n\t "])
@pytest.mark.parametrize("levels", [1_000, 1_025, 20_000, 1_000_000])
def test_deep_inputs_are_too_deep_and_nothing_else(before: bytes, levels: int) -> None:
    for raw in (
        before + b'{"x":' + b"[" * levels + b"]" * levels + b"}",
        before + b'{"x":' + b'{"a":' * levels + b"1" + b"}" * levels + b"}",
    ):
        with pytest.raises(TooDeep):
            read_members(raw)
            check_depth(raw, 128)


def test_brackets_in_text_cost_nothing() -> None:
    prompt = json.dumps({"messages": [{"role": "user", "content": [{"type": "text", "text": "[{" * 200_000}]}]})
    check_depth(prompt.encode(), 128)
    check_depth(prompt.encode(), 5)
    assert too_deep(prompt.encode(), 4)


def test_a_duplicate_key_does_not_hide_depth() -> None:
    deep = b"[" * 200 + b"]" * 200
    raw = b'{"x":{"a":' + deep + b',"a":1}}'
    read_members(raw)
    with pytest.raises((TooDeep, DuplicateKey)):
        check_depth(raw, 128)


def test_wide_bodies_stay_cheap() -> None:
    wide = b'{"x":[' + b",".join([b'{"a":[1,{"b":[2]}]}'] * 20_000) + b"]}"
    check_depth(wide, 128)
    assert too_deep(wide, 5)
    check_depth(wide, 6)
