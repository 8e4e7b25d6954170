"""What is measured: each scenario is one function that runs one peer once and returns its figures."""

import base64
import json
import os
import random
import resource
import subprocess
import threading
import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from bench.measure import cpu_s, machine_busy_s, percentile, rss_mib
from bench.peers import BUILD, ROUTER, CannotRun, Process, Rig, get
from bench.table import Check

LOAD_S = 130.0  # the load maker gives up after 120 s and says how many requests are unfinished
IDLE_S = 5.0
CHUNK_US = 20_000
IMAGE_BYTES = 22_400_000  # 29.9 MB as base64, under the default body limit of 32 MiB


class Scale(NamedTuple):
    """How much work one run does; `quick` is a smoke test whose figures mean little."""

    requests: int = 30_000
    stream_chunks: int = 200
    seconds: float = 5.0


class Scenario(NamedTuple):
    """A name, what one run does, and what must hold."""

    name: str
    run: Callable[[Rig, Process, Scale], dict[str, float]]
    checks: tuple[Check, ...]

    def peers(self, present: Collection[str]) -> list[str]:
        """Return whom it runs on: Forebay, nginx, and of the others those that a check asks for."""
        asked = {"forebay", "nginx"} | {check.against for check in self.checks}
        return [name for name in present if name in asked]

    def checks_for(self, present: Collection[str]) -> list[Check]:
        """Return the checks that can be judged with the peers there are."""
        return [check for check in self.checks if check.against in present]


QUICK = Scale(requests=3_000, stream_chunks=25, seconds=1.0)


@contextmanager
def load_maker(rig: Rig, peer: Process, args: list[str], core: int) -> Iterator[subprocess.Popen[str]]:
    """Start the load maker on a core; it is ended if the caller fails."""
    command = [str(rig.tools.load), "-p", str(peer.port), *args]
    child = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: os.sched_setaffinity(0, {core}),
    )
    try:
        yield child
    finally:
        if child.poll() is None:
            child.kill()
        child.communicate()


def result_of(child: subprocess.Popen[str]) -> dict[str, float]:
    """Wait for a load maker and flatten its JSON line: `lat_us.p50` and so on, failed requests as `errors`.

    Raises:
        CannotRun: it hangs, or prints something else.
    """
    try:
        text, _ = child.communicate(timeout=LOAD_S)
    except subprocess.TimeoutExpired as error:
        raise CannotRun(f"the load maker did not end within {LOAD_S:.0f} s") from error
    return flatten(text)


def flatten(text: str) -> dict[str, float]:
    """Read the load maker's JSON line into one level of figures.

    Raises:
        CannotRun: it is not such a line.
    """
    try:
        tree = json.loads(text)
        flat = {}
        for key, value in tree.items():
            if isinstance(value, dict):
                flat.update({f"{key}.{inner}": float(v) for inner, v in value.items()})
            elif key != "first_err":
                flat[key] = float(value)
        flat["errors"] = flat["err"] + flat["short"] + flat["unfinished"]
    except (ValueError, KeyError, AttributeError) as error:
        raise CannotRun(f"the load maker printed {text[:300]!r}") from error
    if "first_err" in tree:
        print(f"  first refused answer: {tree['first_err'][:200]}")
    return flat


def drive(rig: Rig, peer: Process, args: list[str], *, one_core: bool) -> dict[str, float]:
    """Run the load maker once against a peer, with the CPU that the peer used and what others used meanwhile."""
    core = rig.cores.proxy if one_core else rig.cores.other
    rig.mock.pin(core)
    pids, mock = peer.pids(), rig.mock.pids()
    before, began, busy = cpu_s(pids), time.monotonic(), machine_busy_s()
    ours = cpu_s(mock) + own_cpu_s()
    with load_maker(rig, peer, args, core) as child:
        figures = result_of(child)
    wall_s = time.monotonic() - began
    figures["cpu_s"] = cpu_s(pids) - before
    spent = figures["cpu_s"] + cpu_s(mock) + own_cpu_s() - ours
    figures["other_cores"] = max(0.0, (machine_busy_s() - busy - spent) / wall_s)
    return figures


def own_cpu_s() -> float:
    """Return the CPU seconds of this process and of its ended children, the load makers among them."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def ns_1c(rig: Rig, peer: Process, scale: Scale) -> dict[str, float]:
    """Plain answers in a closed loop on 24 connections, everything on one core."""
    figures = drive(rig, peer, ["-m", "ns", "-c", "24", "-n", str(scale.requests)], one_core=True)
    figures["us_per_request"] = 1e6 * figures["cpu_s"] / max(figures["done"], 1)
    return figures


def paced_1c(rig: Rig, peer: Process, scale: Scale) -> dict[str, float]:
    """128 streams of one chunk every 20 ms, everything on one core."""
    rig.pace(CHUNK_US)
    args = ["-m", "st", "-c", "128", "-n", "128", "-t", str(scale.stream_chunks), "-s", "150"]
    figures = drive(rig, peer, args, one_core=True)
    figures["us_per_chunk"] = 1e6 * figures["cpu_s"] / max(figures["events"], 1)
    return figures


def lat_200(rig: Rig, peer: Process, scale: Scale) -> dict[str, float]:
    """200 plain requests a second in an open loop, the load on the other core."""
    args = ["-m", "ns", "-r", "200", "-d", str(scale.seconds), "-w", "0.3"]
    return drive(rig, peer, args, one_core=False)


def ttft_burst(rig: Rig, peer: Process, scale: Scale) -> dict[str, float]:
    """256 streams that begin within one second."""
    rig.pace(CHUNK_US)
    chunks = min(50, scale.stream_chunks)
    figures = drive(rig, peer, ["-m", "st", "-c", "256", "-n", "256", "-t", str(chunks), "-s", "3900"], one_core=False)
    figures["ttft_ms"] = figures["ttft_us.p99"] / 1e3
    return figures


def streams_512(rig: Rig, peer: Process, scale: Scale) -> dict[str, float]:
    """512 streams of one chunk every 20 ms: 25,600 chunks a second."""
    rig.pace(CHUNK_US)
    args = ["-m", "st", "-c", "512", "-n", "512", "-t", str(scale.stream_chunks), "-s", "1900"]
    figures = drive(rig, peer, args, one_core=False)
    figures["gap_ms"] = figures["gap_us.max"] / 1e3
    return figures


def big_body(rig: Rig, peer: Process, scale: Scale) -> dict[str, float]:
    """Two bodies of 30 MB a second, beside 20 small requests and 10 health probes a second."""
    heavy_args = ["-m", "ns", "-r", "2", "-d", str(scale.seconds), "-b", str(big_body_file())]
    small_args = ["-m", "ns", "-r", "20", "-d", str(scale.seconds)]
    probes = Probes(peer.port, per_s=10, seconds=scale.seconds)
    core = rig.cores.other
    rig.mock.pin(core)
    with load_maker(rig, peer, heavy_args, core) as heavy, load_maker(rig, peer, small_args, core) as small:
        probes.start()
        probes.join()
        figures, heavy_figures = result_of(small), result_of(heavy)
    return {
        "probe_ms": percentile(probes.taken_ms, 0.99),
        "small_ms": figures["lat_us.p99"] / 1e3,
        "heavy_ms": heavy_figures["lat_us.p50"] / 1e3,
        "bodies": heavy_figures["done"],
        "errors": figures["errors"] + heavy_figures["errors"] + probes.failed,
    }


def big_body_file() -> Path:
    """Make, once, a chat request whose message holds an image of random bytes."""
    path = BUILD / "big-body.json"
    if not path.is_file():
        image = base64.b64encode(random.Random(7).randbytes(IMAGE_BYTES)).decode()
        parts = [
            {"type": "text", "text": "What is in this picture?"},
            {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{image}"}},
        ]
        body = {"model": "mock-model", "messages": [{"role": "user", "content": parts}], "max_tokens": 16}
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(body))
    return path


class Probes(threading.Thread):
    """Health probes at a fixed rate, each on a new connection, as an orchestrator makes them."""

    def __init__(self, port: int, per_s: float, seconds: float) -> None:
        super().__init__(daemon=True)
        self._port = port
        self._every_s = 1 / per_s
        self._count = int(per_s * seconds)
        self.taken_ms: list[float] = []
        self.failed = 0

    def run(self) -> None:
        """Send them; time counts from the scheduled moment, so that a late one is not excused."""
        began = time.monotonic()
        for number in range(self._count):
            due = began + number * self._every_s
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                self.failed += get(self._port, "/health/live") != 200
            except OSError:
                self.failed += 1
            self.taken_ms.append(1e3 * (time.monotonic() - due))


def rss(rig: Rig, peer: Process, scale: Scale) -> dict[str, float]:
    """Start the peer anew and read its memory after 5 idle seconds; it stays up for what follows."""
    del rig
    peer.stop()
    peer.start()
    time.sleep(min(IDLE_S, 5 * scale.seconds))
    return {"rss_mib": rss_mib(peer.pids())}


SCENARIOS = (
    Scenario("rss", rss, (Check("rss", "rss_mib", "idle memory", "MiB", "median", 80),)),
    Scenario(
        "ns_1c",
        ns_1c,
        (
            Check("ns_1c", "us_per_request", "CPU per request", "us", "ratio", 4.0),
            Check("ns_1c", "us_per_request", "CPU per request", "us", "ratio", 1.0, against=ROUTER),
        ),
    ),
    Scenario("paced_1c", paced_1c, (Check("paced_1c", "us_per_chunk", "CPU per chunk", "us", "ratio", 1.4),)),
    Scenario("lat_200", lat_200, (Check("lat_200", "lat_us.p50", "latency p50", "us", "added", 100),)),
    Scenario("ttft_burst", ttft_burst, (Check("ttft_burst", "ttft_ms", "TTFT p99", "ms", "added", 5),)),
    Scenario("streams_512", streams_512, (Check("streams_512", "gap_ms", "longest gap", "ms", "worst", 100),)),
    Scenario(
        "big_body",
        big_body,
        (
            Check("big_body", "probe_ms", "probe p99", "ms", "median", 50),
            Check("big_body", "small_ms", "small p99", "ms", "added", 50),
        ),
    ),
)
