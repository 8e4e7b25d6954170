"""How deep a JSON text is nested, in bounded work."""

import msgspec
from msgspec import Raw

from forebay.wire.members import InvalidJson, TooDeep, read_members

_decode_items = msgspec.json.Decoder(list[Raw]).decode
_OPENERS = (b"[", b"{")

# Whole-body passes that the depth check may make before it gives up: a chat with images needs six.
_DEPTH_PASSES = 8
_FREE_DEPTH_BYTES = 65_536
# Up to here counting all brackets is quicker than stopping at the first one too many.
_COUNTED_BYTES = 16_384


def check_depth(raw: bytes, limit: int) -> None:
    """Refuse a JSON text that is nested deeper than a limit, in bounded work.

    Each level is split by the decoder in turn, and only parts with enough brackets to break the limit
    are looked into, so ordinary bodies cost two searches.

    Args:
        raw: valid JSON, any size.
        limit: levels of arrays and objects that are allowed.

    Raises:
        TooDeep: deeper, or the check would read the text more than 8 times.
        DuplicateKey: a key stands twice where depth had to be looked for: the copy that the decoder drops
            could hide it.
    """
    if not _has_more_openers(raw, limit):
        return
    budget_bytes = max(_FREE_DEPTH_BYTES * limit, _DEPTH_PASSES * len(raw))
    level = [raw.strip()]
    for depth in range(limit + 1):
        suspects = [part for part in level if _may_exceed(part, limit - depth)]
        if not suspects:
            return
        budget_bytes -= sum(map(len, suspects))
        if depth == limit or budget_bytes < 0:
            break
        level = [child for part in suspects for child in _children(part)]
    raise TooDeep(f"JSON nested deeper than {limit} levels")


def _may_exceed(part: bytes, levels: int) -> bool:
    return part[:1] in _OPENERS and _has_more_openers(part, levels)


def _has_more_openers(text: bytes, levels: int) -> bool:
    """Say whether a text has more opening brackets than this; stops at the first one too many."""
    if len(text) <= _COUNTED_BYTES:
        return text.count(b"[") + text.count(b"{") > levels
    found = 0
    for opener in _OPENERS:
        at = text.find(opener)
        while at >= 0:
            found += 1
            if found > levels:
                return True
            at = text.find(opener, at + 1)
    return False


def _children(part: bytes) -> list[bytes]:
    try:
        # Members are read with the check for doubles: of two equal keys the decoder would show only one.
        items = _decode_items(part) if part[:1] == b"[" else list(read_members(part).values.values())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidJson):
        raise TooDeep("JSON nested too deeply, or broken inside") from None
    return [bytes(item).strip() for item in items]
