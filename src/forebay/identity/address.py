"""The client's address behind proxies."""

from functools import lru_cache
from ipaddress import IPv4Network, IPv6Network, ip_address, ip_network


def client_address(peer: str, forwarded_for: bytes | None, trusted: tuple[str, ...]) -> str:
    """Return the right-most address that no trusted proxy vouches for.

    Args:
        peer: address of the connection's other end.
        forwarded_for: value of X-Forwarded-For, joined if it came more than once.
        trusted: addresses or networks of proxies; empty by default, so that nobody is believed.

    Source: RFC 7239, 8.1.
    """
    if not trusted or not forwarded_for or not _is_trusted(peer, trusted):
        return peer
    address = peer
    for hop in reversed(forwarded_for.decode("latin-1").split(",")):
        hop = hop.strip()
        if not _is_address(hop):
            break
        address = hop
        if not _is_trusted(hop, trusted):
            break
    return address


def _is_trusted(address: str, trusted: tuple[str, ...]) -> bool:
    try:
        parsed = ip_address(address)
    except ValueError:
        return False
    return any(parsed in network for network in _networks(trusted))


@lru_cache(maxsize=8)
def _networks(trusted: tuple[str, ...]) -> tuple[IPv4Network | IPv6Network, ...]:
    return tuple(ip_network(text, strict=False) for text in trusted)


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True
