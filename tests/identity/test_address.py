"""The client's address behind proxies (recorded case 048)."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.identity.address import client_address

PROXY, PROXIES = "10.0.0.1", ("10.0.0.0/8", "fd00::/8", "192.0.2.7")


def test_nobody_is_believed_by_default() -> None:
    assert client_address("203.0.113.9", b"127.0.0.1", ()) == "203.0.113.9"
    assert client_address("127.0.0.1", b"198.51.100.7", ()) == "127.0.0.1"


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=60))
def test_a_direct_client_cannot_choose_its_address(forwarded: bytes) -> None:
    assert client_address("203.0.113.9", forwarded, PROXIES) == "203.0.113.9"


@pytest.mark.parametrize(
    ("forwarded", "address"),
    [
        (None, PROXY),
        (b"", PROXY),
        (b"198.51.100.7", "198.51.100.7"),
        (b"6.6.6.6, 198.51.100.7", "198.51.100.7"),
        (b"127.0.0.1,198.51.100.7", "198.51.100.7"),
        (b"6.6.6.6,198.51.100.7, 10.9.9.9", "198.51.100.7"),
        (b"6.6.6.6, 198.51.100.7, 10.9.9.9, 192.0.2.7", "198.51.100.7"),
        (b"  198.51.100.7\t", "198.51.100.7"),
        (b"2001:db8::1", "2001:db8::1"),
        (b"6.6.6.6, fd00::2", "6.6.6.6"),
        (b"10.1.1.1, 10.2.2.2", "10.1.1.1"),
        (b"unknown", PROXY),
        (b"6.6.6.6, unknown", PROXY),
        (b"6.6.6.6, unknown, 10.2.2.2", "10.2.2.2"),
        (b"6.6.6.6,", PROXY),
        (b"198.51.100.7:4711", PROXY),
        (b"\xff\xfe", PROXY),
    ],
)
def test_behind_a_trusted_proxy_the_right_most_untrusted_address_counts(forwarded: bytes | None, address: str) -> None:
    assert client_address(PROXY, forwarded, PROXIES) == address


def test_an_ipv6_proxy_is_trusted_by_its_network() -> None:
    assert client_address("fd00::1", b"198.51.100.7", PROXIES) == "198.51.100.7"
    assert client_address("fe80::1", b"198.51.100.7", PROXIES) == "fe80::1"


def test_the_peer_of_a_unix_socket_is_no_proxy() -> None:
    assert client_address("unix", b"198.51.100.7", PROXIES) == "unix"


@settings(max_examples=200, deadline=None)
@given(st.lists(st.sampled_from(["6.6.6.6", "10.0.0.2", "198.51.100.7", "junk", "", "fd00::9"]), max_size=6))
def test_the_answer_is_the_first_from_the_right_that_no_proxy_vouches_for(hops: list[str]) -> None:
    vouched = {"10.0.0.2", "fd00::9"}
    expected = PROXY
    for hop in reversed(hops):
        if hop in ("junk", ""):
            break
        expected = hop
        if hop not in vouched:
            break
    assert client_address(PROXY, ", ".join(hops).encode(), PROXIES) == expected
