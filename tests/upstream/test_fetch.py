"""Small pages of an engine."""

import asyncio
import json
from collections.abc import Callable

import pytest
from notation import FIN, HANG, raw, reply
from scripted import ScriptedEngine

from forebay.clock import SystemClock
from forebay.domain import Replica
from forebay.upstream.connections import Connections
from forebay.upstream.fetch import MAX_PAGE_BYTES, Fetcher

pytestmark = pytest.mark.integration


def fetch(
    engine: ScriptedEngine, path: str, *, body: bytes | None = None, timeout_s: float = 5.0, times: int = 1
) -> tuple[int, bytes]:
    async def main() -> tuple[int, bytes]:
        loop = asyncio.get_running_loop()
        connections = Connections(loop, SystemClock())
        fetcher = Fetcher(loop, connections)
        replica = Replica(engine.name, "127.0.0.1", engine.port, base_path="/b", authorization="Bearer k")
        try:
            for _ in range(times):
                if body is None:
                    page = await fetcher(replica, path, timeout_s)
                else:
                    page = await fetcher.post(replica, path, body, timeout_s)
            return page
        finally:
            connections.close()
            await asyncio.sleep(0.01)
            assert connections.opened == {}, "polls do not count"

    return asyncio.run(main())


def test_a_page(engine: Callable[..., ScriptedEngine]) -> None:
    made = engine(base_path="/b")
    assert fetch(made, "/health", times=3) == (200, b"")
    status, body = fetch(made, "/v1/models")
    assert status == 200
    assert b'"m"' in body
    assert fetch(made, "/nowhere")[0] == 404
    seen = made.requests[0]
    assert (seen.method, seen.target) == ("GET", "/b/health")
    assert seen.values("authorization") == ["Bearer k"]
    assert seen.values("connection") == ["close"]
    assert made.accepted == 5, "each on a connection of its own"


@pytest.mark.parametrize("body", [b'{"prompt":"\xc3\xa9"}', b'{"prompt":"%b"}' % (b"x" * 2_000_000)])
def test_an_answer_to_a_body(engine: Callable[..., ScriptedEngine], body: bytes) -> None:
    made = engine(base_path="/b")
    made.script.append(reply(201, {"count": 2}))
    status, answer = fetch(made, "/tokenize", body=body)
    assert (status, json.loads(answer)) == (201, {"count": 2})
    (seen,) = made.requests
    assert (seen.method, seen.target, seen.body) == ("POST", "/b/tokenize", body)
    assert seen.values("authorization") == ["Bearer k"]
    assert seen.values("connection") == ["close"]
    assert seen.values("content-type") == ["application/json"]


def test_no_answer_to_a_body_in_time(engine: Callable[..., ScriptedEngine]) -> None:
    made = engine(base_path="/b")
    made.script.append(raw(b"HTTP/1.1 200 OK\r\n", HANG))
    with pytest.raises(TimeoutError):
        fetch(made, "/tokenize", body=b"{}", timeout_s=0.1)


@pytest.mark.parametrize(
    "answer", [raw(FIN), raw(b"oops\r\n\r\n"), raw(b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\na", FIN)]
)
def test_no_whole_page(engine: Callable[..., ScriptedEngine], answer: object) -> None:
    made = engine(base_path="/b")
    made.probes["/health"] = answer  # type: ignore[assignment]
    with pytest.raises(OSError, match="no whole answer"):
        fetch(made, "/health")


def test_a_page_in_time_or_none(engine: Callable[..., ScriptedEngine]) -> None:
    made = engine(base_path="/b")
    made.probes["/health"] = raw(b"HTTP/1.1 200 OK\r\n", HANG)
    with pytest.raises(TimeoutError):
        fetch(made, "/health", timeout_s=0.1)


def test_a_page_is_bounded(engine: Callable[..., ScriptedEngine]) -> None:
    made = engine(base_path="/b")
    made.probes["/metrics"] = reply(200, b"x" * (MAX_PAGE_BYTES + 1))
    with pytest.raises(OSError, match="larger"):
        fetch(made, "/metrics")


def test_an_engine_that_is_not_there(engine: Callable[..., ScriptedEngine]) -> None:
    made = engine(base_path="/b")
    made.stop()
    with pytest.raises(OSError, match=r"."):
        fetch(made, "/health")
