"""The benchmark itself runs: nginx against nginx, tiny, where its tools are at hand."""

import json
import os
import shutil
from pathlib import Path

import pytest

from bench.run import TOOLS, main


@pytest.mark.integration
def test_a_quick_run_measures_both_peers(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    tools = Path(os.environ.get("FOREBAY_BENCH_TOOLS", TOOLS))
    if not (tools / "mock.c").is_file():
        pytest.skip("no C mock engine and load maker")
    if shutil.which("cc") is None or shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin") is None:
        pytest.skip("needs cc and nginx")
    out = tmp_path / "runs.json"
    code = main(["--quick", "--only", "ns_1c", "--forebay-cmd", "nginx", "--json", str(out)])
    printed = capfd.readouterr()
    assert code == 0, printed.err
    document = json.loads(out.read_text())
    assert {run["peer"] for run in document["runs"]} == {"forebay", "nginx"}
    assert all(1 < run["figures"]["us_per_request"] < 10_000 for run in document["runs"])
    assert "CPU per request" in printed.out
