"""Does `high` meet its target when an engine has as much work as it can do? `python -m bench.classes`.

The mixed public trace at 100 % of the engines' prefill capacity, first come first served against Forebay: on
the planner's virtual clock for several realisations, then in real time with a simulated engine and a real gateway.
"""

import argparse
import math
import os
import random
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from msgspec.structs import replace

from bench import engines
from bench.client import Answer, Call, chat_body, open_loop, run_loop
from bench.measure import percentile, spread
from bench.mix import text_of_bytes
from bench.peers import CannotRun
from bench.run import REPO, RESULTS, describe_machine, exits_cleanly, write_json
from bench.table import with_spread
from forebay.domain import VALUES, Value
from forebay.engines.sim import SimSpec
from forebay.plan.compare import Study, arrivals_of, factory
from forebay.plan.report import Slo
from forebay.plan.run import Run
from forebay.plan.traces import Arrival, TraceError, read_folder
from forebay.policy import PATIENT

MODEL = "sim"
BOUND = 0.99
# Part of the calls of each value, whatever their length.
VALUE_SHARES: dict[Value, float] = {"high": 0.2, "medium": 0.5, "low": 0.3}
LONG_TOKENS = 2048
# So that the two presets keep the targets of the product, which are those of `medium` scaled.
SLO = Slo(PATIENT["medium"].target_s, PATIENT["medium"].long_target_s, LONG_TOKENS)
SPEC = SimSpec()
# What a chat template adds to a text in the simulated engine, in bytes; four bytes are a token there.
TEMPLATE_BYTES = 24
FCFS, FOREBAY = "first come, first served", "Forebay"


class Served(NamedTuple):
    """What became of one call: its time to the first token, infinite when it was refused or lost."""

    value: Value
    is_long: bool
    ttft_s: float

    @property
    def in_target(self) -> bool:
        """Say whether the target of its value, as the product has it, was met."""
        rule = PATIENT[self.value]
        return self.ttft_s <= (rule.long_target_s if self.is_long else rule.target_s)


class Outcome(NamedTuple):
    """One run of one policy; ratios are of all calls of a value, refused ones included."""

    policy: str
    in_target: dict[Value, float]
    refused_ratio: float
    high_p99_s: float


def outcome(policy: str, calls: Sequence[Served]) -> Outcome:
    """Summarise a run."""
    by_value = {value: [call for call in calls if call.value == value] for value in VALUES}
    shares = {value: sum(call.in_target for call in found) / len(found) for value, found in by_value.items()}
    served = [call.ttft_s for call in by_value["high"] if not call.is_long and math.isfinite(call.ttft_s)]
    refused = sum(math.isinf(call.ttft_s) for call in calls) / len(calls)
    return Outcome(policy, shares, refused, percentile(served, 0.99))


def with_values(arrivals: Sequence[Arrival], rng: random.Random) -> list[Arrival]:
    """Give each arrival a value, by chance."""
    values = rng.choices(list(VALUE_SHARES), list(VALUE_SHARES.values()), k=len(arrivals))
    return [replace(arrival, value=value) for arrival, value in zip(arrivals, values, strict=True)]


def planned(study: Study, names: Mapping[str, str]) -> list[Outcome]:
    """Run policies of the planner over each realisation."""
    outcomes = []
    for number in range(study.realisations):
        arrivals = with_values(arrivals_of(study, number), random.Random(f"{study.seed}/{number}/values"))
        for name, label in names.items():
            rows = Run(arrivals, study.spec, study.replicas, factory(study, name, arrivals)).rows()
            calls = [
                Served(
                    row.arrival.value,
                    row.arrival.prompt_tokens >= LONG_TOKENS,
                    math.inf if row.ttft_s is None else row.ttft_s,
                )
                for row in rows
            ]
            outcomes.append(outcome(label, calls))
        print(f"  planned: realisation {number + 1} of {study.realisations}, {len(arrivals)} calls", flush=True)
    return outcomes


def real(study: Study, preset: str, command: str) -> list[Outcome]:
    """Run both arms in real time over each realisation: straight to the engine, and through Forebay.

    Raises:
        CannotRun: a process does not start.
    """
    cores, outcomes = engines.split_cores(), []
    with engines.workshop(cores.front) as (folder, started):
        engine = started(engines.simulator("sim", folder, cores.engine, study.spec))
        settings = {**engines.one_pool("vllm", [engine.port], MODEL), "admission": {"preset": preset}}
        front = started(engines.gateway(folder, cores.front, settings, command))
        engines.wait_for(front, "/health/serving")
        for number in range(study.realisations):
            rng = random.Random(f"{study.seed}/{number}/values")
            arrivals = with_values(arrivals_of(study, number), rng)
            arms = [(FCFS, engine.port), (f"{FOREBAY}, {preset}", front.port)]
            for label, port in arms if number % 2 == 0 else reversed(arms):
                answers = run_loop(open_loop(port, [call_of(a, n, rng) for n, a in enumerate(arrivals)]))
                outcomes.append(outcome(label, [served(answer, arrivals) for answer in answers]))
                print(f"  real time: round {number + 1}, {len(answers)} calls, {line_of(outcomes[-1])}", flush=True)
    return outcomes


def call_of(arrival: Arrival, number: int, rng: random.Random) -> Call:
    """Make the call of an arrival for the simulated engine."""
    text = text_of_bytes(4 * arrival.prompt_tokens - TEMPLATE_BYTES, rng.randrange(10**6), rng)
    body = chat_body(MODEL, text, arrival.output_tokens)
    return Call(arrival.at_s, arrival.tenant, body, number=number, value=arrival.value)


def served(answer: Answer, arrivals: Sequence[Arrival]) -> Served:
    """Return what became of an arrival."""
    arrival = arrivals[answer.number]
    return Served(arrival.value, arrival.prompt_tokens >= LONG_TOKENS, math.inf if answer.fault else answer.ttft_s)


def line_of(one: Outcome) -> str:
    """Write one run as a line."""
    shares = "  ".join(f"{value} {share:.1%}" for value, share in one.in_target.items())
    return f"{one.policy}: in target {shares}; refused {one.refused_ratio:.1%}"


def report(title: str, outcomes: Sequence[Outcome]) -> None:
    """Print each policy's figures over its runs: median (lowest..highest)."""
    print(f"\n{title}: part of the calls in target, %, median (lowest..highest) of the runs")
    print(f"{'':28} {'high':22} {'medium':22} {'low':22} {'refused':22} high, short: TTFT p99, s")
    for policy in dict.fromkeys(one.policy for one in outcomes):
        runs = [one for one in outcomes if one.policy == policy]
        columns = [with_spread(spread([100 * one.in_target[value] for one in runs])) for value in VALUES]
        columns.append(with_spread(spread([100 * one.refused_ratio for one in runs])))
        columns.append(with_spread(spread([one.high_p99_s for one in runs])))
        print(f"{policy:28} " + " ".join(f"{column:22}" for column in columns).rstrip())


def best(outcomes: Sequence[Outcome]) -> bool:
    """Say whether one of Forebay's presets keeps `high` in target in the median of its runs."""
    own = {one.policy for one in outcomes if one.policy.startswith(FOREBAY)}
    medians = [spread([one.in_target["high"] for one in outcomes if one.policy == name]).median for name in own]
    return not medians or max(medians) >= BOUND


def read_traces(folder: Path) -> tuple[tuple[Arrival, ...], ...]:
    """Read the public traces, or none where they are absent: synthetic traffic is used then."""
    try:
        return tuple(tuple(trace) for trace in read_folder(folder))
    except (OSError, TraceError) as error:
        print(f"bench: {error}: synthetic traffic instead", file=sys.stderr)
        return ()


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    shared = Path(os.environ.get("FOREBAY_SHARED", REPO.parent / "shared"))
    parser = argparse.ArgumentParser(prog="bench.classes", description="Request values at full load.")
    parser.add_argument("--traces", type=Path, default=shared / "traces", help="folder with azure2023 and mooncake")
    parser.add_argument("--load", type=float, default=1.0, help="of the engines' prefill capacity (default 1.0)")
    parser.add_argument("--rounds", type=int, default=5, help="realisations in the planner (default 5)")
    parser.add_argument("--replicas", type=int, default=3, help="engines in the planner (default 3)")
    parser.add_argument("--planned-s", type=float, default=900.0, help="seconds of traffic (default 900; 0: none)")
    parser.add_argument(
        "--real-rounds", type=int, default=2, help="realisations in real time (default 2); 0 leaves out"
    )
    parser.add_argument("--real-s", type=float, default=150.0, help="seconds of traffic in real time (default 150)")
    parser.add_argument("--preset", choices=("latency", "throughput"), default="latency", help="in real time")
    parser.add_argument("--forebay-cmd", default=engines.FOREBAY, help="command with {config}, {data} and {port}")
    parser.add_argument("--json", type=Path, help="where the figures go (default bench/results/local/)")
    return parser.parse_args(argv)


def measure(args: argparse.Namespace, machine: dict[str, str]) -> bool:
    """Plan and measure, print, save; return whether `high` is kept in target by a preset in each part.

    Raises:
        CannotRun: a process does not start, or a trace is shorter than the window.
    """
    began_s, results = time.monotonic(), {}
    study = Study(traces=read_traces(args.traces), spec=SPEC, load_ratio=args.load, slo=SLO, realisations=args.rounds)
    try:
        if args.planned_s:
            names = {"held_fcfs": FCFS, "least_requests": "least requests, no queue"}
            names |= {f"forebay_{preset}": f"{FOREBAY}, {preset}" for preset in ("throughput", "latency")}
            results["planned"] = planned(replace(study, replicas=args.replicas, seconds=args.planned_s), names)
        if args.real_rounds:
            timed = replace(study, replicas=1, seconds=args.real_s, realisations=args.real_rounds)
            results["real time"] = real(timed, args.preset, args.forebay_cmd)
    except ValueError as error:
        raise CannotRun(str(error)) from error
    print("\n" + "\n".join(f"{key}: {value}" for key, value in machine.items()))
    for title, outcomes in results.items():
        report(f"{title}, {args.load:.0%} load", outcomes)
    passed = {title: best(outcomes) for title, outcomes in results.items()}
    for title, held in passed.items():
        print(f"\n{title}: `high` in target >= {BOUND:.0%} of the time: {'pass' if held else 'FAIL'}")
    path = args.json or RESULTS / f"classes-{machine['date'].replace(':', '')}.json"
    shown = {title: [one._asdict() for one in outcomes] for title, outcomes in results.items()}
    asked = {key: str(value) for key, value in vars(args).items()}
    write_json(path, {"machine": machine, "settings": asked, "runs": shown})
    print(f"\n{time.monotonic() - began_s:.0f} s; figures in {path}")
    return all(passed.values())


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, save. Exit 0: the bound holds; 1: it does not; 2: it could not be measured."""
    args, machine = arguments(argv), describe_machine()
    return exits_cleanly(lambda: measure(args, machine))


if __name__ == "__main__":
    sys.exit(main())
