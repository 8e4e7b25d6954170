"""`forebay traffic` as one sees it: tables, a document, and plain words when there is nothing."""

import json
from pathlib import Path

import msgspec
import pytest

from forebay.cli.traffic import run_traffic, span_of
from forebay.clock import SystemClock
from forebay.domain import Outcome
from forebay.recording.lines import CloseLine


def journal(folder: Path, *lines: CloseLine, rest: bytes = b"") -> Path:
    path = folder / "journal" / "20260101-000000-1.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"".join(msgspec.json.encode(line) + b"\n" for line in lines) + rest)
    return folder


def call(age_s: float, tokens: int, **fields: object) -> CloseLine:
    line = CloseLine(SystemClock().wall_s() - age_s, "c", "r", "chat", "x", tenant="red", model="m")
    line.outcome, line.input_length, line.output_length, line.usage_estimated = Outcome.OK, tokens, 7, False
    for name, value in fields.items():
        setattr(line, name, value)
    return line


@pytest.mark.parametrize(("text", "span_s"), [("90s", 90), ("5m", 300), ("24h", 86_400), (" 7d", 604_800)])
def test_spans(text: str, span_s: float) -> None:
    assert span_of(text) == span_s


@pytest.mark.parametrize("text", ["", "24", "h", "-1h", "1.5h", "1w", "9999999d"])
def test_what_is_no_span_is_said(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_traffic(tmp_path, text) == 2
    assert "--since" in capsys.readouterr().err


def test_the_tables_show_the_traffic(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = journal(
        tmp_path,
        call(10, 300, cached_tokens=30, prompt_template_id="greeting\x1b[31m"),
        call(20, 9_000, cached_tokens=0, outcome=Outcome.TIMEOUT, error_code="total_timeout"),
        call(90_000, 5),
        rest=b'{"kind":"cl',
    )
    assert run_traffic(folder, "24h") == 0
    out = capsys.readouterr().out
    for words in (
        "half written or damaged: 1",
        "2 calls ended between",
        "9,300 input and 14 output tokens",
        "256 .. 511",
        "8,192 .. 16,383",
        "greeting?[31m",
        "total_timeout",
        "0.3 % of the input tokens came from the engines' caches",
    ):
        assert words in out, words
    (long_row,) = (line for line in out.splitlines() if line.startswith("8,192 ") and ".." not in line)
    assert long_row.split() == ["8,192", "1", "50.0", "%", "96.8", "%"]
    assert "\x1b" not in out and "None" not in out


def test_the_document_has_everything(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_traffic(journal(tmp_path, call(10, 300)), "1h", as_json=True) == 0
    made = json.loads(capsys.readouterr().out)
    assert (made["segments"], made["skipped"], made["traffic"]["calls"]) == (1, 0, 1)
    assert made["traffic"]["groups"]["red m"]["input"]["tokens"] == 300


def test_an_empty_journal_is_no_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_traffic(tmp_path / "none", "24h") == 0
    assert "There is no journal in" in capsys.readouterr().out
    assert run_traffic(journal(tmp_path, call(90_000, 5)), "24h") == 0
    assert "No call ended in the last 24h" in capsys.readouterr().out


def test_a_journal_that_cannot_be_read_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = journal(tmp_path, call(10, 300))
    (folder / "journal" / "20260101-000001-1.jsonl").mkdir()
    assert run_traffic(folder, "24h") == 1
    assert "20260101-000001-1.jsonl cannot be read: Is a directory" in capsys.readouterr().err
