"""Routes of both ports: what exists is documented, what is documented exists."""

import re
from pathlib import Path

import pytest

from forebay.clock import ManualClock
from forebay.console.app import build
from forebay.console.dataplane import DataPlane
from forebay.console.guard import Listen
from forebay.console.state import ConsoleState
from forebay.edge.routes import find
from forebay.errors import Refused
from forebay.wire.endpoints import BY_PATH
from tests.docs.pages import PAGES, REPO, name_of, read

ADMIN_PATH = re.compile(r"(?<![\w.])/?(api(?:/[a-z]+)+)")
OF_ENGINES = {"/api/version"}


def table() -> str:
    """The routes of the data port, as documented."""
    return read(REPO / "docs" / "quickstart.md").split("\n## Routes\n")[1].split("\n## ")[0]


def test_every_route_of_the_engines_is_documented() -> None:
    rows = table()
    assert [path for path in BY_PATH if f"`{path}`" not in rows] == []


def test_every_documented_route_exists() -> None:
    rows = re.findall(r"^\| (GET|POST) ([^|]+)\|", table(), re.MULTILINE)
    named = [(method, path) for method, cell in rows for path in re.findall(r"`([^`]+)`", cell)]
    assert len(named) > len(BY_PATH)
    for method, path in named:
        try:
            find(method.encode(), path.encode(), internal=False)
        except Refused as refusal:
            pytest.fail(f"{method} {path}: {refusal.code}")


def test_every_named_path_of_the_admin_api_exists(tmp_path: Path) -> None:
    listen = Listen("127.0.0.1", 7081)
    clock = ManualClock()
    state = ConsoleState(clock, tmp_path, DataPlane(tmp_path / "data.sock", clock), listen=listen, token="t" * 43)
    routes = {re.sub(r"/\{\w+\}$", "", path) for path in build(state).openapi()["paths"]}
    named = {(name_of(page), f"/{path}") for page in PAGES for path in ADMIN_PATH.findall(read(page))}
    assert named, "no page names a path of the admin API"
    assert [(page, path) for page, path in named if path not in routes | OF_ENGINES] == []
