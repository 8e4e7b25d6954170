"""Does a queue before the engine save short prompts from long ones? `python -m bench.collapse`.

Real llama.cpp, 85 % short and 15 % long prompts at 90 % of what it can do, once directly and once through
Forebay, in pairs with the same arrivals. docs/benchmarks.md says why this mix and how to read the table.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import yaml

from bench import engines
from bench.client import Answer, Call, chat_body, closed_loop, open_loop, run_loop
from bench.measure import cpu_s, machine_busy_s, percentile
from bench.mix import Item, Lengths, Mix, even, longs_first, prompt, schedule
from bench.peers import CannotRun, Process
from bench.run import RESULTS, describe_machine, exits_cleanly, write_json
from bench.table import Check, Run, judge, render
from forebay.engines.embedded import MODEL_ALIAS

SCENARIO = "collapse"
DIRECT, THROUGH = "direct", "through"
CHECKS = (
    Check(SCENARIO, "short_p99_s", "short TTFT p99", "s", "ratio", 0.4, THROUGH, DIRECT),
    Check(SCENARIO, "tokens_per_s", "throughput", "tokens/s", "floor", 0.97, THROUGH, DIRECT),
    Check(SCENARIO, "long_p99_s", "long TTFT p99", "s", "ratio", 1.3, THROUGH, DIRECT),
    Check(SCENARIO, "lost", "lost or failed", "calls", "worst", 0, THROUGH, DIRECT),
)
ALONE = 5
SLOWEST = 0.05


class Alone(NamedTuple):
    """What calls cost with nobody else there; medians."""

    short_ttft_s: float
    long_ttft_s: float
    prefill_s_per_token: float


class Capacity(NamedTuple):
    """What the engine did in a closed loop on this mix."""

    calls_per_s: float
    tokens_per_s: float
    engine_busy_ratio: float


class Played(NamedTuple):
    """One run of one arm, with every answer."""

    run: Run
    answers: list[Answer]


class Stand(NamedTuple):
    """What is measured with what; `threads` are the engine's, `marks` are beginnings of prompts, none twice."""

    ports: dict[str, int]
    watched: tuple[Process, ...]
    threads: int
    slots: int
    mix: Mix
    rng: random.Random
    marks: list[int]

    def calls(self, items: Sequence[Item]) -> list[Call]:
        """Make the calls of a schedule: texts differ each time, lengths and times do not."""
        return [Call(i.due_s, i.lane, self._body(i.prompt_tokens, i.output_tokens)) for i in items]

    def _body(self, prompt_tokens: int, output_tokens: int) -> bytes:
        return chat_body(MODEL_ALIAS, prompt(prompt_tokens, self.marks.pop(), self.rng), output_tokens)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bench.collapse", description="Short prompts beside long ones, on llama.cpp.")
    parser.add_argument("--pairs", type=int, default=5, help="runs of each arm (default 5)")
    parser.add_argument("--calls", type=int, default=120, help="calls of one run (default 120: 102 short, 18 long)")
    parser.add_argument("--load", type=float, default=0.9, help="share of the measured capacity (default 0.9)")
    parser.add_argument("--slots", type=int, default=4, help="calls that the engine runs at once (default 4)")
    parser.add_argument("--short", type=lengths, default=Lengths(40, 90), help="prompt tokens (default 40-90)")
    parser.add_argument("--long", type=lengths, default=Lengths(900, 1500), help="prompt tokens (default 900-1500)")
    parser.add_argument("--output", type=lengths, default=Lengths(8, 16), help="answer tokens (default 8-16)")
    parser.add_argument("--ctx", type=int, default=4096, help="tokens of one slot (default 4096)")
    parser.add_argument("--seed", type=int, default=1, help="of arrivals, order and texts (default 1)")
    parser.add_argument("--direct-only", action="store_true", help="only the direct arm: does this load queue?")
    parser.add_argument("--pool", type=yaml.safe_load, default={}, help="further settings of the pool, as YAML")
    parser.add_argument("--settings", type=yaml.safe_load, default={}, help="further sections, as YAML")
    parser.add_argument("--forebay-cmd", default=engines.FOREBAY, help="command with {config}, {data} and {port}")
    parser.add_argument("--json", type=Path, help="where the raw runs go (default bench/results/local/)")
    args = parser.parse_args(argv)
    if args.pairs < 1 or args.calls < 20:
        parser.error("--pairs must be at least 1 and --calls at least 20")
    if args.long.high + args.output.high > args.ctx:
        parser.error("--ctx must hold the longest prompt and its answer")
    return args


def lengths(text: str) -> Lengths:
    """Read LOW-HIGH.

    Raises:
        argparse.ArgumentTypeError: it is not that.
    """
    low, dash, high = text.partition("-")
    if not (dash and low.isdecimal() and high.isdecimal() and 1 <= int(low) <= int(high)):
        raise argparse.ArgumentTypeError(f"{text!r} is not LOW-HIGH")
    return Lengths(int(low), int(high))


def measure_alone(stand: Stand) -> Alone:
    """Make a few calls one after the other."""
    seen: dict[str, list[Answer]] = {}
    for lane, span in (("short", stand.mix.short), ("long", stand.mix.long)):
        items = [Item(0, lane, tokens, stand.mix.output.low) for tokens in even(span, ALONE)]
        seen[lane] = served(run_loop(closed_loop(stand.ports[DIRECT], iter(stand.calls(items)), 1)))
    medians = {lane: statistics.median(a.ttft_s for a in answers) for lane, answers in seen.items()}
    rates = [a.ttft_s / a.prompt_tokens for a in seen["long"]]
    return Alone(medians["short"], medians["long"], statistics.median(rates))


def measure_capacity(stand: Stand, count: int) -> Capacity:
    """Keep two calls for each slot out until a whole mix is served; the last ones are short, so that all slots work."""
    items = longs_first(schedule(stand.mix, count, 1.0, stand.rng), count * 85 // 100, stand.rng)
    before_s = cpu_s(stand.watched[0].pids())
    answers = served(run_loop(closed_loop(stand.ports[DIRECT], iter(stand.calls(items)), 2 * stand.slots)))
    busy_s = cpu_s(stand.watched[0].pids()) - before_s
    span_s = max(a.end_s for a in answers)
    return Capacity(count / span_s, sum(a.tokens for a in answers) / span_s, busy_s / span_s / stand.threads)


def served(answers: list[Answer]) -> list[Answer]:
    """Return the answers.

    Raises:
        CannotRun: one of them is none.
    """
    for answer in answers:
        if answer.fault:
            raise CannotRun(f"the engine does not serve this mix: {answer.fault}")
    return answers


def run_arm(stand: Stand, arm: str, items: Sequence[Item], alone: Alone) -> tuple[dict[str, float], list[Answer]]:
    """Offer a schedule to one arm; return the figures and the answers."""
    calls = stand.calls(items)
    pids = [pid for process in stand.watched for pid in process.pids()]
    engine = stand.watched[0].pids()
    before = cpu_s(engine), cpu_s(pids), machine_busy_s(), time.process_time(), time.monotonic()
    answers = run_loop(open_loop(stand.ports[arm], calls))
    wall_s = time.monotonic() - before[4]
    known_s = cpu_s(pids) - before[1] + time.process_time() - before[3]
    figures = summary(answers, alone)
    figures["engine_busy_ratio"] = (cpu_s(engine) - before[0]) / wall_s / stand.threads
    figures["other_cores"] = max(0.0, (machine_busy_s() - before[2] - known_s) / wall_s)
    return figures, answers


def summary(answers: list[Answer], alone: Alone) -> dict[str, float]:
    """Return the figures of one run; latencies are those of whole answers, the others are `lost`."""
    good = [a for a in answers if not a.fault]
    span_s = max(a.end_s for a in answers) - min(a.due_s for a in answers)
    figures = {"lost": float(len(answers) - len(good)), "span_s": span_s}
    figures |= {"calls_per_s": len(good) / span_s, "tokens_per_s": sum(a.tokens for a in good) / span_s}
    for lane in ("short", "long"):
        waits_s = [a.ttft_s for a in good if a.group == lane]
        if not waits_s:
            raise CannotRun(f"no {lane} call was served: {answers[0].fault}")
        figures |= {f"{lane}_p{share}_s": percentile(waits_s, share / 100) for share in (50, 95, 99)}
        figures[f"{lane}_prompt_tokens"] = statistics.mean(a.prompt_tokens for a in good if a.group == lane)
    figures["behind_long_ratio"] = behind_long(good, alone.prefill_s_per_token)
    return figures


def behind_long(answers: list[Answer], prefill_s_per_token: float) -> float:
    """Return which part of the wait of the slowest short calls a long prompt was being computed, 0..1.

    When the computing of a prompt began is taken from its length and its speed alone, so this is a lower bound
    where several are computed together.
    """
    spans = sorted((a.first_s - a.prompt_tokens * prefill_s_per_token, a.first_s) for a in answers if a.group == "long")
    shorts = sorted((a for a in answers if a.group == "short"), key=lambda a: a.ttft_s)
    slowest = shorts[-max(1, round(SLOWEST * len(shorts))) :]
    return statistics.mean(overlap_s(spans, a.due_s, a.first_s) / a.ttft_s for a in slowest)


def overlap_s(spans: list[tuple[float, float]], begin_s: float, end_s: float) -> float:
    """Return how much of a time is covered by sorted spans, counting no moment twice."""
    total_s, covered_to_s = 0.0, begin_s
    for first_s, last_s in spans:
        from_s, to_s = max(first_s, covered_to_s), min(last_s, end_s)
        if to_s > from_s:
            total_s += to_s - from_s
            covered_to_s = to_s
    return total_s


def run_pairs(stand: Stand, args: argparse.Namespace, alone: Alone, rate_per_s: float) -> list[Played]:
    """Run the arms in turn, who is first changing with the pair (ABBA)."""
    runs = []
    arms = [DIRECT] if args.direct_only else [DIRECT, THROUGH]
    for number in range(args.pairs):
        items = schedule(stand.mix, args.calls, rate_per_s, random.Random(args.seed * 1000 + number))
        for arm in arms if number % 2 == 0 else reversed(arms):
            figures, answers = run_arm(stand, arm, items, alone)
            runs.append(Played(Run(SCENARIO, number, arm, figures), answers))
            print(f"  pair {number + 1} {line_of(arm, figures)}", flush=True)
    return runs


def line_of(arm: str, f: dict[str, float]) -> str:
    """Write one run as a line."""
    return (
        f"{arm:7}  short TTFT p50 {f['short_p50_s']:5.2f} p95 {f['short_p95_s']:5.2f} p99 {f['short_p99_s']:5.2f} s"
        f"  long p50 {f['long_p50_s']:5.2f} p99 {f['long_p99_s']:5.2f} s"
        f"  {f['tokens_per_s']:5.1f} tokens/s {f['calls_per_s']:.3f} calls/s  lost {f['lost']:.0f}"
        f"  engine busy {f['engine_busy_ratio']:.0%}  others {f['other_cores']:.2f} cores"
    )


def pooled(runs: list[Played], arm: str) -> list[float]:
    """Return the short calls' TTFT over all runs of an arm, in seconds."""
    return [a.ttft_s for run, answers in runs if run.peer == arm for a in answers if a.group == "short" and not a.fault]


def print_report(runs: list[Played], alone: Alone) -> bool:
    """Print what it means; return whether every bound holds."""
    direct = [run.figures for run, _ in runs if run.peer == DIRECT]
    median = {key: statistics.median(f[key] for f in direct) for key in ("short_p99_s", "behind_long_ratio")}
    print(
        f"\ndirect: short p99 is {median['short_p99_s'] / alone.short_ttft_s:.0f} x that of a call alone; in the "
        f"slowest {SLOWEST:.0%} a long prompt was being computed for {median['behind_long_ratio']:.0%} of the wait"
    )
    shorts = {arm: pooled(runs, arm) for arm in (DIRECT, THROUGH)}
    for arm, waits_s in shorts.items():
        if waits_s:
            shares = "  ".join(f"p{share} {percentile(waits_s, share / 100):.2f}" for share in (50, 90, 95, 99))
            print(f"all {len(waits_s)} short calls, {arm}: TTFT {shares} s")
    if not shorts[THROUGH]:
        return True
    verdicts = [judge(check, [run for run, _ in runs]) for check in CHECKS]
    print(f"\nmedian (lowest..highest) over pairs\n\n{render(verdicts)}")
    return all(v.passed for v in verdicts)


def save(path: Path, facts: dict[str, object], runs: list[Played]) -> None:
    """Write everything as JSON: what was set and measured, and every answer of every run."""
    shown = [{**run._asdict(), "answers": [list(a) for a in answers]} for run, answers in runs]
    write_json(path, {**facts, "answer_fields": Answer._fields, "runs": shown})


def with_stand(args: argparse.Namespace, measure: Callable[[Stand], bool]) -> bool:
    """Start engine and gateway, and measure.

    Raises:
        CannotRun: one of them does not start.
    """
    cores = engines.split_cores()
    mix = Mix(0.15, args.short, args.long, args.output)
    rng = random.Random(args.seed)
    marks = rng.sample(range(10**6), 10**5)
    with engines.workshop(cores.front) as (folder, started):
        engine = started(engines.llama(folder, cores.engine, args.slots, args.ctx))
        engines.wait_for(engine, "/health")
        watched, ports = [engine], {DIRECT: engine.port}
        if not args.direct_only:
            settings = {**engines.one_pool("llamacpp", [engine.port], MODEL_ALIAS, **args.pool), **args.settings}
            front = started(engines.gateway(folder, cores.front, settings, args.forebay_cmd))
            engines.wait_for(front, "/health/serving")
            watched.append(front)
            ports[THROUGH] = front.port
        return measure(Stand(ports, tuple(watched), len(cores.engine), args.slots, mix, rng, marks))


def measure(stand: Stand, args: argparse.Namespace, machine: dict[str, str]) -> bool:
    """Measure capacity, then the pairs; print, save, and return whether every bound holds."""
    began_s = time.monotonic()
    alone = measure_alone(stand)
    capacity = measure_capacity(stand, args.calls)
    rate_per_s = args.load * capacity.calls_per_s
    print("\n".join(f"{key}: {value}" for key, value in machine.items()))
    print(
        f"alone: short TTFT {alone.short_ttft_s:.2f} s, long {alone.long_ttft_s:.2f} s, "
        f"{1 / alone.prefill_s_per_token:.0f} prompt tokens/s\n"
        f"capacity: {capacity.calls_per_s:.3f} calls/s, {capacity.tokens_per_s:.0f} tokens/s, engine busy "
        f"{capacity.engine_busy_ratio:.0%}; offered {args.load:.0%} = {rate_per_s:.3f} calls/s, "
        f"{args.calls} calls in {args.calls / rate_per_s:.0f} s\n",
        flush=True,
    )
    runs = run_pairs(stand, args, alone, rate_per_s)
    passed = print_report(runs, alone)
    path = args.json or RESULTS / f"collapse-{machine['date'].replace(':', '')}.json"
    settings = {key: str(value) for key, value in vars(args).items()}
    save(path, {"machine": machine, "settings": settings, "alone": alone, "capacity": capacity}, runs)
    print(f"\n{time.monotonic() - began_s:.0f} s; raw runs in {path}")
    return passed


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, save. Exit 0: every bound holds; 1: one does not; 2: it could not be measured."""
    args, machine = arguments(argv), describe_machine()
    return exits_cleanly(lambda: with_stand(args, lambda stand: measure(stand, args, machine)))


if __name__ == "__main__":
    sys.exit(main())
