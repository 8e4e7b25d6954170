"""What the next leg of an answer is asked for, by ids or by text that an engine counts; no network, no engine."""

import asyncio
import json
from typing import Any

import pytest
from routing.before_pool import call as call_of
from test_continuing import LIMIT, WELL, World, body
from upstream.engine_side import sending_of

from forebay.domain import Outcome, Usage
from forebay.ports import Lease
from forebay.traffic import Verdict, changed
from forebay.upstream.continuation.shapes import Plan
from forebay.upstream.deadlines import Sending
from forebay.wire.sse import Event


def test_the_leg_is_the_first_request_with_the_ids_of_both() -> None:
    async def scene() -> None:
        world, bodies = World("a", "b"), []

        def script(sending: Sending, lease: Lease) -> Verdict:
            bodies.append(json.loads(sending.body))
            return WELL

        world.script = script
        await world.go_on(world.follow("t0 t1 t2"))
        assert bodies[0]["kv_transfer_params"] == {"prompt_token_ids": [7, 8, 9, 0, 1, 2]}
        assert bodies[0]["max_tokens"] == LIMIT - 3

    asyncio.run(scene())


def told_without_ids(world: World, **fields: Any) -> Sending:
    """An answer of three events, followed by its text alone."""
    plan = Plan("llamacpp", "chat", exact=False, text=True, collects_ids=False)
    sending = world.continuer.follow(call_of(100), changed(sending_of(), body=body(**fields), plan=plan))
    assert sending.thread is not None
    for text in ("Bold", " words", " 🐙"):
        head = {"id": "leg-1", "created": 1, "model": "m"}
        choice = {"index": 0, "delta": {"content": text}, "finish_reason": None}
        sending.thread.events(Event(json.dumps(head | {"choices": [choice]}).encode()))
    return sending


@pytest.mark.parametrize(("tokens", "left"), [(None, LIMIT - 3), (7, LIMIT - 7), (2, LIMIT - 3)])
def test_without_ids_an_engine_counts_what_was_told(tokens: int | None, left: int) -> None:
    async def scene() -> None:
        world, legs = World("a", "b"), []

        def script(sending: Sending, lease: Lease) -> Verdict:
            assert sending.thread is not None
            legs.append((json.loads(sending.body), sending.thread.usage(Usage(50, 10))))
            return WELL

        world.script, world.tokens = script, tokens
        assert await world.go_on(told_without_ids(world), limit=LIMIT) is WELL
        ((sent, usage),) = legs
        assert world.texts == [("main", b'"m"', "Bold words 🐙", frozenset("a"))]
        assert sent["max_tokens"] == left and sent["messages"][-1]["content"] == "Bold words 🐙"
        assert (usage.completion_tokens, usage.estimated) == (LIMIT - left + 10, tokens is None)

    asyncio.run(scene())


def test_what_was_told_fills_the_limit_when_it_is_counted() -> None:
    async def scene() -> None:
        world = World("a", "b")
        world.tokens = 7
        verdict = await world.go_on(told_without_ids(world, max_tokens=7), limit=7)
        assert (verdict.outcome, world.legs, world.record.usage.completion_tokens) == (Outcome.OK, [], 7)

    asyncio.run(scene())


def test_nobody_counts_where_nothing_hangs_on_it() -> None:
    async def scene() -> None:
        world = World("a", "b")
        assert await world.go_on(told_without_ids(world)) is WELL
        assert await world.go_on(world.follow(), limit=LIMIT) is WELL
        assert not world.texts

    asyncio.run(scene())
