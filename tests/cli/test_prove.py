"""`forebay prove` as one sees it: one line for every fault, a valid Forebay in front, a table at the end."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from forebay.cli.front import free_port
from forebay.cli.prove import Found, Wish, front_settings, run_prove
from forebay.clock import SystemClock
from forebay.config.load import Pinned, parse_file
from forebay.domain import Replica
from forebay.engines.contract import Capabilities
from forebay.engines.sim import SimServer, SimSpec, serve
from forebay.engines.sim.faults import AnyAction, Status
from forebay.release.mix import Lengths

LENGTHS = Lengths(20, 200, 30, 210, 6)
SPEC = SimSpec(iteration_base_ms=2.0, max_num_seqs=8, max_model_len=4096, models=("one", "two"))


class Engine:
    """A simulated engine in a thread, as the command runs a loop of its own."""

    def __init__(self, spec: SimSpec, *faults: AnyAction) -> None:
        self._loop = asyncio.new_event_loop()
        self._server: SimServer = self._loop.run_until_complete(serve(spec, "127.0.0.1", 0, SystemClock()))
        self._server.set_faults(*faults)
        self.url = self._server.base_url
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._server.close(), self._loop).result(5)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()


@pytest.fixture
def engine() -> Iterator[Engine]:
    made = Engine(SPEC)
    yield made
    made.close()


@pytest.mark.parametrize(
    ("wish", "words"),
    [
        (Wish("http://127.0.0.1:1", seconds=5), "--seconds 5: too few"),
        (Wish("ftp://here"), "--url: is not the URL of an engine"),
        (Wish("http://127.0.0.1:1", key_env="FOREBAY_NO_SUCH_KEY"), "--key-env FOREBAY_NO_SUCH_KEY"),
    ],
)
def test_wrong_usage_is_one_line(wish: Wish, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_prove(wish) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("forebay prove: ") and words in line


def fault(capsys: pytest.CaptureFixture[str], wish: Wish) -> str:
    assert run_prove(wish) == 1
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.integration
def test_nobody_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "cannot be reached (Connection refused)" in fault(capsys, Wish(f"http://127.0.0.1:{free_port()}"))


@pytest.mark.integration
def test_a_wrong_model_is_one_line(engine: Engine, capsys: pytest.CaptureFixture[str]) -> None:
    assert "there is no model 'three'; it serves: one, two" in fault(capsys, Wish(engine.url, model="three"))


@pytest.mark.integration
@pytest.mark.parametrize(
    ("spec", "step", "words"),
    [
        (SPEC, Status(status=401, message="no such key", always=True), "it refuses the key"),
        (SPEC, Status(status=500, message="out of order", always=True), "HTTP 500: out of order"),
        (SimSpec(max_model_len=256, kv_tokens=4096), None, "its context of 256 tokens is too small"),
    ],
)
def test_an_engine_that_cannot_be_measured_is_one_line(
    spec: SimSpec, step: AnyAction | None, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Engine(spec, *([step] if step else []))
    try:
        assert words in fault(capsys, Wish(made.url))
    finally:
        made.close()


def settings(known: Capabilities, wish: Wish, lengths: Lengths = LENGTHS) -> dict[str, object]:
    found = Found(Replica("h:1", "h", 1), "http://h:1", known)
    return front_settings(found, "org/m", wish, (7001, 7002), lengths)


def test_the_forebay_in_front_is_valid_and_holds_no_key() -> None:
    made = settings(Capabilities(kind="vllm", slots=4), Wish(key_env="KEY"))
    loaded = parse_file(msgspec.json.encode(made), "f", {"KEY": "k-123"}, 0.0, Pinned())
    (pool,) = loaded.policy.pools.values()
    assert (pool.engine, pool.max_in_flight, pool.replicas[0].authorization) == ("vllm", 4, "Bearer k-123")
    assert list(loaded.policy.models) == ["org/m"]
    assert loaded.policy.admission.long_prompt_tokens == 105
    assert "k-123" not in json.dumps(made)


def test_an_engine_of_unknown_room_has_no_limit_and_long_prompts_the_default() -> None:
    made = settings(Capabilities(), Wish(), Lengths(200, 8000, 230, 8100, 60))
    loaded = parse_file(msgspec.json.encode(made), "f", {}, 0.0, Pinned())
    (pool,) = loaded.policy.pools.values()
    assert (pool.max_in_flight, pool.replicas[0].authorization) == (None, "")
    assert loaded.policy.admission.long_prompt_tokens == 2048


def command(engine: Engine, folder: Path) -> subprocess.Popen[str]:
    code = "import sys; from forebay.cli.prove import *; sys.exit(run_prove(Wish(sys.argv[1], None, 20), as_json=True))"
    return subprocess.Popen(
        [sys.executable, "-c", code, engine.url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},
    )


@pytest.mark.integration
@pytest.mark.slow
def test_a_whole_proof_as_a_document(engine: Engine, tmp_path: Path) -> None:
    process = command(engine, tmp_path)
    out, err = process.communicate(timeout=90)
    assert process.returncode == 0, err
    made = json.loads(out)
    assert [row["name"] for row in made["rows"]][0] == "short TTFT P50 ms"
    assert (made["engine"]["product"], made["engine"]["model"], made["seconds"]) == ("vLLM", "one", 20.0)
    for way in ("direct", "forebay"):
        assert made["ends"][way]["answered"] == made["ends"][way]["asked"] > 20
    assert list(tmp_path.iterdir()) == []


@pytest.mark.integration
@pytest.mark.slow
def test_interrupted_it_leaves_nothing_behind(engine: Engine, tmp_path: Path) -> None:
    process = command(engine, tmp_path)
    assert process.stderr is not None
    for line in process.stderr:
        if line.startswith("capacity"):
            break
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "stopped" in err.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []
    deadline = time.monotonic() + 60
    while (left := _running_below(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


@pytest.mark.integration
def test_killed_it_leaves_no_process_behind(engine: Engine, tmp_path: Path) -> None:
    """A killed parent can stop nobody: the Forebay in front sees that its standard input ends."""
    process = command(engine, tmp_path)
    assert process.stderr is not None and process.stdout is not None
    for line in process.stderr:
        if line.startswith("capacity"):
            break
    assert _running_below(tmp_path)
    process.kill()
    process.wait(60)
    process.stdout.close()
    process.stderr.close()
    deadline = time.monotonic() + 60
    while (left := _running_below(tmp_path)) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert left == []


def _running_below(folder: Path) -> list[str]:
    """Command lines of processes that name the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(folder) in text:
            found.append(text)
    return found
