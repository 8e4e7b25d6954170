"""Connections to engines are used again."""

import asyncio
from collections.abc import Callable

import pytest
from cases.rawhttp import Address, chat, request_bytes
from faults.client import Link
from faults.engines import Engines, LoopThread
from faults.load import CHAT, fault_of
from gateway_process import Gateway, document

pytestmark = pytest.mark.integration

CALLS, CONCURRENCY, TOKENS = 2000, 32, 4


async def calls(address: Address, *, stream: bool) -> list[str]:
    """Make all calls on as many connections as may run at once; return what was wrong."""
    left = iter(range(CALLS))
    request = request_bytes("POST", CHAT, chat("m", stream=stream, max_tokens=TOKENS))
    faults: list[str] = []

    async def worker() -> None:
        link = await Link.open(address)
        for _ in left:
            faults.append(fault_of((await link.ask(request)).response, TOKENS, stream=stream))
        link.close()

    async with asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(worker())
    return faults


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
def test_connections_to_an_engine_are_used_again(
    thread: LoopThread, engines: Engines, node: Callable[..., Gateway], stream: bool
) -> None:
    upstream = engines.start("m")
    gateway = node(document(pools=engines.pools(), models=engines.models()))
    assert thread.run(calls(gateway.address, stream=stream)) == [""] * CALLS
    opened = gateway.metric("forebay_upstream_connections_total", pool="m")
    used = {seen.connection for seen in upstream.log.entries() if seen.attempt}
    print(f"\n{CALLS} calls, {CONCURRENCY} at once: {opened:.0f} connections opened, {len(used)} used")
    assert len(used) <= opened <= CONCURRENCY + 4
    assert gateway.metric("forebay_attempts_total", failure="none") == CALLS
