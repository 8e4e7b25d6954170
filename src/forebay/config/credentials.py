"""Keys as people write them: plain, as a digest, or as the name of an environment variable; pure.

What is raised here is a `ValueError` that never repeats a key.
"""

import re
from collections.abc import Mapping
from hashlib import sha256

from msgspec import Struct

MIN_PLAIN = 16
MIN_SECRET = 32
MAX_PLAIN = 1024
_VISIBLE = re.compile(rf"[!-~]{{1,{MAX_PLAIN}}}")
_DIGEST = re.compile(r"sha256:[0-9A-Fa-f]{64}")
_REFERENCE = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*")


class TenantKey(Struct, frozen=True):
    """What is kept of a tenant's key.

    Attributes:
        digest: SHA-256 of the key, 32 bytes.
        short: it was given in plain and has fewer than `MIN_PLAIN` characters.
    """

    digest: bytes
    short: bool


def check_api_key(text: str) -> str:
    """Check the spelling of an engine's key: plain or `env:NAME`.

    Raises:
        ValueError: it is neither.
    """
    if text.startswith("env:"):
        if not _REFERENCE.fullmatch(text):
            raise ValueError("is not env:NAME; name an environment variable of letters, digits and _")
    elif not _VISIBLE.fullmatch(text):
        raise ValueError(f"is not a key; write 1 to {MAX_PLAIN} visible ASCII characters without spaces, or env:NAME")
    return text


def check_tenant_key(text: str) -> str:
    """Check the spelling of a tenant's key: plain, `sha256:` and 64 hexadecimal digits, or `env:NAME`.

    Raises:
        ValueError: it is none of them.
    """
    if text.startswith("sha256:") and not _DIGEST.fullmatch(text):
        raise ValueError("is not sha256:HEX; write the 64 hexadecimal digits of the key's SHA-256")
    return check_api_key(text)


def resolve(text: str, environ: Mapping[str, str]) -> str:
    """Return a key with a reference replaced by what it names; surrounding white space of a variable is dropped.

    Args:
        text: spelled right according to `check_api_key`.
        environ: names to values.

    Raises:
        ValueError: the variable is not set, or holds no key.
    """
    if not text.startswith("env:"):
        return text
    name = text.removeprefix("env:")
    value = environ.get(name, "").strip()
    if not value:
        raise ValueError(f"environment variable {name} is not set or empty; set it before the start")
    if not _VISIBLE.fullmatch(value):
        raise ValueError(f"environment variable {name} holds no key; set 1 to {MAX_PLAIN} visible ASCII characters")
    return value


def tenant_key(text: str, environ: Mapping[str, str]) -> TenantKey:
    """Return what is kept of a tenant's key.

    Args:
        text: spelled right according to `check_tenant_key`.
        environ: names to values; a value may be plain or `sha256:HEX`.

    Raises:
        ValueError: see `resolve`, or a variable holds a malformed digest.
    """
    key = check_tenant_key(resolve(text, environ))
    if key.startswith("sha256:"):
        return TenantKey(bytes.fromhex(key.removeprefix("sha256:")), short=False)
    return TenantKey(sha256(key.encode()).digest(), short=len(key) < MIN_PLAIN)
