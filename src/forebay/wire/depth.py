"""How deep a JSON text is nested, in bounded work."""

import msgspec
from msgspec import Raw

from forebay.wire.members import InvalidJson, TooDeep, read_members

_decode_items = msgspec.json.Decoder(list[Raw]).decode
_OPENERS = (b"[", b"{")

# Whole-body passes that the depth check may make before it gives up: a chat body needs four.
_DEPTH_PASSES = 16
_FREE_DEPTH_BYTES = 65_536


def check_depth(raw: bytes, limit: int) -> None:
    """Refuse a JSON text that is nested deeper than a limit, in bounded work.

    Each level is split by the decoder in turn, and only parts with enough brackets to break the limit
    are looked into, so ordinary bodies cost two counts.

    Args:
        raw: valid JSON, any size.
        limit: levels of arrays and objects that are allowed.

    Raises:
        TooDeep: deeper, or the check would read the text more than 16 times.
        DuplicateKey: a key stands twice where depth had to be looked for: the copy that the decoder drops
            could hide it.
    """
    if raw.count(b"[") + raw.count(b"{") <= limit:
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
    return part[:1] in _OPENERS and part.count(b"[") + part.count(b"{") > levels


def _children(part: bytes) -> list[bytes]:
    try:
        # Members are read with the check for doubles: of two equal keys the decoder would show only one.
        items = _decode_items(part) if part[:1] == b"[" else list(read_members(part).values.values())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InvalidJson):
        raise TooDeep("JSON nested too deeply, or broken inside") from None
    return [bytes(item).strip() for item in items]
