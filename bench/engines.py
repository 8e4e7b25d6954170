"""Real processes for the benchmarks of scheduling: llama.cpp, the simulated engine, Forebay before them."""

import http.client
import json
import os
import shlex
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import msgspec

from bench.peers import HOST, KEY, START_S, CannotRun, Process, free_ports, get
from forebay.engines import embedded
from forebay.engines.sim import SimSpec

FOREBAY = f"{Path(sys.executable).parent / 'forebay'} serve -c {{config}} --data-dir {{data}}"


class Cores(NamedTuple):
    """Who runs where: client and gateway on one core, the engine on all the others."""

    front: frozenset[int]
    engine: frozenset[int]


def split_cores() -> Cores:
    """Give the first core that this process may use to the client and the gateway, the others to the engine.

    llama.cpp's threads wait for each other after every layer, so none of them may share its core with a client.
    """
    usable = sorted(os.sched_getaffinity(0))
    return Cores(frozenset(usable[:1]), frozenset(usable[1:] or usable))


@contextmanager
def workshop(front: Collection[int]) -> Iterator[tuple[Path, Callable[[Process], Process]]]:
    """Give a folder for logs and a function that starts a process; stop all of them at the end, the last first.

    This process, which is the client, is bound to the front core meanwhile. The folder stays only after an error.
    """
    folder = Path(tempfile.mkdtemp(prefix="forebay-bench-"))
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, front)
    try:
        with ExitStack() as stack:

            def started(process: Process) -> Process:
                stack.callback(process.stop)
                process.start()
                return process

            yield folder, started
        shutil.rmtree(folder, ignore_errors=True)
    except BaseException:
        print(f"logs: {folder}", file=sys.stderr)
        raise
    finally:
        os.sched_setaffinity(0, before)


def llama(folder: Path, cores: Collection[int], slots: int, ctx_tokens: int) -> Process:
    """Return the embedded engine: real llama.cpp with the packaged model, one thread for each of its cores.

    Raises:
        CannotRun: it is not installed here.
    """
    missing = embedded.available()
    if missing is not None:
        raise CannotRun(f"no llama.cpp with a model: {missing}")
    (port,) = free_ports(1)
    command = embedded.command(port, HOST, threads=len(cores), slots=slots, ctx_tokens=ctx_tokens)
    return Process("llama", command, port, folder, cores)


def simulator(name: str, folder: Path, cores: Collection[int], spec: SimSpec) -> Process:
    """Return a simulated engine of a given speed."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "bench.simulated", "--port", str(port)]
    return Process(name, [*command, "--spec", msgspec.json.encode(spec).decode()], port, folder, cores)


def gateway(folder: Path, cores: Collection[int], settings: Mapping[str, object], command: str = FOREBAY) -> Process:
    """Return Forebay with a configuration; its ports are chosen here.

    Args:
        settings: sections of the configuration.
        command: with {config}, {data} and {port} to be filled in.
    """
    port, admin = free_ports(2)
    config = folder / "forebay.yaml"
    document = {"listen": f"{HOST}:{port}", "admin": f"{HOST}:{admin}", **settings}
    config.write_text(json.dumps(document, indent=1))  # JSON is YAML
    values = {"config": config, "data": folder / "data", "port": port}
    return Process("forebay", [word.format(**values) for word in shlex.split(command)], port, folder, cores)


def one_pool(engine: str, ports: list[int], model: str, **pool: object) -> dict[str, object]:
    """Return the sections of a configuration with one pool, one model and one tenant."""
    replicas = [{"url": f"http://{HOST}:{port}"} for port in ports]
    return {
        "pools": {"main": {"engine": engine, "replicas": replicas, **pool}},
        "models": {model: {"pool": "main"}},
        "tenants": [{"name": "bench", "keys": [KEY]}],
    }


def fetch(port: int, path: str, method: str = "GET") -> bytes:
    """Make one request on a new connection and return the body.

    Raises:
        CannotRun: the answer is not 200.
    """
    connection = http.client.HTTPConnection(HOST, port, timeout=30)
    try:
        connection.request(method, path)
        response = connection.getresponse()
        body = response.read()
    finally:
        connection.close()
    if response.status != 200:
        raise CannotRun(f"{method} {path} on port {port} answers {response.status}: {body[:200]!r}")
    return body


def samples(page: str) -> dict[str, float]:
    """Read Prometheus text: each sample's value by its name with labels."""
    lines = (line.rpartition(" ") for line in page.splitlines() if line and not line.startswith("#"))
    return {name: float(value) for name, _, value in lines}


def wait_for(process: Process, path: str) -> None:
    """Wait until a GET answers 200.

    Raises:
        CannotRun: it does not within 30 s.
    """
    deadline = time.monotonic() + START_S
    status: int | str = 0
    while status != 200:
        if time.monotonic() > deadline:
            raise CannotRun(f"{process.name}: {path} answers {status}")
        try:
            status = get(process.port, path)
        except OSError as error:
            status = str(error)
        time.sleep(0.05)
