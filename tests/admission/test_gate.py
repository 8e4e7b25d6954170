"""The gate: who goes in, in which order, and that every place comes back."""

import asyncio
import random

import pytest
from admission.before_gate import Gateway, alone, call, inside, pool, settle
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.admission.gate import LocalPermit
from forebay.domain import Spend, Tenant
from forebay.errors import Refused


@alone
async def test_without_a_limit_everybody_goes_in() -> None:
    gateway = Gateway(pool(room=None))
    tasks = await gateway.come_all(50)
    assert all(inside(tasks))
    assert gateway.gauges() == ({"main": 0}, {"a": 50})
    for task in tasks:
        task.result().release(Spend(5))
    assert gateway.gauges() == ({"main": 0}, {"a": 0})


@alone
async def test_first_come_first_served() -> None:
    gateway = Gateway(pool(room=1, replicas=3, drained=1))
    tasks = await gateway.come_all(5)
    assert inside(tasks) == [True, True, False, False, False]
    assert gateway.gauges() == ({"main": 3}, {"a": 5})
    for served in range(5):
        tasks[served].result().release(None)
        await settle()
        assert inside(tasks) == [True] * min(5, served + 3) + [False] * max(0, 2 - served)
    assert gateway.gauges() == ({"main": 0}, {"a": 0})


@alone
async def test_a_new_call_does_not_overtake_waiting_ones() -> None:
    gateway = Gateway()
    first, second = await gateway.come_all(2)
    first.result().release(None)
    # The place is granted already, though the waiting task has not run yet.
    third = gateway.come()
    await settle()
    assert inside([second, third]) == [True, False]
    second.result().release(None)
    await settle()
    third.result().release(None)
    assert gateway.gauges() == ({"main": 0}, {"a": 0})


@alone
async def test_a_full_queue_refuses_and_counts_nothing() -> None:
    gateway = Gateway(pool(room=1, queue=2))
    tasks = await gateway.come_all(5)
    assert [task.done() for task in tasks] == [True, False, False, True, True]
    for task in tasks[3:]:
        error = task.exception()
        assert isinstance(error, Refused)
        assert (error.code, error.status, error.retry_after_s) == ("queue_full", 429, 1)
    assert gateway.gauges() == ({"main": 2}, {"a": 3})
    for task in tasks[:3]:
        await settle()
        task.result().release(None)
    assert gateway.gauges() == ({"main": 0}, {"a": 0})


@alone
async def test_a_queue_of_size_zero_refuses_at_once() -> None:
    gateway = Gateway(pool(room=1, queue=0))
    first, second = await gateway.come_all(2)
    assert isinstance(second.exception(), Refused)
    first.result().release(None)
    (third,) = await gateway.come_all(1)
    third.result().release(None)


@alone
async def test_a_call_that_leaves_the_queue_makes_room_in_it() -> None:
    gateway = Gateway(pool(room=1, queue=1))
    first, second = await gateway.come_all(2)
    second.cancel()
    await settle()
    assert second.cancelled()
    assert gateway.gauges() == ({"main": 0}, {"a": 1})
    (third,) = await gateway.come_all(1)
    first.result().release(None)
    await settle()
    third.result().release(None)
    assert gateway.gauges() == ({"main": 0}, {"a": 0})


@alone
async def test_a_call_cancelled_in_the_moment_of_its_turn_hands_it_on() -> None:
    gateway = Gateway()
    first, second, third = await gateway.come_all(3)
    first.result().release(None)
    second.cancel()
    await settle()
    assert second.cancelled()
    assert inside([third]) == [True]
    third.result().release(None)
    assert gateway.gauges() == ({"main": 0}, {"a": 0})


@alone
async def test_the_last_call_cancelled_in_the_moment_of_its_turn() -> None:
    gateway = Gateway()
    first, second = await gateway.come_all(2)
    first.result().release(None)
    second.cancel()
    await settle()
    assert second.cancelled(), second.exception()
    assert gateway.gauges() == ({"main": 0}, {"a": 0})
    (third,) = await gateway.come_all(1)
    third.result().release(None)


@alone
async def test_a_place_that_comes_free_in_the_moment_of_a_cancellation() -> None:
    gateway = Gateway()
    first, second, third = await gateway.come_all(3)
    second.cancel()
    first.result().release(None)
    await settle()
    assert second.cancelled(), second.exception()
    assert inside([third]) == [True]
    third.result().release(None)
    assert gateway.gauges() == ({"main": 0}, {"a": 0})


@alone
async def test_a_second_release_does_nothing() -> None:
    gateway = Gateway()
    (first,) = await gateway.come_all(1)
    first.result().release(Spend(3))
    first.result().release(Spend(3))
    tasks = await gateway.come_all(2)
    assert inside(tasks) == [True, False]
    tasks[1].cancel()
    await settle()
    tasks[0].result().release(None)
    assert gateway.gauges() == ({"main": 0}, {"a": 0})


@pytest.mark.parametrize("moment", ["waiting", "granted"])
@alone
async def test_a_cancelled_call_costs_its_tenant_nothing_in_the_order_of_the_queue(moment: str) -> None:
    gateway = Gateway()
    first, second = await gateway.come_all(2)
    if moment == "granted":
        first.result().release(None)
        assert gateway.queue()._counters == {"a": 10}
    second.cancel()
    await settle()
    assert second.cancelled()
    assert gateway.queue()._counters == {"a": 0}
    first.result().release(None)
    assert gateway.load() == [(0,) * 6]


@alone
async def test_a_call_that_goes_in_as_its_wait_ends_is_not_refused_as_well() -> None:
    gateway = Gateway()
    first = (await gateway.come_all(1))[0]
    second = gateway.come(deadline_s=105.0)
    await settle()
    gateway.clock.advance(6.0)
    first.result().release(None)
    gateway.gate.tick()
    await settle()
    assert inside([second]) == [True]
    second.result().release(None)
    assert gateway.gauges() == ({"main": 0}, {"a": 0})


@alone
async def test_a_wait_that_ends_in_the_moment_of_a_cancellation() -> None:
    gateway = Gateway()
    first = (await gateway.come_all(1))[0]
    second = gateway.come(deadline_s=105.0)
    await settle()
    second.cancel()
    gateway.pass_time(6.0)
    await settle()
    assert second.cancelled()
    first.result().release(None)
    assert gateway.gauges() == ({"main": 0}, {"a": 0})
    assert gateway.load() == [(0,) * 6]


@alone
async def test_the_permit_says_where_and_as_what_a_call_goes() -> None:
    gateway = Gateway(tenant=Tenant("a", high_share_ratio=0.0))
    first = gateway.come(value="high")
    await settle()
    waiting = [gateway.come(value="high", tokens=4000) for _ in range(2)]
    await settle()
    permit = first.result()
    assert (permit.pool, permit.value, permit.charged) == ("main", "high", False)
    assert permit.lease is not None
    assert permit.lease.replica.name == "r0"
    permit.release(None)
    await settle()
    assert waiting[0].result().value == "high", "a few tokens may be high whatever the share"
    waiting[0].result().release(None)
    await settle()
    assert waiting[1].result().value == "medium"
    waiting[1].result().release(None)


def test_a_call_that_leaves_gives_back_what_its_tenant_had_reserved() -> None:
    gateway = Gateway(tenant=Tenant("a", concurrency=2))
    permits: list[LocalPermit] = []
    refusals: list[Refused] = []
    waiting = [gateway.gate.offer(call(gateway.tenant), "main", permits.append, refusals.append) for _ in range(3)]
    assert [one is None for one in waiting] == [True, False, True]
    assert [refusal.code for refusal in refusals] == ["concurrency_limit"]
    assert waiting[1] is not None
    gateway.gate.basin.leave(waiting[1], "main")
    gateway.gate.basin.leave(waiting[1], "main")
    assert gateway.gauges() == ({"main": 0}, {"a": 1})
    permits[0].release(None)
    assert gateway.gauges() == ({"main": 0}, {"a": 0})
    assert (len(permits), len(refusals)) == (1, 1)


def test_a_refused_call_has_left_already() -> None:
    gateway = Gateway(pool(queue=0))
    permits: list[LocalPermit] = []
    refusals: list[Refused] = []
    for _ in range(2):
        assert gateway.gate.offer(call(), "main", permits.append, refusals.append) is None
    assert [refusal.code for refusal in refusals] == ["queue_full"]
    assert gateway.gauges() == ({"main": 0}, {"a": 1})
    permits[0].release(None)


# limits of tenants


@pytest.mark.parametrize(
    ("tenant", "code", "retry_after_s"),
    [
        (Tenant("a", concurrency=1), "concurrency_limit", 1),
        (Tenant("a", requests_per_minute=1), "requests_limit", 61),
        (Tenant("a", tokens_per_minute=15), "insufficient_quota", 61),
        (Tenant("a", tokens_per_minute=5), "quota_exhausted", None),
    ],
)
@alone
async def test_a_tenant_beyond_its_limit_is_refused(tenant: Tenant, code: str, retry_after_s: int | None) -> None:
    gateway = Gateway(pool(room=None), tenant=tenant)
    tasks = await gateway.come_all(2)
    errors = [task.exception() for task in tasks if task.exception()]
    assert errors
    error = errors[0]
    assert isinstance(error, Refused)
    assert (error.code, error.status) == (code, 429)
    if retry_after_s is None:
        assert error.retry_after_s is None
    else:
        assert error.retry_after_s is not None
        assert 1 <= error.retry_after_s <= retry_after_s + 1
    assert gateway.gauges()[1] == {"a": 2 - len(errors)}
    for task in tasks:
        if task.exception() is None:
            task.result().release(None)


@alone
async def test_a_call_that_never_got_in_costs_its_tenant_nothing() -> None:
    gateway = Gateway(pool(room=1, queue=1), tenant=Tenant("a", requests_per_minute=4, tokens_per_minute=40))
    first, second, third = await gateway.come_all(3)
    assert isinstance(third.exception(), Refused)
    second.cancel()
    await settle()
    first.result().release(Spend(10))
    for _ in range(3):
        (task,) = await gateway.come_all(1)
        task.result().release(Spend(10))
    (refused,) = await gateway.come_all(1)
    assert isinstance(refused.exception(), Refused)


@alone
async def test_unused_tokens_come_back_at_the_release() -> None:
    gateway = Gateway(pool(room=None), tenant=Tenant("a", tokens_per_minute=20))
    first, second, third = await gateway.come_all(3)
    assert isinstance(third.exception(), Refused)
    first.result().release(Spend(0))
    second.result().release(None)
    tasks = await gateway.come_all(2)
    assert [isinstance(task.exception(), Refused) for task in tasks] == [False, True]
    tasks[0].result().release(None)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 3), st.integers(0, 4))
@alone
async def test_running_never_exceeds_room_and_everything_comes_back(seed: int, room: int, queue: int) -> None:
    """Calls come, are released, move and are cancelled at any moment, in particular between two turns of the loop."""

    dice = random.Random(seed)
    gateway = Gateway(pool(room=room, queue=queue), pool("other", room=1, queue=queue))
    running = {"main": 0, "other": 0}
    rooms = {"main": room, "other": 1}

    async def serve(name: str) -> None:
        permit = await gateway.gate.acquire(call(), name)
        here = name
        try:
            running[here] += 1
            assert running[here] <= rooms[here]
            for _ in range(dice.randint(0, 3)):
                await asyncio.sleep(0)
            if dice.random() < 0.4:
                running[here] -= 1
                here = ""
                await permit.move("other")
                here = "other"
                running[here] += 1
                assert running[here] <= rooms[here]
                await asyncio.sleep(0)
        finally:
            if here:
                running[here] -= 1
            permit.release(dice.choice((None, Spend(0), Spend(50))))

    loop = asyncio.get_running_loop()
    tasks = []
    for _ in range(25):
        tasks.append(loop.create_task(serve(dice.choice(("main", "main", "other")))))
        if dice.random() < 0.3:
            dice.choice(tasks).cancel()
        if dice.random() < 0.6:
            await asyncio.sleep(0)
        if dice.random() < 0.3:
            dice.choice(tasks).cancel()
    ends = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30)
    assert {type(end) for end in ends} <= {type(None), Refused, asyncio.CancelledError}, ends
    assert running == {"main": 0, "other": 0}
    assert gateway.gauges() == ({"main": 0, "other": 0}, {"a": 0})
    assert all(inside(await gateway.come_all(room, "main") + await gateway.come_all(1, "other")))
