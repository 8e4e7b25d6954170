"""Taking the offer of another protocol out of a request."""

import pytest
from edge.client_side import get, post
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.edge.upgrade import without_upgrade

OFFER = (b"Connection: Upgrade", b"Upgrade: h2c")


@pytest.mark.parametrize("rest", [b"", b"GET /next HTTP/1.1\r\n", b"Upgrade: x\r\n\r\n", b"\r\nupgrade: y"])
def test_only_the_offer_goes(rest: bytes) -> None:
    assert without_upgrade(get(b"/", *OFFER) + rest) == get(b"/", b"Connection: Upgrade") + rest
    body = b"{}" + rest
    assert without_upgrade(post(body, b"X: 1", *OFFER)) == post(body, b"X: 1", b"Connection: Upgrade")


def test_every_line_of_the_offer_goes() -> None:
    assert without_upgrade(get(b"/", b"upgrade: a", b"X: 1", b"UPGRADE: b")) == get(b"/", b"X: 1")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        get(b"/", *OFFER)[:-1],
        get(b"/"),
        get(b"/", b"X-Upgrade: h2c"),
        get(b"/", b"X: upgrade: h2c"),
        b"CONNECT h:1 HTTP/1.1\r\nUpgrade: x\r\n\r\n",
    ],
)
def test_what_is_not_served_as_plain_http(data: bytes) -> None:
    assert without_upgrade(data) is None


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60), st.binary(max_size=60))
def test_what_is_left_has_no_offer_and_the_same_body(lines: bytes, body: bytes) -> None:
    head = lines.replace(b"\r\n\r\n", b"")
    plain = without_upgrade(b"GET / HTTP/1.1\r\nUpgrade: x\r\n" + head + b"\r\n\r\n" + body)
    assert plain is not None
    assert b"\r\nupgrade:" not in plain.partition(b"\r\n\r\n")[0].lower()
    assert plain.endswith(body)
    assert without_upgrade(plain) is None
