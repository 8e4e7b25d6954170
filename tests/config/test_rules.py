"""Rules of the file: what is wrong is said with place and line; what is right compiles and decides."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from forebay.admission.pointers import Pointer
from forebay.admission.rules import FIELDS as FACTS
from forebay.admission.rules import RuleFacts, RuleSet
from forebay.config.faults import Faults
from forebay.config.rules import _POINTER, FIELDS, MAX_RULES, RuleSettings, check_rules, compile_rules, refuse_long
from forebay.config.source import read_yaml
from forebay.policy import Action, Condition, Rule

MODELS = frozenset({"qwen", "qwen-awq"})

EXAMPLE = """\
rules:
  - name: long-inputs
    when: {input_tokens: {gt: 8192, lt: 99999}, tenant: {in: [a, b]}, model: qwen, "body:/metadata/team": {eq: search}}
    then: {reject: "Inputs over 8,192 tokens are not served here; summarise or split them."}
  - {name: retries, when: {retries: {ge: 3}}, then: {reroute: qwen-awq, value: low, cap_tokens: 512}}
  - {name: unbounded, when: {output_tokens: {exists: false}, stream: true}, then: {cap_tokens: 1024}}
"""


def rules_of(text: str, faults: Faults) -> list[RuleSettings]:
    values = read_yaml(text.encode(), faults)
    assert values is not None
    return [RuleSettings.model_validate(entry) for entry in values["rules"]]


def faults_of(text: str) -> list[str]:
    faults = Faults("f")
    check_rules(rules_of(text, faults), MODELS, faults)
    return faults.error().faults


def faults_when(when: str) -> list[str]:
    return faults_of(f"rules:\n  - name: r\n    when:\n      {when}\n    then: {{value: low}}\n")


def test_the_example_compiles() -> None:
    assert faults_of(EXAMPLE) == []
    long, retries, unbounded = compile_rules(rules_of(EXAMPLE, Faults("f")))
    assert long.when == (
        Condition("input_tokens", "gt", 8192),
        Condition("input_tokens", "lt", 99_999),
        Condition("tenant", "in", ("a", "b")),
        Condition("model", "eq", "qwen"),
        Condition("body:/metadata/team", "eq", "search"),
    )
    assert long.then.reject.startswith("Inputs over")
    assert retries == Rule("retries", (Condition("retries", "ge", 3),), Action("", "qwen-awq", "low", 512))
    assert unbounded.when == (Condition("output_tokens", "exists", False), Condition("stream", "eq", True))
    decided = RuleSet((long, retries, unbounded)).decide(RuleFacts(10, stream=True))
    assert decided.rule == "unbounded"


@pytest.mark.parametrize(
    ("when", "where", "words"),
    [
        ("input_token: 3", "input_token", "did you mean `input_tokens`?"),
        ("colour: red", "colour", "is nothing that rules can look at; known here: input_tokens,"),
        ("input_tokens: {gt: '8192'}", "input_tokens.gt", "is not a number; write digits without quotes"),
        ("input_tokens: {gt: true}", "input_tokens.gt", "is not a number"),
        ("input_tokens: {gt: .inf}", "input_tokens.gt", "is not a number"),
        ("input_tokens: {above: 3}", "input_tokens.above", "is not an operator; use eq, ne, gt,"),
        ("input_tokens: {glob: '8*'}", "input_tokens.glob", "does not fit a number field; use eq, ne, gt,"),
        ("input_tokens: {exists: true}", "input_tokens.exists", "does not fit a number field"),
        ("input_tokens: many", "input_tokens", "is not a number"),
        ("output_tokens: {glob: '*'}", "output_tokens.glob", "does not fit a number field"),
        ("model: {gt: a}", "model.gt", "does not fit a text field; use eq, ne, in, glob"),
        ("model: {exists: true}", "model.exists", "does not fit a text field"),
        ("model: qwn", "model", 'no model is called "qwn"; did you mean "qwen"?'),
        ("model: {in: [qwen, other]}", "model.in", 'no model is called "other"; write a name that stands under'),
        ("tenant: {in: a}", "tenant.in", "is not a list of 1 to 1000 values; write [a, b]"),
        ("tenant: {in: []}", "tenant.in", "is not a list"),
        ("tenant: {in: [a, 3]}", "tenant.in", "holds a value that is not text"),
        ("tenant: {in: [true]}", "tenant.in", "holds true or false"),
        ("tenant: 3", "tenant", "is not text of at most 512 characters; put the value in quotes"),
        ("tenant: {}", "tenant", "is empty"),
        ("tenant:", "tenant", "is empty; fill it in or remove the line"),
        ("tenant: {eq: }", "tenant.eq", "is empty"),
        ("tenant: [a]", "tenant", "is not text"),
        ("template: {exists: 1}", "template.exists", "is not true or false"),
        (f"template: {{glob: {'a' * 129}}}", "template.glob", "is not a pattern"),
        ("value: urgent", "value", "is not a class; use high, medium, low"),
        ("endpoint: chats", "endpoint", "is not an endpoint; use chat, completions"),
        ("stream: 1", "stream", "is not true or false"),
        ("stream: {in: [true]}", "stream.in", "does not fit a boolean field; use eq, ne"),
        ("body: x", "body", "is nothing that rules can look at"),
        ('"body:metadata": x', "(a key that is not shown)", "is not `body:` and a JSON pointer of 1 to 8 steps"),
        ('"body:/a/~3": x', "(a key that is not shown)", "is not `body:` and a JSON pointer"),
        ('"body:/a": {gt: x}', "(a key that is not shown).gt", "is not a number"),
        ('"body:/a": {like: x}', "(a key that is not shown).like", "is not an operator; use eq, ne, gt"),
        ('"body:/a": {eq: [x]}', "(a key that is not shown).eq", "is not text of at most 512 characters, a number"),
    ],
)
def test_faults_of_conditions(when: str, where: str, words: str) -> None:
    (fault,) = faults_when(when)
    assert fault.startswith(f"f:4: rules[0].when.{where}: "), fault
    assert words in fault


@pytest.mark.parametrize(
    "when",
    [
        "input_tokens: 3", "output_tokens: {exists: false}", "user: {exists: true}", "value: low", "stream: false",
        "endpoint: {in: [chat, messages]}", "model: {glob: 'llama*'}", "model: {ne: other}", '"body:/a/0": true',
        '"body:/a": {in: [x, 3]}', '"body:/a": {exists: true}', '"body:/a": {ge: 0.5}', '"body:/a": {glob: "x?"}',
    ],
)  # fmt: skip
def test_what_is_accepted_is_compiled(when: str) -> None:
    text = f"rules:\n  - name: r\n    when:\n      {when}\n    then: {{value: low}}\n"
    assert faults_of(text) == []
    assert len(RuleSet(compile_rules(rules_of(text, Faults("f"))))) == 1


@pytest.mark.parametrize(
    ("then", "where", "words"),
    [
        ("{}", "then", "says nothing to do; write reject, reroute, value or cap_tokens"),
        ("{reject: Sorry., value: low}", "then.value", "does nothing to a call that is rejected"),
        ("{reroute: qwen-awk}", "then.reroute", 'no model is called "qwen-awk"; did you mean "qwen-awq"?'),
    ],
)
def test_faults_of_actions(then: str, where: str, words: str) -> None:
    (fault,) = faults_of(f"rules:\n  - name: r\n    when: {{model: qwen}}\n    then: {then}\n")
    assert fault.startswith(f"f:4: rules[0].{where}: ") and words in fault


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "r", "when": {"model": "qwen"}, "then": {"value": "high"}},
        {"name": "r", "when": {"model": "qwen"}, "then": {"cap_tokens": 0}},
        {"name": "r", "when": {"model": "qwen"}, "then": {"reject": " "}},
        {"name": "r", "when": {"model": "qwen"}, "then": {"reject": "a\nb"}},
        {"name": "r", "when": {"model": "qwen"}, "then": {"drop": True}},
        {"name": "r r", "when": {"model": "qwen"}, "then": {"value": "low"}},
        {"name": "r", "when": [], "then": {"value": "low"}},
        {"name": "r", "then": {"value": "low"}},
        {"name": "r", "when": {"model": "qwen"}},
    ],
)
def test_what_pydantic_refuses(entry: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        RuleSettings.model_validate(entry)


def test_a_rule_without_conditions_is_refused() -> None:
    (fault,) = faults_of("rules:\n  - name: r\n    when: {}\n    then: {value: low}\n")
    assert fault == 'f:3: rules[0].when: has no condition; for every call write `model: {glob: "*"}`'


def test_names_must_differ() -> None:
    one = "  - {name: r, when: {model: qwen}, then: {value: low}}\n"
    assert faults_of("rules:\n" + one + one) == ["f:3: rules[1].name: is the name of rules[0] too; choose another"]


def test_there_are_bounds() -> None:
    many = "".join(f"  - {{name: r{n}, when: {{model: qwen}}, then: {{value: low}}}}\n" for n in range(MAX_RULES + 1))
    (fault,) = faults_of("rules:\n" + many)
    assert fault.startswith("f:1: rules: has 201 entries; 200 are the most")
    wide = ", ".join(f'"body:/{n}": 1' for n in range(17))
    (fault,) = faults_of(f"rules:\n  - {{name: r, when: {{{wide}}}, then: {{value: low}}}}\n")
    assert "has 17 fields; 16 are the most" in fault


def test_places_are_those_of_the_file_when_faulty_rules_were_left_out() -> None:
    faults = Faults("f")
    text = "rules:\n  - {}\n  - {name: r, when: {model: x}, then: {value: low}}\n"
    values = read_yaml(text.encode(), faults)
    assert values is not None
    check_rules([RuleSettings.model_validate(values["rules"][1])], MODELS, faults, places=[1])
    assert faults.error().faults[0].startswith("f:3: rules[1].when.model: ")


def test_no_fault_repeats_a_value() -> None:
    text = (
        "rules:\n  - {name: r, when: {input_tokens: CANARY, tenant: {in: [1, CANARY]}, stream: CANARY, value: CANARY,"
        ' endpoint: CANARY, "body:CANARY": 1, "sk-CANARY": 1, messages: {sk-CANARY: 1}}, then: {value: low}}\n'
    )
    assert len(found := faults_of(text)) == 8
    assert not [fault for fault in found if "CANARY" in fault]


def test_compiling_what_is_faulty_raises_nothing() -> None:
    # Faults are raised together, after everything was compiled.
    text = "rules:\n  - {name: r, when: {a: {b: {c: d}}, model: [x], tenant: {3: 4}}, then: {}}\n"
    assert len(compile_rules(rules_of(text, Faults("f")))) == 1


def test_the_fields_are_those_of_the_facts() -> None:
    assert tuple(FIELDS) == FACTS
    facts = RuleFacts(1, output_tokens=1, template="t", user="u")
    kinds = {"number": int, "text": str, "boolean": bool}
    for name, kind in FIELDS.items():
        assert type(getattr(facts, name)) is kinds[kind.removeprefix("optional ")], name
        assert (getattr(RuleFacts(1), name) is None) is kind.startswith("optional"), name


@given(st.text('/ab~01"\\\n', max_size=20) | st.lists(st.sampled_from(["a", "~0", ""])).map("/".join))
def test_the_same_pointers_are_accepted_as_can_be_followed(text: str) -> None:
    try:
        Pointer(text)
    except ValueError:
        assert not _POINTER.fullmatch(text)
    else:
        assert _POINTER.fullmatch(text)


def test_long_inputs_are_refused_for_one_model_or_all() -> None:
    rules = RuleSet((refuse_long("qwen", 8192), refuse_long("*", 32_768)))
    assert rules.decide(RuleFacts(9000, model="qwen", exact=True)).rule == "refuse-long:qwen"
    assert rules.decide(RuleFacts(8192, model="qwen", exact=True)).rule == ""
    assert rules.decide(RuleFacts(9000, model="llama", exact=True)).rule == ""
    assert rules.decide(RuleFacts(40_000, model="llama", exact=True)).rule == "refuse-long:*"


def test_the_advice_says_the_limit_and_what_to_do() -> None:
    for model in ("qwen", "*"):
        text = refuse_long(model, 8192).then.reject
        assert "8,192 tokens" in text
        assert all(word in text for word in ("Shorten", "summarise", "split", "use a model"))
    assert refuse_long("*", 1, "Ask ops.").then == Action(reject="Ask ops.")
