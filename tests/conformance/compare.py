"""Two answers, member by member: what differs, beyond what differs between two answers of the engine itself.

JSON is read with its order and the text of its numbers kept, so that equal means equal but for the escapes
in strings.
"""

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from cases.rawhttp import Response, sse

Leaf = str | bool | None
Flat = dict[str, Leaf]
"""Every value of an answer by its path, in the order of the answer."""

MODEL = re.compile(r"(events\[\d+\]\.data\.)?((message|response)\.)?model")
# What would make a comparison worthless if the engine itself did not repeat it.
STEADY = re.compile(
    r".*\b(content|text|delta|finish_reason|stop_reason|embedding|logprob|token|tokens|results|score|name|model)"
    r"(\[\d+\])*"
)


class Number(str):
    """A number as it was written."""


class Members(list[tuple[str, Any]]):
    """The members of an object, in order."""


def read(text: bytes | str) -> Any:
    """Read JSON, losing nothing but the spaces and the escapes."""
    return json.loads(text, parse_int=Number, parse_float=Number, object_pairs_hook=Members)


def flatten(value: Any, path: str = "") -> Flat:
    """Lay out every value by its path; an empty object or array counts as a value."""
    flat: Flat = {}
    for at, leaf in _walk(value, path):
        assert at not in flat, f"{at} stands twice"
        assert leaf is None or isinstance(leaf, (str, bool)), f"{at} is {type(leaf)}"
        flat[at] = leaf
    return flat


def _walk(value: Any, path: str) -> Iterable[tuple[str, Leaf]]:
    if isinstance(value, Members) and value:
        for key, member in value:
            yield from _walk(member, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value:
        for index, member in enumerate(value):
            yield from _walk(member, f"{path}[{index}]")
    elif isinstance(value, list):
        yield path, Number("{}" if isinstance(value, Members) else "[]")
    else:
        yield path, value


def answer(response: Response) -> Flat:
    """Lay out a whole answer, or the events of a streamed one without its comments."""
    assert response.clean, "the body ended against its framing"
    if not (response.value("content-type") or "").startswith("text/event-stream"):
        return flatten(read(response.body))
    flat: Flat = {}
    for index, event in enumerate(sse(response.body)):
        flat[f"events[{index}].name"] = event.name
        data = read(event.data) if event.data.startswith("{") else event.data
        flat |= flatten(data, f"events[{index}].data")
    return flat


ERROR_MEMBERS = ("message", "type", "param", "code")


def renamed(direct: Flat, model: str) -> Flat:
    """What an answer becomes for a client that calls the model by another name."""
    flat = {path: model if MODEL.fullmatch(path) and leaf is not None else leaf for path, leaf in direct.items()}
    if any(path.startswith("error.") for path in flat):
        # An error always has its four members; those that the engine left out are null, behind its own.
        flat.update({f"error.{key}": None for key in ERROR_MEMBERS if f"error.{key}" not in flat})
    return flat


def varying(one: Flat, other: Flat) -> frozenset[str]:
    """The paths whose values the engine itself does not repeat.

    Raises:
        AssertionError: two answers of the engine differ in shape or in what they say.
    """
    assert list(one) == list(other), f"the engine does not repeat itself: {_first_gap(one, other)}"
    paths = frozenset(path for path, leaf in one.items() if leaf != other[path])
    loose = sorted(path for path in paths if STEADY.fullmatch(path))
    assert not loose, f"the engine does not repeat {loose[:5]}"
    return paths


def differences(expected: Flat, found: Flat, loose: frozenset[str] = frozenset()) -> list[str]:
    """Say how an answer differs from the expected one; loose values need only be of the same kind."""
    if list(expected) != list(found):
        return [f"other members: {_first_gap(expected, found)}"]
    faults = []
    for path, leaf in expected.items():
        same_kind = type(leaf) is type(found[path])
        if not same_kind or (path not in loose and leaf != found[path]):
            faults.append(f"{path}: expected {leaf!r}, found {found[path]!r}")
    return faults


class Repeated:
    """What an engine answers to one request, asked again and again, and what of it is no constant.

    Args:
        ask: asks the engine once.
    """

    # Two times of an engine can be equal by chance; that they are so five times is out of the question.
    MOST_CALLS = 5

    def __init__(self, ask: Callable[[], Flat]) -> None:
        self._ask = ask
        self._answers = [ask(), ask()]

    def faults(self, found: Flat, name: str, lost: frozenset[str] = frozenset()) -> list[str]:
        """How an answer differs that came under another name of the model.

        The engine is asked again before a difference is believed.

        Args:
            found: the answer.
            name: of the model, for the client.
            lost: names of members that the answer need not have.
        """
        while True:
            first, *others = self._answers
            loose = frozenset[str]().union(*(varying(first, other) for other in others))
            kept = {path: leaf for path, leaf in first.items() if path.rpartition(".")[2] not in lost}
            faults = differences(renamed(kept, name), found, loose)
            if not faults or len(self._answers) == self.MOST_CALLS:
                return faults
            self._answers.append(self._ask())


def _first_gap(expected: Flat, found: Flat) -> str:
    left, right = list(expected), list(found)
    at = next((i for i, (a, b) in enumerate(zip(left, right, strict=False)) if a != b), min(len(left), len(right)))
    return f"expected {left[at : at + 3]} ({len(left)} values), found {right[at : at + 3]} ({len(right)} values)"


HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding"}
OF_THE_ENGINE = {"date", "server", "set-cookie", "alt-svc", "x-request-id", "access-control-allow-origin"}
REPLACED = HOP_BY_HOP | {"content-length"} | OF_THE_ENGINE
ADDED = {"date", "x-request-id", "x-forebay-call-id", "x-forebay-pool", "server-timing"}
ADDED_TO_STREAMS = {"x-accel-buffering", "cache-control"}


def header_differences(direct: Response, through: Response) -> list[str]:
    """Say how the headers differ from those of the engine, beyond the documented list."""
    streamed = (through.value("content-type") or "").startswith("text/event-stream")
    expected = {name: value for name, value in direct.headers if name not in REPLACED}
    if direct.status >= 400:
        expected["content-type"] = "application/json"
    found: dict[str, str] = {}
    faults = []
    for name, value in through.headers:
        if name in found:
            faults.append(f"{name} stands twice")
        found[name] = value
    missing = ADDED - set(found)
    if missing:
        faults.append(f"missing: {sorted(missing)}")
    own = ADDED | HOP_BY_HOP | {"content-length"} | (ADDED_TO_STREAMS if streamed else set())
    for name in sorted((set(expected) | set(found)) - own):
        if expected.get(name) != found.get(name):
            faults.append(f"{name}: expected {expected.get(name)!r}, found {found.get(name)!r}")
    return faults
