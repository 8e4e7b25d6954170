"""Token ids in an engine's events: asked for by us, so taken out again before the client sees them.

The quoted patterns cannot stand inside a JSON string, where their quotes would be escaped. What is left is
byte for byte what vLLM writes when nobody asks for ids: `null`.
"""

from typing import Final

ASKED_FOR: Final = "return_token_ids"
_IDS: Final = b'"token_ids":['
_PROMPT_IDS: Final = b'"prompt_token_ids":['
_NULL: Final = b"null"


def without_ids(data: bytes) -> bytes:
    """Return an event's data with all token ids replaced by null; the same object when there are none."""
    at = data.rfind(_IDS)
    if at >= 0:
        data = _nulled(data, at + 12)
    at = data.find(_PROMPT_IDS)
    return data if at < 0 else _nulled(data, at + 19)


def chunk_of(data: bytes, id: bytes | None = None) -> bytes:
    """Return the HTTP chunk of an event of one line, as `sse.lone_event` takes it apart; with an id if there is one."""
    if id is None:
        return b"%x\r\ndata: %b\n\n\r\n" % (len(data) + 8, data)
    return b"%x\r\nid: %b\ndata: %b\n\n\r\n" % (len(id) + len(data) + 13, id, data)


def _nulled(data: bytes, start: int) -> bytes:
    end = data.find(b"]", start)
    return data if end < 0 else data[:start] + _NULL + data[end + 1 :]
