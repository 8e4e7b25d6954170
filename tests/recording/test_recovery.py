"""Calls of dead processes: found, closed once, and only those."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from gateway_process import eventually

from forebay.recording.files import Files
from forebay.recording.lines import CloseLine, OpenLine
from forebay.recording.recovery import Recovery, recover

BUDGET_BYTES = 1_000_000


def opening(call_id: str) -> bytes:
    line = OpenLine(1.0, call_id, "r", "a", "m", "chat", True, "p", "h:1", 7, "t", "10.0.0.1")
    return msgspec.json.encode(line) + b"\n"


def closing(call_id: str) -> bytes:
    return msgspec.json.encode(CloseLine(2.0, call_id, "r", "chat", "10.0.0.1")) + b"\n"


def dead(folder: Path, *segments: bytes, tag: str = "77") -> list[Path]:
    (folder / f"{tag}.lock").touch()
    paths = [folder / f"20260101-00000{number}-{tag}.jsonl" for number in range(len(segments))]
    for path, data in zip(paths, segments, strict=True):
        path.write_bytes(data)
    return paths


def lost(path: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in path.read_bytes().splitlines()]
    return [line for line in lines if line.get("outcome") == "lost" and line["ts"] == 99.0]


def run(folder: Path, budget_bytes: int = BUDGET_BYTES) -> int:
    return recover(folder, Files(), budget_bytes, wall_s=99.0)


def test_an_orphan_is_closed_with_what_the_open_line_knew(tmp_path: Path) -> None:
    (segment,) = dead(tmp_path, opening("a") + opening("b") + closing("a"))
    assert run(tmp_path) == 1
    (row,) = lost(segment)
    assert row["kind"] == "close" and row["call_id"] == "b"
    expected = {"request_id": "r", "tenant": "a", "model": "m", "endpoint": "chat", "pool": "p", "replica": "h:1"}
    expected |= {"client_address": "10.0.0.1", "prompt_template_id": "t", "stream": True}
    assert {key: row[key] for key in expected} == expected
    assert (row["input_length"], row["usage_estimated"]) == (7, True)
    for unknown in ("status", "output_length", "total_tokens", "total_ms", "ttft_ms", "queue_ms"):
        assert row[unknown] is None, unknown
    assert row["total_source"] == "absent"


def test_it_is_done_once(tmp_path: Path) -> None:
    (segment,) = dead(tmp_path, opening("a"))
    assert (run(tmp_path), run(tmp_path)) == (1, 0)
    assert not list(tmp_path.glob("*.lock"))
    (tmp_path / "77.lock").touch()  # as if the recovery had been killed before it removed the lock
    assert run(tmp_path) == 0 and len(lost(segment)) == 1


def test_pairs_are_found_across_segments(tmp_path: Path) -> None:
    first, second = dead(tmp_path, opening("a") + opening("b"), closing("a") + opening("c"))
    assert run(tmp_path) == 2
    assert {row["call_id"] for row in lost(second)} == {"b", "c"} and lost(first) == []


def test_a_close_before_its_open_is_a_pair_too(tmp_path: Path) -> None:
    dead(tmp_path, closing("a"), opening("a"))
    assert run(tmp_path) == 0


def test_a_torn_last_line_is_cut_off(tmp_path: Path) -> None:
    (segment,) = dead(tmp_path, opening("a") + closing("a")[:50])
    assert run(tmp_path) == 1
    assert [json.loads(line)["kind"] for line in segment.read_bytes().splitlines()] == ["open", "close"]


def test_a_segment_that_is_one_torn_line(tmp_path: Path) -> None:
    dead(tmp_path, opening("a"), b'{"kind":"clo')
    assert run(tmp_path) == 1
    assert len(lost(tmp_path / "20260101-000001-77.jsonl")) == 1


@pytest.mark.parametrize(
    "damage",
    [b"\n", b"\x00\xff\xfe\n", b"[1,2]\n", b'{"kind":5}\n', b'{"kind":"open","call_id":"z"}\n', b"\xed\xa0\x80\n"],
)
def test_damage_is_passed_over(tmp_path: Path, damage: bytes) -> None:
    (segment,) = dead(tmp_path, damage + opening("a") + damage)
    run(tmp_path)
    found = [line for line in segment.read_bytes().splitlines() if b'"lost"' in line]
    assert len(found) == 1 and json.loads(found[0])["call_id"] == "a"


def test_the_living_are_left_alone(tmp_path: Path) -> None:
    (segment,) = dead(tmp_path, opening("a"))
    files = Files()
    held = files.open(tmp_path / "77.lock")
    assert files.lock(held)
    assert run(tmp_path) == 0 and lost(segment) == []
    os.close(held)
    assert run(tmp_path) == 1


def test_who_closed_completely_is_not_read(tmp_path: Path) -> None:
    (segment,) = dead(tmp_path, opening("a"))
    (tmp_path / "77.lock").unlink()
    assert run(tmp_path) == 0 and lost(segment) == []


def test_the_budget_is_spent_on_the_newest_segments(tmp_path: Path) -> None:
    dead(tmp_path, opening("old"), opening("new"))
    assert run(tmp_path, budget_bytes=10) == 1
    assert [row["call_id"] for row in lost(tmp_path / "20260101-000001-77.jsonl")] == ["new"]


def test_big_segments_are_read_in_small_steps(tmp_path: Path) -> None:
    pairs = b"".join(opening(f"c{i}") + closing(f"c{i}") for i in range(2000))
    dead(tmp_path, pairs + opening("last"))
    recovery = Recovery(tmp_path, Files(), 10**9, 99.0)
    steps = sum(1 for _ in recovery.steps("", []))
    assert recovery.closed == 1 and steps >= len(pairs) // 131_072


def test_own_inheritance_keeps_the_own_lock(tmp_path: Path) -> None:
    paths = dead(tmp_path, opening("a"), tag="5")
    recovery = Recovery(tmp_path, Files(), BUDGET_BYTES, 99.0)
    for _ in recovery.steps("5", paths):
        pass
    assert recovery.closed == 1 and (tmp_path / "5.lock").exists()


def test_an_empty_or_missing_folder(tmp_path: Path) -> None:
    assert run(tmp_path) == 0
    assert run(tmp_path / "missing") == 0


WRITER = """
import sys, time
from pathlib import Path
from forebay.clock import SystemClock
from forebay.recording.journal import Journal

clock = SystemClock()
journal = Journal(Path(sys.argv[1]), clock)
journal.start()
number = 0
print("started", flush=True)
while True:
    number += 1
    journal.write(b'{"kind":"open","ts":%f,"call_id":"c%d","request_id":"r","tenant":null,"model":null,'
        b'"endpoint":"chat","stream":null,"pool":"p","replica":"h:1","input_estimate_tokens":null,'
        b'"prompt_template_id":null,"client_address":"-","schema":1}' % (clock.wall_s(), number), True)
    if number > 20:
        journal.write(b'{"kind":"close","ts":%f,"call_id":"c%d"}' % (clock.wall_s(), number - 20))
    time.sleep(0.001)
"""


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """The whole lines of a journal of at most one segment."""
    return [json.loads(line) for path in folder.glob("*.jsonl") for line in path.read_bytes().split(b"\n")[:-1]]


def lost_by_a_killed_writer(folder: Path) -> float:
    """Kill one that has written for a while, and return the seconds from its last line on disk to its death."""
    with subprocess.Popen([sys.executable, "-c", WRITER, str(folder)], stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None and writer.stdout.readline() == b"started\n"
            assert eventually(lambda: len(lines_of(folder)) >= 100)
        finally:
            killed_s = time.time()
            writer.send_signal(signal.SIGKILL)
            writer.wait()
    return killed_s - max(line["ts"] for line in lines_of(folder))


@pytest.mark.integration
def test_a_killed_writer_loses_at_most_200_ms_and_its_calls_are_closed(tmp_path: Path) -> None:
    # A busy machine may not let the writer run for longer than that, so one of several has to keep the promise.
    folders = (tmp_path / str(number) for number in range(8))
    folder = next((folder for folder in folders if lost_by_a_killed_writer(folder) <= 0.2), None)
    assert folder is not None
    (segment,) = folder.glob("*.jsonl")
    written = lines_of(folder)
    opened = {line["call_id"] for line in written if line["kind"] == "open"}
    closed = {line["call_id"] for line in written if line["kind"] == "close"}
    assert closed <= opened, "a close line is on disk before its open line"
    orphans = opened - closed
    assert len(orphans) >= 20
    assert run(folder) == len(orphans)
    assert {row["call_id"] for row in lost(segment)} == orphans
    assert run(folder) == 0
