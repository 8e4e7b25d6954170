"""Requests that offer another protocol are served as plain HTTP/1.1: the offer may be declined.

Java's HTTP client offers h2c with every request in clear text.
"""

import re

_UPGRADE = re.compile(rb"\r\nupgrade:[^\r\n]*", re.IGNORECASE)


def without_upgrade(data: bytes) -> bytes | None:
    """Return a request without its offer, or None when it insists (CONNECT) or is not whole up to its body.

    The parser stops behind such a head, so the request must be parsed again; that needs the head in one
    read, which is how clients send it.
    """
    head, end, rest = data.partition(b"\r\n\r\n")
    plain = _UPGRADE.sub(b"", head)
    if not end or plain == head or head.startswith(b"CONNECT"):
        return None
    return plain + end + rest
