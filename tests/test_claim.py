"""One process has a data folder at a time, and nothing but its end or its word takes it away."""

import asyncio
import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from forebay import claim as claim_module
from forebay.claim import Claim, ClaimedError


def test_the_second_one_is_told_who_has_it(tmp_path: Path) -> None:
    first, second = Claim(tmp_path), Claim(tmp_path)
    first.take()
    first.take()
    for _ in range(2):
        with pytest.raises(ClaimedError, match=rf"in use by process {os.getpid()}: .*--take-over"):
            second.take()
    first.release()
    first.release()
    second.take()
    with pytest.raises(ClaimedError):
        first.take()
    second.release()


def test_a_killed_process_has_it_no_more_and_its_children_never_had(tmp_path: Path) -> None:
    code = f"""
import os, pathlib, subprocess, sys, time
from forebay.claim import Claim
claim = Claim(pathlib.Path({str(tmp_path)!r}))
claim.take()
child = subprocess.Popen([sys.executable, "-c", "import sys; sys.stdin.read()"], stdin=subprocess.PIPE)
print("ready", flush=True)
time.sleep(60)
"""
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None and process.stdout.readline() == "ready\n"
        claim = Claim(tmp_path)
        with pytest.raises(ClaimedError, match=f"process {process.pid}:"):
            claim.take()
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    claim.take()
    assert (tmp_path / "run" / "lock").read_text() == f"{os.getpid()}\n"
    claim.release()


def test_a_folder_that_cannot_be_written_is_no_reason_not_to_serve(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "run").write_bytes(b"")
    caplog.set_level(logging.WARNING)
    Claim(tmp_path).take()
    assert "cannot be locked" in caplog.text


@pytest.mark.parametrize("lets_go", [True, False])
def test_who_takes_over_waits_until_it_is_let_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, lets_go: bool
) -> None:
    monkeypatch.setattr(claim_module, "INHERIT_S", 5.0 if lets_go else 0.2)

    async def main() -> bool:
        old, new, third = Claim(tmp_path), Claim(tmp_path), Claim(tmp_path)
        old.take()
        if lets_go:
            asyncio.get_running_loop().call_later(0.1, old.release)
        await new.inherit()
        old.release()
        try:
            third.take()
        except ClaimedError:
            return True
        finally:
            third.release()
            new.release()
        return False

    assert asyncio.run(main()) is lets_go
    assert ("has not let go" in caplog.text) is not lets_go
