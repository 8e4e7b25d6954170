"""The benchmarks of scheduling run: tiny, on real processes; their bounds are not judged here."""

import json
import shutil
import sys
from pathlib import Path

import pytest

from bench import classes, collapse, fairness, nodes
from forebay.engines import embedded

pytestmark = pytest.mark.integration

COMMAND = f"{sys.executable} -m forebay.cli.main serve -c {{config}} --data-dir {{data}}"


def test_the_concurrency_limit_is_counted_at_the_engine(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "findings.json"
    code = fairness.main(["--only", "concurrency", "--rounds", "1", "--forebay-cmd", COMMAND, "--json", str(out)])
    printed = capfd.readouterr()
    assert code == 0, printed
    assert [found["passed"] for found in json.loads(out.read_text())["findings"]] == [True] * 3
    assert "never above 8" in printed.out


@pytest.mark.skipif(shutil.which("redis-server") is None, reason="redis-server is not installed")
def test_the_concurrency_limit_holds_over_two_nodes(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "findings.json"
    code = nodes.main(["--only", "concurrency", "--rounds", "1", "--forebay-cmd", COMMAND, "--json", str(out)])
    printed = capfd.readouterr()
    assert code == 0, printed
    assert [found["passed"] for found in json.loads(out.read_text())["findings"]] == [True] * 2


@pytest.mark.slow
def test_values_are_measured_in_real_time(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "runs.json"
    arguments = ["--planned-s", "0", "--real-rounds", "1", "--real-s", "8", "--load", "0.3", "--traces", str(tmp_path)]
    code = classes.main([*arguments, "--forebay-cmd", COMMAND, "--json", str(out)])
    printed = capfd.readouterr()
    assert code in (0, 1), printed.err
    assert "synthetic traffic instead" in printed.err
    runs = json.loads(out.read_text())["runs"]["real time"]
    assert [run["policy"] for run in runs] == ["first come, first served", "Forebay, latency"]
    assert all(run["in_target"]["low"] > 0.5 for run in runs), printed.out


@pytest.mark.engine
@pytest.mark.slow
def test_both_arms_of_the_collapse_serve_every_call(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    if embedded.available() is not None:
        pytest.skip("no llama.cpp with a model")
    out = tmp_path / "runs.json"
    tiny = ["--pairs", "1", "--calls", "20", "--short", "40-50", "--long", "90-120", "--output", "3-5", "--ctx", "512"]
    code = collapse.main([*tiny, "--forebay-cmd", COMMAND, "--json", str(out)])
    printed = capfd.readouterr()
    assert code in (0, 1), printed.err
    document = json.loads(out.read_text())
    assert [run["peer"] for run in document["runs"]] == ["direct", "through"]
    for run in document["runs"]:
        assert run["figures"]["lost"] == 0
        assert len(run["answers"]) == 20
    assert "short TTFT p99, s" in printed.out
