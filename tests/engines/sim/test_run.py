"""`run_sim` as a process of its own: greets, serves, follows its script, stops on a signal."""

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from forebay.engines.sim import SimSpec, read_faults

PROGRAM = """
import sys
from pathlib import Path
from forebay.cli.sim import run_sim
from forebay.engines.sim import SimSpec
run_sim("127.0.0.1", 0, SimSpec(models=("a", "b")), Path(sys.argv[1]))
"""


@pytest.mark.integration
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_serves_until_a_signal(tmp_path: Path, number: signal.Signals) -> None:
    script = tmp_path / "faults.json"
    script.write_text(json.dumps([{"action": "status", "status": 503}]))
    command = [sys.executable, "-c", PROGRAM, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            greeting = process.stdout.readline()
            found = re.fullmatch(r"simulated engine on (http://127\.0\.0\.1:\d+) serves a, b\n", greeting)
            assert found is not None, greeting
            body = json.dumps({"model": "b", "prompt": "x"}).encode()
            request = urllib.request.Request(f"{found[1]}/v1/completions", body)
            with pytest.raises(urllib.error.HTTPError) as caught:
                urllib.request.urlopen(request, timeout=60)
            assert caught.value.code == 503
            caught.value.close()
            with urllib.request.urlopen(request, timeout=60) as answer:
                assert json.load(answer)["model"] == "b"
            process.send_signal(number)
            assert process.wait(60) == 0
        finally:
            process.kill()


def test_a_script_that_cannot_be_read_names_its_file(tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    path.write_text("[{}]")
    with pytest.raises(ValueError, match=re.escape(str(path))):
        read_faults(path)
    with pytest.raises(FileNotFoundError):
        read_faults(tmp_path / "none")
    assert read_faults(None) == ()


def test_a_spec_is_a_value() -> None:
    assert SimSpec() == SimSpec()
    with pytest.raises(AttributeError):
        SimSpec().max_num_seqs = 3  # type: ignore[misc]
