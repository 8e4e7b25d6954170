"""The members of a JSON object as raw text: read once, doubles refused, nothing decoded that is not needed."""

import re

import msgspec
from msgspec import Raw, Struct

_decode_members = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_text = msgspec.json.Decoder(str).decode
_SPACE = re.compile(rb"[ \t\n\r]*")
_STRING = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


class InvalidJson(Exception):
    """The text is not one JSON object; the message says what is wrong, never what it holds."""


class DuplicateKey(Exception):
    """The object has a member twice; `key` is its name."""

    def __init__(self, key: str) -> None:
        super().__init__(f"the key {key[:64]!r} stands twice in the same object")
        self.key = key


class TooDeep(Exception):
    """The text is nested deeper than the limit, or costs too much to measure."""


Span = tuple[int, int, int]
"""Where a member stands: its key's quote, its value's first byte, the byte after its value."""


class Members(Struct, frozen=True):
    """A JSON object as raw members.

    Attributes:
        raw: the whole text.
        values: the raw text of each member, by its decoded key.
    """

    raw: bytes
    values: dict[str, Raw]

    def text_of(self, key: str) -> bytes | None:
        """Return the raw JSON text of a member; None when it is absent or null."""
        value = self.values.get(key)
        if value is None:
            return None
        text = bytes(value)
        return None if text == b"null" else text


def read_members(raw: bytes) -> Members:
    """Read the members of one JSON object.

    Raises:
        InvalidJson: not JSON, or not an object.
        DuplicateKey: a key stands twice.
        TooDeep: nested beyond what the decoder can follow.
    """
    try:
        values = _decode_members(raw)
    except msgspec.ValidationError:
        raise InvalidJson("the body must be a JSON object") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidJson(f"the body is not valid JSON: {_reason(error)}") from None
    except RecursionError:
        raise TooDeep("the body is nested too deeply") from None
    # Quotes, colons and commas of an object without spaces between its members: if they and the members
    # add up to the whole text, nothing is left that could be a second copy of a key.
    if len(raw) != sum(map(len, values)) + sum(map(len, values.values())) + 4 * len(values) + 1:
        spans_of(raw, values)
    return Members(raw, values)


def spans_of(raw: bytes, values: dict[str, Raw]) -> dict[str, Span]:
    """Find each member in the text, in order; any disagreement with the decoder is a duplicate.

    The decoder keeps the last of two equal keys at the place of the first. So if every key and every
    value is met in the decoder's order and nothing is left over, no key stands twice.
    """
    spans: dict[str, Span] = {}
    at = skip_space(raw, raw.index(b"{") + 1)
    for key, value in values.items():
        key_start = at
        compact = b'"%b":' % key.encode()
        if raw.startswith(compact, at):
            at += len(compact)
        else:
            at = skip_space(raw, _match_key(raw, at, key)) + 1
        if raw[at] <= 0x20:
            at = skip_space(raw, at)
        text = bytes(value)
        end = at + len(text)
        if not raw.startswith(text, at) or end >= len(raw):
            raise DuplicateKey(key)
        spans[key] = (key_start, at, end)
        at = end if raw[end] > 0x20 else skip_space(raw, end)
        if raw[at] == 0x2C:
            at += 1
            if raw[at] <= 0x20:
                at = skip_space(raw, at)
        elif raw[at] != 0x7D:
            raise DuplicateKey(key)
    if raw[at] != 0x7D:
        key_text = _STRING.match(raw, at)
        raise DuplicateKey(_decode_text(key_text.group()) if key_text else "?")
    return spans


def _match_key(raw: bytes, at: int, key: str) -> int:
    plain = b'"%b"' % key.encode()
    if raw.startswith(plain, at):
        return at + len(plain)
    found = _STRING.match(raw, at)
    if found is None:
        raise DuplicateKey(key)
    written = _decode_text(found.group())
    if written != key:
        raise DuplicateKey(written)
    return found.end()


def skip_space(raw: bytes, at: int) -> int:
    """Return the place of the first byte from `at` on that is no white space."""
    if at < len(raw) and raw[at] > 0x20:
        return at
    found = _SPACE.match(raw, at)
    return found.end() if found else at


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, msgspec.DecodeError) else "it is not UTF-8"
