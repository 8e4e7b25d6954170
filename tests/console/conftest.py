from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from forebay.clock import ManualClock
from forebay.console.app import build
from forebay.console.dataplane import DataPlane, DataPlaneView
from forebay.console.guard import Listen
from forebay.console.state import ConsoleState

TOKEN = "t" * 43
BASE = "http://127.0.0.1:7081"


class StillDataPlane(DataPlane):
    """A data plane whose view is set by the test."""

    def __init__(self) -> None:
        self.seen = DataPlaneView(reachable=False, age_s=None, status=None, fault="not started")

    async def view(self) -> DataPlaneView:
        return self.seen


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def data_plane() -> StillDataPlane:
    return StillDataPlane()


@pytest.fixture
def state(tmp_path: Path, clock: ManualClock, data_plane: StillDataPlane) -> ConsoleState:
    listen = Listen("127.0.0.1", 7081)
    return ConsoleState(clock, tmp_path, data_plane, listen=listen, token=TOKEN, config_file="forebay.yaml")


@pytest.fixture
def stranger(state: ConsoleState) -> Iterator[TestClient]:
    """A client without the token."""
    with TestClient(build(state), base_url=BASE) as client:
        yield client


@pytest.fixture
def client(stranger: TestClient) -> TestClient:
    """A client with the token."""
    stranger.headers["authorization"] = f"Bearer {TOKEN}"
    return stranger
