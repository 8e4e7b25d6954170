"""Edits of the top-level members of a JSON object, without decoding and encoding the rest.

A body is read once: its members stay raw text, duplicates are refused, and an edit replaces or removes
one member where it stands. Everything else reaches the engine byte for byte: unknown fields, number
text, escapes, lone surrogates.
"""

import re
from collections.abc import Mapping

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
        _walk(raw, values)
    return Members(raw, values)


def edit(members: Members, edits: Mapping[str, bytes | None]) -> bytes:
    """Return the object's text with members set to a JSON text, or removed where the text is None."""
    if not edits:
        return members.raw
    raw = members.raw
    spans = _walk(raw, members.values)
    changed = [(spans[key], text) for key, text in edits.items() if key in spans]
    added = [(key, text) for key, text in edits.items() if key not in spans and text is not None]
    if not changed and not added:
        return raw
    pieces: list[bytes] = []
    at = 0
    removed = 0
    for (key_start, value_start, end), text in sorted(changed, key=lambda change: change[0]):
        if text is not None:
            pieces += (raw[at:value_start], text)
            at = end
        else:
            pieces.append(raw[at:key_start])
            at = _after_comma(raw, end)
            removed += 1
    kept = len(spans) - removed
    close = raw.rindex(b"}")
    body = b"".join((*pieces, raw[at:close]))
    if removed:
        body = _without_last_comma(body)
    for key, text in added:
        body += (b"," if kept else b"") + msgspec.json.encode(key) + b":" + (text or b"")
        kept += 1
    return body + raw[close:]


def _walk(raw: bytes, values: dict[str, Raw]) -> dict[str, Span]:
    """Find each member in the text, in order; any disagreement with the decoder is a duplicate.

    The decoder keeps the last of two equal keys at the place of the first. So if every key and every
    value is met in the decoder's order and nothing is left over, no key stands twice.
    """
    spans: dict[str, Span] = {}
    at = _skip(raw, raw.index(b"{") + 1)
    for key, value in values.items():
        key_start = at
        compact = b'"%b":' % key.encode()
        if raw.startswith(compact, at):
            at += len(compact)
        else:
            at = _skip(raw, _match_key(raw, at, key)) + 1
        if raw[at] <= 0x20:
            at = _skip(raw, at)
        text = bytes(value)
        end = at + len(text)
        if not raw.startswith(text, at) or end >= len(raw):
            raise DuplicateKey(key)
        spans[key] = (key_start, at, end)
        at = end if raw[end] > 0x20 else _skip(raw, end)
        if raw[at] == 0x2C:
            at += 1
            if raw[at] <= 0x20:
                at = _skip(raw, at)
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


def _skip(raw: bytes, at: int) -> int:
    if at < len(raw) and raw[at] > 0x20:
        return at
    found = _SPACE.match(raw, at)
    return found.end() if found else at


def _after_comma(raw: bytes, at: int) -> int:
    at = _skip(raw, at)
    return _skip(raw, at + 1) if raw[at : at + 1] == b"," else at


def _without_last_comma(body: bytes) -> bytes:
    trimmed = body.rstrip(b" \t\r\n")
    return trimmed[:-1] if trimmed.endswith(b",") else body


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, msgspec.DecodeError) else "it is not UTF-8"
