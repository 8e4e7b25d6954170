"""The background work of a data plane, and its end."""

import asyncio
from pathlib import Path

from forebay.app import DataPlane
from forebay.clock import SystemClock
from forebay.config.load import Pinned, parse_file

DOCUMENT = b"""
pools: {main: {engine: vllm, replicas: [{url: "http://127.0.0.1:9"}]}}
models: {m: {pool: main}}
tenants: [{name: a, keys: [key-A]}]
"""


def test_work_whose_cleaning_up_fails_is_not_begun_again(tmp_path: Path) -> None:
    begun: list[str] = []

    async def fails_once() -> None:
        begun.append("once")
        if len(begun) == 1:
            raise RuntimeError("a bug")
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if len(begun) > 2:
                raise
            raise RuntimeError("what it cleans up is gone") from None

    async def whole() -> None:
        clock = SystemClock()
        settings = parse_file(DOCUMENT, "forebay.yaml", {}, clock.wall_s(), Pinned())
        plane = DataPlane(asyncio.get_running_loop(), clock, settings, tmp_path, None)
        plane.background(fails_once)
        async with asyncio.timeout(30):
            while len(begun) < 2:
                await asyncio.sleep(0.01)
            await plane.end()

    asyncio.run(whole())
    assert begun == ["once", "once"], "it is begun again after a bug, and not after the end"
