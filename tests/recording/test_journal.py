"""The ring, the writer and what they do when the disk does not want."""

import errno
import json
import os
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from recording.faulty_disk import FaultyDisk, lines_in

from forebay.clock import ManualClock, SystemClock
from forebay.recording.files import Files
from forebay.recording.journal import Journal
from forebay.recording.segments import Bounds


def closing(number: int) -> bytes:
    return b'{"kind":"close","call_id":"c%d"}' % number


def opening(number: int) -> bytes:
    return b'{"kind":"open","call_id":"c%d"}' % number


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


@pytest.fixture
def journal(tmp_path: Path, clock: ManualClock, disk: FaultyDisk) -> Journal:
    return Journal(tmp_path / "journal", clock, files=disk)


def test_lines_reach_the_disk_opens_first(tmp_path: Path, journal: Journal) -> None:
    journal.write(opening(1), True)
    journal.write(closing(1))
    journal.write(opening(2), True)
    journal.step()
    assert lines_in(tmp_path / "journal") == [opening(1) + b"\n", opening(2) + b"\n", closing(1) + b"\n"]
    assert journal.state == "ok"
    assert (dict(journal.lines_written()), dict(journal.lines_dropped())) == (
        {("open",): 2, ("close",): 1},
        {("open",): 0, ("close",): 0},
    )


def test_the_segment_is_named_after_time_and_process(tmp_path: Path, journal: Journal) -> None:
    journal.write(closing(1))
    journal.step()
    (segment,) = (tmp_path / "journal").glob("*.jsonl")
    assert segment.name == f"20270115-080000-{os.getpid()}.jsonl"
    assert segment.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (errno.ENOSPC, "full"),
        (errno.EDQUOT, "full"),
        (errno.EROFS, "failing: Read-only file system"),
        (errno.EACCES, "failing: Permission denied"),
        (errno.EIO, "failing: Input/output error"),
    ],
)
def test_a_refusing_disk_is_shown_and_tried_again_each_second(
    tmp_path: Path, journal: Journal, clock: ManualClock, disk: FaultyDisk, code: int, state: str
) -> None:
    journal.write(closing(1))
    journal.step()
    disk.broken = code
    journal.write(closing(2))
    journal.step()
    assert journal.state == state
    disk.broken = None
    clock.advance(0.9)
    journal.step()
    assert journal.state == state, "it was tried again before a second was over"
    clock.advance(0.2)
    journal.step()
    assert journal.state == "ok"
    assert lines_in(tmp_path / "journal") == [closing(1) + b"\n", closing(2) + b"\n"]


def test_a_missing_folder_that_cannot_be_made(tmp_path: Path, clock: ManualClock) -> None:
    (tmp_path / "file").write_text("not a folder")
    journal = Journal(tmp_path / "file" / "journal", clock)
    journal.write(closing(1))
    journal.step()
    assert journal.state == "failing: Not a directory"


def test_too_little_free_space_stops_writing(
    tmp_path: Path, journal: Journal, clock: ManualClock, disk: FaultyDisk
) -> None:
    disk.free_ratio = 0.049
    journal.write(closing(1))
    journal.step()
    assert journal.state == "full" and lines_in(tmp_path / "journal") == []
    disk.free_ratio = 0.051
    clock.advance(1.1)
    journal.step()
    assert journal.state == "ok" and lines_in(tmp_path / "journal") == [closing(1) + b"\n"]


def test_a_disk_that_fills_up_in_a_line_leaves_whole_lines_only(
    tmp_path: Path, journal: Journal, clock: ManualClock, disk: FaultyDisk
) -> None:
    disk.room_bytes = len(closing(1)) + 1 + 5
    for number in range(1, 4):
        journal.write(closing(number))
    journal.step()
    assert journal.state == "full"
    assert lines_in(tmp_path / "journal") == [closing(1) + b"\n"]
    disk.room_bytes = None
    clock.advance(1.1)
    journal.step()
    assert lines_in(tmp_path / "journal") == [closing(number) + b"\n" for number in range(1, 4)]
    assert journal.written["close"] == 3


def test_a_torn_line_that_cannot_be_cut_off_costs_no_other_line(
    tmp_path: Path, journal: Journal, clock: ManualClock, disk: FaultyDisk
) -> None:
    disk.room_bytes, disk.broken_at_truncate = 5, errno.EIO
    journal.write(closing(1))
    journal.step()
    assert journal.state.startswith("failing")
    disk.room_bytes, disk.broken_at_truncate = None, None
    clock.advance(1.1)
    journal.step()
    assert closing(1) + b"\n" in lines_in(tmp_path / "journal")


def test_a_deleted_folder_is_noticed(tmp_path: Path, journal: Journal, clock: ManualClock) -> None:
    journal.write(closing(1))
    journal.step()
    for path in (tmp_path / "journal").iterdir():
        path.unlink()
    (tmp_path / "journal").rmdir()
    clock.advance(1.1)
    journal.write(closing(2))
    journal.step()
    assert lines_in(tmp_path / "journal") == [closing(2) + b"\n"]


def small(tmp_path: Path, clock: ManualClock, **bounds: int) -> tuple[Journal, FaultyDisk]:
    disk = FaultyDisk()
    disk.broken = errno.EROFS
    return Journal(tmp_path / "journal", clock, Bounds(**bounds), disk), disk


def drained(tmp_path: Path, journal: Journal, disk: FaultyDisk) -> list[bytes]:
    disk.broken = None
    journal.step()
    return [line.rstrip(b"\n") for line in lines_in(tmp_path / "journal")]


def test_the_ring_gives_up_opens_before_closes(tmp_path: Path, clock: ManualClock) -> None:
    journal, disk = small(tmp_path, clock, ring_lines=3)
    for number in (1, 2):
        journal.write(opening(number), True)
    journal.write(closing(1))
    journal.write(opening(3), True)  # no room: a new open line is the first to go
    assert journal.dropped == {"open": 1, "close": 0}
    journal.write(closing(2))  # then the oldest one
    journal.write(closing(3))
    assert journal.dropped == {"open": 3, "close": 0}
    journal.write(closing(4))  # and only then the oldest close
    assert journal.dropped == {"open": 3, "close": 1}
    assert drained(tmp_path, journal, disk) == [closing(2), closing(3), closing(4)]


def test_the_ring_is_bounded_in_bytes(tmp_path: Path, clock: ManualClock) -> None:
    journal, disk = small(tmp_path, clock, ring_bytes=100)
    for letter in b"abcdef":
        journal.write(bytes([letter]) * 30)
    assert journal.dropped["close"] == 3
    journal.write(b"x" * 101)
    assert journal.dropped["close"] == 7, "a line beyond the bound is dropped, and nothing else remains"
    journal.write(b"y" * 100)
    assert drained(tmp_path, journal, disk) == [b"y" * 100]


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 40)), max_size=60))
def test_whatever_comes_the_ring_keeps_its_bounds_and_counts_every_line(writes: list[tuple[bool, int]]) -> None:
    journal = Journal(Path("never-made"), ManualClock(), Bounds(ring_lines=7, ring_bytes=120))
    for is_open, size in writes:
        journal.write(b"x" * size, is_open)
        lines = [*journal._opens, *journal._closes]
        assert len(lines) <= 7 and sum(map(len, lines)) <= 120
        assert journal._in_bytes - journal._out_bytes == sum(map(len, lines))
    for kind, queue in (("open", journal._opens), ("close", journal._closes)):
        came = sum(is_open == (kind == "open") for is_open, _ in writes)
        assert came == len(queue) + journal.dropped[kind]


def test_a_hanging_disk_blocks_nobody_and_is_shown(tmp_path: Path) -> None:
    clock, disk = ManualClock(), FaultyDisk()
    journal = Journal(tmp_path / "journal", clock, files=disk)
    disk.hanging.clear()
    journal.start()
    journal.write(closing(1))
    deadline = time.monotonic() + 60
    while journal._busy_since_s is None and time.monotonic() < deadline:
        time.sleep(0.001)
    clock.advance(1.5)
    assert journal.state == "failing: the disk does not answer"
    started = time.monotonic()
    journal.close(timeout_s=0.05)
    assert time.monotonic() - started < 30, "it waits for a disk that hangs"
    disk.hanging.set()
    assert journal._writer is not None
    journal._writer.join(5)
    assert journal.state == "ok" and lines_in(tmp_path / "journal") == [closing(1) + b"\n"]


def test_close_writes_what_is_left_and_leaves_no_lock(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", SystemClock(), Bounds(flush_s=30.0))
    journal.start()
    for number in range(1000):
        journal.write(closing(number))
    journal.close()
    assert len(lines_in(tmp_path / "journal")) == 1000
    assert list((tmp_path / "journal").glob("*.lock")) == []
    assert "journal" not in [thread.name for thread in threading.enumerate()]


def test_close_without_start_does_nothing(tmp_path: Path) -> None:
    Journal(tmp_path / "journal", SystemClock()).close()
    assert list(tmp_path.iterdir()) == []


def test_lost_closes_leave_the_lock_so_that_the_next_start_looks(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", SystemClock(), Bounds(ring_lines=1, flush_s=0.001))
    journal.start()
    for number in range(2000):
        journal.write(closing(number))
    assert journal.dropped["close"] > 0
    journal.close()
    assert len(list((tmp_path / "journal").glob("*.lock"))) == 1


def test_a_thread_that_died_is_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = Journal(tmp_path / "journal", SystemClock(), Bounds(flush_s=0.001))
    monkeypatch.setattr(journal, "_run", lambda: None)
    journal.start()
    assert journal._writer is not None
    journal._writer.join()
    assert journal.state == "failing: the writer thread has ended"


def test_the_dead_are_recovered_beside_the_writing(tmp_path: Path, clock: ManualClock) -> None:
    folder = tmp_path / "journal"
    folder.mkdir()
    (folder / "1.lock").touch()
    opened = {"kind": "open", "ts": 1.0, "call_id": "old", "request_id": "r", "tenant": "a", "model": "m"}
    opened |= {"endpoint": "chat", "stream": True, "pool": "p", "replica": "h:1", "input_estimate_tokens": 7}
    opened |= {"prompt_template_id": None, "client_address": "10.0.0.1", "schema": 1}
    (folder / "20260101-000000-1.jsonl").write_text(json.dumps(opened) + "\n")
    journal = Journal(folder, clock)
    journal.write(closing(1))
    while journal.recovered == 0:
        journal.step()
    assert len(lines_in(folder)) == 3
    lost = json.loads((folder / "20260101-000000-1.jsonl").read_bytes().splitlines()[1])
    assert (lost["call_id"], lost["outcome"], lost["input_length"], lost["output_length"]) == ("old", "lost", 7, None)


def test_a_journal_needs_no_seam() -> None:
    assert isinstance(Journal(Path("never-made"), ManualClock())._files, Files)
