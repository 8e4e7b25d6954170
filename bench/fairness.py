"""Do limits hold, and does nobody suffer from a neighbour who floods? `python -m bench.fairness`.

Forebay before a simulated engine, both real processes. What counts is counted at the engine, from its own log.
"""

import argparse
import asyncio
import random
import sys
import time
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import TypeVar

from bench import engines
from bench.client import Answer, Call, leave_early, open_loop, run_loop
from bench.measure import spread
from bench.run import describe_machine, exits_cleanly
from bench.stand import (
    BURST,
    CONCURRENCY,
    OUTPUT,
    PROMPT,
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
    report,
    settings,
    shares,
    storm,
    windows,
)
from bench.table import with_spread
from forebay.engines.sim import SimSpec

T = TypeVar("T")


def concurrency(stand: Stand, rounds: int) -> list[Finding]:
    """Make 200 calls at once for a tenant that may have 8 in flight, then 200 within a second of which half leave."""
    most, left, served = [], [], []
    for number in range(2 * rounds):
        engines.fetch(stand.engine.port, "/sim/reset", "POST")
        if number % 2:
            calls = stand.poisson("limited", BURST, 1.0)
            answers = run_loop(burst(stand.front.port, calls[::2], calls[1::2]))
        else:
            answers = run_loop(open_loop(stand.front.port, [stand.call("limited") for _ in range(BURST)]))
        expect(answers, {"concurrency_limit"})
        left.append(calm(stand))
        most.append(float(most_at_once(engine_log(stand))))
        served.append(float(sum(not a.fault for a in answers)))
    print(f"  concurrency: {2 * rounds} bursts of {BURST}, served {with_spread(spread(served))}", flush=True)
    return [
        finding("concurrency", f"most at the engine, limit {CONCURRENCY}", most, "never above", CONCURRENCY),
        finding("concurrency", f"most at the engine, limit {CONCURRENCY}", most, ">=", CONCURRENCY),
        finding("concurrency", "left in the gauges", left, "never above", 0),
    ]


async def burst(port: int, leavers: Sequence[Call], stayers: Sequence[Call]) -> list[Answer]:
    """Make all calls when they are due; return the answers of those who stay."""
    async with asyncio.TaskGroup() as group:
        for call in leavers:
            group.create_task(leave_early(port, call))
        staying = group.create_task(open_loop(port, stayers))
    return staying.result()


def rates(stand: Stand, seconds: float) -> list[Finding]:
    """Twice as much as two tenants may have, one of requests, one of tokens, for longer than two windows."""
    engines.fetch(stand.engine.port, "/sim/reset", "POST")
    mean_tokens = (sum(PROMPT) + sum(OUTPUT)) / 2
    calls = stand.poisson("requests", 2 * RPM / 60, seconds)
    calls += stand.poisson("tokens", 2 * TPM / 60 / mean_tokens, seconds)
    answers = run_loop(open_loop(stand.front.port, calls))
    expect(answers, {"requests_limit", "insufficient_quota"})
    return windows("rates", stand, answers)


def aborts() -> list[Finding]:
    """Run the project's own storm of 10,000 calls that end badly, which checks gauges, memory and journal."""
    return storm("tests/faults/test_aborts.py::test_ten_thousand_aborts", "10,000 calls of 8 kinds: failed checks")


def with_stand(spec: SimSpec, max_in_flight: int | None, command: str, measure: Callable[[Stand], T]) -> T:
    """Start engine and gateway, and measure.

    Raises:
        CannotRun: one of them does not start.
    """
    cores = engines.split_cores()
    with engines.workshop(cores.front) as (folder, started):
        engine = started(engines.simulator("sim", folder, cores.engine, spec))
        front = started(engines.gateway(folder, cores.front, settings(engine.port, max_in_flight), command))
        engines.wait_for(front, "/health/serving")
        return measure(Stand(engine, front, random.Random(1), count(1)))


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bench.fairness", description="Limits and fairness, at the engine.")
    parser.add_argument("--only", action="append", choices=("concurrency", "rates", "shares", "aborts"))
    parser.add_argument("--rounds", type=int, default=5, help="of bursts and of shares (default 5)")
    parser.add_argument("--rates-s", type=float, default=190.0, help="seconds for the rates (default 190)")
    parser.add_argument("--shares-s", type=float, default=40.0, help="seconds of each run of shares (default 40)")
    parser.add_argument("--load", type=float, default=0.9, help="of ten equal tenants (default 0.9 of the capacity)")
    parser.add_argument("--forebay-cmd", default=engines.FOREBAY, help="command with {config}, {data} and {port}")
    parser.add_argument("--json", type=Path, help="where the findings go (default bench/results/local/)")
    args = parser.parse_args(argv)
    if args.rates_s <= WINDOW_S or args.rounds < 1:
        parser.error("--rates-s must be above 60 and --rounds at least 1")
    return args


def measure(args: argparse.Namespace, machine: dict[str, str]) -> bool:
    """Measure what was asked for, print, save; return whether every bound holds."""
    began_s, command = time.monotonic(), args.forebay_cmd
    parts: dict[str, Callable[[], list[Finding]]] = {
        "concurrency": lambda: with_stand(QUICK, None, command, lambda stand: concurrency(stand, args.rounds)),
        "rates": lambda: with_stand(QUICK, None, command, lambda stand: rates(stand, args.rates_s)),
        "shares": lambda: with_stand(
            SHARED, SLOTS, command, lambda stand: shares([stand], args.rounds, args.load, args.shares_s)
        ),
        "aborts": aborts,
    }
    findings = [found for name, part in parts.items() if not args.only or name in args.only for found in part()]
    return report("fairness", findings, args, machine, time.monotonic() - began_s)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, save. Exit 0: every bound holds; 1: one does not; 2: it could not be measured."""
    args, machine = arguments(argv), describe_machine()
    return exits_cleanly(lambda: measure(args, machine))


if __name__ == "__main__":
    sys.exit(main())
