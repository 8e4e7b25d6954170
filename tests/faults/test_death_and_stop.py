"""What is left when the data plane is killed, and how it ends when it is asked to."""

import asyncio
import time

import pytest
from cases.rawhttp import ask, chat, request_bytes
from faults.client import Link, Timed
from faults.conftest import Field
from faults.console_client import control_plane
from faults.load import CHAT, STREAM_TOKENS, Load, fault_of
from faults.process_view import is_alive
from gateway_process import Document, Gateway, eventually

pytestmark = pytest.mark.integration

LOST_S = 0.2
SLACK_S = 0.1  # for stamps that are taken beside the event, on a machine that does much at once


def by_call(lines: list[Document]) -> dict[str, list[str]]:
    """The kinds of the lines of each call, in the order of the journal."""
    found: dict[str, list[str]] = {}
    for line in lines:
        found.setdefault(line["call_id"], []).append(line["kind"])
    return found


def unwritten_s(field: Field, written: dict[str, list[str]], killed_s: float) -> dict[str, float]:
    """Tries that reached an engine and have no line: how long before the kill they came."""
    return {call_id: killed_s - at_s for at_s, call_id in field.engines.arrivals() if call_id not in written}


def unclosed_s(load: Load, lines: list[Document], killed_s: float) -> dict[str, float]:
    """Calls whose clients had the whole answer, without a close line: how long before the kill they ended."""
    closed = {line["request_id"] for line in lines if line["kind"] == "close"}
    return {s.request_id: killed_s - s.ended_s for s in load.samples if s.request_id not in closed}


def test_a_killed_data_plane_loses_no_call_that_was_dispatched(field: Field) -> None:
    gateway = field.with_control_plane()
    for _ in range(3):
        child = control_plane(gateway)["pid"]
        for server in field.engines:
            server.reset()
        with field.load(gateway.address) as load:
            time.sleep(1.5)
            gateway.process.kill()
            killed_s = time.monotonic()
            gateway.process.wait()
            load.stop()
        lines = gateway.journal()
        written = by_call(lines)
        opens, closes = unwritten_s(field, written, killed_s), unclosed_s(load, lines, killed_s)
        orphans = {call_id for call_id, kinds in written.items() if "close" not in kinds}
        print(
            f"\ndata plane killed: {len(written)} calls; dispatched without a line: {len(opens)}, the oldest "
            f"{1000 * max(opens.values(), default=0):.0f} ms before the kill; answered without a close line: "
            f"{len(closes)}, the oldest {1000 * max(closes.values(), default=0):.0f} ms; open: {len(orphans)}"
        )
        assert max(opens.values(), default=0) < LOST_S + SLACK_S, opens
        assert max(closes.values(), default=0) < LOST_S + SLACK_S, closes
        assert len(orphans) >= 8, "the streams that were running are not among the open calls"
        assert eventually(lambda pid=child: not is_alive(pid), 30), "the control plane outlived the data plane"
        gateway = field.with_control_plane()
        assert orphans_closed(gateway, orphans) == len(orphans)


def orphans_closed(gateway: Gateway, orphans: set[str]) -> int:
    """After the restart every open call has its one close line; return how many the metric shows."""

    def all_closed() -> bool:
        lines = gateway.journal()
        return orphans <= {line["call_id"] for line in lines if line["kind"] == "close"}

    assert eventually(all_closed, 30), "calls are still open after the restart"
    lines = gateway.journal()
    assert {line["outcome"] for line in lines if line["kind"] == "close" and line["call_id"] in orphans} == {"lost"}
    twice = {call_id for call_id, kinds in by_call(lines).items() if kinds.count("close") != 1}
    assert not twice, "calls without their one close line"
    return int(gateway.metric("forebay_journal_recovered_total"))


def test_a_stop_lets_twenty_streams_end_and_refuses_new_work(field: Field) -> None:
    field.settings["shutdown"] = {"grace_s": 20}
    gateway = field.with_control_plane()
    child = control_plane(gateway)["pid"]

    async def one_stream(number: int) -> Timed:
        link = await Link.open(gateway.address)
        body = chat("paced", max_tokens=STREAM_TOKENS)
        timed = await link.ask(request_bytes("POST", CHAT, body, headers=(f"X-Request-Id: stream-{number}",)))
        link.close()
        return timed

    async def all_streams() -> list[Timed]:
        return await asyncio.gather(*(one_stream(number) for number in range(20)))

    running = asyncio.run_coroutine_threadsafe(all_streams(), field.thread.loop)
    assert eventually(lambda: field.engines.total("sequences_running") == 20, 30)
    gateway.process.terminate()
    assert eventually(lambda: new_work_is_refused(gateway), 30), "new work is taken while it drains"
    assert not running.done(), "the streams were over before the stop"
    answers = running.result(60)
    ended_s = time.monotonic()
    assert gateway.process.wait(30) == 0
    assert time.monotonic() - ended_s < 15
    assert [fault_of(timed.response, STREAM_TOKENS, stream=True) for timed in answers] == [""] * 20
    rows = gateway.rows([f"stream-{number}" for number in range(20)])
    assert {(row["outcome"], row["output_length"]) for row in rows} == {("ok", STREAM_TOKENS)}
    assert not is_alive(child)
    assert not list(gateway.data_dir.glob("journal/*.lock")), "a clean stop left something to recover"


def new_work_is_refused(gateway: Gateway) -> bool:
    try:
        ask(gateway.address, "POST", CHAT, chat("small", stream=False))
    except OSError:
        return True
    return False
