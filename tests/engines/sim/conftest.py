"""A simulated engine in the test's own loop."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import uvloop
from engines.sim.caller import QUICK, Caller

from forebay.clock import SystemClock
from forebay.engines.sim import SimSpec, serve

Scenario = Callable[[Caller], Awaitable[None]]


@pytest.fixture
def play() -> Callable[..., None]:
    """Run a scenario against a quick engine on uvloop, as the product does, or on asyncio's own loop."""

    def run(scenario: Scenario, spec: SimSpec = QUICK, plain_loop: bool = False) -> None:
        async def main() -> None:
            server = await serve(spec, "127.0.0.1", 0, SystemClock())
            try:
                await scenario(Caller(server))
            finally:
                await server.close()

        if plain_loop:
            asyncio.run(main())
        else:
            uvloop.run(main())

    return run
