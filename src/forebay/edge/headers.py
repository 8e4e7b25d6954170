"""The header lines of a request, read."""

from forebay.traffic import Header

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
