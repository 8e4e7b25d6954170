"""A real gateway process, and what it shows to the outside: metrics, journal, log."""

import atexit
import http.client
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families
from scripted import ScriptedEngine

Document = dict[str, Any]
START_LIMIT_S = 60.0
# The least one of /proc/sys/net/ipv4/ip_local_port_range, as Linux has it unless it is changed.
FIRST_OUTGOING_PORT = 32_768
STOP_LIMIT_S = 30.0
# For the few tests that ask for a time: on a machine that others use, a second of ours may be several of theirs.
PATIENCE = 5 if os.environ.get("CI") else 1
QUICK_TIMEOUTS = {"connect_s": 1, "first_byte_s": 2, "stall_s": 1, "total_s": 30}


def free_port() -> int:
    """A port of the loopback that nobody listens on at this moment.

    Never one that the system gives to connections that go out: until it is listened on, one of these could take it.
    """
    chance = random.SystemRandom()
    while True:
        port = chance.randrange(10_000, FIRST_OUTGOING_PORT)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def eventually(check: Callable[[], bool], within_s: float = 30.0) -> bool:
    """Whether the check comes true within so long."""
    deadline = time.monotonic() + within_s
    while not check():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.01)
    return True


def pool(*engines: ScriptedEngine, **settings: Any) -> Document:
    """A pool of vLLM replicas."""
    return {"engine": "vllm", "replicas": [{"url": engine.url} for engine in engines], **settings}


def document(*engines: ScriptedEngine, **sections: Any) -> Document:
    """A configuration with one pool `main`, one model `m`, two tenants and short timeouts; sections replace."""
    base: Document = {
        "pools": {"main": pool(*engines)},
        "models": {"m": {"pool": "main"}},
        "tenants": [{"name": "a", "keys": ["key-A"]}, {"name": "b", "keys": ["key-B"]}],
        "timeouts": dict(QUICK_TIMEOUTS),
        "stream": {"done_grace_s": 0.5},
    }
    return {**base, **sections}


def descendants(pid: int) -> set[int]:
    """The processes that a process has started, and those that these have, as far as the system shows them."""
    found: set[int] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            for child in map(int, path.read_text().split()):
                found |= {child} | descendants(child)
    return found


class Gateway:
    """A running `forebay serve`, seen from outside.

    Attributes:
        address: of the data port.
        admin: of the admin port.
        file: the configuration file.
        secrets: what must never stand in the log.
    """

    def __init__(self, folder: Path, settings: Document, env: dict[str, str], ready: bool) -> None:
        self.address = ("127.0.0.1", free_port())
        self.admin = ("127.0.0.1", free_port())
        self.base_url = f"http://127.0.0.1:{self.address[1]}"
        self.admin_url = f"http://127.0.0.1:{self.admin[1]}"
        self.data_dir = folder / "data"
        self.file = folder / "forebay.yaml"
        self.secrets = ["key-A", "key-B"]
        self._out = folder / "output.log"
        self.settings = {"listen": self._listen(self.address), "admin": self._listen(self.admin), **settings}
        self.file.write_text(yaml.safe_dump(self.settings, sort_keys=False, allow_unicode=True))
        self._out.write_bytes(b"")
        self._env = {**os.environ, **env}
        self.process = self._started()
        # Also when a run is broken off between the start and what would have stopped it.
        atexit.register(self.stop)
        if ready:
            self._wait_ready()

    def _started(self, *options: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "forebay.cli.main", "serve", "-c", str(self.file)]
        with self._out.open("ab") as out:
            return subprocess.Popen(
                [*command, "--data-dir", str(self.data_dir), *options],
                stdout=out,
                stderr=subprocess.STDOUT,
                env=self._env,
                start_new_session=True,
            )

    def replaced(self) -> subprocess.Popen[bytes]:
        """Start another process that takes over from this one, which is returned; the new one is `process` now."""
        old, self.process = self.process, self._started("--take-over")
        return old

    def again(self) -> subprocess.Popen[bytes]:
        """Start another process with the same file and folder, and return it."""
        return self._started()

    @staticmethod
    def _listen(address: tuple[str, int]) -> str:
        return f"{address[0]}:{address[1]}"

    def _wait_ready(self) -> None:
        deadline = time.monotonic() + START_LIMIT_S
        while self.get("/health/ready")[0] != 200:
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.stop()
                pytest.fail(f"the gateway did not become ready; its output:\n{self.log[-3000:]}")
            time.sleep(0.02)

    def get(self, path: str) -> tuple[int, bytes]:
        """GET a path of the data port on a new connection: status (0 when nobody answers) and body."""
        return self._get(self.address, path, {})

    def admin_get(self, path: str) -> tuple[int, bytes]:
        """GET a path of the admin port with its token; that process takes a second to start."""
        token = (self.data_dir / "admin-token").read_text().strip()
        return self._get(self.admin, path, {"Authorization": f"Bearer {token}"})

    @staticmethod
    def _get(address: tuple[str, int], path: str, headers: dict[str, str]) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(*address, timeout=10)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            return 0, b""
        finally:
            connection.close()

    @property
    def log(self) -> str:
        """All that the process wrote so far."""
        return self._out.read_text(errors="replace")

    def metrics(self) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
        """Every sample by name and labels."""
        status, body = self.get("/metrics")
        assert status == 200
        families = text_string_to_metric_families(body.decode())
        return {(s.name, frozenset(s.labels.items())): s.value for family in families for s in family.samples}

    def metric(self, name: str, **labels: str) -> float:
        """The sum of all samples of a name that carry these labels.

        Raises:
            KeyError: there is no such sample, which is not the same as zero.
        """
        found = [v for (n, have), v in self.metrics().items() if n == name and set(labels.items()) <= have]
        if not found:
            raise KeyError(f"{name}{labels}")
        return sum(found)

    def journal(self) -> list[Document]:
        """Every line of the journal so far, in file order."""
        lines = []
        for path in sorted(self.data_dir.glob("journal/*.jsonl")):
            # The last line may be half written at this moment.
            lines += [json.loads(line) for line in path.read_bytes().split(b"\n")[:-1]]
        return lines

    def closes(self) -> list[Document]:
        """Every close line so far."""
        return [line for line in self.journal() if "outcome" in line]

    def rows(self, request_ids: Collection[str | None], within_s: float = 30.0) -> list[Document]:
        """The close lines of these requests, exactly one each, awaited for so long."""
        found: list[Document] = []

        def there() -> bool:
            found[:] = [line for line in self.closes() if line["request_id"] in request_ids]
            return len(found) >= len(request_ids)

        assert eventually(there, within_s), f"{len(found)} close lines of {len(request_ids)} after {within_s} s"
        assert len(found) == len(request_ids), f"{len(found)} close lines of {len(request_ids)} requests"
        return found

    def close_line(self, request_id: str, within_s: float = 30.0) -> Document:
        """The one close line of a request, awaited for so long."""
        return self.rows([request_id], within_s)[0]

    def idle(self) -> bool:
        """Whether nothing is in flight and no permit is held."""
        return self.metric("forebay_requests_in_flight") == 0 and self.metric("forebay_permits_held") == 0

    def common_ending(self, model: str = "m", key: str = "key-A") -> None:
        """What holds after every case: gauges at zero, the next plain request is 200, no secret in the log."""
        assert eventually(self.idle, 30), "something is still in flight or holds a permit"
        body = {"model": model, "messages": [{"role": "user", "content": "hi"}]}
        connection = http.client.HTTPConnection(*self.address, timeout=30)
        try:
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Authorization": f"Bearer {key}"})
            answer = connection.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()
        finally:
            connection.close()
        assert eventually(self.idle, 30)
        log = self.log
        assert not [secret for secret in self.secrets if secret in log]
        assert "Traceback" not in log, log[-3000:]

    def stop(self) -> int:
        """Ask it to stop, kill it and its children when they do not, and return the exit code."""
        atexit.unregister(self.stop)
        family = descendants(self.process.pid)
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(STOP_LIMIT_S)
            except subprocess.TimeoutExpired:
                family |= descendants(self.process.pid)
        for pid in (self.process.pid, *family):
            # Children lead groups of their own.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(pid, signal.SIGKILL)
        return self.process.wait()
