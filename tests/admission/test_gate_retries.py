"""A call whose try has failed takes its next place before those that wait."""

import asyncio

import pytest
from admission.before_gate import Gateway, call, pool, settle

from forebay.domain import FailureKind


@pytest.mark.parametrize("blamed", [FailureKind.STATUS, None], ids=["counted", "overload"])
@pytest.mark.parametrize("where", ["elsewhere", "here"])
def test_a_failed_try_is_not_overtaken(blamed: FailureKind | None, where: str) -> None:
    async def scene() -> None:
        gateway = Gateway(pool(room=1, replicas=1 if where == "here" else 2))
        first, *others = await gateway.come_all(2 if where == "here" else 3)
        lease = first.result().lease
        assert lease is not None and not others[-1].done()
        if where == "elsewhere":
            # The other replica becomes free in the same moment, as it may while a hold keeps the queue here.
            other = others[0].result().lease
            assert other is not None
            other.report(None, answered=True, again=True)
        lease.report(blamed, answered=False, again=True)
        await settle()
        assert not others[-1].done(), "who waits is not let in before the failed call"
        used = frozenset() if where == "here" else frozenset((lease.replica.name,))
        again = gateway.fleet.take("main", call(), used, held=False)
        assert again is not None and (where == "here") == (again.replica is lease.replica)
        again.report(None, answered=True)
        await settle()
        assert others[-1].done(), "its end lets the next one in"

    asyncio.run(scene())


def test_a_place_that_nobody_takes_again_is_offered_with_the_next_tick() -> None:
    async def scene() -> None:
        gateway = Gateway(pool(room=1))
        first, second = await gateway.come_all(2)
        lease = first.result().lease
        assert lease is not None
        lease.report(FailureKind.STATUS, answered=False, again=True)
        (state,) = gateway.fleet.states("main")
        assert (state.in_flight, state.breaker.failures) == (0, 1), "the replica's accounts are settled at once"
        assert not second.done()
        gateway.gate.tick()
        await settle()
        assert second.done()

    asyncio.run(scene())
