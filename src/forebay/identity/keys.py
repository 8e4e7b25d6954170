"""API keys to tenants."""

import hashlib

from forebay.domain import Tenant
from forebay.errors import Refused
from forebay.identity.keyless import local_only
from forebay.policy import Policy
from forebay.traffic import Request


def identify(request: Request, policy: Policy) -> Tenant:
    """Find the tenant of a request.

    The key is looked up by its SHA-256 digest: what a timing can tell is about the digest, which does
    not help to find the key. Without configured tenants only a local program may call: a request that
    came through a proxy, or under another host name (DNS rebinding), is refused.

    Raises:
        Refused: `missing_api_key`, `invalid_api_key`, `bad_request` for two keys, `host_not_allowed`.
    """
    if not policy.tenants:
        return local_only(request)
    key = key_of(request)
    if not key:
        raise Refused("missing_api_key", "send your API key as 'Authorization: Bearer KEY'")
    tenant = policy.tenants.get(hashlib.sha256(key).digest())
    if tenant is None:
        raise Refused("invalid_api_key", "the API key is not known here")
    return tenant


def key_of(request: Request) -> bytes:
    """Return the API key of a request, empty without one; raise `Refused` as `identify` does."""
    headers = request.headers
    authorization = headers.get(b"authorization")
    key = headers.get(b"x-api-key", b"")
    if b"authorization" in request.repeated or b"x-api-key" in request.repeated:
        raise Refused("bad_request", "send one API key, not several")
    if authorization is None:
        return key
    scheme, _, credential = authorization.partition(b" ")
    credential = credential.strip()
    if scheme.lower() != b"bearer" or not credential:
        raise Refused("missing_api_key", "the Authorization header must read 'Bearer KEY'")
    if key and key != credential:
        raise Refused("bad_request", "Authorization and x-api-key hold different keys; send one")
    return credential
