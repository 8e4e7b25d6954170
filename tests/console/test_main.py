import argparse
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gateway_process import eventually, free_port

from forebay.console.__main__ import listen_address
from forebay.console.guard import Listen

BODY = b'{"version": "x", "journal": "ok"}'
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(BODY), BODY)
DRAIN = {"kind": "drain", "target": "127.0.0.1:9001", "ttl_s": 3600, "reason": "r", "by": "ann"}


class FakeDataPlane:
    """A Unix socket that answers every request with the same status."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection:
                connection.recv(65_536)
                connection.sendall(ANSWER)

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(5)


class Console:
    """A control plane as the data plane would start it."""

    def __init__(self, folder: Path, port: int) -> None:
        self.folder = folder
        self.port = port
        command = [sys.executable, "-m", "forebay.console", "--listen", f"127.0.0.1:{port}"]
        command += ["--data-dir", str(folder / "data"), "--data-socket", str(folder / "s"), "--config", "x.yaml"]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def call(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        token = (self.folder / "data" / "admin-token").read_text().strip()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
        try:
            connection.request(method, path, body and json.dumps(body), headers)
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read() or "null")
        finally:
            connection.close()

    def wait_ready(self) -> None:
        deadline = time.monotonic() + 60
        while True:
            try:
                assert self.call("GET", "/health") == (200, {"status": "ok"})
                return
            except OSError:
                assert self.process.poll() is None, self.process.communicate()
                assert time.monotonic() < deadline
                time.sleep(0.02)

    def stop(self) -> tuple[int, str]:
        """Wait for the end; return exit code and standard error."""
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def console(tmp_path: Path, port: int) -> Iterator[Console]:
    running = Console(tmp_path, port)
    yield running
    if running.process.poll() is None:
        running.process.kill()
    running.process.communicate(timeout=60)


@pytest.mark.integration
def test_it_serves_beside_a_data_plane_and_ends_with_its_standard_input(tmp_path: Path, console: Console) -> None:
    data_plane = FakeDataPlane(tmp_path / "s")
    try:
        console.wait_ready()
        status, answer = console.call("GET", "/api/status")
        assert status == 200
        assert answer["data_plane"]["status"] == json.loads(BODY)
        assert answer["control_plane"]["config_file"] == "x.yaml"
        assert os.getpriority(os.PRIO_PROCESS, console.process.pid) == 10
    finally:
        data_plane.close()
    later: dict[str, Any] = {}

    def gone() -> bool:
        later.update(console.call("GET", "/api/status")[1])
        return later["data_plane"]["reachable"] is False

    # An answer that is young is not asked for again.
    assert eventually(gone)
    assert later["data_plane"]["status"] == json.loads(BODY)
    assert console.process.stdin is not None
    assert console.stop() == (0, "")  # communicate closes the child's standard input


@pytest.mark.integration
def test_it_ends_on_sigterm_with_a_connection_open(console: Console) -> None:
    console.wait_ready()
    with socket.create_connection(("127.0.0.1", console.port)) as idle:
        idle.sendall(b"GET /health HTTP/1.1\r\nHost: local")
        console.process.send_signal(signal.SIGTERM)
        assert console.process.wait(60) == 0


@pytest.mark.integration
def test_what_was_confirmed_survives_kill_9(tmp_path: Path, console: Console) -> None:
    console.wait_ready()
    status, made = console.call("POST", "/api/policy/overrides", DRAIN)
    assert status == 201
    console.process.kill()
    console.process.wait(60)
    again = Console(tmp_path, console.port)
    try:
        again.wait_ready()
        _, listed = again.call("GET", "/api/policy/overrides")
        assert [override["id"] for override in listed["overrides"]] == [made["id"]]
        _, timeline = again.call("GET", "/api/timeline")
        assert [a["kind"] for a in timeline["actions"]] == ["console.started", "override.created", "console.started"]
    finally:
        again.process.kill()
        again.process.communicate(timeout=60)


@pytest.mark.integration
def test_a_taken_port_is_one_clear_line_and_exit_3(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        code, errors = Console(tmp_path, port).stop()
    assert code == 3
    assert errors == f"forebay console: cannot start: 127.0.0.1:{port}: Address already in use\n"


@pytest.mark.integration
def test_a_weak_token_is_one_clear_line_and_exit_3(tmp_path: Path, port: int) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "admin-token").write_text("CANARY")
    code, errors = Console(tmp_path, port).stop()
    assert code == 3
    assert errors.count("\n") == 1
    assert "admin-token: no token of at least 32" in errors
    assert "CANARY" not in errors


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("127.0.0.1:7081", Listen("127.0.0.1", 7081)),
        ("[::1]:0", Listen("::1", 0)),
        ("gate.lan:80", Listen("gate.lan", 80)),
    ],
)
def test_listen_address_is_read(text: str, address: Listen) -> None:
    assert listen_address(text) == address


@pytest.mark.parametrize("text", ["", "7081", ":7081", "host:", "host:x", "host:65536", "host:-1", "host:²"])
def test_a_bad_listen_address_is_named(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match="give HOST:PORT"):
        listen_address(text)
