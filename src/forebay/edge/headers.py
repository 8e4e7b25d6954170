"""The header lines of a request, read, and those of ours that explain what was decided about it."""

from forebay.ports import Permit
from forebay.traffic import Call, Header, Request

NOTHING: frozenset[bytes] = frozenset()


def read_headers(lines: list[Header]) -> tuple[dict[bytes, bytes], frozenset[bytes]]:
    """Return the values by lower-case name, those of a repeated name joined by a comma, and the repeated names."""
    headers = {name.lower(): value.strip() for name, value in lines}
    if len(headers) == len(lines):
        return headers, NOTHING
    joined: dict[bytes, list[bytes]] = {}
    for name, value in lines:
        joined.setdefault(name.lower(), []).append(value.strip())
    repeated = frozenset(name for name, values in joined.items() if len(values) > 1)
    return {name: b", ".join(values) for name, values in joined.items()}, repeated


def head_bytes(target: bytes, lines: list[Header]) -> int:
    """Return the size of a head on the wire, at least."""
    return len(target) + sum(len(name) + len(value) + 4 for name, value in lines)


def explained(request: Request, call: Call, permit: Permit) -> bytes:
    """Return the header lines that tell a client what was decided about its call, where that is not what it asked."""
    lines = b""
    if call.rule:
        lines = b"x-forebay-rule: %b\r\n" % call.rule.encode()
    claimed = request.headers.get(b"x-request-value")
    if claimed is not None and claimed.strip().lower() != permit.value.encode():
        lines += b"x-forebay-value: %b\r\n" % permit.value.encode()
    return lines
