import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.requests import Request
from starlette.testclient import TestClient

from forebay.console.guard import BODY_BYTES, Listen, host_allowed, origin_allowed, token_matches
from forebay.console.state import ConsoleState

TOKEN = "t" * 43
LOOPBACK = Listen("127.0.0.1", 7081)
DRAIN = {"kind": "drain", "target": "127.0.0.1:9001", "ttl_s": 60, "reason": "r", "by": "ann"}


@pytest.mark.parametrize(
    ("hosts", "listen", "local", "allowed"),
    [
        (["localhost:7081"], LOOPBACK, "127.0.0.1", True),
        (["LOCALHOST"], LOOPBACK, "127.0.0.1", True),
        (["127.0.0.1:9999"], LOOPBACK, "127.0.0.1", True),  # through a tunnel
        (["[::1]:7081"], LOOPBACK, "127.0.0.1", True),
        ([], LOOPBACK, "127.0.0.1", False),
        ([""], LOOPBACK, "127.0.0.1", False),
        (["localhost", "localhost"], LOOPBACK, "127.0.0.1", False),
        (["evil.example:7081"], LOOPBACK, "127.0.0.1", False),
        (["localhost.evil.example"], LOOPBACK, "127.0.0.1", False),
        (["127.0.0.1.evil.example"], LOOPBACK, "127.0.0.1", False),
        (["10.0.0.5:7081"], LOOPBACK, "10.0.0.5", False),
        (["10.0.0.5:7081"], Listen("10.0.0.5", 7081), "10.0.0.5", True),
        (["gate.lan:7081"], Listen("gate.lan", 7081), "10.0.0.5", True),
        (["10.0.0.5:7081"], Listen("0.0.0.0", 7081), "10.0.0.5", True),
        (["evil.example:7081"], Listen("0.0.0.0", 7081), "10.0.0.5", False),
        (["0.0.0.0:7081"], Listen("::", 7081), None, False),
    ],
)
def test_host_must_name_this_port(hosts: list[str], listen: Listen, local: str | None, allowed: bool) -> None:
    assert host_allowed(hosts, listen, local) is allowed


@pytest.mark.parametrize(
    ("origins", "allowed"),
    [
        ([], True),
        (["http://localhost:7081"], True),
        (["http://localhost:7082"], False),
        (["https://localhost:7081"], False),
        (["http://evil.example"], False),
        (["null"], False),
        ([""], False),
        (["http://localhost:7081", "http://evil.example"], False),
    ],
)
def test_origin_must_be_our_own(origins: list[str], allowed: bool) -> None:
    assert origin_allowed(origins, "localhost:7081") is allowed


@given(st.text(max_size=60))
def test_only_the_token_matches(text: str) -> None:
    assert token_matches([f"Bearer {text}"], TOKEN) is (text.strip() == TOKEN)


def test_scheme_and_number_of_authorizations() -> None:
    assert token_matches([f"bearer {TOKEN}"], TOKEN)
    assert not token_matches([], TOKEN)
    assert not token_matches([TOKEN], TOKEN)
    assert not token_matches([f"Basic {TOKEN}"], TOKEN)
    assert not token_matches([f"Bearer {TOKEN}"] * 2, TOKEN)


@pytest.mark.parametrize(
    "path", ["/api/status", "/api/timeline", "/api/policy/overrides", "/api", "/metrics", "//api/status"]
)
@pytest.mark.parametrize("sent", [None, "Bearer wrong", f"Basic {TOKEN}"])
def test_what_is_not_open_needs_the_token(stranger: TestClient, path: str, sent: str | None) -> None:
    answer = stranger.get(path, headers={"authorization": sent} if sent else {})
    assert answer.status_code == 401
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == ("invalid_api_key" if sent else "missing_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert TOKEN not in answer.text


@pytest.mark.parametrize("path", ["/", "/health", "/docs", "/openapi.json"])
def test_open_paths_hold_no_data_and_still_check_the_host(stranger: TestClient, path: str) -> None:
    assert stranger.get(path).status_code == 200
    refused = stranger.get(path, headers={"host": "evil.example"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "host_not_allowed")


def test_a_foreign_page_changes_nothing_even_with_the_token(client: TestClient, state: ConsoleState) -> None:
    for origin in ("http://evil.example", "null"):
        answer = client.post("/api/policy/overrides", json=DRAIN, headers={"origin": origin})
        assert (answer.status_code, answer.json()["error"]["param"]) == (403, "Origin")
        assert client.delete("/api/policy/overrides/x", headers={"origin": origin}).status_code == 403
    assert state.overrides.active() == ()
    own = client.post("/api/policy/overrides", json=DRAIN, headers={"origin": "http://127.0.0.1:7081"})
    assert own.status_code == 201


def test_body_is_bounded(client: TestClient) -> None:
    answer = client.post("/api/policy/overrides", content=b" " * (BODY_BYTES + 1))
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "body_too_large")
    assert answer.headers["connection"] == "close"
    assert client.post("/api/policy/overrides", content=b" " * BODY_BYTES).status_code == 400


@pytest.mark.parametrize("path", ["/", "/docs", "/health", "/api/status", "/api/nothing"])
def test_every_answer_is_sealed(client: TestClient, path: str) -> None:
    headers = client.get(path).headers
    assert headers["content-security-policy"].startswith("default-src 'self'; script-src 'nonce-")
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-frame-options"] == "DENY"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["cache-control"] == "no-store"


def test_a_fault_in_a_route_is_answered_sealed_and_without_detail(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(request: Request) -> None:
        raise RuntimeError("CANARY")

    client.app.add_api_route("/api/broken", broken)  # type: ignore[attr-defined]
    answer = client.get("/api/broken")
    assert (answer.status_code, answer.json()["error"]["code"]) == (500, "internal_error")
    assert "CANARY" not in answer.text
    assert answer.headers["x-frame-options"] == "DENY"
    assert "a route has failed" in caplog.text
