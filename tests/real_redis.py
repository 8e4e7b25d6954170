"""A real Redis in a process of its own: on a free port, without persistence; it can be stopped, frozen and emptied."""

import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
import redis
from gateway_process import eventually, free_port


class RealRedis:
    """A `redis-server`.

    Attributes:
        port: of the loopback; the same after a restart.
        url: for `store.url`.
    """

    def __init__(self, folder: Path, password: str = "") -> None:
        program = shutil.which("redis-server")
        if program is None:
            pytest.skip("redis-server is not installed (Debian: apt-get install redis-server)")
        self.port = free_port()
        credentials = f":{password}@" if password else ""
        self.url = f"redis://{credentials}127.0.0.1:{self.port}/0"
        self._command = [program, "--port", str(self.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self._command += ["--dir", str(folder), "--loglevel", "warning"]
        if password:
            self._command += ["--requirepass", password]
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    def start(self) -> None:
        """Start it, empty, and wait until it answers."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        assert eventually(self._answers, 60), "redis-server does not answer"

    def freeze(self) -> None:
        """Let it hang: connections stay open, and nothing is answered."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on, if it is there."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def stop(self) -> None:
        """Kill it; it may be started again."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def client(self) -> "redis.Redis[Any]":
        """A client of its own for the test; to be closed."""
        return redis.Redis.from_url(self.url, socket_timeout=5)

    def _answers(self) -> bool:
        client = self.client()
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False
        finally:
            client.close()
