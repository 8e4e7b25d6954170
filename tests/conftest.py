"""Shared fixtures: gateways and scripted engines that are stopped with the test or module that started them."""

import os
import signal
from collections.abc import Generator, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Protocol

import pytest
from gateway_process import Document, Gateway
from hypothesis import settings
from scripted import ScriptedEngine


class EngineFactory(Protocol):
    """Starts a scripted engine that is stopped with the test or module."""

    def __call__(self, **settings: Any) -> ScriptedEngine: ...


class GatewayFactory(Protocol):
    """Starts a gateway that is stopped with the test or module."""

    def __call__(self, settings: Document, *, env: dict[str, str] | None = None, ready: bool = True) -> Gateway: ...


RUNNING = pytest.StashKey[list[Gateway]]()


def pytest_configure(config: pytest.Config) -> None:
    """Choose what started processes run, and make a terminated run end by stopping what it started.

    They run the sources, like the tests themselves; with FOREBAY_TEST_INSTALLED what is installed, which may
    be compiled.
    """
    if not os.environ.get("FOREBAY_TEST_INSTALLED"):
        os.environ["PYTHONPATH"] = str(config.rootpath / "src")
    # How long an example takes says more about the machine than about the code.
    settings.register_profile("forebay", deadline=None)
    settings.load_profile("forebay")
    config.stash[RUNNING] = []
    signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the output of every running gateway with a failure."""
    report = yield
    if report.when == "call" and report.failed:
        for gateway in item.config.stash[RUNNING]:
            report.sections.append((f"gateway on {gateway.base_url}", gateway.log[-3000:]))
    return report


def _engines() -> Iterator[EngineFactory]:
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(ScriptedEngine(**settings))


def _gateways(config: pytest.Config, folder: Path) -> Iterator[GatewayFactory]:
    running = config.stash[RUNNING]
    mine: list[Gateway] = []

    def start(settings: Document, *, env: dict[str, str] | None = None, ready: bool = True) -> Gateway:
        place = folder / f"gateway{len(mine)}"
        place.mkdir()
        gateway = Gateway(place, settings, env or {}, ready)
        mine.append(gateway)
        running.append(gateway)
        return gateway

    yield start
    for gateway in mine:
        running.remove(gateway)
        gateway.stop()


@pytest.fixture
def engine() -> Iterator[EngineFactory]:
    """A factory of scripted engines for one test."""
    yield from _engines()


@pytest.fixture(scope="module")
def module_engine() -> Iterator[EngineFactory]:
    """A factory of scripted engines for one module."""
    yield from _engines()


@pytest.fixture
def gateway(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[GatewayFactory]:
    """A factory of gateways for one test."""
    yield from _gateways(request.config, tmp_path)


@pytest.fixture(scope="module")
def module_gateway(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[GatewayFactory]:
    """A factory of gateways for one module."""
    yield from _gateways(request.config, tmp_path_factory.mktemp("gateway"))
