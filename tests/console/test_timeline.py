import errno
from pathlib import Path

import pytest

from forebay.clock import ManualClock
from forebay.config.documents import Override
from forebay.console.timeline import FILE_LINES, KEPT, Timeline


def fill(timeline: Timeline, count: int, start: int = 0) -> None:
    for number in range(start, start + count):
        override = Override(str(number), "drain", f"h:{number}", 1.0, "ann", "r", 0.0)
        timeline.append("override.created", "ann", override)


def ids(timeline: Timeline, limit: int = KEPT) -> list[str]:
    return [action.id for action in timeline.latest(limit)]


@pytest.fixture(autouse=True)
def no_fsync(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.fsync", lambda descriptor: None)


def test_newest_first_and_across_a_restart(tmp_path: Path, clock: ManualClock) -> None:
    timeline = Timeline(tmp_path / "t", clock)
    assert timeline.latest(10) == []
    fill(timeline, 3)
    assert ids(timeline, 2) == ["2", "1"]
    again = Timeline(tmp_path / "t", clock)
    assert again.latest(10) == timeline.latest(10)
    assert (tmp_path / "t").stat().st_mode & 0o777 == 0o600
    assert again.latest(1)[0].at == "2027-01-15T08:00:00.000Z"


def test_memory_and_file_are_bounded(tmp_path: Path, clock: ManualClock) -> None:
    timeline = Timeline(tmp_path / "t", clock)
    most = 0
    for start in range(0, FILE_LINES + 10, 10):
        fill(timeline, 10, start)
        most = max(most, len((tmp_path / "t").read_bytes().splitlines()))
    newest = [str(number) for number in range(FILE_LINES + 9, FILE_LINES + 9 - KEPT, -1)]
    assert ids(timeline) == newest
    assert most <= FILE_LINES
    assert ids(Timeline(tmp_path / "t", clock)) == newest
    assert [path.name for path in tmp_path.iterdir()] == ["t"]


def test_torn_and_foreign_lines_are_passed_over(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "t"
    fill(Timeline(path, clock), 2)
    whole = path.read_bytes()
    path.write_bytes(b'{"at":1}\n\xff\n' + whole + whole[:40])
    timeline = Timeline(path, clock)
    assert ids(timeline) == ["1", "0"]
    fill(timeline, 1, 2)
    assert ids(Timeline(path, clock)) == ["2", "1", "0"]


def test_full_disk_costs_lines_on_disk_only(
    tmp_path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    timeline = Timeline(tmp_path / "t", clock)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", full)
        fill(timeline, 1)
    assert timeline.fault == "t: No space left on device"
    assert ids(timeline) == ["0"]
    fill(timeline, 1, 1)
    assert timeline.fault is None
    assert ids(timeline) == ["1", "0"]


def test_a_line_says_what_an_override_does_and_older_lines_are_read(tmp_path: Path, clock: ManualClock) -> None:
    path = tmp_path / "t"
    path.write_text('{"at":"2027-01-15T07:00:00.000Z","kind":"override.created","by":"ann","target":"h:1","id":"1"}\n')
    timeline = Timeline(path, clock)
    refusal = Override("2", "refuse_long_inputs", "qwen", 1.0, "ann", "r", 0.0, 8192)
    timeline.append("override.expired", "forebay", refusal)
    assert [(a.id, a.change, a.tokens) for a in timeline.latest(2)] == [
        ("2", "refuse_long_inputs", 8192),
        ("1", "", None),
    ]
    assert Timeline(path, clock).latest(2) == timeline.latest(2)
