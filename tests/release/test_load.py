"""The load maker against real sockets: every call is accounted for, and what it says is true."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from forebay.clock import SystemClock
from forebay.domain import Replica
from forebay.engines.sim import SimServer, SimSpec, serve
from forebay.engines.sim.faults import AnyAction, Cut, ErrorEvent, Hang, Status
from forebay.release.load import Client, Sample, Target, closed_loop, open_loop
from forebay.release.mix import Ask, Lengths, Prompts

pytestmark = pytest.mark.integration
SPEC = SimSpec(iteration_base_ms=2.0, max_model_len=4096)
LENGTHS = Lengths(20, 200, 30, 210, 6)
Work = Callable[[SimServer, Client], Awaitable[list[Sample]]]


def with_engine(work: Work, *faults: AnyAction) -> list[Sample]:
    async def run() -> list[Sample]:
        engine = await serve(SPEC, "127.0.0.1", 0, SystemClock())
        engine.set_faults(*faults)
        replica = Replica("e", "127.0.0.1", engine.port, authorization="Bearer k", query="a=1")
        try:
            return await work(engine, Client(Target(replica, "sim", True), SystemClock()))
        finally:
            await engine.close()

    return asyncio.run(run())


async def one(_: SimServer, client: Client) -> list[Sample]:
    return [await client.call("short", "hello there", 6, 2.0)]


def test_an_answered_call_has_all_its_figures() -> None:
    (sample,) = with_engine(one)
    assert (sample.end, sample.status, sample.reason) == ("ok", 200, "")
    assert sample.ttft_s is not None and 0 < sample.ttft_s <= sample.total_s
    assert len(sample.gaps_s) == 5 and min(sample.gaps_s) >= 0
    assert (sample.output_tokens, sample.prompt_tokens > 0) == (6, True)


@pytest.mark.parametrize(
    ("fault", "end", "words"),
    [
        (Status(status=503), "failed", "HTTP 503: "),
        (ErrorEvent(after_tokens=2), "failed", "error within the answer: "),
        (Cut(after_tokens=2), "lost", ""),
        (Hang(), "lost", "no end within"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_goes_wrong_is_told_apart(fault: AnyAction, end: str, words: str) -> None:
    async def work(_: SimServer, client: Client) -> list[Sample]:
        return [await client.call("short", "hello", 6, 0.5)]

    (sample,) = with_engine(work, fault)
    assert sample.end == end
    assert sample.reason and words in sample.reason


def test_no_connection_is_a_failure() -> None:
    async def work(engine: SimServer, client: Client) -> list[Sample]:
        await engine.close()
        return await one(engine, client)

    (sample,) = with_engine(work)
    assert sample.end == "failed" and sample.reason.startswith("no connection: ")


def test_an_open_loop_waits_for_nobody_and_forgets_none() -> None:
    asks = [Ask(0.05 * n, "long" if n == 3 else "short", n) for n in range(8)]

    async def work(_: SimServer, client: Client) -> list[Sample]:
        return await open_loop(client, asks, LENGTHS, Prompts("1"), 2.0, SystemClock())

    samples = with_engine(work, Hang())
    assert [(s.number, s.kind) for s in samples] == [(ask.number, ask.kind) for ask in asks]
    assert [s.end for s in samples] == ["lost"] + ["ok"] * 7
    assert samples[3].prompt_tokens > 3 * samples[2].prompt_tokens
    assert all(s.late_s >= 0 for s in samples)


def test_a_closed_loop_keeps_so_many_open_and_waits_for_the_last() -> None:
    async def work(_: SimServer, client: Client) -> list[Sample]:
        return await closed_loop(client, 3, 1.0, LENGTHS, Prompts("1"), SystemClock())

    samples = with_engine(work)
    assert len(samples) >= 6 and all(s.end == "ok" for s in samples)
    for sample in samples:
        middle_s = sample.at_s + sample.total_s / 2
        assert sum(s.at_s <= middle_s < s.at_s + s.total_s for s in samples) <= 3


def test_a_closed_loop_gives_up_on_an_engine_that_fails() -> None:
    async def work(_: SimServer, client: Client) -> list[Sample]:
        return await closed_loop(client, 3, 0.3, LENGTHS, Prompts("1"), SystemClock())

    samples = with_engine(work, Status(status=500, always=True))
    assert [s.end for s in samples] == ["failed"] * 3
