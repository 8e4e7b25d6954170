"""Engines that die in the middle of many answers: no client notices, and each answer has one row (acceptance M3)."""

import asyncio
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from faults.engines import LoopThread
from faults.mortals import (
    BY_TEXT,
    CUT_GAP_S,
    HANG_GAP_S,
    TOKENS,
    Asked,
    Field,
    Sim,
    all_whole,
    one,
    read,
    ready,
    settings_for,
    variety,
)
from gateway_process import Document, Gateway, eventually

from forebay.engines.sim.tokens import VOCABULARIES
from forebay.routing.poison import INNOCENT_TOKENS

pytestmark = pytest.mark.integration

STREAMS = 40
LONG_TOKENS = 200
Start = Callable[..., Field]


@pytest.fixture
def start(thread: LoopThread, gateway: Any) -> Iterator[Start]:
    sims: list[Sim] = []

    def field(count: int, **pool: Any) -> Field:
        sims.extend(Sim() for _ in range(count))
        for sim in sims:
            sim.wait()
        return ready(Field(thread, sims, gateway(settings_for(sims, **pool))))

    yield field
    for sim in sims:
        sim.stop()


@pytest.fixture(scope="module")
def pair(module_gateway: Any) -> Iterator[Field]:
    sims = [Sim(), Sim()]
    try:
        for sim in sims:
            sim.wait()
        # The cases share the gateway, so no case may leave an open breaker to the next.
        gateway = module_gateway(settings_for(sims, breaker={"failures": 100_000, "open_s": 1}))
        with LoopThread() as thread:
            yield ready(Field(thread, sims, gateway))
    finally:
        for sim in sims:
            sim.stop()


@pytest.fixture
def well(pair: Field) -> Iterator[Field]:
    yield pair
    for sim in pair.sims:
        sim.steer("reset")


def clients(gateway: Gateway, count: int) -> Callable[[], list[str]]:
    """Ask with the official client in threads; what is returned waits for the answers' texts."""

    def one() -> str:
        with openai.OpenAI(base_url=f"{gateway.base_url}/v1", api_key="key-A", max_retries=0) as client:
            stream = client.chat.completions.create(
                model="m",
                messages=[{"role": "user", "content": "hi"}],
                max_tokens=LONG_TOKENS,
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = list(stream)
        assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == LONG_TOKENS
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

    workers = ThreadPoolExecutor(count)
    futures = [workers.submit(one) for _ in range(count)]

    def results() -> list[str]:
        workers.shutdown()
        return [future.result() for future in futures]

    return results


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP], ids=["killed", "stopped"])
def test_a_process_that_dies_under_forty_streams(start: Start, number: signal.Signals) -> None:
    field = start(2)
    asked = variety(STREAMS)
    official = clients(field.gateway, 4)
    field.under_way(4, unseen=4)

    def die() -> None:
        field.under_way(STREAMS + 4, unseen=4)
        field.sims[0].signal(number)

    answers = field.ask(asked, die)
    moved = all_whole(field, asked, answers, CUT_GAP_S if number == signal.SIGKILL else HANG_GAP_S)
    assert moved >= STREAMS // 4
    assert field.gateway.metric("forebay_continuations_total", pool="main") >= moved
    assert official() == [VOCABULARIES["ascii"].texts(0, LONG_TOKENS)] * 4


def deaths(action: str, count: int = 200, **more: Any) -> list[Document]:
    """Steps of one fault after every possible number of tokens."""
    return [{"action": action, "after_tokens": 1 + 7 * n % (TOKENS - 1), **more} for n in range(count)]


FAULTS: dict[str, list[Document]] = {
    "rst": deaths("cut"),
    "fin": deaths("cut", how="fin"),
    "error": deaths("error_event"),
    "named_error": deaths("error_event", shape="event", done=False),
    "abort": deaths("abort_finish"),
    "bad_chunk": deaths("bad_chunk"),
    "no_finish": [{"action": "no_finish", "always": True}],
    "neither": [{"action": "no_finish", "done": False, "always": True}],
    "bad_event": [{"action": "bad_event", "event": 3 + n % 50} for n in range(200)],
    "hang": deaths("stall"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_under_forty_streams(well: Field, fault: str) -> None:
    well.sims[0].faults(*FAULTS[fault])
    asked = variety(STREAMS)
    moved = all_whole(well, asked, well.ask(asked), HANG_GAP_S if fault == "hang" else CUT_GAP_S)
    # Of an answer that lacks its end alone nothing is left to be made.
    assert fault in ("no_finish", "neither") or moved >= STREAMS // 4


@pytest.mark.parametrize("more", [BY_TEXT, BY_TEXT | {"temperature": 0}, {"temperature": 0}], ids=str)
def test_the_other_engine_refuses_a_prefix(well: Field, more: Document) -> None:
    well.sims[0].faults({"action": "cut", "after_tokens": 21, "always": True})
    well.sims[1].faults({"action": "refuse_prefix", "always": True})
    asked = [one(vocabulary=name, more=more) for name in ("ascii", "unicode") for _ in range(8)]
    answers = well.ask(asked)
    rows = well.rows(asked)
    for a, timed, row in zip(asked, answers, rows, strict=True):
        if row["continued"] and row["outcome"] != "ok":
            seen = read(timed)
            assert seen.error is not None and a.text.startswith(seen.text) and not seen.dones, (seen, row)
        else:
            assert read(timed).text == a.text, row
    well.idle()


IMPOSSIBLE: list[Document] = [
    {"logprobs": True},
    {"presence_penalty": 0.5},
    {"frequency_penalty": 1},
    {"response_format": {"type": "json_object"}},
    {"thinking_token_budget": 5},
]


def test_what_cannot_go_on_ends_with_a_typed_error(well: Field) -> None:
    well.sims[0].faults({"action": "cut", "after_tokens": 21, "always": True})
    well.sims[1].faults({"action": "error_event", "after_tokens": 9, "always": True})
    asked = [one(more=more) for more in IMPOSSIBLE for _ in range(6)]
    for a, timed, row in zip(asked, well.ask(asked), well.rows(asked), strict=True):
        seen = read(timed)
        assert timed.response.status == 200 and timed.response.clean
        assert seen.error is not None and set(seen.error) >= {"message", "type", "param", "code"}
        assert (seen.dones, seen.finishes) == (0, [])
        assert seen.text and a.text.startswith(seen.text)
        assert row["outcome"] in ("engine_error", "truncated")
        assert (row["continued"], len(row["attempts"])) == (0, 1)
    well.idle()


def test_no_token_beyond_the_limit(well: Field) -> None:
    well.sims[0].faults(*deaths("cut"))
    for limit in ("max_tokens", "max_completion_tokens"):
        asked = [one(tokens=n, vocabulary=v, more={limit: n}) for n in range(1, 21) for v in ("ascii", "unicode")]
        answers = well.ask(asked)
        for a, timed, row in zip(asked, answers, well.rows(asked), strict=True):
            seen = read(timed)
            assert (seen.text, seen.finishes, seen.dones) == (a.text, ["length"], 1), (a, seen, row)
            assert seen.usages[0]["completion_tokens"] == a.tokens == row["output_length"], (a, seen, row)
    well.idle()


def test_no_token_beyond_the_limit_where_no_ids_come(well: Field) -> None:
    """Characters of two tokens each, one event each: only the engine can say how many the client has."""
    well.sims[0].faults(*deaths("cut"))
    asked = [one(tokens=n, vocabulary="unicode", more=BY_TEXT | {"max_tokens": n}) for n in range(20, 60)]
    counted = 0
    answers = well.ask(asked)
    for a, timed, row in zip(asked, answers, well.rows(asked), strict=True):
        seen = read(timed)
        assert (seen.text, seen.finishes, seen.dones) == (a.text, ["length"], 1), (a, seen, row)
        assert seen.usages[0]["completion_tokens"] == a.tokens == row["output_length"], (a, seen, row)
        counted += row["continued"] > 0 and not row["usage_estimated"]
    assert counted, "none of the answers had to go on"
    well.idle()


def test_a_stop_string_over_the_seam_ends_the_answer(well: Field) -> None:
    """The simulated engine knows no stop strings: where it goes on, Forebay alone can see this one."""
    well.sims[0].faults({"action": "cut", "after_tokens": 21, "always": True})
    asked = [one(more={"stop": ["t20 t21"], "include_stop_str_in_output": keeps}) for keeps in (False, True) * 8]
    moved = 0
    for a, timed, row in zip(asked, well.ask(asked), well.rows(asked), strict=True):
        if row["continued"]:
            seen = read(timed)
            expected = VOCABULARIES["ascii"].texts(0, 22 if a.more["include_stop_str_in_output"] else 21)
            assert (seen.text, seen.finishes, seen.dones, seen.error) == (expected, ["stop"], 1, None), (seen, row)
            assert row["outcome"] == "ok" and seen.usages[0]["completion_tokens"] == row["output_length"]
            moved += 1
    assert moved >= 4
    well.idle()
    assert eventually(lambda: not any(sim.running() for sim in well.sims), 10), "an engine works on for nobody"


def test_all_engines_die(start: Start) -> None:
    field = start(3)
    asked = variety(STREAMS)

    def die() -> None:
        field.under_way(STREAMS)
        for sim in field.sims:
            sim.stop()

    for a, timed, row in zip(asked, field.ask(asked, die), field.rows(asked), strict=True):
        seen = read(timed)
        assert timed.response.clean and timed.response.elapsed_s < 30
        assert seen.error is not None and a.text.startswith(seen.text) and not seen.dones
        assert row["outcome"] in ("engine_error", "truncated"), row
    field.idle()


def test_two_of_three_die_one_after_the_other(start: Start) -> None:
    field = start(3)
    asked = variety(30, tokens=400)

    def die() -> None:
        # Who has just begun when an engine dies is suspected of it, and would be found guilty of a second death.
        field.under_way(30, more=INNOCENT_TOKENS + 5)
        field.sims[0].signal(signal.SIGKILL)
        field.under_way(30, more=INNOCENT_TOKENS + 5)
        field.sims[1].signal(signal.SIGKILL)

    all_whole(field, asked, field.ask(asked, die), CUT_GAP_S)
    assert any(row["continued"] == 2 for row in field.rows(asked))


def test_a_pool_at_its_limit_makes_room(start: Start) -> None:
    field = start(2, max_in_flight=10)
    asked = variety(20)

    def die() -> None:
        field.under_way(20)
        field.sims[0].signal(signal.SIGKILL)

    assert all_whole(field, asked, field.ask(asked, die), CUT_GAP_S) == 10


def test_clients_that_leave_while_their_answers_wait_free_everything(start: Start) -> None:
    field = start(2)
    # Nobody answers any more: those that were cut wait, for their turn or for a first event.
    asked = variety(STREAMS)

    async def leave_at(event: asyncio.Event) -> None:
        async def call(a: Asked) -> None:
            link = await field.link()
            link.writer.write(a.bytes())
            await link.reader.readuntil(b"data: ")
            link.pieces = 1
            await event.wait()
            link.reset()

        await asyncio.gather(*map(call, asked))

    event = asyncio.Event()
    leaving = asyncio.run_coroutine_threadsafe(leave_at(event), field.thread.loop)
    field.under_way(STREAMS)
    field.sims[1].signal(signal.SIGSTOP)
    field.sims[0].signal(signal.SIGKILL)
    assert eventually(lambda: field.gateway.metric("forebay_continuations_total", pool="main") >= 1, 30)
    field.thread.loop.call_soon_threadsafe(event.set)
    leaving.result(30)
    field.idle()
    assert {row["outcome"] for row in field.rows(asked)} == {"client_closed"}
    field.sims[1].signal(signal.SIGCONT)
    again = variety(4)
    all_whole(field, again, field.ask(again), HANG_GAP_S)
