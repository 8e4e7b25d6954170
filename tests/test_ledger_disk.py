"""Keeping the month on a disk that is full, refuses, hangs, or answers too late: nobody waits for it."""

import asyncio
import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from lives import Life, kept_in

from forebay import ledger as ledger_module
from forebay.clock import ManualClock


def test_a_folder_that_cannot_be_written_is_shown_and_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        caplog.set_level(logging.INFO)
        life = Life(tmp_path, ManualClock())
        await life.start()
        (tmp_path / "run").write_bytes(b"")
        for _ in range(3):
            await life.ledger.save()
        assert life.ledger.state == "failing: File exists"
        (tmp_path / "run").unlink()
        for _ in range(2):
            await life.ledger.stop()
        assert life.ledger.state == "ok"
        assert [r.levelname for r in caplog.records] == ["ERROR", "INFO"]
        assert (kept_in(tmp_path).stat().st_mode & 0o777, (tmp_path / "run").stat().st_mode & 0o777) == (0o600, 0o700)
        assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["days.json", "month.json"]

    asyncio.run(main())


def refuse(*_: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_full_disk_leaves_the_snapshot_of_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        clock = ManualClock()
        life = Life(tmp_path, clock)
        await life.start()
        await life.ledger.save()
        before = kept_in(tmp_path).read_bytes()
        life.call()
        clock.advance(1.0)
        with monkeypatch.context() as full:
            full.setattr(os, "fsync", refuse)
            await life.ledger.save()
        assert life.ledger.state == "failing: No space left on device"
        assert kept_in(tmp_path).read_bytes() == before
        assert sorted(path.name for path in (tmp_path / "run").iterdir()) == ["days.json", "month.json"]
        await life.ledger.save()
        assert life.ledger.state == "ok" and kept_in(tmp_path).read_bytes() != before

    asyncio.run(main())


def held_up(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Make the disk hang until the event is set."""
    release = threading.Event()
    monkeypatch.setattr(ledger_module, "STUCK_S", 0.02)
    monkeypatch.setattr(os, "fsync", lambda fd: release.wait(20))
    return release


def test_a_disk_that_hangs_holds_up_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> None:
        clock = ManualClock()
        life = Life(tmp_path, clock)
        await life.start()
        release = held_up(monkeypatch)
        for _ in range(3):
            await life.ledger.save()
        assert life.ledger.state == "failing: the disk does not answer"
        assert sum(thread.name == "ledger" for thread in threading.enumerate()) == 1, "one thread waits, not three"
        life.call()
        clock.advance(1.0)
        release.set()
        monkeypatch.setattr(ledger_module, "STUCK_S", 20.0)
        await life.ledger.stop()
        assert life.ledger.state == "ok"
        second = Life(tmp_path, clock, "bb")
        await second.start()
        assert second.spent() == life.spent()

    asyncio.run(main())


def test_the_loop_may_end_before_the_disk_answers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> threading.Event:
        life = Life(tmp_path, ManualClock())
        await life.start()
        release = held_up(monkeypatch)
        await life.ledger.stop()
        return release

    release = asyncio.run(main())
    release.set()
    for thread in threading.enumerate():
        if thread.name == "ledger":
            thread.join(20)
            assert not thread.is_alive()


def test_snapshots_come_by_themselves_until_cancelled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger_module, "PERIOD_S", 0.0)

    async def main() -> None:
        life = Life(tmp_path, ManualClock())
        running = asyncio.ensure_future(life.ledger.run())
        await life.start()
        await until(kept_in(tmp_path).exists)
        kept_in(tmp_path).unlink()
        await until(kept_in(tmp_path).exists)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        life.call()
        await life.ledger.stop()
        assert b'"a":[15,' in kept_in(tmp_path).read_bytes()

    asyncio.run(main())


async def until(ready: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + 20
    while not ready():
        assert time.monotonic() < deadline_s
        await asyncio.sleep(0.001)
