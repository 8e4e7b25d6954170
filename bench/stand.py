"""What the benchmarks of limits and fairness share: gateways before one engine, their runs, and what is found."""

import argparse
import asyncio
import json
import os
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Coroutine, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from bench import engines
from bench.client import Answer, Call, chat_body, closed_loop, open_loop, run_loop
from bench.measure import Spread, percentile, spread
from bench.mix import Lengths, prompt
from bench.peers import CannotRun, Process
from bench.run import REPO, RESULTS, write_json
from bench.table import with_spread
from forebay.engines.sim import SimSpec

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
OUT = 4
Plan = Mapping[str, float]


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


def finding(part: str, label: str, values: Sequence[float], sign: str, bound: float) -> Finding:
    """Judge values over rounds: `<=` and `>=` by their median, `never above` by the largest."""
    found = spread(values)
    passed = {"<=": found.median <= bound, ">=": found.median >= bound, "never above": found.high <= bound}[sign]
    return Finding(part, label, found, f"{sign} {bound:g}", passed)


def render(findings: Sequence[Finding]) -> str:
    """Lay the findings out as text: median (lowest..highest) over the rounds."""
    lines = []
    for found in findings:
        word = "pass" if found.passed else "FAIL"
        lines.append(f"{found.part:12} {found.label:58} {with_spread(found.value):20} {found.bound:16} {word}")
    return "\n".join(lines)


def report(
    name: str, findings: Sequence[Finding], args: argparse.Namespace, machine: dict[str, str], took_s: float
) -> bool:
    """Print the table and save it as JSON; return whether every bound holds."""
    print("\n" + "\n".join(f"{key}: {value}" for key, value in machine.items()))
    print(f"\n{render(findings)}")
    path = args.json or RESULTS / f"{name}-{machine['date'].replace(':', '')}.json"
    asked = {key: str(value) for key, value in vars(args).items()}
    write_json(path, {"machine": machine, "settings": asked, "findings": [found._asdict() for found in findings]})
    print(f"\n{args.rounds} rounds, {took_s:.0f} s; figures in {path}")
    return all(found.passed for found in findings)


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


def expect(answers: Sequence[Answer], refusals: set[str]) -> None:
    """See that calls were served or refused for an expected reason.

    Raises:
        CannotRun: one failed otherwise.
    """
    faults = Counter(a.fault for a in answers if a.fault and a.fault not in refusals)
    if faults:
        raise CannotRun(f"calls failed: {faults.most_common(3)}")


def together(loops: Iterable[Coroutine[Any, Any, list[Answer]]]) -> list[Answer]:
    """Run loops of calls at the same time; return all their answers."""

    async def all_of_them() -> list[Answer]:
        return [answer for answers in await asyncio.gather(*loops) for answer in answers]

    return run_loop(all_of_them())


def windows(part: str, stand: Stand, answers: Sequence[Answer]) -> list[Finding]:
    """Judge the fullest minute, at the engine, of the tenants with a limit of requests and of tokens."""
    seen = {number_of(entry): float(str(entry["arrived_s"])) for entry in engine_log(stand)}
    findings = []
    for group, limit in (("requests", RPM), ("tokens", TPM)):
        used = [
            (seen[a.number], a.tokens if group == "tokens" else 1)
            for a in answers
            if a.number in seen and a.group == group
        ]
        share = [largest_window(used, WINDOW_S) / limit]
        label = f"{group} in the fullest {WINDOW_S:.0f} s, of {limit:,}"
        findings += [finding(part, label, share, sign, bound) for sign, bound in (("<=", 1.05), (">=", 0.95))]
    print(f"  {part}: {len(answers)} calls, {len(seen)} reached the engine", flush=True)
    return findings


def shares(
    stands: Sequence[Stand],
    rounds: int,
    load: float,
    seconds: float,
    at: Sequence[float] = (1.0,),
    part: str = "shares",
) -> list[Finding]:
    """One of ten tenants floods: who gets how much when all have calls waiting, and how long do the others wait?

    Args:
        stands: one for each node; the calls of the others are spread evenly over them.
        rounds: how often.
        load: what ten equal tenants ask for, of the capacity.
        seconds: of each run.
        at: the portion of the flooder's calls that comes to each node.
        part: the name of the findings.
    """
    even = [1 / len(stands)] * len(stands)
    plans = [dict.fromkeys(VICTIMS, portion) for portion in even]
    with_flooder = [plan | {FLOODER: FLOOD * portion} for plan, portion in zip(plans, at, strict=True)]
    equal = [plan | {FLOODER: portion} for plan, portion in zip(plans, even, strict=True)]
    rate_per_s = capacity(stands[0], seconds)
    each = load * rate_per_s / len(TENANTS)
    indices, waits, ratios = [], [], []
    print(f"  {part}: capacity {rate_per_s:.1f} calls/s, each tenant asks for {each:.2f}", flush=True)
    for number in range(rounds):
        flooded = backlogged(stands, with_flooder, seconds)
        without = backlogged(stands, plans, seconds)
        indices.append(jain(served_tokens(flooded, seconds)))
        waits.append(p99_s(flooded) / p99_s(without))
        quiet, flood = open_pair(stands, (equal, with_flooder), each, seconds, number)
        ratios.append(p99_s(flood) / p99_s(quiet))
        print(
            f"  round {number + 1}: Jain {indices[-1]:.3f}; victims' TTFT p99: backlogged {p99_s(without):.2f} -> "
            f"{p99_s(flooded):.2f} s, open loop {p99_s(quiet):.2f} -> {p99_s(flood):.2f} s",
            flush=True,
        )
    return [
        finding(part, "Jain index of served tokens, all ten backlogged", indices, ">=", 0.95),
        finding(part, "victims' TTFT p99, all backlogged, ratio to nine alone", waits, "<=", 1.2),
        finding(part, "victims' TTFT p99, open loop, ratio to ten equal ones", ratios, "<=", 1.2),
    ]


def open_pair(
    stands: Sequence[Stand], plans: Sequence[Sequence[Plan]], each: float, seconds: float, number: int
) -> tuple[list[Answer], list[Answer]]:
    """Run the calls of ten equal tenants, then with one that asks for ten times as much; rounds change the order."""
    results = {}
    for index in (0, 1) if number % 2 == 0 else (1, 0):
        calls = [
            [c for name, part in plan.items() for c in stand.poisson(name, part * each, seconds, f"{number} {node}")]
            for node, (stand, plan) in enumerate(zip(stands, plans[index], strict=True))
        ]
        results[index] = together(open_loop(s.front.port, of) for s, of in zip(stands, calls, strict=True))
        expect([a for a in results[index] if a.group != FLOODER], set())
    return results[0], results[1]


def backlogged(stands: Sequence[Stand], plans: Sequence[Plan], seconds: float) -> list[Answer]:
    """Keep four calls of each tenant out, times its part on each node."""
    return together(
        closed_loop(stand.front.port, stand.calls(tenant), round(OUT * part), seconds)
        for stand, plan in zip(stands, plans, strict=True)
        for tenant, part in plan.items()
    )


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


def storm(test: str, label: str, **environment: str) -> list[Finding]:
    """Run one of the project's own storms of calls that end badly, which checks what is left.

    Raises:
        CannotRun: the test was not run, which is not the same as passed.
    """
    command = [sys.executable, "-m", "pytest", "-q", "-s", "-m", "slow", test]
    env = {**os.environ, **environment}
    done = subprocess.run(command, cwd=REPO, env=env, capture_output=True, text=True, timeout=4000)
    if done.returncode not in (0, 1) or "skipped" in done.stdout:  # 1 is a test that failed
        raise CannotRun(f"{test} did not run, pytest ended with {done.returncode}: {done.stdout[-500:]}")
    print("\n".join(f"  aborts: {line}" for line in done.stdout.splitlines() if line.strip())[-3000:], flush=True)
    return [finding("aborts", label, [float(done.returncode)], "never above", 0)]
