"""How a node meets others: the store's address, its own name, and what is refused."""

import importlib.util
from pathlib import Path

import pytest

from forebay.config.addresses import Address
from forebay.config.joint import Joint, node_name
from forebay.config.load import load, load_joint
from forebay.errors import ConfigError

FILE = """
pools: {main: {engine: vllm, replicas: [{url: http://127.0.0.1:9001}]}}
models: {m: {pool: main}}
"""


def joint(tmp_path: Path, more: str, environ: dict[str, str] | None = None) -> Joint:
    path = tmp_path / "forebay.yaml"
    path.write_text(FILE + more)
    settings = load(path, environ or {}, 0.0)
    assert load_joint(path, environ or {}) == settings.joint
    assert "CANARY" not in repr(settings) + repr(settings.joint)
    return settings.joint


def faults(tmp_path: Path, more: str, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        joint(tmp_path, more, environ)
    text = "\n".join(caught.value.faults).replace(str(tmp_path), "")
    assert "CANARY" not in text
    return text


def test_without_a_store_a_node_is_alone(tmp_path: Path) -> None:
    assert joint(tmp_path, "") == Joint("", "", 1)


@pytest.mark.parametrize(
    "url",
    [
        "redis://127.0.0.1:6379",
        "redis://:CANARY@redis.internal:6379/3",
        "rediss://user:CANARY%40x@[::1]:6380/0?ssl_ca_certs=/etc/ca.pem",
        "unix:///run/redis.sock?db=2",
    ],
)
def test_addresses_of_a_store(tmp_path: Path, url: str) -> None:
    written = joint(tmp_path, f"node: gate-1\nstore: {{url: '{url}', nodes: 3}}\n")
    assert written == Joint(url, "gate-1", 3)
    assert joint(tmp_path, "store: {url: env:STORE}\n", {"STORE": url}).url == url


@pytest.mark.parametrize(
    "url",
    [
        "http://CANARY:6379",
        "redis://",
        "redis://CANARY:port",
        "redis://h:6379/0?retry_on_timeout=CANARY",
        "redis://h:6379/0?db=CANARY",
        "redis://h:6379 CANARY",
        "unix://",
        "CANARY",
    ],
)
def test_what_is_no_store(tmp_path: Path, url: str) -> None:
    assert "store.url: " in faults(tmp_path, f"store: {{url: '{url}'}}\n")
    assert "store.url: " in faults(tmp_path, "store: {url: env:STORE}\n", {"STORE": url})


def test_a_variable_that_is_not_set(tmp_path: Path) -> None:
    assert "environment variable STORE is not set" in faults(tmp_path, "store: {url: env:STORE}\n")


def test_without_the_client_the_fault_says_how_to_get_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "redis" else find(name, *more))
    assert "pip install 'forebay[redis]'" in faults(tmp_path, "store: {url: 'redis://h:6379'}\n")
    assert joint(tmp_path, "").url == ""


def test_names_of_nodes(tmp_path: Path) -> None:
    assert "node: is not a valid name" in faults(tmp_path, "node: 'a b'\n")
    listen = Address("127.0.0.1", 7080)
    assert node_name(Joint(node="gate-1"), listen) == "gate-1"
    assert node_name(Joint(), listen).endswith("-7080")
