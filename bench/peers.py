"""The processes of a benchmark: mock engine, nginx, Forebay, other peers. Each is started here and stopped here."""

import http.client
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

from bench.measure import listening_pids, pin

HOST = "127.0.0.1"
KEY = "sk-test-0123456789abcdef"  # the load maker sends it
BUILD = Path(__file__).parent / "build"
START_S = 30.0
STOP_S = 15.0
INSTALL_S = 600.0
ROUTER = "vllm-router"
ROUTER_PACKAGE = "vllm-router==0.1.17"
EXTRA_PEERS = (ROUTER,)


class CannotRun(Exception):
    """Something that the benchmark needs is absent or did not start; the message says what to do."""


class Tools(NamedTuple):
    """Compiled C tools."""

    mock: Path
    load: Path


class Cores(NamedTuple):
    """Where things run: the proxy on one core, the rest on the other, or all on the first."""

    proxy: int
    other: int


def build_tools(source: Path) -> Tools:
    """Compile the mock engine and the load maker into bench/build, unless they are newer than their source.

    Raises:
        CannotRun: no source, no compiler, or a compile error.
    """
    built = []
    for name in ("mock", "load"):
        src, out = source / f"{name}.c", BUILD / name
        if not src.is_file():
            raise CannotRun(
                f"no {src}: the C mock engine and load maker are not part of this repository; "
                "set FOREBAY_BENCH_TOOLS to the folder that holds mock.c and load.c"
            )
        compiler = shutil.which("cc")
        if compiler is None:
            raise CannotRun("no C compiler: apt-get install gcc libc6-dev")
        if not out.is_file() or out.stat().st_mtime < src.stat().st_mtime:
            BUILD.mkdir(exist_ok=True)
            command = [compiler, "-O2", "-w", "-o", str(out), str(src), "-lm"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=120)
            if done.returncode:
                raise CannotRun(f"{shlex.join(command)} failed:\n{done.stderr[-2000:]}")
        built.append(out)
    return Tools(*built)


def install_router() -> Path:
    """Install vllm-router, once, into an environment of its own under bench/build; return its program.

    Raises:
        CannotRun: the package index does not hand it out, or it does not run here.
    """
    folder = BUILD / "vllm-router"
    program = folder / "bin" / "vllm-router"
    steps = (
        [sys.executable, "-m", "venv", str(folder)],
        [str(folder / "bin" / "python"), "-m", "pip", "-q", "--disable-pip-version-check", "install", ROUTER_PACKAGE],
    )
    for command in () if program.is_file() else steps:
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_S)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise CannotRun(f"cannot install {ROUTER_PACKAGE}: {error}") from error
        if done.returncode:
            raise CannotRun(f"cannot install {ROUTER_PACKAGE}: {done.stderr.strip()[-500:]}")
    return program


def pick_cores() -> Cores:
    """Take the first two cores that this process may use; one core serves as both."""
    usable = sorted(os.sched_getaffinity(0))
    return Cores(usable[0], usable[1] if len(usable) > 1 else usable[0])


def free_ports(count: int) -> list[int]:
    """Return ports that nobody listens on, all different."""
    held = [socket.create_server((HOST, 0)) for _ in range(count)]
    ports = [int(s.getsockname()[1]) for s in held]
    for s in held:
        s.close()
    return ports


def get(port: int, path: str, timeout_s: float = 5.0) -> int:
    """Make one GET on a new connection and return the status."""
    connection = http.client.HTTPConnection(HOST, port, timeout=timeout_s)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        response.read()
        return response.status
    finally:
        connection.close()


class Process:
    """A child process with its port, its output in a file, and a bounded end.

    Its standard input is a pipe that stays open as long as this object and its process live: the embedded engine
    ends with it, the others do not read.
    """

    def __init__(self, name: str, command: list[str], port: int, folder: Path, cores: Collection[int]) -> None:
        self.name = name
        self.port = port
        self._log = folder / f"{name}.log"
        self._cores = cores
        self._command = command
        self._child: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it pinned to its cores and wait until its port accepts.

        Raises:
            CannotRun: it ended or did not listen within 30 s; with the end of its output.
        """
        with self._log.open("ab") as log:
            try:
                self._child = subprocess.Popen(
                    self._command,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=lambda: os.sched_setaffinity(0, self._cores),
                )
            except OSError as error:
                raise CannotRun(f"{self.name}: cannot run {self._command[0]}: {error.strerror}") from error
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._child.poll() is None:
            try:
                socket.create_connection((HOST, self.port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.02)
        state = "did not listen" if self._child.poll() is None else f"ended with {self._child.returncode}"
        self.stop()
        tail = self._log.read_text(errors="replace")[-1500:]
        raise CannotRun(f"{self.name}: {shlex.join(self._command)} {state}\n{tail}")

    def stop(self) -> None:
        """Ask it to end, then end its whole session."""
        child, self._child = self._child, None
        if child is None:
            return
        child.terminate()
        try:
            child.wait(STOP_S)
        except subprocess.TimeoutExpired:
            print(f"{self.name} did not stop within {STOP_S:.0f} s of SIGTERM", file=sys.stderr)
        try:
            os.killpg(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        child.wait()
        if child.stdin is not None:
            child.stdin.close()

    def pids(self) -> list[int]:
        """Return the processes that hold the listening socket: the data plane, not its other children.

        Raises:
            CannotRun: nobody listens any more.
        """
        found = listening_pids(self.port, self._child.pid) if self._child else []
        if not found:
            raise CannotRun(f"{self.name} no longer listens on {self.port}; its output is in {self._log}")
        return found

    def pin(self, core: int) -> None:
        """Move the listening processes to a core."""
        for pid in self.pids():
            pin(pid, core)


def nginx_conf(folder: Path, port: int, engines: list[int]) -> str:
    """Write nginx's configuration: a plain reverse proxy, kept alive both ways, nothing logged, nothing on disk."""
    user = "user root;" if os.geteuid() == 0 else ""
    servers = " ".join(f"server {HOST}:{engine};" for engine in engines)
    temp = " ".join(
        f"{kind}_temp_path {folder}/{kind};" for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    return f"""{user}
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/nginx-error.log error;
worker_rlimit_nofile 16384;
events {{ worker_connections 8192; }}
http {{
  access_log off; {temp}
  client_max_body_size 64m; client_body_buffer_size 64m;
  keepalive_timeout 75s; keepalive_requests 100000000;
  upstream engines {{ {servers} keepalive 512; keepalive_requests 100000000; keepalive_timeout 75s; }}
  server {{
    listen {HOST}:{port} backlog=4096;
    location = /health/live {{ return 200 "ok"; }}
    location / {{
      proxy_pass http://engines; proxy_http_version 1.1; proxy_set_header Connection "";
      proxy_set_header Host $http_host; proxy_buffering off; proxy_read_timeout 600s;
    }}
  }}
}}
"""


def forebay_conf(port: int, admin: int, engines: list[int]) -> str:
    """Write Forebay's configuration: one pool, one tenant with every kind of limit switched on."""
    replicas = "\n".join(f"      - url: http://{HOST}:{engine}" for engine in engines)
    return f"""listen: {HOST}:{port}
admin: {HOST}:{admin}
pools:
  main:
    engine: vllm
    replicas:
{replicas}
models:
  mock-model: {{pool: main}}
tenants:
  - name: bench
    keys: [{KEY}]
    limits: {{concurrency: 4096, requests_per_minute: 10000000, tokens_per_minute: 1000000000}}
"""


class Rig:
    """All processes of one benchmark, in a folder that goes away with them."""

    def __init__(self, tools: Tools, cores: Cores, forebay_command: str, router: Path | None = None) -> None:
        self.tools = tools
        self.cores = cores
        self.folder = Path(tempfile.mkdtemp(prefix="forebay-bench-"))
        nginx_port, forebay_port, admin_port, *engines = free_ports(5)
        self.engines = engines
        self.mock = Process("mock", [str(tools.mock), *map(str, engines)], engines[0], self.folder, {cores.other})
        self.peers = {
            "forebay": self._forebay(forebay_command, forebay_port, admin_port),
            "nginx": self._nginx("nginx", nginx_port),
        }
        if router is not None:
            self.peers[ROUTER] = self._router(router)

    def _nginx(self, name: str, port: int) -> Process:
        program = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
        if program is None:
            raise CannotRun("no nginx: apt-get install nginx-light")
        folder = self.folder / name
        folder.mkdir()
        conf = folder / "nginx.conf"
        conf.write_text(nginx_conf(folder, port, self.engines))
        return Process(name, [program, "-p", str(folder), "-c", str(conf)], port, folder, {self.cores.proxy})

    def _forebay(self, command: str, port: int, admin: int) -> Process:
        if command == "nginx":
            return self._nginx("forebay", port)
        conf = self.folder / "forebay.yaml"
        conf.write_text(forebay_conf(port, admin, self.engines))
        values = {"config": conf, "port": port, "data": self.folder / "data", "engine": self.engines[0]}
        words = [word.format(**values) for word in shlex.split(command)]
        return Process("forebay", words, port, self.folder, {self.cores.proxy})

    def _router(self, program: Path) -> Process:
        """A Rust router with no policy on: neither key nor limit nor record."""
        port, prometheus = free_ports(2)
        command = [str(program), "--host", HOST, "--port", str(port), "--policy", "round_robin"]
        command += ["--log-level", "error", "--prometheus-port", str(prometheus), "--worker-urls"]
        urls = [f"http://{HOST}:{engine}" for engine in self.engines]
        return Process(ROUTER, [*command, *urls], port, self.folder, {self.cores.proxy})

    def __enter__(self) -> Self:
        """Start the mock engine; peers are started by whoever measures them."""
        self.mock.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Stop everything; keep the folder with its logs only after an error."""
        for process in (*self.peers.values(), self.mock):
            process.stop()
        if kind is None:
            shutil.rmtree(self.folder, ignore_errors=True)
        else:
            print(f"logs: {self.folder}", file=sys.stderr)

    def warm(self) -> None:
        """Wait until all peers answer through the engine.

        Raises:
            CannotRun: one of them does not within 30 s.
        """
        for peer in self.peers.values():
            deadline = time.monotonic() + START_S
            while (answer := chat(peer.port)) != "200":
                if time.monotonic() > deadline:
                    raise CannotRun(f"{peer.name}: a chat answers {answer}; logs in {self.folder}")
                time.sleep(0.1)

    def pace(self, delay_us: int) -> None:
        """Set the mock engine's pause between the chunks of a stream."""
        if get(self.engines[0], f"/ctl?delay_us={delay_us}&ttft_us=0") != 200:
            raise CannotRun("the mock engine does not take its settings")


def chat(port: int) -> str:
    """Make one small chat; return "200", or the status and the start of what came instead."""
    body = b'{"model":"mock-model","messages":[{"role":"user","content":"hi"}],"max_tokens":4}'
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
    connection = http.client.HTTPConnection(HOST, port, timeout=5)
    try:
        connection.request("POST", "/v1/chat/completions", body, headers)
        response = connection.getresponse()
        return "200" if response.status == 200 else f"{response.status} {response.read(200)!r}"
    except OSError as error:
        return f"nothing ({error})"
    finally:
        connection.close()
