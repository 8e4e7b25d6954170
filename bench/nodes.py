"""Do limits hold over two nodes, also without their store? `python -m bench.nodes`.

Two Forebays of two workers each share a real Redis, before one simulated engine; all are real processes. What counts is
counted at the engine. Callers are skewed: nine of ten calls come to the first node.
"""

import argparse
import asyncio
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
from typing import NamedTuple

from bench import engines
from bench.client import Answer, Call, open_loop, run_loop
from bench.fairness import (
    BURST,
    CONCURRENCY,
    QUICK,
    RPM,
    TPM,
    WINDOW_S,
    Finding,
    Stand,
    calm,
    engine_log,
    expect,
    finding,
    largest_window,
    most_at_once,
    number_of,
    render,
    settings,
)
from bench.measure import percentile
from bench.peers import HOST, CannotRun, Process, free_ports
from bench.run import RESULTS, describe_machine, exits_cleanly, write_json

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

    def run(self, calls: Sequence[Sequence[Call]], meanwhile: Callable[[], None] = lambda: None) -> list[Answer]:
        """Make the calls of both nodes; do something with the store meanwhile, in a thread of its own."""

        async def together() -> list[Answer]:
            async with asyncio.TaskGroup() as group:
                loops = [
                    group.create_task(open_loop(stand.front.port, of))
                    for stand, of in zip(self.both, calls, strict=True)
                ]
                group.create_task(asyncio.to_thread(meanwhile))
            return [answer for loop in loops for answer in loop.result()]

        return run_loop(together())

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
    answers = nodes.run(calls, (lambda: nodes.freeze(began_s, span_s)) if frozen else (lambda: None))
    expect(answers, LIMITS)
    seen = {number_of(entry): float(str(entry["arrived_s"])) for entry in engine_log(nodes.first)}
    print(f"  {part}: {len(answers)} calls in {seconds:.0f} s, {len(seen)} reached the engine", flush=True)
    findings = []
    for group, limit in (("requests", RPM), ("tokens", TPM)):
        used = [
            (seen[a.number], a.tokens if group == "tokens" else 1)
            for a in answers
            if a.number in seen and a.group == group
        ]
        share = [largest_window(used, WINDOW_S) / limit]
        label = f"{group} in the fullest {WINDOW_S:.0f} s over two nodes, of {limit:,}"
        findings += [finding(part, label, share, sign, bound) for sign, bound in (("<=", 1.05), (">=", 0.95))]
    entries = [entry for entry in engine_log(nodes.first) if number_of(entry) in {c.number for of in held for c in of}]
    most = [float(most_at_once(entries))]
    findings.append(finding(part, f"most at the engine over two nodes, limit {CONCURRENCY}", most, "never above", 8))
    if frozen:
        findings.append(blocked(answers, began_s, span_s))
    return findings


def blocked(answers: Sequence[Answer], began_s: float, span_s: float) -> Finding:
    """Refusals ask neither engine nor queue: whatever they take longer while the store hangs is its fault."""
    times = [(a.due_s, a.end_s - a.due_s) for a in answers if a.fault in LIMITS]
    during = [took_s for due_s, took_s in times if began_s <= due_s < began_s + span_s]
    before = [took_s for due_s, took_s in times if due_s < began_s]
    added_ms = 1000 * (percentile(during, 0.99) - percentile(before, 0.99))
    return finding("store frozen", "refusals: p99 added by the store, ms", [added_ms], "<=", 5.0)


@contextmanager
def two(workers: int, command: str) -> Iterator[Nodes]:
    """Start engine, store and two nodes.

    Raises:
        CannotRun: one of them does not start.
    """
    program = shutil.which("redis-server")
    if program is None:
        raise CannotRun("redis-server is not installed (Debian: apt-get install redis-server)")
    cores = engines.split_cores()
    with engines.workshop(cores.front) as (folder, started):
        engine = started(engines.simulator("sim", folder, cores.engine, QUICK))
        (port,) = free_ports(1)
        options = ["--port", str(port), "--bind", HOST, "--save", "", "--appendonly", "no", "--dir", str(folder)]
        store = started(Process("redis", [program, *options], port, folder, cores.engine))
        stands = []
        numbers = count(1)
        for name in ("n1", "n2"):
            (folder / name).mkdir()
            shared = {"node": name, "store": {"url": f"redis://{HOST}:{port}/0"}, "workers": workers}
            document = {**settings(engine.port, None), **shared}
            front = started(engines.gateway(folder / name, cores.front, document, command))
            engines.wait_for(front, "/health/serving")
            engines.wait_for(front, "/health/ready")
            stands.append(Stand(engine, front, random.Random(name), numbers))
        time.sleep(2)  # the first node gives up what it had alone
        yield Nodes(stands[0], stands[1], store)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bench.nodes", description="Limits over two nodes, at the engine.")
    parser.add_argument("--only", action="append", choices=("concurrency", "rates", "frozen"))
    parser.add_argument("--rounds", type=int, default=5, help="of bursts (default 5)")
    parser.add_argument("--rates-s", type=float, default=190.0, help="seconds for the rates (default 190)")
    parser.add_argument("--workers", type=int, default=2, help="of each node (default 2)")
    parser.add_argument("--forebay-cmd", default=engines.FOREBAY, help="command with {config}, {data} and {port}")
    parser.add_argument("--json", type=Path, help="where the findings go (default bench/results/local/)")
    args = parser.parse_args(argv)
    if args.rates_s <= 2 * WINDOW_S or args.rounds < 1:
        parser.error("--rates-s must be above 120 and --rounds at least 1")
    return args


def measure(args: argparse.Namespace, machine: dict[str, str]) -> bool:
    """Measure what was asked for, print, save; return whether every bound holds."""
    parts: dict[str, Callable[[Nodes], list[Finding]]] = {
        "concurrency": lambda nodes: concurrency(nodes, args.rounds),
        "rates": lambda nodes: rates(nodes, args.rates_s, frozen=False),
        "frozen": lambda nodes: rates(nodes, args.rates_s, frozen=True),
    }
    findings: list[Finding] = []
    for name, part in parts.items():
        if not args.only or name in args.only:
            with two(args.workers, args.forebay_cmd) as nodes:
                findings += part(nodes)
    print("\n" + "\n".join(f"{key}: {value}" for key, value in machine.items()))
    print(f"\n{render(findings)}")
    path = args.json or RESULTS / f"nodes-{machine['date'].replace(':', '')}.json"
    asked = {key: str(value) for key, value in vars(args).items()}
    write_json(path, {"machine": machine, "settings": asked, "findings": [found._asdict() for found in findings]})
    print(f"\nfigures in {path}")
    return all(found.passed for found in findings)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, save. Exit 0: every bound holds; 1: one does not; 2: it could not be measured."""
    args, machine = arguments(argv), describe_machine()
    return exits_cleanly(lambda: measure(args, machine))


if __name__ == "__main__":
    sys.exit(main())
