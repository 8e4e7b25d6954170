"""The embedded llama.cpp, the simulated engine, and one gateway in front of both."""

import http.client
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
from cases.rawhttp import Address, Client, Response
from conformance.tap import Tap
from gateway_process import Document, Gateway, document, free_port

from forebay.engines import embedded

START_LIMIT_S = 30.0
# A prompt of 3,000 tokens takes llama.cpp 20 s on one busy core.
ANSWER_LIMIT_S = 90.0
TIMEOUTS = {"connect_s": 5, "first_byte_s": 60, "stall_s": 30, "total_s": 100}
# A name that JSON has to escape, and that no engine knows.
SIM_ALIAS = '模型"x"'
NAMES = {"llamacpp": ("default", "alias"), "sim": ("sim", SIM_ALIAS)}
"""For each engine: the model as it calls it, and as a client may call it."""
STREAM = {"ping_s": 1, "done_grace_s": 0.2}


class World(NamedTuple):
    """What a test compares.

    Attributes:
        llamacpp: address of the embedded engine; None without the demo extra.
        sim: address of the simulated engine.
        tap: shows what the gateway sends to the embedded engine for the model `tapped`.
    """

    llamacpp: Address | None
    sim: Address
    gateway: Gateway
    tap: Tap

    def engine(self, kind: str) -> Address:
        """The address of an engine; skips the test when it cannot run here."""
        if kind == "sim":
            return self.sim
        if self.llamacpp is None:
            pytest.skip("needs the demo extra")
        return self.llamacpp

    def direct(self, kind: str, target: str, payload: object, **more: Any) -> Response:
        """Ask an engine."""
        return post(self.engine(kind), target, payload, key=None, **more)

    def through(self, target: str, payload: object, **more: Any) -> Response:
        """Ask the gateway."""
        return post(self.gateway.address, target, payload, **more)

    def busy_slots(self) -> int:
        """The calls that llama.cpp works on."""
        status, body = get(self.engine("llamacpp"), "/slots")
        assert status == 200
        return sum(slot["is_processing"] for slot in json.loads(body))


def post(address: Address, target: str, payload: object, **more: Any) -> Response:
    """POST on a new connection, with time for an answer of llama.cpp."""
    with Client(address, ANSWER_LIMIT_S) as client:
        return client.ask("POST", target, payload, **more)


def get(address: Address, path: str) -> tuple[int, bytes]:
    """GET: status (0 when nobody answers) and body."""
    connection = http.client.HTTPConnection(*address, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, answer.read()
    except OSError:
        return 0, b""
    finally:
        connection.close()


@contextmanager
def running(command: list[str], address: Address) -> Iterator[Address]:
    """Run an engine until the end of the block; it is healthy at its beginning."""
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + START_LIMIT_S
        while get(address, "/health")[0] != 200:
            assert process.poll() is None and time.monotonic() < deadline, f"{command} did not start"
            time.sleep(0.05)
        yield address
    finally:
        process.kill()
        process.communicate(timeout=60)


def embedded_engine() -> tuple[list[str], Address]:
    """The command of the embedded engine, and where it listens."""
    port = free_port()
    return embedded.command(port), ("127.0.0.1", port)


def simulated_engine() -> tuple[list[str], Address]:
    """The command of the simulated engine, and where it listens."""
    port = free_port()
    command = [sys.executable, "-m", "forebay.cli.main", "sim", "--port", str(port), "--model", "sim"]
    return command, ("127.0.0.1", port)


def settings(llamacpp_port: int, tap_port: int, sim_port: int) -> Document:
    """One pool for each engine, one for the tapped one, and two names for each model."""
    return document(
        pools={
            "llamacpp": _pool("llamacpp", llamacpp_port),
            "tapped": _pool("llamacpp", tap_port),
            "sim": _pool("vllm", sim_port),
        },
        models={
            "default": {"pool": "llamacpp"},
            "alias": {"pool": "llamacpp", "upstream_model": "default"},
            "tapped": {"pool": "tapped", "upstream_model": "default"},
            "sim": {"pool": "sim"},
            SIM_ALIAS: {"pool": "sim", "upstream_model": "sim"},
        },
        timeouts=TIMEOUTS,
        stream=STREAM,
    )


def _pool(engine: str, port: int) -> Document:
    # The tests share the gateway, so none may leave an open breaker to the next.
    return {"engine": engine, "replicas": [{"url": f"http://127.0.0.1:{port}"}], "breaker": {"failures": 100_000}}
