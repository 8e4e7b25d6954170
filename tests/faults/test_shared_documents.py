"""Overrides on two real nodes with one real Redis: what is said on one counts on the other within seconds."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from cases.rawhttp import ask, chat
from faults.console_client import drain
from gateway_process import Document, Gateway, eventually
from real_redis import RealRedis

pytestmark = pytest.mark.integration

ENGINE = "127.0.0.1:9"  # nobody listens there, and nobody is asked


@pytest.fixture
def server(tmp_path: Path) -> Iterator[RealRedis]:
    running = RealRedis(tmp_path, password="secret-of-the-store")
    yield running
    running.thaw()
    running.stop()


@pytest.fixture
def nodes(tmp_path: Path, server: RealRedis) -> Iterator[list[Gateway]]:
    started: list[Gateway] = []
    for name in ("n1", "n2"):
        folder = tmp_path / name
        folder.mkdir()
        settings: Document = {
            "node": name,
            "store": {"url": "env:THE_STORE"},
            "pools": {"main": {"engine": "vllm", "replicas": [{"url": f"http://{ENGINE}"}]}},
            "models": {"m": {"pool": "main"}},
            "tenants": [{"name": "a", "keys": ["key-A"]}],
        }
        started.append(Gateway(folder, settings, {"THE_STORE": server.url}, ready=True))
    assert all(eventually(lambda g=g: g.admin_get("/api/status")[0] == 200, 30) for g in started)
    yield started
    shown = [gateway.admin_get("/api/status")[1].decode() for gateway in started]
    for gateway in started:
        gateway.stop()
    for gateway in started:
        print(f"a gateway's log:\n{gateway.log[-2000:]}")
        assert "Traceback" not in gateway.log
        assert "secret-of-the-store" not in gateway.log
    assert "secret-of-the-store" not in "".join(shown)


def drained(gateway: Gateway) -> bool:
    status = json.loads(gateway.admin_get("/api/status")[1])
    plane = status["data_plane"]["status"] or {}
    return any(replica["drained"] for replica in plane.get("replicas", []))


def levels(gateway: Gateway) -> Document:
    plane = json.loads(gateway.admin_get("/api/status")[1])["data_plane"]["status"]
    return dict(plane["ladder"])


def test_an_override_counts_on_the_other_node_and_ends_there(nodes: list[Gateway]) -> None:
    one, other = nodes
    began_s = time.monotonic()
    code, made = drain(one, ENGINE)
    assert code == 201, made
    assert eventually(lambda: drained(other), 30)
    print(f"in force on the other node after {time.monotonic() - began_s:.2f} s")
    listed = json.loads(other.admin_get("/api/policy/overrides")[1])["overrides"]
    assert [entry["id"] for entry in listed] == [made["id"]]


def test_overrides_of_both_sides_while_the_store_was_frozen(nodes: list[Gateway], server: RealRedis) -> None:
    one, other = nodes
    server.freeze()
    assert eventually(lambda: one.metric("forebay_store_up") == 0, 30)
    assert drain(one, ENGINE)[0] == 201, "the API does not wait for the store"
    assert eventually(lambda: drained(one), 30)
    assert not drained(other)
    answer = ask(other.address, "POST", "/v1/chat/completions", chat("m", stream=False))
    assert answer.status in (502, 503), "calls do not wait either"
    server.thaw()
    assert eventually(lambda: drained(other), 30)


def test_levels_that_people_set_in_the_store(nodes: list[Gateway], server: RealRedis) -> None:
    with closing(server.client()) as client:
        report: Callable[[], dict[bytes, bytes]] = lambda: client.hgetall("DEGRADE:n1:level")  # noqa: E731
        assert eventually(lambda: report().get(b"main") == b"0", 30)
        assert {b":epoch", b":seq", b":at"} <= report().keys()
        client.hset("DEGRADE:n1:level", "override:pool main", f"2 {int(time.time()) + 600}")
        assert eventually(lambda: '"level": 2' in json.dumps(levels(nodes[0]).get("by_hand")), 30), levels(nodes[0])
        assert '"level": 2' not in json.dumps(levels(nodes[1]).get("by_hand"))
        client.hset("DEGRADE:*:level", "override:tenant a", f"1 {int(time.time()) + 600}")
        assert eventually(lambda: '"level": 1' in json.dumps(levels(nodes[1]).get("by_hand")), 30), levels(nodes[1])
        assert report()[b"override:pool main"].startswith(b"2 ")
