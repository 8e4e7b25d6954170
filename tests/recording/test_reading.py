"""Reading the journal back: every usable close line, once, and a count of the rest."""

import json
import os
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.domain import FailureKind, Outcome
from forebay.recording.lines import Attempt, CloseLine, OpenLine
from forebay.recording.reading import MAX_LINE_BYTES, Reader, closes


def closing(call_id: str, ts: float = 2.0, **fields: object) -> bytes:
    line = CloseLine(ts, call_id, "r", "chat", "10.0.0.1")
    return json.dumps(json.loads(msgspec.json.encode(line)) | fields).encode() + b"\n"


def opening(call_id: str) -> bytes:
    return msgspec.json.encode(OpenLine(1.0, call_id, "r", "a", "m", "chat", True, "p", "h:1", 7, "t", "x")) + b"\n"


def segment(folder: Path, number: int, data: bytes) -> Path:
    path = folder / f"20260101-00000{number}-7.jsonl"
    path.write_bytes(data)
    return path


def read(folder: Path, since_s: float = 0.0) -> tuple[list[str], int]:
    reader = Reader(folder)
    return [line.call_id for line in reader.closes(since_s)], reader.skipped


def test_every_field_comes_back(tmp_path: Path) -> None:
    attempt = Attempt("p", "h:1", FailureKind.RESET, 502, 3.5)
    written = CloseLine(9.0, "a", "r", "chat", "x", outcome=Outcome.TIMEOUT, input_length=4, attempts=(attempt,))
    segment(tmp_path, 1, msgspec.json.encode(written) + b"\n")
    (line,) = closes(tmp_path)
    assert msgspec.json.encode(line) == msgspec.json.encode(written)
    assert (line.outcome, line.attempts, line.output_length) == (Outcome.TIMEOUT, (attempt,), None)


def test_segments_by_age_and_lines_as_written(tmp_path: Path) -> None:
    segment(tmp_path, 2, closing("c"))
    segment(tmp_path, 1, opening("a") + closing("b", 5.0) + closing("a", 3.0))
    (tmp_path / "7.lock").touch()
    assert read(tmp_path) == (["b", "a", "c"], 0)


def test_only_what_ended_since(tmp_path: Path) -> None:
    segment(tmp_path, 1, closing("old", 9.999) + closing("edge", 10.0) + closing("new", 11))
    assert read(tmp_path, 10.0) == (["edge", "new"], 0)


def test_a_segment_written_long_before_is_not_read(tmp_path: Path) -> None:
    path = segment(tmp_path, 1, b"damaged\n")
    segment(tmp_path, 2, closing("a", 5000.0))
    os.utime(path, (1000, 1000))
    reader = Reader(tmp_path)
    assert [line.call_id for line in reader.closes(4000.0)] == ["a"]
    assert (reader.segments, reader.skipped) == (1, 0)


@pytest.mark.parametrize(
    "damage",
    [
        b"\n",
        b"{}\n",
        b"[1]\n",
        b'{"kind":"close","ts":1\n',
        b'{"kind":"audit","ts":1.0}\n',
        b"\xff\xfe\n",
        closing("a", outcome="unheard of"),
        closing("a", input_length="many"),
        b"x" * (MAX_LINE_BYTES * 2 + 5) + b"\n",
    ],
)
def test_damage_is_counted_and_passed_over(tmp_path: Path, damage: bytes) -> None:
    segment(tmp_path, 1, closing("before") + damage + closing("after"))
    assert read(tmp_path) == (["before", "after"], 1)


def test_the_half_line_at_the_end_is_counted(tmp_path: Path) -> None:
    segment(tmp_path, 1, closing("a") + closing("b").rstrip(b"\n"))
    assert read(tmp_path) == (["a"], 1)


def test_a_newer_line_is_read_without_what_is_new(tmp_path: Path) -> None:
    segment(tmp_path, 1, closing("a", schema=2, money={"eur": 1}, queue_order=[1, 2]))
    (line,) = closes(tmp_path)
    assert (line.call_id, line.schema) == ("a", 2)


def test_no_folder_is_an_empty_journal(tmp_path: Path) -> None:
    assert read(tmp_path / "none") == ([], 0)


def test_a_segment_swept_meanwhile_is_no_fault(tmp_path: Path) -> None:
    segment(tmp_path, 1, closing("a"))
    gone = segment(tmp_path, 2, closing("b"))
    lines: Iterator[CloseLine] = Reader(tmp_path).closes()
    first = next(lines)
    gone.unlink()
    assert (first.call_id, list(lines)) == ("a", [])


@settings(max_examples=60, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 9), st.binary(max_size=30).filter(lambda b: b"\n" not in b)), max_size=20))
def test_whatever_stands_between_no_line_is_lost(
    tmp_path_factory: pytest.TempPathFactory, parts: list[int | bytes]
) -> None:
    folder = tmp_path_factory.mktemp("journal")
    segment(folder, 1, b"".join(closing(str(p)) if isinstance(p, int) else p + b"\n" for p in parts))
    assert read(folder) == ([str(p) for p in parts if isinstance(p, int)], sum(isinstance(p, bytes) for p in parts))
