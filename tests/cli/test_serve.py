"""What `forebay serve` refuses before it starts anything."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest

from forebay.cli.serve import Wish, run_serve


def test_several_workers_need_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_serve(Wish(None, None, None, tmp_path, workers=2)) == 2
    assert "need a configuration file" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
def test_an_address_in_use_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        file = tmp_path / "forebay.yaml"
        file.write_text(
            f"listen: 127.0.0.1:{port}\nadmin: 127.0.0.1:1\nworkers: 2\n"
            "pools: {main: {engine: vllm, replicas: [{url: 'http://127.0.0.1:9'}]}}\nmodels: {m: {pool: main}}\n"
        )
        command = [sys.executable, "-W", "error", "-m", "forebay.cli.main", "serve", "-c", str(file)]
        done = subprocess.run([*command, "--data-dir", str(tmp_path / "data")], capture_output=True, text=True)
    assert done.returncode == 3, done.stderr
    assert "cannot listen on" in done.stderr and "Warning" not in done.stderr
    assert list((tmp_path / "data").rglob("*.sock")) == []
