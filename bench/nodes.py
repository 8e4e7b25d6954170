"""Do limits and fairness hold over two nodes, also without their store? `python -m bench.nodes`.

Two Forebays of two workers each share a real Redis, before one simulated engine; all are real processes. What counts is
counted at the engine. Where limits are measured, nine of ten calls come to the first node.
"""

import argparse
import os
import random
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from threading import Thread
from typing import NamedTuple

from bench import engines
from bench.client import Answer, Call, open_loop
from bench.measure import percentile
from bench.peers import HOST, CannotRun, Process, free_ports
from bench.run import describe_machine, exits_cleanly
from bench.stand import (
    BURST,
    CONCURRENCY,
    QUICK,
    RPM,
    SHARED,
    SLOTS,
    TPM,
    WINDOW_S,
    Finding,
    Stand,
    calm,
    engine_log,
    expect,
    finding,
    most_at_once,
    number_of,
    report,
    settings,
    shares,
    storm,
    together,
    windows,
)
from forebay.engines.sim import SimSpec

BUSY_RATIO = 0.9
LIMITS = {"requests_limit", "insufficient_quota", "concurrency_limit"}
PROMPT_TOKENS, OUTPUT_TOKENS = 256, 32


class Nodes(NamedTuple):
    """Two stands with one engine, and their store."""

    first: Stand
    second: Stand
    store: Process

    @property
    def both(self) -> tuple[Stand, Stand]:
        """The two."""
        return self.first, self.second

    def skewed(self, tenant: str, rate_per_s: float, seconds: float) -> tuple[list[Call], list[Call]]:
        """Make calls that arrive at random, nine of ten at the first node."""
        busy = self.first.poisson(tenant, BUSY_RATIO * rate_per_s, seconds)
        return busy, self.second.poisson(tenant, (1 - BUSY_RATIO) * rate_per_s, seconds)

    def run(self, calls: Sequence[Sequence[Call]]) -> list[Answer]:
        """Make the calls of both nodes."""
        return together(open_loop(stand.front.port, of) for stand, of in zip(self.both, calls, strict=True))

    def freeze(self, after_s: float, for_s: float) -> None:
        """Let the store hang for a while."""
        time.sleep(after_s)
        self.signal(signal.SIGSTOP)
        time.sleep(for_s)
        self.signal(signal.SIGCONT)

    def signal(self, number: signal.Signals) -> None:
        """Send the store a signal."""
        for pid in self.store.pids():
            os.kill(pid, number)


def concurrency(nodes: Nodes, rounds: int) -> list[Finding]:
    """200 calls at once over two nodes for a tenant that may have 8 in flight, even and skewed."""
    most, left = [], []
    for number in range(2 * rounds):
        engines.fetch(nodes.first.engine.port, "/sim/reset", "POST")
        at_first = BURST // 2 if number % 2 else round(BUSY_RATIO * BURST)
        calls = [[nodes.first.call("limited") for _ in range(n)] for n in (at_first, BURST - at_first)]
        expect(nodes.run(calls), LIMITS)
        left.append(sum(calm(stand) for stand in nodes.both))
        most.append(float(most_at_once(engine_log(nodes.first))))
    return [
        finding(
            "concurrency", f"most at the engine over two nodes, limit {CONCURRENCY}", most, "never above", CONCURRENCY
        ),
        finding("concurrency", "left in the gauges of both", left, "never above", 0),
    ]


def rates(nodes: Nodes, seconds: float, *, frozen: bool) -> list[Finding]:
    """Twice as much as two tenants may have, skewed, for longer than two windows; the store may hang in the middle."""
    part = "store frozen" if frozen else "rates"
    engines.fetch(nodes.first.engine.port, "/sim/reset", "POST")
    mean_tokens = PROMPT_TOKENS + OUTPUT_TOKENS
    by_requests = nodes.skewed("requests", 2 * RPM / 60, seconds)
    by_tokens = nodes.skewed("tokens", 2 * TPM / 60 / mean_tokens, seconds)
    held = nodes.skewed("limited", 40.0, seconds)
    calls = [[*a, *b, *c] for a, b, c in zip(by_requests, by_tokens, held, strict=True)]
    began_s, span_s = WINDOW_S + 10, seconds - WINDOW_S - 40
    freezing = Thread(target=nodes.freeze, args=(began_s, span_s)) if frozen else Thread()
    freezing.start()
    answers = nodes.run(calls)
    freezing.join()
    expect(answers, LIMITS)
    findings = windows(part, nodes.first, answers)
    entries = [entry for entry in engine_log(nodes.first) if number_of(entry) in {c.number for of in held for c in of}]
    most = [float(most_at_once(entries))]
    findings.append(finding(part, f"most at the engine over two nodes, limit {CONCURRENCY}", most, "never above", 8))
    if frozen:
        over = [max(0.0, most[0] - CONCURRENCY)]
        findings.append(finding(part, "calls beyond the limit, one node's lease is 4", over, "never above", 4))
        findings.append(blocked(answers, began_s, span_s))
    return findings


def blocked(answers: Sequence[Answer], began_s: float, span_s: float) -> Finding:
    """Refusals ask neither engine nor queue: whatever they take longer while the store hangs is its fault."""
    times = [(a.due_s, a.end_s - a.due_s) for a in answers if a.fault in LIMITS]
    during = [took_s for due_s, took_s in times if began_s <= due_s < began_s + span_s]
    before = [took_s for due_s, took_s in times if due_s < began_s]
    longest_ms = [1000 * max(times) for times in (before, during)]
    print(f"  longest refusal: {longest_ms[0]:.1f} ms before, {longest_ms[1]:.1f} ms while it hung", flush=True)
    added_ms = 1000 * (percentile(during, 0.99) - percentile(before, 0.99))
    return finding("store frozen", "refusals: p99 added by the store, ms", [added_ms], "<=", 5.0)


@contextmanager
def two(workers: int, command: str, spec: SimSpec = QUICK, max_in_flight: int | None = None) -> Iterator[Nodes]:
    """Start engine, store and two nodes; each node may have so many calls at the engine.

    Raises:
        CannotRun: one of them does not start.
    """
    program = shutil.which("redis-server")
    if program is None:
        raise CannotRun("redis-server is not installed (Debian: apt-get install redis-server)")
    cores = engines.split_cores()
    with engines.workshop(cores.front) as (folder, started):
        engine = started(engines.simulator("sim", folder, cores.engine, spec))
        (port,) = free_ports(1)
        options = ["--port", str(port), "--bind", HOST, "--save", "", "--appendonly", "no", "--dir", str(folder)]
        store = started(Process("redis", [program, *options], port, folder, cores.engine))
        stands = []
        numbers = count(1)
        for name in ("n1", "n2"):
            (folder / name).mkdir()
            shared = {"node": name, "store": {"url": f"redis://{HOST}:{port}/0"}, "workers": workers}
            document = {**settings(engine.port, max_in_flight), **shared}
            front = started(engines.gateway(folder / name, cores.front, document, command))
            engines.wait_for(front, "/health/serving")
            engines.wait_for(front, "/health/ready")
            stands.append(Stand(engine, front, random.Random(name), numbers))
        time.sleep(2)  # the first node gives up what it had alone
        yield Nodes(stands[0], stands[1], store)


def floods(args: argparse.Namespace) -> list[Finding]:
    """One of ten tenants floods: both nodes alike, then only the first. Each node has half of the engine's slots."""
    findings = []
    for part, at in (("flood both", (0.5, 0.5)), ("flood one", (1.0, 0.0))):
        with two(args.workers, args.forebay_cmd, SHARED, SLOTS // 2) as nodes:
            findings += shares(nodes.both, args.rounds, args.load, args.shares_s, at, part)
    return findings


def aborts(each: int) -> list[Finding]:
    """Run the project's own storm over two nodes, so many calls of each of its 8 kinds."""
    test = "tests/faults/test_aborts_nodes.py::test_many_aborts"
    label = f"{each:,} calls of each of 8 kinds: failed checks"
    return storm(test, label, FOREBAY_TEST_ABORTS=str(8 * each))


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bench.nodes", description="Limits over two nodes, at the engine.")
    parser.add_argument("--only", action="append", choices=("concurrency", "rates", "frozen", "flood", "aborts"))
    parser.add_argument("--rounds", type=int, default=5, help="of bursts and of floods (default 5)")
    parser.add_argument("--rates-s", type=float, default=190.0, help="seconds for the rates (default 190)")
    parser.add_argument("--shares-s", type=float, default=30.0, help="seconds of each run of a flood (default 30)")
    parser.add_argument("--load", type=float, default=0.9, help="of ten equal tenants (default 0.9 of the capacity)")
    parser.add_argument("--aborts", type=int, default=10_000, help="calls of each kind (default 10,000)")
    parser.add_argument("--workers", type=int, default=2, help="of each node (default 2)")
    parser.add_argument("--forebay-cmd", default=engines.FOREBAY, help="command with {config}, {data} and {port}")
    parser.add_argument("--json", type=Path, help="where the findings go (default bench/results/local/)")
    args = parser.parse_args(argv)
    if args.rates_s <= 2 * WINDOW_S or args.rounds < 1 or args.aborts < 1:
        parser.error("--rates-s must be above 120 and --rounds and --aborts at least 1")
    return args


def measure(args: argparse.Namespace, machine: dict[str, str]) -> bool:
    """Measure what was asked for, print, save; return whether every bound holds."""
    began_s = time.monotonic()

    def before(run: Callable[[Nodes], list[Finding]]) -> list[Finding]:
        with two(args.workers, args.forebay_cmd) as nodes:
            return run(nodes)

    parts: dict[str, Callable[[], list[Finding]]] = {
        "concurrency": lambda: before(lambda nodes: concurrency(nodes, args.rounds)),
        "rates": lambda: before(lambda nodes: rates(nodes, args.rates_s, frozen=False)),
        "frozen": lambda: before(lambda nodes: rates(nodes, args.rates_s, frozen=True)),
        "flood": lambda: floods(args),
        "aborts": lambda: aborts(args.aborts),
    }
    findings = [found for name, part in parts.items() if not args.only or name in args.only for found in part()]
    return report("nodes", findings, args, machine, time.monotonic() - began_s)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, save. Exit 0: every bound holds; 1: one does not; 2: it could not be measured."""
    args, machine = arguments(argv), describe_machine()
    return exits_cleanly(lambda: measure(args, machine))


if __name__ == "__main__":
    sys.exit(main())
