"""One world for the session: the embedded engine is started once."""

from collections.abc import Generator, Iterator
from contextlib import ExitStack

import pytest
from conformance.tap import Tap
from conformance.world import World, embedded_engine, running, settings, simulated_engine
from gateway_process import Gateway

from forebay.engines import embedded


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    """The engines, and the gateway in front of them."""
    with ExitStack() as stack:
        command, llamacpp = embedded_engine()
        installed = embedded.available() is None
        if installed:
            stack.enter_context(running(command, llamacpp))
        sim = stack.enter_context(running(*simulated_engine()))
        tap = stack.enter_context(Tap(llamacpp))
        folder = tmp_path_factory.mktemp("conformance")
        gateway = Gateway(folder, settings(llamacpp[1], tap.port, sim[1]), {}, True)
        stack.callback(gateway.stop)
        yield World(llamacpp if installed else None, sim, gateway, tap)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the gateway's output with a failure."""
    report = yield
    world = getattr(item, "funcargs", {}).get("world")
    if report.when == "call" and report.failed and world is not None:
        report.sections.append(("gateway", world.gateway.log[-3000:]))
    return report
