"""JSON pointers into a body: RFC 6901 as far as rules need it, in bounded work."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.admission.pointers import Body
from forebay.admission.rules import RuleFacts, RuleSet
from forebay.policy import Action, Condition, Operator, Rule
from forebay.wire.members import read_members

BODY = {
    "model": "qwen",
    "metadata": {"team": "search", "a/b": 1, "m~n": 2.5, "": "empty", "7": "seven", "none": None, "flag": True},
    "messages": [{"role": "system", "content": "You are kind."}, {"role": "user", "content": ["x", "y"]}],
    "n": 3,
    "umlaut": "ä\n",
}


def facts_of(text: bytes) -> RuleFacts:
    return RuleFacts(1, body=Body(read_members(text)))


def holds(condition: Condition, facts: RuleFacts) -> bool:
    return RuleSet((Rule("r", (condition,), Action(reject="no")),)).decide(facts).rule == "r"


def points(pointer: str, operator: Operator, value: Any, content: Any = BODY) -> bool:
    return holds(Condition(f"body:{pointer}", operator, value), facts_of(json.dumps(content).encode()))


@pytest.mark.parametrize(
    ("pointer", "value"),
    [
        ("/metadata/team", "search"),
        ("/metadata/a~1b", 1),
        ("/metadata/m~0n", 2.5),
        ("/metadata/", "empty"),
        ("/metadata/7", "seven"),
        ("/metadata/flag", True),
        ("/messages/0/role", "system"),
        ("/messages/1/content/1", "y"),
        ("/n", 3),
        ("/umlaut", "ä\n"),
    ],
)
def test_pointers_lead_to_values(pointer: str, value: Any) -> None:
    assert points(pointer, "eq", value)
    assert points(pointer, "exists", True)
    assert not points(pointer, "eq", "something else")


@pytest.mark.parametrize(
    "pointer",
    [
        "/nothing", "/metadata/none", "/metadata/team/x", "/n/0", "/messages/2", "/messages/-", "/messages/00",
        "/messages/role", "/messages/256", "/messages/99999999999999999999", "/metadata/TEAM", "/messages/0/role/0",
    ],
)  # fmt: skip
def test_what_is_not_there_is_absent(pointer: str) -> None:
    assert points(pointer, "exists", False)
    assert not points(pointer, "ne", "x")


def test_objects_and_arrays_are_there_and_match_nothing() -> None:
    for pointer in ("/metadata", "/messages", "/messages/0", "/messages/1/content"):
        assert points(pointer, "exists", True)
        assert not any(points(pointer, operator, value) for operator, value in [("ne", "x"), ("gt", 0), ("glob", "*")])
        assert not points(pointer, "in", ("x", 1))


def test_without_a_body_its_fields_are_absent() -> None:
    assert holds(Condition("body:/n", "exists", False), RuleFacts(1))
    assert not holds(Condition("body:/n", "ne", 4), RuleFacts(1))


def test_a_huge_member_counts_as_absent_and_others_do_not() -> None:
    content = {"big": {"x": "a" * 1_048_576, "y": 1}, "small": 1}
    assert points("/big/y", "exists", False, content)
    assert points("/big", "exists", False, content)
    assert points("/small", "eq", 1, content)


def test_pointers_of_one_call_read_a_bounded_amount() -> None:
    content = {f"m{place}": {"pad": "a" * 1_000_000, "x": place} for place in range(4)}
    facts = facts_of(json.dumps(content).encode())
    found = [holds(Condition(f"body:/m{place}/x", "eq", place), facts) for place in range(4)]
    assert found == [True, True, False, False]


@pytest.mark.parametrize("text", [b'{"a": {"b": 1e999}}', b'{"a": [[' + b"[" * 400 + b"]" * 400 + b"]]}"])
def test_what_cannot_be_decoded_is_absent(text: bytes) -> None:
    facts = facts_of(text)
    assert not holds(Condition("body:/a/b", "gt", 0), facts)


def test_numbers_of_any_size_compare() -> None:
    assert points("/n", "gt", 1e300, {"n": 10**400})
    assert points("/n", "lt", 0, {"n": -(10**400)})


KEYS = st.sampled_from(["a", "b", "0", "1"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 5) | st.text("ab", max_size=2),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


def resolved(content: Any, steps: list[str]) -> Any:
    for step in steps:
        if isinstance(content, dict):
            content = content.get(step)
        elif isinstance(content, list) and step.isdigit() and int(step) < len(content):
            content = content[int(step)]
        else:
            return None
    return content


@given(
    st.dictionaries(KEYS, VALUES, max_size=3),
    st.lists(KEYS, min_size=1, max_size=4),
)
def test_pointers_agree_with_a_plain_walk(content: dict[str, Any], steps: list[str]) -> None:
    expected = resolved(content, steps)
    pointer = "/" + "/".join(steps)
    assert points(pointer, "exists", True, content) is (expected is not None)
    if isinstance(expected, bool | int | str):
        assert points(pointer, "eq", expected, content)
