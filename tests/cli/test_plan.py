"""`forebay plan`: what it prints, and how it fails."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from forebay.cli import plan
from forebay.cli.plan import Calibrating, Comparison, run_plan_calibrate, run_plan_compare
from forebay.plan.calibrate import Effort

SMALL = Comparison(replicas=2, seconds=15.0, realisations=2, policies=["round_robin", "forebay_latency"])


def test_a_table_is_printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "160")
    assert run_plan_compare(SMALL) == 0
    shown = capsys.readouterr().out
    assert "2 engines at 87% of their prefill peak, 2 realisations" in shown
    assert [line.split()[0] for line in shown.splitlines() if "+-" in line][:2] == ["round_robin", "forebay_latency"]


def test_json_has_all_realisations_and_names_no_folder(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "azure2023").mkdir()
    lines = [f"2023-11-16 18:{n // 60:02}:{n % 60:02}.0000000,700,9" for n in range(600)]
    text = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "\n".join(lines)
    (tmp_path / "azure2023" / "AzureLLMInferenceTrace_conv.csv").write_text(text)
    assert run_plan_compare(replace(SMALL, json=True, traces=tmp_path)) == 0
    shown = capsys.readouterr().out
    assert str(tmp_path) not in shown
    document = json.loads(shown)
    assert document["setup"]["traces"] is True
    assert len(document["policies"]["round_robin"]["realisations"]) == 2
    assert 0 <= document["policies"]["forebay_latency"]["spread"]["in_slo_ratio"]["mean"] <= 1


def test_a_calibrated_engine_is_taken(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "engine.json"
    path.write_text('{"spec": {"iteration_base_ms": 1, "ms_per_prefill_token": 0.001}, "errors": {}}')
    assert run_plan_compare(replace(SMALL, json=True, engine=path, seconds=1.0)) == 0
    assert json.loads(capsys.readouterr().out)["setup"]["engine"] is True
    path.write_text('{"specs": 1}')
    assert run_plan_compare(replace(SMALL, engine=path)) == 2
    assert "engine.json is no JSON of `forebay plan calibrate`" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (replace(SMALL, policies=["best"]), "'best'"),
        (replace(SMALL, replicas=0), "replicas must be above 0"),
        (replace(SMALL, traces=Path("nowhere")), "found neither"),
        (replace(SMALL, engine=Path("nowhere")), "nowhere"),
    ],
)
def test_bad_options_are_named(wanted: Comparison, said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_plan_compare(wanted) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    "wanted",
    [Calibrating(url="nowhere", model="m"), Calibrating(url="http://h", model="m", key_file=Path("nowhere")),
     Calibrating(url="http://h", model="m", slots=0)],
)  # fmt: skip
def test_what_cannot_be_measured_is_named(wanted: Calibrating, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_plan_calibrate(wanted) == 2
    assert capsys.readouterr().err.startswith("forebay plan: ")


@pytest.fixture
def sim_url() -> Iterator[str]:
    """A simulated engine in a process of its own."""
    line = [sys.executable, "-m", "forebay.cli.main", "sim", "--port", "0"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[3]
        process.terminate()


@pytest.mark.integration
def test_a_calibration_is_printed_and_can_be_compared_on(
    sim_url: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    quick = Effort(longest_words=32, repeats=1, output_tokens=6, held_out=3)
    monkeypatch.setattr(plan, "Effort", lambda longest_words: quick)
    wanted = Calibrating(url=sim_url, model="sim", slots=2)
    assert run_plan_calibrate(wanted) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("iteration_base_ms")
    assert "a mixed load of 3 requests" in shown
    assert run_plan_calibrate(replace(wanted, json=True)) == 0
    document = capsys.readouterr().out
    assert set(json.loads(document)["errors"]) == {"TTFT P50", "TTFT P90", "ITL P50", "ITL P90"}
    (tmp_path / "engine.json").write_text(document)
    assert run_plan_compare(replace(SMALL, engine=tmp_path / "engine.json", seconds=2.0)) == 0
    assert run_plan_calibrate(replace(wanted, model="other")) == 1
    assert "404" in capsys.readouterr().err
