"""Keys to tenants."""

import hashlib

import pytest

from forebay.domain import Tenant
from forebay.errors import Refused
from forebay.identity.keyless import KEYLESS
from forebay.identity.keys import identify
from forebay.policy import Policy
from forebay.traffic import Request

A, B = Tenant("a"), Tenant("b", models=frozenset(("m",)))
KEYED = Policy({}, {}, {hashlib.sha256(b"key-A").digest(): A, hashlib.sha256(b"key-B").digest(): B})
OPEN = Policy({}, {}, {})


def request(*headers: tuple[bytes, bytes]) -> Request:
    """A request as the edge hands it over: lower-case names, repeated values joined."""
    joined: dict[bytes, bytes] = {}
    repeated = set()
    for name, value in headers:
        if name in joined:
            repeated.add(name)
            value = joined[name] + b", " + value
        joined[name] = value
    return Request(b"POST", b"/v1/chat/completions", b"", joined, frozenset(repeated), b"", "127.0.0.1", 0.0)


def refusal(policy: Policy, *headers: tuple[bytes, bytes]) -> str:
    with pytest.raises(Refused) as caught:
        identify(request(*headers), policy)
    assert b"key-" not in str(caught.value).encode()
    return caught.value.code


AUTH, XKEY, HOST = b"authorization", b"x-api-key", b"host"


@pytest.mark.parametrize(
    ("headers", "tenant"),
    [
        ([(AUTH, b"Bearer key-A")], A),
        ([(AUTH, b"bearer key-A")], A),
        ([(AUTH, b"BEARER key-B")], B),
        ([(AUTH, b"Bearer   key-A  ")], A),
        ([(XKEY, b"key-A")], A),
        ([(XKEY, b"key-A"), (AUTH, b"Bearer key-A")], A),
    ],
)
def test_a_known_key_is_its_tenant(headers: list[tuple[bytes, bytes]], tenant: Tenant) -> None:
    assert identify(request(*headers), KEYED) is tenant


@pytest.mark.parametrize(
    ("headers", "code"),
    [
        ([], "missing_api_key"),
        ([(XKEY, b"")], "missing_api_key"),
        ([(AUTH, b"")], "missing_api_key"),
        ([(AUTH, b"Bearer")], "missing_api_key"),
        ([(AUTH, b"Bearer ")], "missing_api_key"),
        ([(AUTH, b"Basic a2V5LUE=")], "missing_api_key"),
        ([(AUTH, b"key-A")], "missing_api_key"),
        ([(AUTH, b"Bearerkey-A")], "missing_api_key"),
        ([(AUTH, b"Basic x"), (XKEY, b"key-A")], "missing_api_key"),
        ([(AUTH, b"Bearer key-X")], "invalid_api_key"),
        ([(AUTH, b"Bearer KEY-A")], "invalid_api_key"),
        ([(AUTH, b"Bearer key-A key-B")], "invalid_api_key"),
        ([(AUTH, b"Bearer \xff\xfe")], "invalid_api_key"),
        ([(XKEY, b"key-X")], "invalid_api_key"),
        ([(AUTH, b"Bearer key-A"), (AUTH, b"Bearer key-A")], "bad_request"),
        ([(AUTH, b"Bearer key-A"), (AUTH, b"Bearer key-B")], "bad_request"),
        ([(XKEY, b"key-A"), (XKEY, b"key-B")], "bad_request"),
        ([(AUTH, b"Bearer key-A"), (XKEY, b"key-B")], "bad_request"),
    ],
)
def test_anything_else_is_refused(headers: list[tuple[bytes, bytes]], code: str) -> None:
    assert refusal(KEYED, *headers) == code


def test_the_digest_of_a_key_is_no_key() -> None:
    assert refusal(KEYED, (XKEY, hashlib.sha256(b"key-A").hexdigest().encode())) == "invalid_api_key"
    assert refusal(KEYED, (XKEY, hashlib.sha256(b"key-A").digest())) == "invalid_api_key"


@pytest.mark.parametrize(
    "host",
    [
        b"localhost", b"localhost:7080", b"LOCALHOST:7080", b"127.0.0.1", b"127.0.0.1:7080", b"[::1]", b"[::1]:7080",
    ],
)  # fmt: skip
def test_a_local_program_needs_no_key(host: bytes) -> None:
    assert identify(request((HOST, host)), OPEN) is KEYLESS
    assert identify(request((HOST, host), (AUTH, b"Bearer anything")), OPEN) is KEYLESS


@pytest.mark.parametrize(
    "headers",
    [
        [],
        [(HOST, b"")],
        [(HOST, b"::1")],
        [(HOST, b"evil.example")],
        [(HOST, b"evil.example:7080")],
        [(HOST, b"localhost.evil.example")],
        [(HOST, b"localhost.")],
        [(HOST, b"127.0.0.1.evil.example:80")],
        [(HOST, b"[::2]:7080")],
        [(HOST, b"[::1].evil.example")],
        [(HOST, b"0.0.0.0:7080")],
        [(HOST, b"127.0.0.1"), (b"x-forwarded-for", b"127.0.0.1")],
        [(HOST, b"127.0.0.1"), (b"forwarded", b"for=127.0.0.1")],
        [(HOST, b"127.0.0.1"), (b"x-real-ip", b"127.0.0.1")],
    ],
)
def test_without_tenants_nobody_else_may_call(headers: list[tuple[bytes, bytes]]) -> None:
    assert refusal(OPEN, *headers) == "host_not_allowed"
