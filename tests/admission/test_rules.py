"""Rules: the first one whose conditions all hold decides; what does not fit never holds; work is bounded."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from forebay.admission.pointers import Body
from forebay.admission.rules import FIELDS, NO_RULE, RuleFacts, RuleSet, retries_of
from forebay.policy import Action, Condition, Operator, Rule
from forebay.wire.members import Members, read_members

REJECT = Action(reject="no")
CALL = RuleFacts(
    1000, 200, "qwen", "a", "chat", stream=True, template="t1", value="high", retries=2, messages=3, images=1,
)  # fmt: skip


def rule(name: str, *when: Condition, then: Action = REJECT) -> Rule:
    return Rule(name, when, then)


def holds(condition: Condition, facts: RuleFacts = CALL) -> bool:
    return RuleSet((rule("r", condition),)).decide(facts).rule == "r"


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        (Condition("input_tokens", "gt", 999), True),
        (Condition("input_tokens", "gt", 1000), False),
        (Condition("input_tokens", "ge", 1000), True),
        (Condition("input_tokens", "lt", 1000), False),
        (Condition("input_tokens", "lt", 1000.5), True),
        (Condition("input_tokens", "le", 1000), True),
        (Condition("output_tokens", "eq", 200.0), True),
        (Condition("output_tokens", "ne", 200), False),
        (Condition("output_tokens", "ne", 201), True),
        (Condition("output_tokens", "exists", True), True),
        (Condition("user", "exists", True), False),
        (Condition("user", "exists", False), True),
        (Condition("model", "eq", "qwen"), True),
        (Condition("model", "ne", "llama"), True),
        (Condition("tenant", "in", ("b", "a")), True),
        (Condition("tenant", "in", ("b", "c")), False),
        (Condition("retries", "in", (1, 2)), True),
        (Condition("endpoint", "glob", "ch*"), True),
        (Condition("endpoint", "glob", "emb*"), False),
        (Condition("template", "eq", "t1"), True),
        (Condition("value", "eq", "high"), True),
        (Condition("stream", "eq", True), True),
        (Condition("tools", "eq", True), False),
        (Condition("tools", "ne", True), True),
        (Condition("messages", "ge", 3), True),
        (Condition("images", "eq", 1), True),
    ],
)
def test_each_operator(condition: Condition, expected: bool) -> None:
    assert holds(condition) is expected


@pytest.mark.parametrize("operator", ["eq", "ne", "gt", "ge", "lt", "le"])
@pytest.mark.parametrize("field", ["user", "model", "stream"])
def test_another_type_never_holds(field: str, operator: Operator) -> None:
    # True == 1 in Python; a boolean is still no number, and an absent user is not "another user".
    assert not holds(Condition(field, operator, 1))
    assert not holds(Condition(field, operator, 0.5))


def test_booleans_are_no_numbers_in_lists_either() -> None:
    assert not holds(Condition("stream", "in", (1, 2)))
    assert not holds(Condition("retries", "eq", True), RuleFacts(1, retries=1))


def test_the_first_rule_that_holds_decides() -> None:
    first = rule("first", Condition("model", "eq", "qwen"), then=Action(reroute="small"))
    rules = RuleSet(
        (rule("other", Condition("model", "eq", "llama")), first, rule("late", Condition("model", "glob", "*")))
    )
    decision = rules.decide(CALL)
    assert (decision.rule, decision.action, decision.uncertain) == ("first", Action(reroute="small"), False)


def test_all_conditions_must_hold() -> None:
    when = [Condition("model", "eq", "qwen"), Condition("retries", "ge", 2), Condition("tenant", "eq", "a")]
    assert RuleSet((rule("r", *when),)).decide(CALL).rule == "r"
    for place in range(3):
        bad = [*when[:place], Condition("input_tokens", "lt", 1), *when[place + 1 :]]
        assert RuleSet((rule("r", *bad),)).decide(CALL) is NO_RULE


def test_no_rules_decide_nothing_and_make_nothing() -> None:
    assert RuleSet(()).decide(CALL) is NO_RULE
    assert not RuleSet(())
    assert RuleSet((rule("r", Condition("model", "eq", "x")),)).decide(CALL) is NO_RULE


def test_decisions_are_counted_when_carried_out_and_survive_a_reload() -> None:
    rules = RuleSet((rule("a", Condition("model", "eq", "qwen")), rule("b", Condition("model", "eq", "x"))))
    assert rules.applied == {"a": 0, "b": 0}
    rules.count(rules.decide(CALL))
    rules.count(NO_RULE)
    assert rules.applied == {"a": 1, "b": 0}
    after = RuleSet((rule("a", Condition("model", "eq", "x")), rule("c", Condition("model", "eq", "y"))), rules)
    assert after.applied == {"a": 1, "c": 0}


@pytest.mark.parametrize(
    "condition",
    [
        Condition("prompt", "eq", "x"),
        Condition("exact", "eq", True),
        Condition("body:metadata", "eq", "x"),
        Condition("body:", "eq", "x"),
        Condition("body:/~2", "eq", "x"),
        Condition('body:/"', "eq", "x"),
        Condition("body:" + "/a" * 9, "eq", "x"),
        Condition("model", "gt", "x"),
        Condition("model", "in", "x"),
        Condition("model", "glob", 3),
        Condition("model", "exists", "yes"),
        Condition("stream", "gt", True),
        Condition("model", "like", "x"),  # type: ignore[arg-type]
    ],
)
def test_a_condition_that_makes_no_sense_is_no_rule(condition: Condition) -> None:
    with pytest.raises(ValueError, match=r"."):
        RuleSet((rule("r", condition),))


# --- uncertainty -----------------------------------------------------------------------------------------


def doubt(tokens: int, *rules: Rule, exact: bool = False) -> bool:
    return RuleSet(rules).decide(RuleFacts(tokens, model="qwen", exact=exact)).uncertain


LONG = rule("long", Condition("input_tokens", "gt", 8192))


@pytest.mark.parametrize(
    ("tokens", "expected"), [(7124, False), (7125, True), (8192, True), (9000, True), (9637, True), (9638, False)]
)
def test_a_threshold_within_the_error_of_the_estimate_is_uncertain(tokens: int, expected: bool) -> None:
    assert doubt(tokens, LONG) is expected
    assert not doubt(tokens, LONG, exact=True)


def test_a_threshold_that_another_condition_makes_idle_is_not_uncertain() -> None:
    assert not doubt(8000, rule("r", Condition("input_tokens", "gt", 8192), Condition("model", "eq", "llama")))


def test_a_rule_before_that_holds_in_any_case_settles_it() -> None:
    assert not doubt(8000, rule("all", Condition("model", "eq", "qwen")), LONG)
    assert doubt(8000, LONG, rule("all", Condition("model", "eq", "qwen")))


def test_the_decision_of_the_estimate_is_given_along() -> None:
    decision = RuleSet((LONG,)).decide(RuleFacts(9000))
    assert (decision.rule, decision.uncertain) == ("long", True)
    assert RuleSet((LONG,)).decide(RuleFacts(8000)).rule == ""


NUMERIC = st.builds(
    Condition, st.just("input_tokens"), st.sampled_from(["eq", "ne", "gt", "ge", "lt", "le"]), st.integers(80, 120)
) | st.builds(Condition, st.just("input_tokens"), st.just("in"), st.tuples(st.integers(80, 120), st.integers(80, 120)))
PLAIN = st.sampled_from([Condition("model", "eq", "qwen"), Condition("model", "eq", "x")])
RULES = st.lists(st.lists(NUMERIC | PLAIN, min_size=1, max_size=3), max_size=4)


@given(RULES, st.integers(85, 115))
def test_uncertain_is_exactly_that_another_count_decides_otherwise(
    conditions: list[list[Condition]], tokens: int
) -> None:
    rules = RuleSet(tuple(rule(str(place), *when) for place, when in enumerate(conditions)))
    low, high = math.ceil(tokens * 0.85), math.floor(tokens * 1.15)
    outcomes = {rules.decide(RuleFacts(count, model="qwen", exact=True)).rule for count in range(low, high + 1)}
    assert rules.decide(RuleFacts(tokens, model="qwen")).uncertain is (len(outcomes) > 1)


# --- the body: how its parts are found is in test_pointers.py


class Watched(dict[str, Raw]):
    """The members of a body; notes which are looked for."""

    def __init__(self, values: dict[str, Raw]) -> None:
        super().__init__(values)
        self.asked: list[str] = []

    def get(self, key: str, default: Any = None) -> Any:
        self.asked.append(key)
        return super().get(key, default)


def test_the_body_is_read_late_and_once() -> None:
    rules = RuleSet(
        (
            rule("never", Condition("body:/a", "eq", 1), Condition("model", "eq", "llama")),
            rule("some", Condition("body:/b", "eq", 1), Condition("model", "glob", "q*")),
            rule("again", Condition("body:/b", "eq", 2)),
            rule("hit", Condition("model", "eq", "qwen")),
            rule("late", Condition("body:/c", "eq", 1)),
        )
    )
    members = Watched(read_members(b'{"b": 3, "c": 1}').values)
    facts = RuleFacts(1, model="qwen", body=Body(Members(b"", members)))
    assert rules.reads_body
    assert rules.decide(facts).rule == "hit"
    assert rules.decide(facts).rule == "hit"
    assert members.asked == ["b"]


# --- retries, and the list of fields ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({}, 0),
        ({b"x-retry-count": b"3"}, 3),
        ({b"x-stainless-retry-count": b"2"}, 2),
        ({b"x-retry-count": b"3", b"x-stainless-retry-count": b"0"}, 3),
        ({b"x-retry-count": b"1, 2"}, 0),
        ({b"x-retry-count": b"-1"}, 0),
        ({b"x-retry-count": b"99999"}, 0),
        ({b"x-retry-count": "²".encode()}, 0),
    ],
)
def test_retries(headers: dict[bytes, bytes], expected: int) -> None:
    assert retries_of(headers) == expected


def test_input_tokens_come_first() -> None:
    # The doubt about the estimate is found by this place.
    assert FIELDS[0] == "input_tokens"
    assert "body" not in FIELDS and "exact" not in FIELDS
