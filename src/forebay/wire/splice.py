"""Edits of the top-level members of a JSON object, without decoding and encoding the rest.

An edit replaces or removes one member where it stands. Everything else reaches the engine byte for byte:
unknown fields, number text, escapes, lone surrogates.
"""

from collections.abc import Mapping

import msgspec

from forebay.wire.members import Members, read_members, skip_space, spans_of


def edit(members: Members, edits: Mapping[str, bytes | None]) -> bytes:
    """Return the object's text with members set to a JSON text, or removed where the text is None."""
    if not edits:
        return members.raw
    raw = members.raw
    spans = spans_of(raw, members.values)
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


def with_member(text: bytes | None, key: str, value: bytes) -> bytes:
    """Return an object's text with one member set; a new object when there is none."""
    return edit(read_members(text or b"{}"), {key: value})


def _after_comma(raw: bytes, at: int) -> int:
    at = skip_space(raw, at)
    return skip_space(raw, at + 1) if raw[at : at + 1] == b"," else at


def _without_last_comma(body: bytes) -> bytes:
    trimmed = body.rstrip(b" \t\r\n")
    return trimmed[:-1] if trimmed.endswith(b",") else body
