"""Gateways whose folder a test may prepare, break and use again; simulated engines; disks that fill up."""

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from cases.rawhttp import Address
from faults.engines import QUICK, Engines, LoopThread
from faults.load import Load
from gateway_process import Document, Gateway, document, eventually

from forebay.engines.sim import SimSpec

HERE = Path(__file__).parent
Mount = Callable[[Path, str], None]
PACED = SimSpec(iteration_base_ms=20, ms_per_prefill_token=0, ms_per_decode_seq=0, models=("m",))


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    with LoopThread() as running:
        yield running


@pytest.fixture
def engines(thread: LoopThread) -> Iterator[Engines]:
    started = Engines(thread)
    yield started
    started.stop()


@pytest.fixture
def mount() -> Iterator[Mount]:
    """Mounts an empty file system in memory on a folder; skips where that is not permitted."""
    mounted: list[Path] = []

    def on(folder: Path, options: str) -> None:
        folder.mkdir(exist_ok=True)
        command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
        try:
            done = subprocess.run(command, capture_output=True, text=True)
        except FileNotFoundError:
            pytest.skip("needs the command mount")
        if done.returncode:
            pytest.skip(f"mounting a file system is not permitted here: {done.stderr.partition(chr(10))[0]}")
        mounted.append(folder)

    yield on
    for folder in reversed(mounted):
        # Lazily: a process that the test has left behind must not keep the mount.
        subprocess.run(["umount", "--lazy", str(folder)], check=False, capture_output=True)


@pytest.fixture
def node(tmp_path: Path, mount: Mount) -> Iterator[Callable[..., Gateway]]:
    """A factory of gateways that use one folder, one after the other; they end before what is mounted there does."""
    started: list[Gateway] = []

    def start(settings: Document, *, env: dict[str, str] | None = None) -> Gateway:
        started.append(Gateway(tmp_path, settings, env or {}, ready=True))
        return started[-1]

    yield start
    for gateway in started:
        gateway.stop()
    for gateway in started[-1:]:
        print(f"the log of the gateway:\n{gateway.log[-3000:]}")  # shown when the test has failed


class Field(NamedTuple):
    """A gateway in front of quick and slow engines, and what a load needs."""

    thread: LoopThread
    engines: Engines
    start: Callable[..., Gateway]
    settings: Document

    def load(self, address: Address, **options: Any) -> Load:
        """A load on the gateway; see `Load`."""
        return Load(self.thread, address, **options)

    def with_control_plane(self) -> Gateway:
        """A gateway whose control plane answers."""
        gateway = self.start(self.settings)
        assert eventually(lambda: gateway.admin_get("/api/status")[0] == 200, 30), "the control plane does not answer"
        return gateway


@pytest.fixture
def field(thread: LoopThread, engines: Engines, node: Callable[..., Gateway]) -> Field:
    for _ in range(2):
        engines.start("small", spec=QUICK)
    engines.start("paced", spec=PACED)
    return Field(thread, engines, node, document(pools=engines.pools(), models=engines.models()))


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run the full number of aborts only when it is asked for: `pytest tests/faults -m slow`."""
    if "slow" in config.option.markexpr:
        return
    held = [item for item in items if item.path.is_relative_to(HERE) and item.get_closest_marker("slow")]
    if held:
        config.hook.pytest_deselected(items=held)
        items[:] = [item for item in items if item not in held]
