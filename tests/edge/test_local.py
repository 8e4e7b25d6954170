"""What Forebay answers itself."""

import hashlib
import json
from typing import Any

import pytest
from edge.client_side import DATE, FakeTransport, Seen, read_answers

from forebay.domain import Tenant
from forebay.edge.local import Insight, LocalAnswers, cors_lines
from forebay.edge.reply import Reply
from forebay.edge.routes import find
from forebay.identity.keys import identify
from forebay.policy import Model, Policy
from forebay.traffic import Request

MODELS = {"m": Model("m", "main"), "org/n": Model("org/n", "main")}
TENANTS = {hashlib.sha256(b"key-A").digest(): Tenant("a", models=frozenset(("m",)))}
KEYED = Policy({}, MODELS, TENANTS, created=7)
OPEN = Policy({}, MODELS, {}, created=7)


def request(method: bytes, path: bytes, headers: dict[bytes, bytes]) -> Request:
    return Request(method, path, b"", {b"host": b"localhost", **headers}, frozenset(), b"", "127.0.0.1", 0.0)


def ask(
    path: bytes,
    policy: Policy = OPEN,
    *,
    method: bytes = b"GET",
    ready: bool = True,
    serving: tuple[bool, ...] = (True, False),
    **headers: bytes,
) -> Seen:
    insight = Insight(
        lambda: {"live": True},
        lambda: ready,
        lambda: dict(zip(("m", "org/n"), serving, strict=True)),
        lambda: (b"text/plain; version=0.0.4", b"# nothing\n"),
        lambda: {"version": "1"},
    )
    transport = FakeTransport()
    reply: Any = Reply(transport, lambda _: None, date=DATE, chunked=True, keep_alive=True, bodiless=False)  # type: ignore[arg-type]
    asked = request(method, path, {name.replace("_", "-").encode(): value for name, value in headers.items()})
    LocalAnswers(insight, identify).answer(find(method, path, internal=True), asked, reply, policy)
    (answer,) = read_answers(transport.sent)
    return answer


def test_health() -> None:
    assert (ask(b"/health/live").status, json.loads(ask(b"/health/live").body)) == (200, {"live": True})
    assert ask(b"/health/ready").status == 200
    assert ask(b"/health/ready", ready=False).status == 503
    assert ask(b"/health/serving").status == 200
    assert ask(b"/health/serving", serving=(False, False)).status == 503
    assert json.loads(ask(b"/health/serving").body) == {"models": {"m": True, "org/n": False}}


def test_health_and_metrics_ask_for_no_key() -> None:
    for path in (b"/health/live", b"/health/ready", b"/health/serving", b"/metrics"):
        assert ask(path, KEYED).status == 200


def test_metrics_have_their_own_type() -> None:
    assert ask(b"/metrics").headers[b"content-type"] == b"text/plain; version=0.0.4"


def test_the_status_for_the_control_plane() -> None:
    assert json.loads(ask(b"/internal/status").body) == {"version": "1"}


def test_models_are_those_of_the_key() -> None:
    names = [card["id"] for card in json.loads(ask(b"/v1/models").body)["data"]]
    assert names == ["m", "org/n"]
    answer = json.loads(ask(b"/v1/models", KEYED, authorization=b"Bearer key-A").body)
    assert answer == {
        "object": "list",
        "data": [{"id": "m", "object": "model", "created": 7, "owned_by": "forebay"}],
    }
    assert ask(b"/v1/models", KEYED).status == 401
    assert ask(b"/v1/models", KEYED, x_api_key=b"wrong").status == 401


def test_one_model() -> None:
    assert json.loads(ask(b"/v1/models/org%2Fn").body)["id"] == "org/n"
    assert ask(b"/v1/models/nope").status == 404
    assert ask(b"/v1/models/org/n", KEYED, authorization=b"Bearer key-A").status == 404


def test_a_preflight_asks_for_no_key() -> None:
    answer = ask(b"/v1/chat/completions", KEYED, method=b"OPTIONS", access_control_request_headers=b"x-a, x-b")
    assert answer.status == 204
    assert answer.body == b""
    assert answer.headers[b"access-control-allow-headers"] == b"x-a, x-b"
    assert b"POST" in answer.headers[b"access-control-allow-methods"]


@pytest.mark.parametrize(
    ("origins", "origin", "lines"),
    [
        ((), b"https://a", b""),
        (("https://a",), None, b""),
        (("https://a",), b"https://a", b"access-control-allow-origin: https://a\r\nvary: Origin\r\n"),
        (("https://a",), b"https://b", b"vary: Origin\r\n"),
        (("*",), b"https://b", b"access-control-allow-origin: https://b\r\nvary: Origin\r\n"),
    ],
)
def test_cors(origins: tuple[str, ...], origin: bytes | None, lines: bytes) -> None:
    policy = Policy({}, {}, {}, cors_origins=frozenset(origins))
    headers = {} if origin is None else {b"origin": origin}
    assert cors_lines(request(b"POST", b"/", headers), policy) == lines
