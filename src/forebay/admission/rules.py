"""The rules of the configuration, compiled once: the first one whose conditions all hold decides on a call.

Predicates are a closed list, globs cost linear time, and a part of the body is decoded only when a rule has come
so far that it needs it. A value of another type than its condition never holds and is never an error.
"""

from bisect import bisect_left
from math import ceil, floor
from typing import Any

from msgspec import Struct
from msgspec.structs import astuple

from forebay.admission.pointers import Body, Pointer
from forebay.admission.predicates import Predicate, predicate_of
from forebay.domain import Value
from forebay.policy import Action, Condition, Rule

BODY = "body:"
# How far the estimate of a prompt's tokens may be off.
DOUBT_RATIO = 0.15
_MAX_RETRY_DIGITS = 4


class RuleFacts(Struct, frozen=True):
    """What rules may look at; None where the client gave nothing.

    Attributes:
        input_tokens: of the prompt, estimated unless `exact`.
        output_tokens: longest answer that the client asked for.
        endpoint: its name, such as `chat`.
        template: `X-Prompt-Template-Id`.
        user: `X-User-Id`.
        value: the class that the call has.
        retries: tries before this one, as the client counts them (`retries_of`).
        messages: number of messages, or of prompts.
        images: number of pictures.
        tools: whether it brings tools.
        exact: `input_tokens` was counted, so that nothing is uncertain.
        body: for the fields that begin with `body:`; None leaves them absent.
    """

    input_tokens: int
    output_tokens: int | None = None
    model: str = ""
    tenant: str = ""
    endpoint: str = ""
    stream: bool = False
    template: str | None = None
    user: str | None = None
    value: Value = "medium"
    retries: int = 0
    messages: int = 1
    images: int = 0
    tools: bool = False
    exact: bool = False
    body: Body | None = None


FIELDS: tuple[str, ...] = tuple(name for name in RuleFacts.__struct_fields__ if name not in ("exact", "body"))
"""The names that a condition may use, besides `body:` and a JSON pointer."""


class Decision(Struct, frozen=True):
    """What the rules say about a call.

    Attributes:
        rule: name of the rule; empty when none holds.
        uncertain: an exact count of the prompt's tokens could lead to another decision.
    """

    rule: str = ""
    action: Action = Action()
    uncertain: bool = False


NO_RULE = Decision()
UNDECIDED = Decision(uncertain=True)


def retries_of(headers: dict[bytes, bytes]) -> int:
    """Return how often a call was tried before: the larger of the client's own count and that of its SDK."""
    return max(_count(headers.get(b"x-retry-count")), _count(headers.get(b"x-stainless-retry-count")))


def _count(text: bytes | None) -> int:
    return int(text) if text is not None and text.isdigit() and len(text) <= _MAX_RETRY_DIGITS else 0


class _Compiled:
    """One rule, its conditions ordered by cost: own fields, then globs, then the body."""

    def __init__(self, rule: Rule) -> None:
        self.certain = Decision(rule.name, rule.then)
        self.uncertain = Decision(rule.name, rule.then, uncertain=True)
        tests: list[Predicate] = []
        self.pointed: list[tuple[Pointer, Predicate]] = []
        self.thresholds: list[float] = []
        for condition in rule.when:
            test = predicate_of(condition)
            if condition.field.startswith(BODY):
                self.pointed.append((Pointer(condition.field.removeprefix(BODY)), test))
                continue
            test.slot = FIELDS.index(condition.field)
            tests.append(test)
            if test.slot == 0:
                self.thresholds += _numbers_in(condition)
        self.tests = sorted(tests, key=lambda test: test.cost)
        self.on_tokens = [test for test in tests if test.slot == 0]

    def others_hold(self, values: tuple[Any, ...]) -> bool:
        """Say whether the conditions hold that look at neither the prompt's tokens nor the body."""
        for test in self.tests:
            if test.slot != 0 and not test.holds(values[test.slot]):
                return False
        return True

    def holds_in(self, body: Body | None) -> bool:
        """Say whether the conditions on the body hold."""
        for pointer, test in self.pointed:
            if not test.holds(None if body is None else body.at(pointer)):
                return False
        return True

    def counts_that_hold(self, low: int, high: int) -> tuple[bool, bool]:
        """Return whether the conditions on the prompt's tokens hold for any count of a range, and for all."""
        points = {low, high}
        for threshold in self.thresholds:
            points.update((floor(threshold) - 1, floor(threshold), floor(threshold) + 1))
        some, every = False, True
        for point in points:
            if low <= point <= high:
                held = True
                for test in self.on_tokens:
                    held = held and test.holds(point)
                some, every = some or held, every and held
        return some, every


def _numbers_in(condition: Condition) -> list[float]:
    values = condition.value if isinstance(condition.value, tuple) else (condition.value,)
    return [float(value) for value in values if not isinstance(value, (str, bool))]


class RuleSet:
    """The rules of one policy, in order.

    Args:
        rules: with distinct names.
        before: the set that this one replaces; rules that it had too go on counting.

    Attributes:
        applied: calls that each rule has decided on, by its name: as many entries as there are rules.
        reads_body: whether `RuleFacts.body` is of use.

    Raises:
        ValueError: a condition has an unknown field, a value that does not fit, or a malformed pointer.
    """

    def __init__(self, rules: tuple[Rule, ...], before: "RuleSet | None" = None) -> None:
        counted = {} if before is None else before.applied
        self._rules = [_Compiled(rule) for rule in rules]
        self._thresholds = sorted({number for rule in self._rules for number in rule.thresholds})
        self.applied: dict[str, int] = {rule.name: counted.get(rule.name, 0) for rule in rules}
        self.reads_body = any(rule.pointed for rule in self._rules)

    def __len__(self) -> int:
        return len(self._rules)

    def decide(self, facts: RuleFacts) -> Decision:
        """Return what the first rule says whose conditions all hold."""
        if not self._rules:
            return NO_RULE
        values = astuple(facts)
        found: _Compiled | None = None
        for rule in self._rules:
            for test in rule.tests:
                if not test.holds(values[test.slot]):
                    break
            else:
                if not rule.pointed or rule.holds_in(facts.body):
                    found = rule
                    break
        if self._thresholds and not facts.exact and self._is_doubtful(facts, values):
            return UNDECIDED if found is None else found.uncertain
        return NO_RULE if found is None else found.certain

    def count(self, decision: Decision) -> None:
        """Count a decision that is carried out."""
        if decision.rule in self.applied:
            self.applied[decision.rule] += 1

    def _is_doubtful(self, facts: RuleFacts, values: tuple[Any, ...]) -> bool:
        """Say whether another count of tokens, within `DOUBT_RATIO` of the estimate, could decide otherwise."""
        low, high = ceil(facts.input_tokens * (1 - DOUBT_RATIO)), floor(facts.input_tokens * (1 + DOUBT_RATIO))
        near = bisect_left(self._thresholds, low)
        if near == len(self._thresholds) or self._thresholds[near] > high:
            return False
        for rule in self._rules:
            if not rule.others_hold(values):
                continue
            some, every = rule.counts_that_hold(low, high)
            if some and rule.holds_in(facts.body):
                # The first rule that may hold: if it holds in any case, what follows does not matter.
                return not every
        return False
