"""Do limits hold, and does nobody suffer from a neighbour who floods? `python -m bench.fairness`.

Forebay before a simulated engine, both real processes. What counts is counted at the engine, from its own log.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple, TypeVar

from bench import engines
from bench.client import Answer, Call, chat_body, closed_loop, leave_early, open_loop, run_loop
from bench.measure import Spread, percentile, spread
from bench.mix import Lengths, prompt
from bench.peers import CannotRun, Process
from bench.run import REPO, RESULTS, describe_machine, exits_cleanly, write_json
from bench.table import with_spread
from forebay.engines.sim import SimSpec

T = TypeVar("T")

MODEL = "sim"
CONCURRENCY, RPM, TPM = 8, 600, 100_000
BURST = 200
WINDOW_S = 60.0
TENANTS = tuple(f"tenant{n}" for n in range(10))
FLOODER, VICTIMS = TENANTS[0], TENANTS[1:]
FLOOD = 10
# A slot's calls take about half a second, as those of a small model. Eight at once: docs/benchmarks.md says why.
SLOTS = 8
SHARED = SimSpec(max_num_seqs=SLOTS)
QUICK = SimSpec(iteration_base_ms=4)
PROMPT, OUTPUT = Lengths(128, 384), Lengths(24, 40)
# An engine sees that a caller has left a moment after Forebay has, so an aborted call counts until so long before.
SEEN_LATE_S = 0.01
# Of a run of shares this part is left out at the beginning, until all tenants have calls waiting.
SETTLE = 0.2
GAUGES = ("forebay_requests_in_flight", "forebay_permits_held", "forebay_queue_depth")


class Finding(NamedTuple):
    """One bound, what was measured over the rounds, and whether it holds."""

    part: str
    label: str
    value: Spread
    bound: str
    passed: bool


class Stand(NamedTuple):
    """A gateway before a simulated engine, and what the calls are made of."""

    engine: Process
    front: Process
    rng: random.Random
    numbers: Iterator[int]

    def call(self, tenant: str, due_s: float = 0.0, rng: random.Random | None = None) -> Call:
        """Make a call of a tenant; its prompt begins with a number of its own."""
        number, rng = next(self.numbers), rng or self.rng
        text = prompt(rng.randint(*PROMPT), number, rng)
        return Call(due_s, tenant, chat_body(MODEL, text, rng.randint(*OUTPUT)), key_of(tenant), number)

    def calls(self, tenant: str) -> Iterator[Call]:
        """Make calls for ever."""
        while True:
            yield self.call(tenant)

    def poisson(self, tenant: str, rate_per_s: float, seconds: float, seed: str = "") -> list[Call]:
        """Make calls that arrive at random, as many as their rate says; the same ones from the same seed, if any."""
        rng = random.Random(f"{seed} {tenant}") if seed else self.rng
        dues = sorted(rng.uniform(0, seconds) for _ in range(round(rate_per_s * seconds)))
        return [self.call(tenant, due_s, rng) for due_s in dues]


def key_of(tenant: str) -> str:
    """Return a tenant's API key."""
    return f"sk-test-{tenant}-0123456789"


def finding(part: str, label: str, values: Sequence[float], sign: str, bound: float) -> Finding:
    """Judge values over rounds: `<=` and `>=` by their median, `never above` by the largest."""
    found = spread(values)
    passed = {"<=": found.median <= bound, ">=": found.median >= bound, "never above": found.high <= bound}[sign]
    return Finding(part, label, found, f"{sign} {bound:g}", passed)


def most_at_once(entries: Sequence[Mapping[str, object]]) -> int:
    """Return how many calls of an engine's log ran at the same time, at most."""
    changes = []
    for entry in entries:
        left_s = entry["disconnected_s"]
        end_s = entry["ended_s"] if left_s is None else float(str(left_s)) - SEEN_LATE_S
        changes.append((float(str(entry["arrived_s"])), 1))
        changes.append((float("inf") if end_s is None else float(str(end_s)), -1))
    running = most = 0
    for _, change in sorted(changes):
        running += change
        most = max(most, running)
    return most


def largest_window(events: Sequence[tuple[float, int]], length_s: float) -> int:
    """Return the largest sum of weights in any window of that length, from (time in s, weight)."""
    ordered = sorted(events)
    total = most = first = 0
    for at_s, weight in ordered:
        total += weight
        while ordered[first][0] <= at_s - length_s:
            total -= ordered[first][1]
            first += 1
        most = max(most, total)
    return most


def jain(shares: Sequence[float]) -> float:
    """Return Jain's index of fairness, 1/n..1. Source: Jain, Chiu, Hawe, DEC-TR-301, 1984."""
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def engine_log(stand: Stand) -> list[dict[str, object]]:
    """Return the calls that the engine has seen since its last reset."""
    document = json.loads(engines.fetch(stand.engine.port, "/sim/log"))
    return [entry for entry in document["requests"] if entry["attempt"]]


def number_of(entry: Mapping[str, object]) -> int:
    """Return the number at the beginning of the prompt that an engine has seen."""
    body = entry["json"]
    assert isinstance(body, dict)
    return int(body["messages"][0]["content"][:6])


def calm(stand: Stand) -> float:
    """Wait until nothing is in flight, 5 s at most; return the sum of the gauges that should be 0."""
    for _ in range(50):
        gauges = engines.samples(engines.fetch(stand.front.port, "/metrics").decode())
        left = sum(value for name, value in gauges.items() if name.partition("{")[0] in GAUGES)
        if not left:
            break
        time.sleep(0.1)
    return left


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


def expect(answers: Sequence[Answer], refusals: set[str]) -> None:
    """See that calls were served or refused for an expected reason.

    Raises:
        CannotRun: one failed otherwise.
    """
    faults = Counter(a.fault for a in answers if a.fault and a.fault not in refusals)
    if faults:
        raise CannotRun(f"calls failed: {faults.most_common(3)}")


def rates(stand: Stand, seconds: float) -> list[Finding]:
    """Twice as much as two tenants may have, one of requests, one of tokens, for longer than two windows."""
    engines.fetch(stand.engine.port, "/sim/reset", "POST")
    mean_tokens = (sum(PROMPT) + sum(OUTPUT)) / 2
    calls = stand.poisson("requests", 2 * RPM / 60, seconds)
    calls += stand.poisson("tokens", 2 * TPM / 60 / mean_tokens, seconds)
    answers = run_loop(open_loop(stand.front.port, calls))
    expect(answers, {"requests_limit", "insufficient_quota"})
    seen = {number_of(entry): float(str(entry["arrived_s"])) for entry in engine_log(stand)}
    print(f"  rates: {len(calls)} calls in {seconds:.0f} s, {len(seen)} reached the engine", flush=True)
    findings = []
    for group, limit in (("requests", RPM), ("tokens", TPM)):
        used = [
            (seen[a.number], a.tokens if group == "tokens" else 1)
            for a in answers
            if a.number in seen and a.group == group
        ]
        share = [largest_window(used, WINDOW_S) / limit]
        label = f"{group} in the fullest {WINDOW_S:.0f} s, of {limit:,}"
        findings += [finding("rates", label, share, sign, bound) for sign, bound in (("<=", 1.05), (">=", 0.95))]
    return findings


def shares(stand: Stand, rounds: int, load: float, seconds: float) -> list[Finding]:
    """One of ten tenants floods: who gets how much when all have calls waiting, and how long do the others wait?"""
    everybody = dict.fromkeys(TENANTS, 4)
    rate_per_s = capacity(stand, seconds)
    each = load * rate_per_s / len(TENANTS)
    indices, waits, ratios = [], [], []
    print(f"  shares: capacity {rate_per_s:.1f} calls/s, each tenant asks for {each:.2f}", flush=True)
    for number in range(rounds):
        flooded = run_loop(backlogged(stand, everybody | {FLOODER: 4 * FLOOD}, seconds))
        without = run_loop(backlogged(stand, dict.fromkeys(VICTIMS, 4), seconds))
        indices.append(jain(served_tokens(flooded, seconds)))
        waits.append(p99_s(flooded) / p99_s(without))
        quiet, flood = open_pair(stand, each, seconds, number)
        ratios.append(p99_s(flood) / p99_s(quiet))
        print(
            f"  round {number + 1}: Jain {indices[-1]:.3f}; victims' TTFT p99: backlogged {p99_s(without):.2f} -> "
            f"{p99_s(flooded):.2f} s, open loop {p99_s(quiet):.2f} -> {p99_s(flood):.2f} s",
            flush=True,
        )
    return [
        finding("shares", "Jain index of served tokens, all ten backlogged", indices, ">=", 0.95),
        finding("shares", "victims' TTFT p99, all backlogged, ratio to nine alone", waits, "<=", 1.2),
        finding("shares", "victims' TTFT p99, open loop, ratio to ten equal ones", ratios, "<=", 1.2),
    ]


def open_pair(stand: Stand, each: float, seconds: float, number: int) -> tuple[list[Answer], list[Answer]]:
    """Run the calls of ten equal tenants, then with one that asks for ten times as much; rounds change the order."""
    rates_per_s = dict.fromkeys(TENANTS, each)
    plans = [rates_per_s, rates_per_s | {FLOODER: FLOOD * each}]
    results = {}
    for index in (0, 1) if number % 2 == 0 else (1, 0):
        plan = plans[index].items()
        calls = [call for tenant, rate in plan for call in stand.poisson(tenant, rate, seconds, f"round {number}")]
        results[index] = run_loop(open_loop(stand.front.port, calls))
        expect([a for a in results[index] if a.group != FLOODER], set())
    return results[0], results[1]


async def backlogged(stand: Stand, outs: Mapping[str, int], seconds: float) -> list[Answer]:
    """Keep so many calls of each tenant out."""
    port = stand.front.port
    loops = (closed_loop(port, stand.calls(tenant), at_once, seconds) for tenant, at_once in outs.items())
    return [answer for answers in await asyncio.gather(*loops) for answer in answers]


def capacity(stand: Stand, seconds: float) -> float:
    """Return the calls per second that the engine ends with all slots in use, without Forebay."""
    answers = run_loop(closed_loop(stand.engine.port, stand.calls("tenant0"), 2 * SLOTS, seconds))
    expect(answers, set())
    return sum(SETTLE * seconds <= a.end_s < seconds for a in answers) / ((1 - SETTLE) * seconds)


def served_tokens(answers: Sequence[Answer], seconds: float) -> list[float]:
    """Return the tokens of each tenant that were served while all were backlogged, beginning and end left out."""
    sums: Counter[str] = Counter(dict.fromkeys(TENANTS, 0))
    for answer in answers:
        if not answer.fault and SETTLE * seconds <= answer.end_s < seconds:
            sums[answer.group] += answer.tokens
    return [float(tokens) for tokens in sums.values()]


def p99_s(answers: Sequence[Answer]) -> float:
    """Return the victims' TTFT at the 99th percentile."""
    return percentile([a.ttft_s for a in answers if not a.fault and a.group in VICTIMS], 0.99)


def aborts() -> list[Finding]:
    """Run the project's own storm of 10,000 calls that end badly, which checks gauges, memory and journal.

    Raises:
        CannotRun: the test was not run, which is not the same as passed.
    """
    test = "tests/faults/test_aborts.py::test_ten_thousand_aborts"
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-m", "slow", test]
    done = subprocess.run(command, cwd=REPO, capture_output=True, text=True, timeout=900)
    if done.returncode not in (0, 1):  # 1 is a test that failed; anything else means that it was not run
        raise CannotRun(f"{test} did not run, pytest ended with {done.returncode}: {done.stdout[-500:]}")
    print("\n".join(f"  aborts: {line}" for line in done.stdout.splitlines() if line.strip())[-3000:], flush=True)
    return [finding("aborts", "10,000 calls of 8 kinds: failed checks", [float(done.returncode)], "never above", 0)]


def settings(port: int, max_in_flight: int | None) -> dict[str, object]:
    """Return the configuration: one pool, a tenant for each limit and ten that share the rest."""
    pool = {} if max_in_flight is None else {"max_in_flight": max_in_flight}
    limits: dict[str, dict[str, int]] = {
        "limited": {"concurrency": CONCURRENCY},
        "requests": {"requests_per_minute": RPM},
        "tokens": {"tokens_per_minute": TPM},
        **{tenant: {} for tenant in TENANTS},
    }
    tenants = [{"name": name, "keys": [key_of(name)], "limits": limit} for name, limit in limits.items()]
    return {**engines.one_pool("vllm", [port], MODEL, **pool), "tenants": tenants}


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
            SHARED, SLOTS, command, lambda stand: shares(stand, args.rounds, args.load, args.shares_s)
        ),
        "aborts": aborts,
    }
    findings = [found for name, part in parts.items() if not args.only or name in args.only for found in part()]
    print("\n" + "\n".join(f"{key}: {value}" for key, value in machine.items()))
    print(f"\n{render(findings)}")
    path = args.json or RESULTS / f"fairness-{machine['date'].replace(':', '')}.json"
    asked = {key: str(value) for key, value in vars(args).items()}
    write_json(path, {"machine": machine, "settings": asked, "findings": [found._asdict() for found in findings]})
    print(f"\n{args.rounds} rounds, {time.monotonic() - began_s:.0f} s; figures in {path}")
    return all(found.passed for found in findings)


def render(findings: Sequence[Finding]) -> str:
    """Lay the findings out as text: median (lowest..highest) over the rounds."""
    lines = []
    for found in findings:
        word = "pass" if found.passed else "FAIL"
        lines.append(f"{found.part:12} {found.label:58} {with_spread(found.value):20} {found.bound:16} {word}")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, save. Exit 0: every bound holds; 1: one does not; 2: it could not be measured."""
    args, machine = arguments(argv), describe_machine()
    return exits_cleanly(lambda: measure(args, machine))


if __name__ == "__main__":
    sys.exit(main())
