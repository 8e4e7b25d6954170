"""Addresses, URLs, origins, networks."""

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from forebay.config.addresses import Address, check_network, check_origin, parse_address, parse_replica


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:7080", "127.0.0.1", 7080, True),
        ("127.8.0.1:1", "127.8.0.1", 1, True),
        ("localhost:0", "localhost", 0, True),
        ("[::1]:65535", "::1", 65535, True),
        ("0.0.0.0:7080", "0.0.0.0", 7080, False),
        ("[::]:7080", "::", 7080, False),
        ("[::ffff:10.0.0.1]:7080", "::ffff:10.0.0.1", 7080, False),
        ("localhost.example:7080", "localhost.example", 7080, False),
    ],
)
def test_address(text: str, host: str, port: int, loopback: bool) -> None:
    address = parse_address(text)
    assert address == Address(host, port)
    assert str(address) == text
    assert address.is_loopback is loopback


@pytest.mark.parametrize(
    "text",
    ["", "7080", ":7080", "h:", "h:x", "h:65536", "h:-1", "h:+1", "h: 1", "h:1_0", "h:٣", "::1:1", "[::1]", "[h]:1",
     "[127.0.0.1]:1", "http://h:1", "a b:1", "h:1\n", "-h:1"],
)  # fmt: skip
def test_not_an_address(text: str) -> None:
    with pytest.raises(ValueError, match="is not HOST:PORT"):
        parse_address(text)


@pytest.mark.parametrize(
    ("url", "name", "base_path", "query", "tls"),
    [
        ("http://h", "h:80", "", "", False),
        ("https://h", "h:443", "", "", True),
        ("http://h:8000/", "h:8000", "", "", False),
        ("http://h:8000/v1", "h:8000", "", "", False),
        ("http://h:8000/v1/", "h:8000", "", "", False),
        ("http://h:8000//", "h:8000", "", "", False),
        ("http://h:8000/openai/v1", "h:8000/openai", "/openai", "", False),
        ("http://h:8000/av1", "h:8000/av1", "/av1", "", False),
        ("http://h:8000/v1/x", "h:8000/v1/x", "/v1/x", "", False),
        ("http://h:8000/a%20b?api-version=1", "h:8000/a%20b", "/a%20b", "api-version=1", False),
        ("http://h:8000/a?for=me%40here", "h:8000/a", "/a", "for=me%40here", False),
        ("HTTP://H_1.Example:8000", "h_1.example:8000", "", "", False),
        ("http://[FE80::1]:8000/x", "[fe80::1]:8000/x", "/x", "", False),
    ],
)
def test_replica(url: str, name: str, base_path: str, query: str, tls: bool) -> None:
    replica = parse_replica(url)
    assert (replica.name, replica.base_path, replica.query, replica.tls) == (name, base_path, query, tls)
    assert replica.authorization == ""
    assert "[" not in replica.host


@pytest.mark.parametrize(
    ("url", "api_key", "authorization"),
    [
        ("http://u:p@h", "", "Basic dTpw"),
        ("http://u@h", "", "Basic dTo="),
        ("http://:p@h", "", "Basic OnA="),
        ("http://u:%C3%A9%40@h", "", "Basic dTrDqUA="),
        ("http://u:p@h", "sk-1", "Bearer sk-1"),
        ("http://h", "sk-1", "Bearer sk-1"),
    ],
)
def test_credentials_of_a_replica(url: str, api_key: str, authorization: str) -> None:
    replica = parse_replica(url, api_key)
    assert replica.authorization == authorization
    assert replica.name == "h:80"


@example(password="@0?", scheme="http")
@example(password="0?", scheme="http")
@example(password="@0/", scheme="http")
@given(st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=1), st.sampled_from(["http", "https"]))
def test_a_url_is_refused_or_its_password_hidden(password: str, scheme: str) -> None:
    secret = f"CANARY{password}CANARY"
    try:
        replica = parse_replica(f"{scheme}://u:{secret}@h:1/path?q={secret}")
    except ValueError as error:
        assert secret not in str(error)
        assert error.__cause__ is None and error.__suppress_context__ or error.__context__ is None
    else:
        assert replica.name == "h:1/path"


@given(st.text())
def test_any_text_is_a_replica_or_a_value_error(text: str) -> None:
    for url in (text, "http://" + text, f"http://h:1/{text}"):
        try:
            replica = parse_replica(url)
        except ValueError:
            continue
        assert replica.name.startswith(("[" + replica.host, replica.host)) and "@" not in replica.name
        assert 1 <= replica.port <= 65535


@pytest.mark.parametrize("text", ["*", "https://example.org", "http://localhost:3000", "http://[::1]:80"])
def test_origin(text: str) -> None:
    assert check_origin(text) == text


@pytest.mark.parametrize("text", ["", "example.org", "https://example.org/", "https://a b", "null", "https://*.a"])
def test_not_an_origin(text: str) -> None:
    with pytest.raises(ValueError, match="is not an origin"):
        check_origin(text)


@pytest.mark.parametrize("text", ["10.0.0.1", "10.0.0.0/8", "::1", "fd00::/8"])
def test_network(text: str) -> None:
    assert check_network(text) == text


@pytest.mark.parametrize("text", ["", "10.0.0.1/8", "10.0.0.0/33", "proxy", "10.0.0"])
def test_not_a_network(text: str) -> None:
    with pytest.raises(ValueError, match="is not an address or network"):
        check_network(text)
