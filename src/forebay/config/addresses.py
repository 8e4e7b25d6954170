"""Addresses as people write them: `HOST:PORT` to listen on, and the URL of a replica; pure.

What is raised here is a `ValueError` whose text fits behind the name of the setting and never repeats the
value, because a URL may hold a password.
"""

import base64
import re
from ipaddress import ip_address, ip_network
from urllib.parse import SplitResult, parse_qs, unquote, urlsplit

from msgspec import Struct

from forebay.domain import Replica

_NAME = re.compile(r"(?=.{1,253}\Z)[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?\.?")
_PORT = re.compile(r"[0-9]{1,5}")
_ORIGIN = re.compile(r"https?://([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")
_MAX_PORT = 65_535
_STORE_SCHEMES = frozenset({"redis", "rediss", "unix"})
_STORE_OPTIONS = frozenset({"db", "ssl_ca_certs", "ssl_certfile", "ssl_keyfile", "ssl_check_hostname"})
_STORE_ADVICE = (
    "write redis://HOST:PORT, rediss://HOST:PORT or unix:///PATH, and percent-encode what is special in a password"
)
_DEFAULT_PORTS = {"http": 80, "https": 443}


class Address(Struct, frozen=True):
    """Where to listen.

    Attributes:
        host: name or address, without brackets.
        port: TCP port; 0 lets the system choose.
    """

    host: str
    port: int

    def __str__(self) -> str:
        return f"{_bracketed(self.host)}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of this machine can connect; a name other than `localhost` does not count."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ip_address(self.host).is_loopback
        except ValueError:
            return False


def parse_address(text: str) -> Address:
    """Read `HOST:PORT` or `[IPV6]:PORT`.

    Raises:
        ValueError: it is neither.
    """
    host, colon, port = text.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
        valid = ":" in host and _is_address(host)
    else:
        valid = _NAME.fullmatch(host) is not None
    if not colon or not valid or not _PORT.fullmatch(port) or int(port) > _MAX_PORT:
        raise ValueError(
            "is not HOST:PORT; write 127.0.0.1:7080, or [::1]:7080 in quotes, or 0.0.0.0:7080 for all addresses"
        )
    return Address(host, int(port))


def parse_replica(url: str, api_key: str = "") -> Replica:
    """Read the URL of an engine.

    Args:
        url: `http://` or `https://`, host, and as needed user:password, port, path and query. A path that
            ends in `/v1` loses that, because routes carry it.
        api_key: goes out as Bearer token; without one, user:password goes out as Basic.

    Raises:
        ValueError: it is not such a URL.
    """
    parts, port = _split(url)
    host = (parts.hostname or "").lower()
    path = parts.path.rstrip("/").removesuffix("/v1").rstrip("/")
    return Replica(
        name=f"{_bracketed(host)}:{port}{path}",
        host=host,
        port=port,
        tls=parts.scheme == "https",
        base_path=path,
        query=parts.query,
        authorization=f"Bearer {api_key}" if api_key else _basic(parts),
    )


def _split(url: str) -> tuple[SplitResult, int]:
    if not re.fullmatch(r"[!-~]+", url):
        raise ValueError("holds a space, a control or a non-ASCII character; percent-encode it")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise ValueError("is not a URL; write http://HOST:PORT and percent-encode what is special in it") from None
    if parts.scheme not in _DEFAULT_PORTS or not _is_host(parts.hostname or "") or port == 0:
        raise ValueError("is not the URL of an engine; write http://HOST:PORT or https://HOST:PORT")
    # Behind a `/`, `?` or `#` that stands in a password as it is, the rest of it is read as something else.
    if parts.fragment or "@" in parts.path + parts.query or parts.netloc.count("@") > 1:
        raise ValueError(
            "holds `#` or `@` where it has no meaning; percent-encode it in user, password, path and query"
        )
    return parts, port or _DEFAULT_PORTS[parts.scheme]


def _basic(parts: SplitResult) -> str:
    if parts.username is None and parts.password is None:
        return ""
    pair = f"{unquote(parts.username or '')}:{unquote(parts.password or '')}"
    return "Basic " + base64.b64encode(pair.encode()).decode()


def _is_host(host: str) -> bool:
    return _is_address(host) if ":" in host else _NAME.fullmatch(host) is not None


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host


def check_origin(text: str) -> str:
    """Return a web origin as browsers write it, or `*`.

    Raises:
        ValueError: it has a path, or is no origin.
    """
    if text != "*" and not _ORIGIN.fullmatch(text):
        raise ValueError("is not an origin; write https://HOST or https://HOST:PORT without a path, or '*'")
    return text.lower()


def check_network(text: str) -> str:
    """Return an IP address or network in its usual spelling.

    Raises:
        ValueError: it is neither.
    """
    try:
        return text if "/" not in text and _is_address(text) else str(ip_network(text))
    except ValueError:
        raise ValueError("is not an address or network; write 10.0.0.1 or 10.0.0.0/8 (host bits zero)") from None


def check_store(text: str) -> str:
    """Return the URL of a store that nodes share.

    Raises:
        ValueError: it is none.
    """
    try:
        parts = urlsplit(text)
        port = parts.port
        options = parse_qs(parts.query, keep_blank_values=True)
    except ValueError:
        raise ValueError(f"is not a URL; {_STORE_ADVICE}") from None
    somewhere = parts.path if parts.scheme == "unix" else parts.hostname
    if parts.scheme not in _STORE_SCHEMES or not somewhere or port == 0 or not re.fullmatch(r"[!-~]+", text):
        raise ValueError(f"is not the URL of a store; {_STORE_ADVICE}")
    if not options.keys() <= _STORE_OPTIONS or not all(value.isdigit() for value in options.get("db", ())):
        raise ValueError(f"holds an option that is not one of {', '.join(sorted(_STORE_OPTIONS))}; leave it out")
    return text
