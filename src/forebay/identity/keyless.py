"""Calls without keys: allowed only from programs on this machine, as long as no tenant is configured."""

from typing import Final

from forebay.domain import Tenant
from forebay.errors import Refused
from forebay.traffic import Request

KEYLESS: Final = Tenant("default")
_FORWARDING = (b"forwarded", b"x-forwarded-for", b"x-real-ip")
_LOOPBACK_HOSTS = frozenset((b"localhost", b"127.0.0.1", b"[::1]"))


def _is_foreign(origin: bytes) -> bool:
    """Say whether a browser sent this from a page that does not come from this machine."""
    host = origin.partition(b"://")[2]
    return bool(origin) and not host.startswith((b"localhost", b"127.0.0.1", b"[::1]"))


def local_only(request: Request) -> Tenant:
    """Take a call of this machine.

    Raises:
        Refused: `host_not_allowed`.
    """
    host = request.headers.get(b"host", b"")
    name = host if host.endswith(b"]") else host.rpartition(b":")[0] or host
    if name.lower() not in _LOOPBACK_HOSTS:
        raise Refused("host_not_allowed", "without configured tenants only localhost may call; configure tenants")
    if _is_foreign(request.headers.get(b"origin", b"")):
        raise Refused("host_not_allowed", "without configured tenants no page of another site may call")
    if any(header in request.headers for header in _FORWARDING):
        raise Refused("host_not_allowed", "without configured tenants no proxy may call; configure tenants")
    return KEYLESS
