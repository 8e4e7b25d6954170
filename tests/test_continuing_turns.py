"""Answers that go on wait for their turn, and for a replica on trial, and not without an end."""

import asyncio

import pytest
from msgspec.structs import replace
from test_continuing import WELL, World, waiting

from forebay import continuing
from forebay.policy import BreakerPolicy, Capacity
from forebay.traffic import changed


def test_an_answer_waits_for_its_turn_no_longer_than_for_a_first_byte() -> None:
    async def scene() -> None:
        world = World("a", "b", capacity=Capacity(prefill_tokens_per_s=1))
        world.free.clear()
        (first,) = waiting(world, 1)
        await world.settle()
        assert len(world.legs) == 1
        sending = world.follow(ping_s=0.0)
        sending = changed(sending, timeouts=replace(sending.timeouts, first_byte_s=0.02))
        second = asyncio.ensure_future(world.go_on(sending))
        await world.settle()
        assert len(world.legs) == 1, "it had no turn yet"
        async with asyncio.timeout(30):
            while len(world.legs) < 2:
                await asyncio.sleep(0.005)
        assert not first.done()
        world.free.set()
        await asyncio.gather(first, second)

    asyncio.run(scene())


def test_a_replica_on_trial_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(continuing, "RETURN_S", 0.02)
    monkeypatch.setattr(continuing, "LOOK_S", 0.001)

    # Two real vLLM: the one that had died was back and had one answer to show that it was well when the other died.
    async def scene() -> None:
        world = World("a", "b", breaker=BreakerPolicy(failures=1, open_s=1.0))
        world.bench.fail("b")
        world.bench.clock.advance(2.0)
        trial = world.bench.into("b")
        assert trial.state.breaker.state == "half_open" and not trial.state.usable(world.bench.clock.now_s())
        running = asyncio.ensure_future(world.go_on(world.follow()))
        await asyncio.sleep(0.05)
        assert not running.done() and world.legs == [], "it gave up, or took the dead one"
        trial.report(None, answered=True)
        assert await running is WELL
        assert world.legs == ["b"]

    asyncio.run(scene())
