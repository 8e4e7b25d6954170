"""The section `rules`: settings, their checks with place and line, and the rules that they compile to; pure.

`when` is free in form, so pydantic takes any mapping and `check_rules` looks at it: that way each fault names the
field and the operator.
"""

import difflib
import re
from collections.abc import Collection, Sequence
from math import isfinite
from typing import Annotated, Any, Literal, get_args

from pydantic import AfterValidator

from forebay import policy
from forebay.config.faults import Faults, Loc, quoted
from forebay.config.section import Count, Name, Section, setting
from forebay.domain import VALUES
from forebay.wire.endpoints import ENDPOINTS

MAX_RULES = 200
MAX_CONDITIONS = 16
MAX_CHOICES = 1000
MAX_TEXT = 512
MAX_GLOB = 128
MAX_ADVICE = 500

Kind = Literal["number", "text", "optional number", "optional text", "boolean", "anything"]

FIELDS: dict[str, Kind] = {
    "input_tokens": "number",
    "output_tokens": "optional number",
    "model": "text",
    "tenant": "text",
    "endpoint": "text",
    "stream": "boolean",
    "template": "optional text",
    "user": "optional text",
    "value": "text",
    "retries": "number",
    "messages": "number",
    "images": "number",
    "tools": "boolean",
}
"""What a condition may look at; the same names as `RuleFacts` in `forebay.admission.rules`."""

BODY = "body:"
# A JSON pointer (RFC 6901) as `forebay.admission.pointers` follows it.
_POINTER = re.compile(r'(?:/(?:[^~/"\\\x00-\x1f]|~[01])*){1,8}')
_NUMERIC = ("eq", "ne", "gt", "ge", "lt", "le", "in")
_TEXTUAL = ("eq", "ne", "in", "glob")
_FITTING: dict[Kind, tuple[str, ...]] = {
    "number": _NUMERIC,
    "text": _TEXTUAL,
    "optional number": (*_NUMERIC, "exists"),
    "optional text": (*_TEXTUAL, "exists"),
    "boolean": ("eq", "ne"),
    "anything": get_args(policy.Operator),
}
_EMPTY = "is empty; fill it in or remove the line"


def _check_advice(text: str) -> str:
    if not 0 < len(text.strip()) <= MAX_ADVICE or not text.isprintable():
        raise ValueError(f"is not a text for clients; write what they can do instead, in 1 to {MAX_ADVICE} characters")
    return text


class ActionSettings(Section):
    """What a rule does: `reject` alone, or one or more of the others."""

    reject: Annotated[str, AfterValidator(_check_advice)] | None = setting(
        None, "text", "The call gets 422 with this text, which says what to do instead."
    )
    reroute: str | None = setting(None, "name", "The model that serves it instead.")
    value: Literal["medium", "low"] | None = setting(None, "", "The class that it has at most.")
    cap_tokens: Count | None = setting(None, "tokens", "Its longest answer.")


class RuleSettings(Section):
    """Conditions on a call, and what is done when all of them hold; the first rule that holds decides."""

    name: Name = setting(..., "name", "Stands in metrics and errors.")
    when: dict[str, Any] = setting(..., "", "Fields and what they must be; see [rules](rules.md).")
    then: ActionSettings = setting(..., "", "What is done.")


def compile_rules(settings: Sequence[RuleSettings]) -> tuple[policy.Rule, ...]:
    """Return the rules, in order; what `check_rules` has found fault with comes out as it is, and unusable."""
    return tuple(
        policy.Rule(
            name=rule.name,
            when=tuple(
                policy.Condition(field, operator, tuple(value) if isinstance(value, list) else value)
                for field, wanted in rule.when.items()
                for operator, value in _operators_of(wanted).items()
            ),
            then=policy.Action(
                reject=rule.then.reject or "",
                reroute=rule.then.reroute or "",
                value=rule.then.value,
                cap_tokens=rule.then.cap_tokens,
            ),
        )
        for rule in settings
    )


def _operators_of(wanted: Any) -> dict[Any, Any]:
    """Return operators and their values; a plain value means `eq`."""
    return wanted if isinstance(wanted, dict) else {"eq": wanted}


def refuse_long(model: str, tokens: int, advice: str = "") -> policy.Rule:
    """Return the rule that an override stands for which refuses long inputs.

    Args:
        model: its name; `*` means all.
        tokens: of the longest input that is still served.
        advice: for the client; empty for a text that names the limit and what to do.
    """
    whose = "" if model == "*" else " by this model"
    text = advice or (
        f"Inputs of more than {tokens:,} tokens are not served{whose} at present. Shorten or summarise the input, "
        "split it into several requests, or use a model for longer inputs."
    )
    conditions = [policy.Condition("input_tokens", "gt", tokens)]
    if model != "*":
        conditions.append(policy.Condition("model", "eq", model))
    # A colon cannot stand in a name of the file, so the two never meet.
    return policy.Rule(f"refuse-long:{model}", tuple(conditions), policy.Action(reject=text))


def check_rules(
    settings: Sequence[RuleSettings],
    models: Collection[str],
    faults: Faults,
    places: Sequence[int] | None = None,
) -> None:
    """Check each rule, and that no two have the same name.

    Args:
        settings: valid as far as pydantic looks.
        models: names of all models of the file.
        faults: gets what is wrong.
        places: of the rules in the file, from 0, when faulty ones were left out.
    """
    if len(settings) > MAX_RULES:
        faults.add(("rules",), f"has {len(settings)} entries; {MAX_RULES} are the most, so join some with `in`")
        return
    names: dict[str, int] = {}
    for place, rule in zip(range(len(settings)) if places is None else places, settings, strict=True):
        first = names.setdefault(rule.name, place)
        if first != place:
            faults.add(("rules", place, "name"), f"is the name of rules[{first}] too; choose another")
        _check_when(rule.when, ("rules", place, "when"), models, faults)
        _check_then(rule.then, ("rules", place, "then"), models, faults)


def _check_then(then: ActionSettings, loc: Loc, models: Collection[str], faults: Faults) -> None:
    others = [name for name in ("reroute", "value", "cap_tokens") if getattr(then, name) is not None]
    if then.reject is None and not others:
        faults.add(loc, "says nothing to do; write reject, reroute, value or cap_tokens")
    if then.reject is not None and others:
        faults.add((*loc, others[0]), "does nothing to a call that is rejected; remove one of the two")
    if then.reroute is not None and then.reroute not in models:
        faults.add((*loc, "reroute"), _no_model(then.reroute, models))


def _check_when(when: dict[str, Any], loc: Loc, models: Collection[str], faults: Faults) -> None:
    if not when:
        faults.add(loc, 'has no condition; for every call write `model: {glob: "*"}`')
    if len(when) > MAX_CONDITIONS:
        faults.add(loc, f"has {len(when)} fields; {MAX_CONDITIONS} are the most, so make two rules")
        return
    for field, wanted in when.items():
        here = (*loc, field)
        kind = _kind_of(field)
        if kind is None:
            faults.add(here, _no_field(field))
        elif wanted is None or wanted == {}:
            faults.add(here, _EMPTY)
        else:
            for operator, value in _operators_of(wanted).items():
                place = (*here, operator) if isinstance(wanted, dict) else here
                fault = _operator_fault(kind, operator, value) or _unknown_name(field, operator, value, models)
                if fault:
                    faults.add(place, fault)


def _kind_of(field: str) -> Kind | None:
    """Return what a field holds; None when there is no such field."""
    if field.startswith(BODY) and _POINTER.fullmatch(field.removeprefix(BODY)):
        return "anything"
    return FIELDS.get(field)


def _no_field(field: str) -> str:
    if field.startswith(BODY):
        return "is not `body:` and a JSON pointer of 1 to 8 steps; write it like `body:/metadata/team`"
    close = difflib.get_close_matches(field, FIELDS, n=1, cutoff=0.75)
    advice = f"did you mean `{close[0]}`?" if close else f"known here: {', '.join(FIELDS)} and body:/POINTER"
    return f"is nothing that rules can look at; {advice}"


def _operator_fault(kind: Kind, operator: str, value: Any) -> str:
    """Say what is wrong with an operator and its value; empty when nothing is."""
    fitting = _FITTING[kind]
    if operator not in fitting:
        known = operator in _FITTING["anything"]
        problem = f"does not fit a {kind.removeprefix('optional ')} field" if known else "is not an operator"
        return f"{problem}; use {', '.join(fitting)}"
    if value is None:
        return _EMPTY
    if operator == "exists":
        return "" if isinstance(value, bool) else "is not true or false; write one of them without quotes"
    if operator == "glob":
        fits = isinstance(value, str) and 0 < len(value) <= MAX_GLOB
        return "" if fits else f"is not a pattern; write text of 1 to {MAX_GLOB} characters, with `*` and `?`"
    if operator in ("gt", "ge", "lt", "le"):
        return _value_fault("number", value)
    if operator == "in":
        return _choices_fault(kind, value)
    return _value_fault(kind, value)


def _choices_fault(kind: Kind, value: Any) -> str:
    if not isinstance(value, list) or not 0 < len(value) <= MAX_CHOICES:
        return f"is not a list of 1 to {MAX_CHOICES} values; write [a, b]"
    if any(isinstance(choice, bool) for choice in value):
        return "holds true or false; compare with `eq` instead"
    return next((f"holds a value that {fault}" for choice in value if (fault := _value_fault(kind, choice))), "")


def _value_fault(kind: Kind, value: Any) -> str:
    """Say why a field of a kind can never be a value; empty when it can."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
    text = isinstance(value, str) and len(value) <= MAX_TEXT
    if kind.endswith("number"):
        return "" if number else "is not a number; write digits without quotes"
    if kind.endswith("text"):
        return "" if text else f"is not text of at most {MAX_TEXT} characters; put the value in quotes"
    if kind == "boolean":
        return "" if isinstance(value, bool) else "is not true or false; write one of them without quotes"
    fits = number or text or isinstance(value, bool)
    return "" if fits else f"is not text of at most {MAX_TEXT} characters, a number, true or false"


def _unknown_name(field: str, operator: str, value: Any, models: Collection[str]) -> str:
    """Say which of the names that are compared with does not exist; empty when all do."""
    if operator not in ("eq", "in"):
        return ""
    for name in value if isinstance(value, list) else [value]:
        if field == "model" and name not in models:
            return _no_model(name, models)
        if field == "value" and name not in VALUES:
            return f"is not a class; use {', '.join(VALUES)}"
        if field == "endpoint" and name not in {endpoint.name for endpoint in ENDPOINTS}:
            return f"is not an endpoint; use {', '.join(endpoint.name for endpoint in ENDPOINTS)}"
    return ""


def _no_model(name: str, models: Collection[str]) -> str:
    close = difflib.get_close_matches(name, models, n=1, cutoff=0.6)
    advice = f"did you mean {quoted(close[0])}?" if close else "write a name that stands under `models`"
    return f"no model is called {quoted(name)}; {advice}"
