"""A worker before a gate in another place: what is granted, refused, cancelled; what is left when one of them dies."""

import asyncio

import pytest
from crossing.both_sides import Town, in_town, pool, reached

from forebay.crossing import host as host_module
from forebay.crossing import remote as remote_module
from forebay.domain import FailureKind, Spend, Tenant
from forebay.errors import Refused


@in_town()
async def test_a_call_goes_in_and_out(town: Town) -> None:
    side = await town.open(pool(room=2))
    (task,) = town.ask(tokens=10, output=5)
    permit = await task
    lease = permit.lease
    assert lease is not None and lease.replica.name == "r0" and lease.uncached_tokens == 10
    assert side.gauges() == ({"main": 0}, {"a": 1})
    (state,) = side.fleet.states()
    assert (state.in_flight, state.unprefilled_tokens) == (1, 10)
    permit.lease = None
    lease.first_token()
    await reached(lambda: state.unprefilled_tokens == 0)
    assert lease.first_token_s == town.clock.now_s()
    lease.report(FailureKind.RESET, answered=False)
    lease.report(None, answered=True)
    permit.release(Spend(12))
    permit.release(None)
    await reached(town.at_rest)
    assert state.breaker.failures == 1
    assert side.gate.quota.used_tokens("a", town.clock.now_s()) == 0


@in_town(workers=2)
async def test_two_workers_share_what_there_is(town: Town) -> None:
    side = await town.open(pool(room=3), tenant=Tenant("a", concurrency=8))
    tasks = town.ask(10, worker=0) + town.ask(10, worker=1)
    await reached(lambda: sum(task.done() for task in tasks) == 15)
    refused = [task.exception() for task in tasks if task.done() and task.exception()]
    assert len(refused) == 12 and {error.code for error in refused if isinstance(error, Refused)} == {
        "concurrency_limit"
    }
    assert side.gauges() == ({"main": 5}, {"a": 8})
    served = 0
    while served < 8:
        for task in tasks:
            if task.done() and not task.exception() and task.result().lease is not None:
                task.result().release(Spend(1))
                served += 1
        await asyncio.sleep(0.001)
    await reached(town.at_rest)


@in_town(workers=2)
async def test_a_client_may_know_of_an_end_before_the_gate_does(town: Town) -> None:
    await town.open(pool(room=4), tenant=Tenant("a", concurrency=1))
    for number in range(20):
        (first,) = town.ask(worker=number % 2)
        permit = await first
        (second,) = town.ask(worker=(number + 1) % 2)
        await asyncio.sleep(0)
        permit.release(Spend(1))
        (await second).release(Spend(1))
        await reached(town.at_rest)


@in_town()
async def test_who_leaves_while_waiting_leaves_nothing(town: Town) -> None:
    side = await town.open(pool(room=1))
    first, second, third = town.ask(3)
    await reached(lambda: first.done() and side.gauges()[0]["main"] == 2)
    second.cancel()
    await reached(lambda: side.gauges() == ({"main": 1}, {"a": 2}))
    first.result().release(None)
    permit = await third
    permit.release(None)
    await reached(town.at_rest)


@in_town()
async def test_a_place_that_comes_for_one_who_has_left_goes_back(town: Town) -> None:
    side = await town.open(pool(room=1))
    for number in range(30):
        (task,) = town.ask()
        # At every moment between the question and the answer.
        for _ in range(number % 6):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        if not task.cancelled():
            task.result().release(None)
        await reached(town.at_rest)
    assert side.gate.quota.used_tokens("a", town.clock.now_s()) == 0


@in_town(workers=2)
async def test_a_dead_worker_frees_what_it_had_at_once(town: Town) -> None:
    side = await town.open(pool(room=4), tenant=Tenant("a", concurrency=8))
    mine = town.ask(6, worker=0)
    await reached(lambda: side.gauges() == ({"main": 2}, {"a": 6}))
    others = town.ask(2, worker=1)
    await reached(lambda: side.gauges()[0]["main"] == 4)
    await town.kill_worker(0)
    await reached(lambda: all(task.done() for task in others))
    assert side.gauges() == ({"main": 0}, {"a": 2})
    for task in others:
        task.result().release(None)
    await reached(town.at_rest)
    for task in mine:
        task.cancel()


@in_town(workers=2)
async def test_a_new_gate_learns_what_is_held(town: Town) -> None:
    pools = pool(room=4), pool("other", room=4)
    await town.open(*pools, tenant=Tenant("a", concurrency=5))
    held = [await task for task in town.ask(2, worker=0) + town.ask(2, worker=1, tokens=100)]
    leases = [permit.lease for permit in held]
    for permit in held:
        permit.lease = None
    first = leases[0]
    assert first is not None
    first.first_token()
    await town.die()
    # What ends while no gate is there is not told again.
    last = leases.pop()
    assert last is not None
    last.report(None, answered=True)
    held.pop().release(Spend(3))
    side = await town.open(*pools, tenant=Tenant("a", concurrency=5))
    await reached(lambda: side.gauges() == ({"main": 0, "other": 0}, {"a": 3}))
    (state, _) = side.fleet.states()
    await reached(lambda: (state.in_flight, state.unprefilled_tokens) == (3, 110))
    tasks = town.ask(3)
    await reached(lambda: sum(task.done() for task in tasks) == 2)
    assert side.gauges() == ({"main": 1, "other": 0}, {"a": 5}), "the limit counts what was announced"
    for lease in leases:
        assert lease is not None
        lease.report(None, answered=True)
    for permit in held:
        permit.release(None)
    for done in [await task for task in tasks if not (task.done() and task.exception())]:
        done.release(None)
    await reached(town.at_rest)


@in_town()
async def test_who_waits_when_the_gate_dies_waits_for_the_next(town: Town) -> None:
    await town.open(pool(room=1))
    first, second = town.ask(2)
    await first
    await town.die()
    (third,) = town.ask()
    await asyncio.sleep(0.01)
    assert not second.done() and not third.done()
    side = await town.open(pool(room=3))
    for task in (second, third):
        (await task).release(None)
    await reached(lambda: side.gauges()[1] == {"a": 1})
    (await first).release(None)
    await reached(town.at_rest)


@in_town()
async def test_nobody_waits_long_for_a_gate_that_does_not_come(town: Town) -> None:
    await town.open()
    await town.die()
    (task,) = town.ask()
    await asyncio.sleep(0.01)
    (worker,) = town.workers
    town.clock.advance(remote_module.WAIT_S - 0.1)
    worker.tick()
    await asyncio.sleep(0.01)
    assert not task.done()
    town.clock.advance(0.2)
    worker.tick()
    with pytest.raises(Refused) as refused:
        await task
    assert (refused.value.code, refused.value.status, refused.value.retry_after_s) == ("gate_unavailable", 503, 2)
    assert not await worker.may_retry("main", "a") if worker.up else True
    side = await town.open(pool(room=1))
    await asyncio.sleep(0.02)
    assert side.gauges() == ({"main": 0}, {"a": 0}), "what was given up was not asked again"


@in_town()
async def test_a_gate_that_hangs_is_left(town: Town) -> None:
    await town.open()
    (worker,) = town.workers
    town.clock.advance(remote_module.SILENT_S + 0.1)
    worker.tick()
    await reached(lambda: not worker.up)
    await reached(lambda: worker.up)


@in_town()
async def test_more_tries_and_other_pools(town: Town) -> None:
    side = await town.open(pool(room=1, replicas=2), pool("other", room=1))
    (worker,) = town.workers
    (task,) = town.ask()
    permit = await task
    lease, permit.lease = permit.lease, None
    assert lease is not None
    lease.report(FailureKind.CONNECT, answered=False)
    assert await worker.may_retry("main", "a")
    again = await worker.take("main", permit.call, frozenset([lease.replica.name]))
    assert again is not None and again.replica.name != lease.replica.name
    assert await worker.take("main", permit.call, frozenset(["r0", "r1"])) is None
    again.report(None, answered=True)
    await permit.move("other")
    assert permit.lease is not None and permit.pool == "other"
    assert [state.in_flight for state in side.fleet.states()] == [0, 0, 1]
    # Its place there is taken: the next one that moves waits, and may leave.
    (second,) = town.ask()
    other = await second
    moving = asyncio.get_running_loop().create_task(other.move("other"))
    await reached(lambda: side.gauges()[0]["other"] == 1)
    moving.cancel()
    await reached(lambda: side.gauges()[0]["other"] == 0)
    other.release(None)
    permit.release(Spend(3))
    await reached(town.at_rest)


@in_town()
async def test_retries_are_counted_in_one_place(town: Town) -> None:
    await town.open()
    (worker,) = town.workers
    allowed = [await worker.may_retry("main", "a") for _ in range(15)]
    assert allowed == [True] * 10 + [False] * 5


@in_town()
async def test_a_call_for_a_pool_that_is_new_waits_for_the_policy(town: Town) -> None:
    side = await town.open(pool(room=1))
    (early, lost) = town.ask(to="new") + town.ask(to="never")
    await asyncio.sleep(0.02)
    assert not early.done()
    side.follow(pool(room=1), pool("new", room=1))
    permit = await early
    assert permit.lease is not None and permit.lease.replica.name == "r0"
    town.clock.advance(host_module.EARLY_S + 0.1)
    side.host.tick()
    with pytest.raises(Refused, match="has just changed"):
        await lost
    permit.release(None)
    await reached(town.at_rest)


@in_town(workers=2)
async def test_workers_see_how_the_replicas_are(town: Town) -> None:
    side = await town.open(pool(room=4, replicas=2))
    permits = [await task for task in town.ask(3, tokens=50)]
    (first, second) = side.fleet.states()
    first.up, first.token_ids = True, True
    second.breaker.failed(FailureKind.CREDENTIAL, town.clock.now_s())
    for _ in range(host_module.VIEW_TICKS):
        side.host.tick()
    for copy in town.copies:
        (one, two) = copy.states()
        await reached(lambda one=one: one.up is True)  # type: ignore[misc]
        assert one.token_ids and (one.in_flight, one.unprefilled_tokens) == (2, 100)
        assert not two.usable(town.clock.now_s()) and copy.usable("main") == 1
    for permit in permits:
        permit.release(None)
    await reached(town.at_rest)
