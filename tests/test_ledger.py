"""What a month holds goes on over the ends of processes, however they end."""

import asyncio
from collections.abc import Coroutine
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lives import PRICES, Life, kept_in

from forebay import ledger as ledger_module
from forebay.clock import ManualClock
from forebay.ledger import Counted
from forebay.recording.lines import OpenLine

LATE_S = datetime(2027, 1, 31, 23, 59, tzinfo=UTC).timestamp()


def test_a_stop_and_a_start_keep_the_month(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock(5.0)
        first = Life(tmp_path, clock)
        assert first.ledger.state == "starting"
        await first.start()
        assert (first.ledger.state, first.spent()) == ("ok", (0, 0.0))
        first.call(prompt=1000, output=500, cached=800)
        first.call("b")
        clock.advance(1.0)
        await first.ledger.stop()
        # The journal has been swept: the snapshot alone has to do.
        for path in (tmp_path / "journal").iterdir():
            path.unlink()
        clock.advance(3600.0)
        second = Life(tmp_path, clock, "bb")
        await second.start()
        assert [second.spent(name) for name in "ab"] == [first.spent(name) for name in "ab"]
        assert second.spent() == (1500, 0.0038)

    asyncio.run(main())


def test_a_kill_costs_nothing_that_is_in_the_journal(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        first = Life(tmp_path, clock)
        await first.start()
        first.call(prompt=100)
        clock.advance(1.0)
        await first.ledger.save()
        clock.advance(59.0)
        first.call(prompt=40, cached=30)
        first.write("a", 7, None)
        first.append(msgspec.json.encode(OpenLine(1.0, "aa-9", "r", "a", "m", "chat", True, "p", "h", 7, None, "x")))
        second = Life(tmp_path, clock, "bb")
        await second.start()
        assert second.spent() == first.spent()
        # And again, before any snapshot of the second.
        second.call(prompt=3)
        third = Life(tmp_path, clock, "cc")
        await third.start()
        assert third.spent() == second.spent()

    asyncio.run(main())


def test_without_a_snapshot_the_journal_tells_the_month(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        first = Life(tmp_path, clock)
        first.call()
        first.write(None, 5, 5)
        first.call("b", 1, 1)
        second = Life(tmp_path, clock, "bb")
        await second.start()
        assert [second.spent(name) for name in "ab"] == [first.spent(name) for name in "ab"]

    asyncio.run(main())


def test_calls_that_end_before_all_is_read_count_once(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        first = Life(tmp_path, clock)
        first.call()
        second = Life(tmp_path, clock, "bb")
        second.call(prompt=70)
        await second.ledger.save()
        assert not kept_in(tmp_path).exists(), "it would be less than the truth"
        assert second.ledger.state == "starting"
        starting = asyncio.ensure_future(second.start())
        await asyncio.sleep(0)
        second.call(prompt=200)
        await starting
        await second.start()
        assert second.spent()[0] == 15 + 75 + 205

    asyncio.run(main())


@pytest.mark.parametrize(
    "data", [b"", b"{", b"\xff", b"[]", b'[24324,{"a":[-1,0]},0]', b"x" * 101], ids=lambda data: repr(data[:9])
)
def test_a_damaged_snapshot_is_ignored(
    tmp_path: Path, data: bytes, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger_module, "MAX_BYTES", 100)

    async def main() -> None:
        clock = ManualClock()
        first = Life(tmp_path, clock)
        await first.start()
        first.call()
        kept_in(tmp_path).parent.mkdir()
        kept_in(tmp_path).write_bytes(data)
        second = Life(tmp_path, clock, "bb")
        await second.start()
        assert (second.spent(), second.ledger.state) == (first.spent(), "ok")
        assert [r.levelname for r in caplog.records] == ["WARNING"]
        assert "month.json is ignored" in caplog.text
        await second.ledger.save()
        assert kept_in(tmp_path).read_bytes() != data

    asyncio.run(main())


def test_a_snapshot_that_cannot_be_read_is_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        kept_in(tmp_path).mkdir(parents=True)
        life = Life(tmp_path, ManualClock())
        await life.start()
        assert life.ledger.state == "ok"
        assert "Is a directory" in caplog.text

    asyncio.run(main())


def test_a_journal_that_cannot_be_read_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        clock = ManualClock()
        first = Life(tmp_path, clock)
        await first.start()
        first.call()
        clock.advance(1.0)
        await first.ledger.stop()
        (tmp_path / "journal" / "20270116-000000-x.jsonl").mkdir()
        second = Life(tmp_path, clock, "bb")
        await second.start()
        assert second.spent() == first.spent()
        assert "less counts as spent than was: Is a directory" in caplog.text

    asyncio.run(main())


def test_a_month_that_ends_while_all_is_down_is_over(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock(0.0, LATE_S)
        first = Life(tmp_path, clock)
        await first.start()
        first.call(prompt=500)
        await first.ledger.stop()
        clock.advance(30.0)
        first.call(prompt=40)
        clock.advance(60.0)
        # A call of the dying process that ended in the new month.
        first.write("a", 3, 4)
        # And one whose clock is a month ahead.
        Life(tmp_path, ManualClock(0.0, LATE_S + 32 * 86_400.0), "zz").write("a", 90, 90)
        second = Life(tmp_path, clock, "bb")
        await second.start()
        assert second.spent()[0] == 7

    asyncio.run(main())


def test_a_month_that_ends_while_it_is_read_stays_its_own(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock(0.0, LATE_S)
        Life(tmp_path, clock).call(prompt=500)
        second = Life(tmp_path, clock, "bb")
        starting = asyncio.ensure_future(second.start())
        await asyncio.sleep(0)
        clock.advance(61.0)
        second.call(prompt=1, output=1)
        await starting
        assert second.spent()[0] == 2

    asyncio.run(main())


def test_too_many_tenants_are_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seeder = ledger_module.Seeder
    monkeypatch.setattr(ledger_module, "Seeder", lambda *terms: seeder(*terms, most_tenants=1))

    async def main() -> None:
        clock = ManualClock()
        first = Life(tmp_path, clock)
        for tenant in "abb":
            first.call(tenant)
        second = Life(tmp_path, clock, "bb")
        await second.start()
        assert (second.ledger.left_out, second.spent()[0], second.spent("b")[0]) == (2, 15, 0)

    asyncio.run(main())


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("call"), st.sampled_from("ab"), st.integers(0, 500), st.integers(0, 500)),
        st.just("snapshot"),
        st.just("stop"),
        st.just("kill"),
    ),
    max_size=15,
)


@settings(max_examples=40, deadline=None)
@given(STEPS)
def test_however_often_it_ends_the_month_is_the_sum_of_its_calls(
    tmp_path_factory: pytest.TempPathFactory, steps: list[Any]
) -> None:
    folder = tmp_path_factory.mktemp("data")

    async def main() -> None:
        clock = ManualClock()
        life = Life(folder, clock, "0")
        await life.start()
        expected = {"a": 0, "b": 0}
        for number, step in enumerate(steps, 1):
            clock.advance(1.0)
            if isinstance(step, tuple):
                life.call(step[1], step[2], step[3])
                expected[step[1]] += step[2] + step[3]
            elif step == "snapshot":
                await life.ledger.save()
            else:
                await ended(life, step)
                life = Life(folder, clock, str(number))
                await life.start()
            assert {name: life.spent(name)[0] for name in "ab"} == expected

    asyncio.run(main())


def ended(life: Life, how: str) -> Coroutine[Any, Any, None]:
    return life.ledger.stop() if how == "stop" else asyncio.sleep(0)


def test_the_month_is_foreseen_and_its_days_outlive_the_process(tmp_path: Path) -> None:
    async def main() -> None:
        # The 10th of June 2026, in the evening of the first day that anybody looks.
        wall_s = datetime(2026, 6, 10, 18, tzinfo=UTC).timestamp()
        clock = ManualClock(5.0, wall_s)
        life = Life(tmp_path, clock)
        await life.start()
        assert all(bill.money.expected == 0.0 for bill in life.ledger.bills.values())
        for day in range(8):
            clock.advance(86_400.0 if day else 0.0)
            for _ in range(100):
                life.call(prompt=1000, output=0)
            clock.advance(1.0)
            await life.ledger.foresee()
            await life.ledger.save()
            if day == 3:
                life = Life(tmp_path, clock, "bb")
                await life.start()
        bill = life.ledger.bills["a"]
        assert (bill.tokens.spent, round(bill.money.spent, 9)) == (800_000.0, 1.6)
        # Of today a quarter is to come, and 13 days more; each of the seven days before it has cost 0.2.
        assert round(bill.money.expected, 4) == round(1.6 + 13.25 * 0.2, 4) == round(bill.money.high, 4)

    asyncio.run(main())


def test_days_that_cannot_be_read_begin_anew(tmp_path: Path) -> None:
    async def main() -> None:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "days.json").write_bytes(b"[1")
        life = Life(tmp_path, ManualClock(5.0, datetime(2026, 6, 10, tzinfo=UTC).timestamp()))
        life.write("a", 900, 0)
        await life.start()
        assert life.ledger.state == "ok"

    asyncio.run(main())


def test_a_hand_over_counts_each_call_once(tmp_path: Path) -> None:
    """The old process goes on with its calls; the new one hears of them when the old one has ended."""

    async def main() -> None:
        clock = ManualClock()
        old = Life(tmp_path, clock)
        await old.start()
        old.call(prompt=100)
        clock.advance(1.0)
        until_s = await old.ledger.hand_over()
        assert until_s == clock.wall_s()
        clock.advance(1.0)
        new = Life(tmp_path, clock, "bb")
        old.call(prompt=7, output=0)
        new.call(prompt=30, output=0)
        await new.ledger.start((Counted(("bb-",)), Counted(("aa-",), until_s)), PRICES)
        assert new.spent()[0] == 105 + 30
        old.call("b", prompt=1, output=0)
        # The file is the new one's from now on.
        clock.advance(1.0)
        await new.ledger.save()
        await old.ledger.stop()
        tail = old.ledger.since_handed()
        assert {name: spent[0] for name, spent in tail.spent.items() if spent[0]} == {"a": 7, "b": 1}
        new.ledger.add(tail)
        assert new.spent()[0] == 105 + 30 + 7
        await new.ledger.stop()
        third = Life(tmp_path, clock, "cc")
        clock.advance(1.0)
        await third.start()
        assert third.spent() == new.spent()

    asyncio.run(main())


def test_a_hand_over_before_the_journal_was_read_leaves_it_to_the_next(tmp_path: Path) -> None:
    async def main() -> None:
        clock = ManualClock()
        first = Life(tmp_path, clock)
        await first.start()
        first.call(prompt=50, output=0)
        clock.advance(1.0)
        await first.ledger.stop()
        old = Life(tmp_path, clock, "bb")
        clock.advance(1.0)
        assert await old.ledger.hand_over() == clock.wall_s()
        assert old.ledger.since_handed().spent == {}
        new = Life(tmp_path, clock, "cc")
        await new.start()
        assert new.spent()[0] == 50

    asyncio.run(main())
