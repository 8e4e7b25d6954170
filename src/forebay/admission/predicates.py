"""The predicates of rules: a closed list, each a small object made once from a condition; pure.

There are no regular expressions: a glob costs time linear in the text. A value of another type than its predicate's
never holds and is never an error.
"""

import operator
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from forebay.policy import Condition

# Places of a text at which a part with `?` between two `*` is tried; keeps hostile texts linear.
MAX_PLACES = 1024


class Glob:
    """A pattern of `*` (any text) and `?` (one character), matched in time linear in the text.

    The parts between two `*` are looked for one after the other, each at its first place, which is never worse
    than a later one, so nothing is tried twice. A part that holds `?` there is tried at `MAX_PLACES` places at most.
    """

    def __init__(self, pattern: str) -> None:
        parts = pattern.split("*")
        self._whole = len(parts) == 1
        self._head = _Part(parts[0])
        self._tail = _Part(parts[-1])
        self._middle = tuple([_Part(part) for part in parts[1:-1] if part])

    def matches(self, text: str) -> bool:
        """Say whether the pattern covers the whole text."""
        head, tail = self._head, self._tail
        start, end = head.chars, len(text) - tail.chars
        if self._whole:
            return start == len(text) and head.stands_at(text, 0)
        if end < start or (start and not head.stands_at(text, 0)) or (tail.chars and not tail.stands_at(text, end)):
            return False
        for part in self._middle:
            at = part.find(text, start, end)
            if at < 0:
                return False
            start = at + part.chars
        return True


class _Part:
    """A piece of a pattern without `*`: literal runs at fixed distances."""

    def __init__(self, text: str) -> None:
        self.chars = len(text)
        self._plain = text if "?" not in text else None
        runs: list[tuple[int, str]] = []
        at = 0
        for run in text.split("?"):
            if run:
                runs.append((at, run))
            at += len(run) + 1
        self._runs = tuple(runs)
        self._offset, self._longest = max(runs, key=lambda run: len(run[1]), default=(0, ""))

    def stands_at(self, text: str, at: int) -> bool:
        for offset, run in self._runs:
            if not text.startswith(run, at + offset):
                return False
        return True

    def find(self, text: str, start: int, end: int) -> int:
        """Return the first place from `start` on where it stands and ends by `end`; -1 when there is none."""
        if self._plain is not None:
            return text.find(self._plain, start, end)
        if end - start < self.chars:
            return -1
        stop = end - self.chars + self._offset + len(self._longest)
        at = text.find(self._longest, start + self._offset, stop)
        for _ in range(MAX_PLACES):
            if at < 0 or self.stands_at(text, at - self._offset):
                return max(-1, at - self._offset)
            at = text.find(self._longest, at + 1, stop)
        return -1


class Predicate(ABC):
    """One predicate, without its field.

    Attributes:
        slot: which of the fields it looks at; set by its owner.
        cost: those with less are asked first.
    """

    slot = 0
    cost = 0

    @abstractmethod
    def holds(self, value: object) -> bool:
        """Say whether it holds for a value; None is an absent one."""


class _Compared(Predicate):
    def __init__(self, compare: Callable[[Any, Any], Any], bound: float) -> None:
        self._compare = compare
        self._bound = bound

    def holds(self, value: object) -> bool:
        # By type, not by isinstance: a boolean is an int to Python, and none to people.
        return (type(value) is int or type(value) is float) and bool(self._compare(value, self._bound))


class _OneOf(Predicate):
    def __init__(self, choices: frozenset[str | float]) -> None:
        self._choices = choices

    def holds(self, value: object) -> bool:
        return value in self._choices and type(value) is not bool


class _Is(Predicate):
    def __init__(self, expected: bool) -> None:
        self._expected = expected

    def holds(self, value: object) -> bool:
        return value is self._expected


class _OtherText(Predicate):
    def __init__(self, unwanted: str) -> None:
        self._unwanted = unwanted

    def holds(self, value: object) -> bool:
        return type(value) is str and value != self._unwanted


class _Like(Predicate):
    cost = 1

    def __init__(self, pattern: str) -> None:
        self._glob = Glob(pattern)

    def holds(self, value: object) -> bool:
        return isinstance(value, str) and self._glob.matches(value)


class _There(Predicate):
    def __init__(self, expected: bool) -> None:
        self._expected = expected

    def holds(self, value: object) -> bool:
        return (value is not None) is self._expected


_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "gt": operator.gt, "ge": operator.ge, "lt": operator.lt, "le": operator.le, "ne": operator.ne,
}  # fmt: skip


def predicate_of(condition: Condition) -> Predicate:
    """Return the predicate of a condition.

    Raises:
        ValueError: the value does not fit the operator.
    """
    name, value = condition.operator, condition.value
    if name == "in" and isinstance(value, tuple):
        return _OneOf(frozenset(value))
    if isinstance(value, bool):
        if name in ("eq", "ne"):
            return _Is(value is (name == "eq"))
        if name == "exists":
            return _There(value)
    elif isinstance(value, (int, float)) and name in _COMPARE:
        return _Compared(_COMPARE[name], value)
    elif isinstance(value, (str, int, float)) and name == "eq":
        return _OneOf(frozenset((value,)))
    elif isinstance(value, str) and name in ("ne", "glob"):
        return _OtherText(value) if name == "ne" else _Like(value)
    raise ValueError(f"{condition.field}: the value does not fit the operator {name}")
