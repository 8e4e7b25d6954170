"""A turn to go on is not waited for without an end."""

import asyncio

from msgspec.structs import replace
from test_continuing import World, waiting

from forebay.policy import Capacity
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
        async with asyncio.timeout(5):
            while len(world.legs) < 2:
                await asyncio.sleep(0.005)
        assert not first.done()
        world.free.set()
        await asyncio.gather(first, second)

    asyncio.run(scene())
