"""What stands at a JSON pointer in a request's body: decoded when it is asked for, once for a call, in bounded work."""

import re
from collections.abc import Callable
from typing import Any

import msgspec
from msgspec import Raw, defstruct

from forebay.wire.members import Members

MAX_INDEX = 255
MAX_MEMBER_BYTES = 1_048_576
# All pointers of one call together, counted before each is followed; a megabyte takes about a millisecond.
MAX_READ_BYTES = 4_194_304
_FORM = re.compile(r'(?:/(?:[^~/"\\\x00-\x1f]|~[01])*){1,8}')

_OBJECT, _ARRAY = b"{["
_decode = msgspec.json.decode


class Pointer:
    """A JSON pointer (RFC 6901) into the members of a request's body.

    Args:
        text: 1 to 8 steps, each after a `/`; `~1` stands for `/`, `~0` for `~`.

    Raises:
        ValueError: it is not of that form, or holds a quote, a backslash or a control character.
    """

    def __init__(self, text: str) -> None:
        if _FORM.fullmatch(text) is None:
            raise ValueError("is not a JSON pointer of 1 to 8 steps, such as /metadata/team")
        self.text = text
        first, *inner = [step.replace("~1", "/").replace("~0", "~") for step in text.split("/")[1:]]
        self.member = first
        self.steps = tuple([_Step(step) for step in inner])


class _Step:
    """One step into a value: a member's name, or a place in an array; nothing beside it is built."""

    def __init__(self, step: str) -> None:
        member = defstruct("Member", [("value", Raw, Raw())], rename={"value": step})
        self._member: Callable[[Raw], Any] = msgspec.json.Decoder(member).decode
        self._item: Callable[[Raw], Any] | None = None
        if step.isascii() and step.isdigit() and str(int(step[:5])) == step and int(step) <= MAX_INDEX:
            before = [(f"before_{place}", Raw, Raw()) for place in range(int(step))]
            item = defstruct("Item", [*before, ("value", Raw, Raw())], array_like=True)
            self._item = msgspec.json.Decoder(item).decode

    def into(self, raw: Raw) -> Raw | None:
        """Return the raw value one step further in; None when there is none."""
        first = memoryview(raw)[0]
        decode = self._member if first == _OBJECT else self._item if first == _ARRAY else None
        if decode is None:
            return None
        value = decode(raw).value
        return value if isinstance(value, Raw) and len(value) else None


class _Container:
    """Stands for an object or an array: it is there, and no comparison holds for it."""


_CONTAINER = _Container()


class Body:
    """The body of one call, as far as rules have asked for it; each pointer is followed once."""

    def __init__(self, members: Members) -> None:
        self._members = members
        self._found: dict[str, object] = {}
        self._left_bytes = MAX_READ_BYTES

    def at(self, pointer: Pointer) -> object:
        """Return the text, number or boolean at a pointer; None when it is absent, null, or in a huge member."""
        found = self._found
        if pointer.text not in found:
            try:
                found[pointer.text] = self._follow(pointer)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                found[pointer.text] = None
        return found[pointer.text]

    def _follow(self, pointer: Pointer) -> object:
        raw = self._members.values.get(pointer.member)
        if raw is None:
            return None
        # Each step reads what is left of the member, and so does the decoding at the end.
        cost_bytes = len(raw) * (len(pointer.steps) + 1)
        if len(raw) > MAX_MEMBER_BYTES or cost_bytes > self._left_bytes:
            return None
        self._left_bytes -= cost_bytes
        for step in pointer.steps:
            raw = step.into(raw)
            if raw is None:
                return None
        if memoryview(raw)[0] in (_OBJECT, _ARRAY):
            return _CONTAINER
        return _decode(raw)
