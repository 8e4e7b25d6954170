"""`forebay check`."""

from pathlib import Path

import pytest

from forebay.cli.check import run_check
from forebay.resume import extra

HERE = Path(__file__).parent


def test_a_good_file(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_check(HERE / "good" / "contract.yaml") == 0
    out, err = capsys.readouterr()
    assert "valid; listens on 127.0.0.1:7080; models 1, pools 1, replicas 2, tenants 2; hash " in out
    assert err == ""


def test_a_file_without_tenants_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_check(HERE / "good" / "smallest.yaml") == 0
    assert "tenants none (no keys)" in capsys.readouterr().out


def test_a_bad_file_prints_one_line_per_fault_and_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    path = HERE / "bad" / "all_at_once.yaml"
    assert run_check(path) == 2
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()
    assert len(lines) == 11 and all(line.startswith(f"{path}:") for line in lines)
    assert [int(line.removeprefix(f"{path}:").split(":")[0]) for line in lines] == sorted(
        int(line.removeprefix(f"{path}:").split(":")[0]) for line in lines
    )


def test_a_missing_extra_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "forebay.yaml"
    path.write_text((HERE / "good" / "smallest.yaml").read_text() + "\nresume: {ttl_s: 60}\n")
    assert run_check(path) == 0 and capsys.readouterr().err == ""
    monkeypatch.setattr(extra, "missing", lambda: "the extra forebay[resume] is not installed")
    assert run_check(path) == 0
    assert "answers cannot be resumed: the extra forebay[resume] is not installed" in capsys.readouterr().err
    assert run_check(HERE / "good" / "smallest.yaml") == 0 and capsys.readouterr().err == ""
