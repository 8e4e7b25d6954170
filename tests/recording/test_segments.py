"""Names, rotation, retention and locks."""

import os
from pathlib import Path

import pytest
from recording.faulty_disk import FaultyDisk, lines_in

from forebay.clock import ManualClock
from forebay.recording.files import Files
from forebay.recording.segments import Bounds, Segments

LINE = b"x" * 99 + b"\n"


def segments(folder: Path, clock: ManualClock, files: Files | None = None, **bounds: float) -> Segments:
    made = Segments(folder, clock, Bounds(**bounds), files or FaultyDisk())  # type: ignore[arg-type]
    made.prepare()
    return made


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("*.jsonl"))


def test_a_segment_ends_at_its_size(tmp_path: Path) -> None:
    clock = ManualClock()
    mine = segments(tmp_path, clock, segment_bytes=250)
    for _ in range(7):
        mine.append(LINE)
    assert [path.stat().st_size for path in sorted(tmp_path.glob("*.jsonl"))] == [300, 300, 100]


def test_a_segment_ends_at_its_age(tmp_path: Path) -> None:
    clock = ManualClock()
    mine = segments(tmp_path, clock, segment_age_s=60.0)
    mine.append(LINE)
    clock.advance(61)
    mine.prepare()
    mine.append(LINE)
    assert len(names(tmp_path)) == 2


def test_two_segments_never_share_a_name(tmp_path: Path) -> None:
    mine = segments(tmp_path, ManualClock(), segment_bytes=1)
    for _ in range(3):
        mine.append(LINE)
    stems = [name.split("-")[1] for name in names(tmp_path)]
    assert stems == ["080000", "080001", "080002"]


def test_old_segments_go_by_size_and_the_latest_of_each_process_stays(tmp_path: Path) -> None:
    clock = ManualClock()
    (tmp_path / "20260101-000000-77.jsonl").write_bytes(LINE)
    (tmp_path / "20250101-000000-77.jsonl").write_bytes(LINE)
    mine = segments(tmp_path, clock, segment_bytes=200, keep_bytes=1600, keep_age_s=1e9)
    for _ in range(40):
        mine.append(LINE)
        clock.advance(1.1)
        mine.prepare()
    assert names(tmp_path)[0] == "20260101-000000-77.jsonl"
    assert 1000 <= sum(path.stat().st_size for path in tmp_path.glob("*.jsonl")) <= 1600 + 200 + 100


def test_old_segments_go_by_age(tmp_path: Path) -> None:
    clock = ManualClock(wall_s=1_800_000_000.0)
    for day, age_s in (("20260101", 86_401.0), ("20260102", 86_399.0), ("20260103", 0.0)):
        path = tmp_path / f"{day}-000000-77.jsonl"
        path.write_bytes(LINE)
        os.utime(path, (clock.wall_s() - age_s,) * 2)
    segments(tmp_path, clock, keep_age_s=86_400.0)
    assert names(tmp_path) == ["20260102-000000-77.jsonl", "20260103-000000-77.jsonl"]


def test_a_small_disk_keeps_at_most_half_of_itself(tmp_path: Path) -> None:
    clock, disk = ManualClock(), FaultyDisk()
    disk.total_bytes = 8000
    mine = segments(tmp_path, clock, disk, keep_age_s=1e9)
    for _ in range(100):
        mine.append(LINE)
        clock.advance(1.1)
        mine.prepare()
    assert sum(path.stat().st_size for path in tmp_path.glob("*.jsonl")) <= 4000 + 500


def test_the_lock_says_who_lives(tmp_path: Path) -> None:
    first, second = (segments(tmp_path, ManualClock()) for _ in range(2))
    assert (first.tag, second.tag) == (str(os.getpid()), f"{os.getpid()}_1")
    first.append(LINE)
    second.append(LINE)
    assert len(names(tmp_path)) == 2
    first.close(complete=True)
    second.close(complete=False)
    assert [path.name for path in tmp_path.glob("*.lock")] == [f"{second.tag}.lock"]


def test_the_segments_of_a_dead_process_with_our_id_are_inherited(tmp_path: Path) -> None:
    dead = segments(tmp_path, ManualClock())
    dead.append(LINE)
    dead.close(complete=False)
    heir = segments(tmp_path, ManualClock())
    assert heir.tag == dead.tag and [path.name for path in heir.inherited] == names(tmp_path)
    heir.append(LINE)
    assert len(names(tmp_path)) == 2, "a segment under recovery is not written to"
    heir.close(complete=True)
    assert segments(tmp_path, ManualClock()).inherited == [], "it closed completely: nothing is to be recovered"


def test_a_deleted_lock_is_taken_again(tmp_path: Path) -> None:
    clock = ManualClock()
    mine = segments(tmp_path, clock)
    (tmp_path / f"{mine.tag}.lock").unlink()
    clock.advance(1.1)
    mine.prepare()
    assert (tmp_path / f"{mine.tag}.lock").exists()


def test_too_many_of_the_same_name(tmp_path: Path) -> None:
    living = [segments(tmp_path, ManualClock()) for _ in range(64)]
    with pytest.raises(OSError, match="64 living processes"):
        segments(tmp_path, ManualClock())
    for one in living:
        one.close(complete=True)


def test_a_short_write_is_cut_to_whole_lines(tmp_path: Path) -> None:
    disk = FaultyDisk()
    mine = segments(tmp_path, ManualClock(), disk)
    disk.room_bytes = 150
    assert mine.append(LINE + LINE) == 100
    assert lines_in(tmp_path) == [LINE]
