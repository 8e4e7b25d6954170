"""A permit that moves to another pool, and pools that change under it."""

import asyncio

import pytest
from admission.before_gate import Gateway, alone, inside, pool, settle

from forebay.domain import Spend
from forebay.errors import Refused

# moving to another pool


@alone
async def test_a_permit_moves_and_frees_its_place() -> None:
    gateway = Gateway(pool(), pool("other"))
    first, second = await gateway.come_all(2)
    await first.result().move("other")
    await settle()
    assert inside([second]) == [True]
    (third,) = await gateway.come_all(1, "other")
    assert inside([third]) == [False]
    assert gateway.gauges() == ({"main": 0, "other": 1}, {"a": 3})
    first.result().release(None)
    await settle()
    assert inside([third]) == [True]
    second.result().release(None)
    third.result().release(None)
    assert gateway.gauges() == ({"main": 0, "other": 0}, {"a": 0})


@alone
async def test_a_move_to_the_same_pool_or_after_the_release_does_nothing() -> None:
    gateway = Gateway(pool(), pool("other"))
    (first,) = await gateway.come_all(1)
    await first.result().move("main")
    first.result().release(None)
    await first.result().move("other")
    tasks = await gateway.come_all(1, "other") + await gateway.come_all(1)
    assert inside(tasks) == [True, True]
    for task in tasks:
        task.result().release(None)


@alone
async def test_a_move_into_a_full_pool_is_refused_and_the_release_is_still_due() -> None:
    gateway = Gateway(pool(), pool("other", queue=0))
    (first,) = await gateway.come_all(1)
    (other,) = await gateway.come_all(1, "other")
    with pytest.raises(Refused):
        await first.result().move("other")
    (second,) = await gateway.come_all(1)
    assert inside([second]) == [True]
    assert gateway.gauges()[1] == {"a": 3}
    for task in (first, other, second):
        task.result().release(None)
    assert gateway.gauges() == ({"main": 0, "other": 0}, {"a": 0})
    assert all(inside(await gateway.come_all(1, "main") + await gateway.come_all(1, "other")))


@alone
async def test_a_move_may_wait_and_be_cancelled() -> None:
    gateway = Gateway(pool(), pool("other"))
    (first,) = await gateway.come_all(1)
    (other,) = await gateway.come_all(1, "other")
    moving = asyncio.get_running_loop().create_task(first.result().move("other"))
    await settle()
    assert gateway.gauges()[0] == {"main": 0, "other": 1}
    moving.cancel()
    await settle()
    first.result().release(None)
    other.result().release(None)
    assert gateway.gauges() == ({"main": 0, "other": 0}, {"a": 0})
    assert all(inside(await gateway.come_all(1, "main") + await gateway.come_all(1, "other")))


@alone
async def test_a_move_takes_the_charge_of_the_first_queue_back() -> None:
    gateway = Gateway(pool(), pool("other"))
    first, second = await gateway.come_all(2)
    first.result().release(None)
    await settle()
    assert gateway.queue()._counters == {"a": 10}
    await second.result().move("other")
    assert gateway.queue()._counters == {"a": 0}
    second.result().release(Spend(1000))
    assert gateway.queue()._counters == {"a": 0}
    assert gateway.queue("other")._counters == {}


# a new policy


@alone
async def test_more_room_lets_waiting_calls_in() -> None:
    gateway = Gateway(pool(room=1))
    tasks = await gateway.come_all(4)
    gateway.follow(pool(room=3))
    await settle()
    assert inside(tasks) == [True, True, True, False]
    gateway.follow(pool(room=None))
    await settle()
    assert inside(tasks) == [True] * 4
    for task in tasks:
        task.result().release(None)
    assert gateway.gauges() == ({"main": 0}, {"a": 0})


@alone
async def test_less_room_lets_running_calls_finish() -> None:
    gateway = Gateway(pool(room=3))
    tasks = await gateway.come_all(4)
    gateway.follow(pool(room=1))
    tasks[0].result().release(None)
    tasks[1].result().release(None)
    await settle()
    assert inside(tasks) == [True, True, True, False]
    tasks[2].result().release(None)
    await settle()
    assert inside(tasks) == [True] * 4
    tasks[3].result().release(None)


@alone
async def test_a_pool_that_is_gone_keeps_nobody_waiting() -> None:
    gateway = Gateway(pool(), pool("other"))
    tasks = await gateway.come_all(2)
    gateway.follow(pool("other"))
    await settle()
    assert inside(tasks) == [True, True]
    for task in tasks:
        task.result().release(None)
    assert gateway.gauges() == ({"other": 0}, {"a": 0})
