"""The table of routes."""

import pytest

from forebay.edge.routes import Route, find
from forebay.errors import Refused
from forebay.wire.endpoints import BY_PATH

LOCALS = {
    "/v1/models": "models",
    "/health/live": "live",
    "/health/ready": "ready",
    "/health/serving": "serving",
    "/metrics": "metrics",
}


def code_of(method: bytes, path: bytes, *, internal: bool = False) -> str:
    with pytest.raises(Refused) as caught:
        find(method, path, internal=internal)
    return caught.value.code


@pytest.mark.parametrize("path", BY_PATH)
def test_endpoints_take_post_alone(path: str) -> None:
    assert find(b"POST", path.encode(), internal=False) == Route(endpoint=BY_PATH[path])
    assert find(b"OPTIONS", path.encode(), internal=False) == Route(local="preflight")
    for method in (b"GET", b"HEAD", b"PUT", b"DELETE", b"PATCH", b"TRACE", b"post"):
        assert code_of(method, path.encode()) == "method_not_allowed"


@pytest.mark.parametrize(("path", "local"), LOCALS.items())
def test_local_routes_take_get_and_head(path: str, local: str) -> None:
    for method in (b"GET", b"HEAD"):
        assert find(method, path.encode(), internal=False) == Route(local=local)  # type: ignore[arg-type]
    assert find(b"OPTIONS", path.encode(), internal=False) == Route(local="preflight")
    for method in (b"POST", b"PUT", b"DELETE"):
        assert code_of(method, path.encode()) == "method_not_allowed"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        (b"/v1/models/m", "m"),
        (b"/v1/models/org/m", "org/m"),
        (b"/v1/models/org%2Fm", "org/m"),
        (b"/v1/models/org%2fm%3Alatest", "org/m:latest"),
        (b"/v1/models/org/m:latest", "org/m:latest"),
        (b"/v1/models/gr%C3%B6%C3%9Fe", "größe"),
        (b"/v1/models/a%252Fb", "a%2Fb"),
        (b"/v1/models/%", "%"),
        (b"/v1/models/..", ".."),
    ],
)
def test_one_model_by_name(path: bytes, name: str) -> None:
    assert find(b"GET", path, internal=False) == Route(local="model", argument=name)
    assert code_of(b"DELETE", path) == "method_not_allowed"


@pytest.mark.parametrize(
    "path",
    [
        b"", b"/", b"*", b"/v1", b"/v1/", b"/v1/models/", b"/v1/chat", b"/v1/chat/completions/",
        b"//v1/chat/completions",
        b"/v1//chat/completions", b"/v1/chat/../completions", b"/v1/%63hat/completions", b"/V1/chat/completions",
        b"/v1/chat/completions;x", b"/v1/chat/completions#x", b"http://h/v1/chat/completions", b"/health", b"/version",
        b"/v1/load_lora_adapter", b"/flush_cache", b"/slots", b"/props", b"/shutdown", b"/internal", b"/invocations",
        b"/internal/status/", b"/admin", b"/api/status", b"/docs", b"/openapi.json", b"/v1/chat/completions\x00",
    ],
)  # fmt: skip
def test_nothing_else_of_an_engine_is_reached(path: bytes) -> None:
    for method in (b"GET", b"POST", b"OPTIONS"):
        assert code_of(method, path) == "route_not_found"


def test_the_status_is_for_the_control_plane_alone() -> None:
    assert find(b"GET", b"/internal/status", internal=True) == Route(local="status")
    assert code_of(b"GET", b"/internal/status") == "route_not_found"
    assert code_of(b"POST", b"/internal/status", internal=True) == "method_not_allowed"
