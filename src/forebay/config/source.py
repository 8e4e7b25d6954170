"""YAML text to plain values, with the line of each value; no I/O.

YAML is read as a tree of nodes, not as objects, for three reasons: each value keeps its line, a key that
is written twice is seen, and tags make no objects. Keys are taken as text as they are written, so that
models may be called `3.5` or `on`.
"""

import re
from collections.abc import Iterator
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from forebay.config.faults import Faults, Loc

MAX_BYTES = 1_048_576
MAX_VALUES = 100_000
MAX_DEPTH = 16

_TAG = "tag:yaml.org,2002:"
# Dates and the like are text to us: no setting has such a type.
_TEXT = frozenset(_TAG + name for name in ("str", "timestamp", "merge", "value"))
_QUOTED = re.compile(r"'([^']*)'")
_EMPTY = "is empty; the smallest one has `pools` and `models`"
_HINTS = {
    "mapping values": "is not YAML: a value holds `: `, or a line above lacks the space after `:`; mend or quote it",
    "'\\t'": "is not YAML: a tab; indent with spaces",
    "single document": "is not one YAML document; remove the second `---`",
    "found another document": "is not one YAML document; remove the second `---`",
    "expected the node content": "is not YAML: a value cannot begin like this; quote addresses such as '[::1]:80'",
    "that cannot start any token": "is not YAML: a value cannot begin like this; put it in quotes",
    "undefined alias": "is not YAML: a value begins with `*` but names no anchor; put it in quotes",
}


def read_yaml(data: bytes, faults: Faults) -> Any:
    """Read one YAML document of text, numbers, booleans, lists and mappings.

    Args:
        data: the bytes of the file.
        faults: gets the faults, and the lines of all values.

    Returns:
        The plain value; None when there is nothing to go on with, and then there is a fault.
    """
    text = _decode(data, faults)
    root = None if text is None else _compose(text, faults)
    if root is None:
        return None
    try:
        value = _Walk(faults).value(root, ())
    except _TooMuchError as error:
        faults.add((), str(error))
        return None
    if value is None and not faults.has(()):
        faults.add((), _EMPTY)
    return value


def _decode(data: bytes, faults: Faults) -> str | None:
    if len(data) > MAX_BYTES:
        faults.add((), f"is larger than {MAX_BYTES} bytes; name another file or split it")
        return None
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        faults.add((), "is not UTF-8; save it as UTF-8", line=data[: error.start].count(b"\n") + 1)
        return None


def _compose(text: str, faults: Faults) -> Node | None:
    try:
        # The pure Python loader: the C one is not in every build of PyYAML and words its faults differently.
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        faults.add((), _explain(error), line=1 if mark is None else mark.line + 1)
    except yaml.reader.ReaderError as error:
        faults.add((), "holds a control character; remove it", line=text[: error.position].count("\n") + 1)
    except (RecursionError, ValueError):
        faults.add((), f"cannot be read as YAML: nested more than {MAX_DEPTH} deep, or a malformed escape; simplify it")
    else:
        if root is None:
            faults.add((), _EMPTY)
        return root
    return None


def _explain(error: yaml.MarkedYAMLError) -> str:
    """Say what is wrong in the syntax without repeating what is written there."""
    problem = f"{error.problem or ''} {error.context or ''}"
    for sign, hint in _HINTS.items():
        if sign in problem:
            return hint
    words = _QUOTED.sub(_shown, error.problem or "syntax error")
    return f"is not YAML: {words}; mend the line or the one above, or put the value in quotes"


def _shown(found: re.Match[str]) -> str:
    """Keep a quoted sign or the name of a token, such as `<scalar>`; anything longer may be a secret."""
    return found[0] if len(found[1]) <= 2 or found[1].startswith("<") else "…"


class _TooMuchError(Exception):
    """The tree is larger than a configuration may be."""


class _Walk:
    """Turns nodes into values and notes their lines; bounded, because aliases can make a small file huge."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._left = MAX_VALUES
        self._scalars = yaml.constructor.SafeConstructor()

    def value(self, node: Node, loc: Loc) -> Any:
        """Return the value of a node."""
        self._faults.lines.setdefault(loc, node.start_mark.line + 1)
        self._left -= 1
        if self._left < 0:
            raise _TooMuchError(f"holds more than {MAX_VALUES} values; simplify it")
        if len(loc) > MAX_DEPTH:
            raise _TooMuchError(f"is nested more than {MAX_DEPTH} deep; simplify it")
        if isinstance(node, MappingNode) and node.tag == _TAG + "map":
            return {key: self.value(child, (*loc, key)) for key, child in self._members(node, loc)}
        if isinstance(node, SequenceNode) and node.tag == _TAG + "seq":
            return [self.value(child, (*loc, place)) for place, child in enumerate(node.value)]
        if isinstance(node, ScalarNode):
            return self._scalar(node, loc)
        return self._refuse(loc)

    def _members(self, node: MappingNode, loc: Loc) -> Iterator[tuple[str, Node]]:
        seen: dict[str, int] = {}
        for key, child in node.value:
            line = key.start_mark.line + 1
            if not isinstance(key, ScalarNode):
                self._faults.add((), "a key is not text; put template braces and brackets in quotes", line=line)
            elif key.tag == _TAG + "merge":
                self._faults.add((), "merge keys (`<<`) are not supported; write the settings out", line=line)
            elif key.value in seen:
                text = f"is written twice, first in line {seen[key.value]}; keep one"
                self._faults.add((*loc, key.value), text, line=line)
            else:
                seen[key.value] = self._faults.lines[(*loc, key.value)] = line
                yield key.value, child

    def _scalar(self, node: ScalarNode, loc: Loc) -> Any:
        if node.tag in _TEXT:
            return node.value
        if node.tag == _TAG + "null":
            return None
        try:
            if node.tag == _TAG + "bool":
                return self._scalars.construct_yaml_bool(node)
            if node.tag == _TAG + "int":
                return self._scalars.construct_yaml_int(node)
            if node.tag == _TAG + "float":
                return self._scalars.construct_yaml_float(node)
        except (ValueError, KeyError):
            self._faults.add(loc, "is not what its tag says, or too long a number; write a plain value")
            return None
        return self._refuse(loc)

    def _refuse(self, loc: Loc) -> None:
        self._faults.add(loc, "tags (`!name`) are not supported; write a plain value, or put it in quotes")
