"""Does the ladder help in a surge, and leave everybody alone otherwise? `python -m bench.ladder`, on a virtual clock.

The parts are those of acceptance measurement M8. The surge runs the product's queue, choice and ladder before modelled
engines (`bench.surge`); the others feed its ladder with the telemetry of engines that are held at some usage. Nothing
here depends on the machine.
"""

import argparse
import logging
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.run import RESULTS, describe_machine, write_json
from bench.surge import SCRAPE_S, Load, Stage, Surged, arrivals
from forebay.actions import Actions
from forebay.admission.gate import LocalGate
from forebay.clock import ManualClock
from forebay.domain import Replica, Signal
from forebay.engines.contract import Telemetry
from forebay.laddering import Laddering
from forebay.policy import KV_RATIOS, Capacity, Ladder, Model, Policy, Pool
from forebay.routing.pool import Fleet

TICK_S = 0.1
HOUR_S = 3600.0
TEN_MINUTES_S = 600.0
SWING = 0.03
TERMS = Ladder("small", 256, 1024)
ALONE = Ladder("", 256, 1024)

Signals = Callable[[float], tuple[float, float]]
"""KV usage and waiting calls of an engine at a time."""


class Finding(NamedTuple):
    """One figure with its bound."""

    what: str
    value: float
    bound: float
    unit: str = ""
    at_least: bool = False

    @property
    def passed(self) -> bool:
        """Whether it holds."""
        return self.value >= self.bound if self.at_least else self.value <= self.bound


class Node:
    """A gate's ladder before one pool of two engines, which it asks every two seconds or so.

    Args:
        signals: what the engines say.
        rng: of its jitter; None asks to the second.
    """

    def __init__(self, signals: Signals, rng: random.Random | None = None) -> None:
        self._signals, self._rng = signals, rng
        self._clock = ManualClock()
        self._fleet = Fleet(self._clock)
        gate = LocalGate(self._clock, self._fleet)
        actions = Actions(self._fleet, self._clock)
        self.laddering = Laddering(self._fleet, gate.basin, actions, self._clock)
        replicas = (Replica("a", "h", 1), Replica("b", "h", 2))
        pool = Pool("main", "vllm", replicas, capacity=Capacity(kv_tokens=100_000))
        policy = Policy({"main": pool}, {"m": Model("m", "main", ladder=TERMS)}, {})
        for listener in (self._fleet, gate, actions, self.laddering):
            listener.apply(policy)
        self._scrape_s = rng.uniform(0.0, SCRAPE_S) if rng else 0.0

    def levels(self, seconds: float) -> list[int]:
        """Run for so long; return the level of each second."""
        found = []
        for number in range(round(seconds / TICK_S)):
            now_s = self._clock.now_s()
            if now_s >= self._scrape_s:
                self._scrape(now_s)
                self._scrape_s = now_s + SCRAPE_S + (self._rng.uniform(0.0, 0.3) if self._rng else 0.0)
            self.laddering.tick()
            if number % round(1 / TICK_S) == 0:
                found.append(self.laddering.own_level("main"))
            self._clock.advance(TICK_S)
        return found

    def _scrape(self, now_s: float) -> None:
        usage, waiting = self._signals(now_s)
        for state in self._fleet.states("main"):
            state.telemetry = Telemetry(waiting=Signal(waiting, "engine"), kv_usage_ratio=Signal(usage, "engine"))
            state.polled_at_s = now_s
            state.noted(None, None)


def most_changes(levels: Sequence[int]) -> int:
    """Return the most changes of level within ten minutes; the first rise is one."""
    times = [at for at, (before, after) in enumerate(zip([0, *levels], levels, strict=False)) if before != after]
    return max((sum(start <= at < start + TEN_MINUTES_S for at in times) for start in times), default=0)


def held(rng: random.Random, seconds: float) -> list[Finding]:
    """Hold the engines around each threshold, with calls that wait always, and now and then."""
    findings = []
    for level, ratio in enumerate(KV_RATIOS, 1):
        for often, share in (("always", 1.0), ("mostly", 0.7)):

            def signals(now_s: float, ratio: float = ratio, share: float = share) -> tuple[float, float]:
                return ratio + rng.uniform(-SWING, SWING), float(rng.random() < share) * 3

            levels = Node(signals).levels(seconds)
            what = f"level {level}: {ratio:.0%} +- 3 points, calls {often} waiting: changes in ten minutes"
            findings.append(Finding(what, most_changes(levels), 2))
    return findings


def healthy(rng: random.Random, seconds: float) -> Finding:
    """Hold the engines at 95 % with nobody waiting."""
    levels = Node(lambda now_s: (0.95 + rng.uniform(-SWING, SWING), 0.0)).levels(seconds)
    return Finding("95 % KV with nobody waiting: highest level", max(levels), 0)


def day(now_s: float, seed: int) -> tuple[float, float]:
    """Return what engines say on a day with a surge of three to six minutes every half an hour or so."""
    number, within_s = divmod(now_s, 1800.0)
    rng = random.Random(f"{seed}/{number}")
    begins_s, lasts_s, peak = rng.uniform(100, 900), rng.uniform(180, 360), rng.uniform(0.86, 1.0)
    noise = random.Random(f"{seed}/{int(now_s)}").uniform(-0.01, 0.01)
    if begins_s <= within_s < begins_s + lasts_s:
        return peak + noise, 3.0
    return 0.6 + noise, 0.0


def agreement(seed: int, seconds: float) -> Finding:
    """Let two gates ask the same engines, each at its own times."""
    nodes = [Node(lambda now_s: day(now_s, seed), random.Random(f"{seed}/{name}")).levels(seconds) for name in "ab"]
    same = sum(one == other for one, other in zip(*nodes, strict=True)) / len(nodes[0])
    return Finding("two gates: seconds on the same level", 100 * same, 99, "%", at_least=True)


def surge(seed: int, load: Load) -> tuple[list[Finding], dict[str, Surged]]:
    """Run one surge without the ladder, with it, and with it but no other model."""
    arms: dict[str, Surged] = {}
    for name, terms in (("without", None), ("with", TERMS), ("no fallback", ALONE)):
        arms[name] = Stage(load, arrivals(load, random.Random(seed)), terms).run()
    found = arms["with"]
    return [
        Finding(f"surge x {load.factor:g}, without: time-outs", 100 * arms["without"].timeouts, 15, "%", at_least=True),
        Finding(f"surge x {load.factor:g}, with: time-outs", 100 * found.timeouts, 0.7, "%"),
        Finding("the smaller pool: most of its own room reserved", 100 * found.fullest[0], 90, "%"),
        Finding("the smaller pool: most of its own room used", 100 * found.fullest[1], 90, "%"),
        Finding("recovery: from the end of the surge to level 0", found.recovered_s, 120, "s"),
        Finding("requests with a structure that were altered", found.harmed, 0),
    ], arms


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bench.ladder", description="The ladder, on a virtual clock.")
    parser.add_argument("--seeds", type=int, default=5, help="realisations of each part (default 5)")
    parser.add_argument("--seed", type=int, default=1, help="the first of them (default 1)")
    parser.add_argument("--hold-s", type=float, default=HOUR_S, help="seconds at each threshold (default 3600)")
    parser.add_argument("--rate", type=float, default=Load().calls_per_s, help="calls/s before the surge (default 2)")
    parser.add_argument("--factor", type=float, default=Load().factor, help="of the surge (default 3)")
    parser.add_argument("--json", type=Path, help="where the figures go (default bench/results/local/)")
    args = parser.parse_args(argv)
    if args.seeds < 1 or args.hold_s < 1 or args.rate <= 0 or args.factor < 1:
        parser.error("--seeds and --hold-s must be at least 1, --rate above 0, --factor at least 1")
    return args


def line_of(name: str, arm: Surged) -> str:
    """Describe one arm of a surge."""
    parts = (("time-outs", arm.timeouts), ("refused", arm.refused), ("degraded", arm.degraded), ("moved", arm.moved))
    shares = ", ".join(f"{what} {part:.1%}" for what, part in parts)
    return f"  {name}: {arm.calls} calls, {shares}, first token P99 {arm.p99_s:.1f} s, levels {arm.levels}"


def main(argv: Sequence[str] | None = None) -> int:
    """Run all parts. Exit 0: all bounds hold; 1: one does not."""
    args = arguments(argv)
    logging.disable(logging.WARNING)
    findings: list[Finding] = []
    arms: list[dict[str, Surged]] = []
    for seed in range(args.seed, args.seed + args.seeds):
        rng = random.Random(seed)
        own = [*held(rng, args.hold_s), healthy(rng, args.hold_s), agreement(seed, args.hold_s)]
        of_surge, runs = surge(seed, Load(args.rate, args.factor))
        arms.append(runs)
        findings += [*own, *of_surge]
        print(f"realisation {seed}", *(line_of(name, arm) for name, arm in runs.items()), sep="\n", flush=True)
    print()
    for what in dict.fromkeys(finding.what for finding in findings):
        same = [finding for finding in findings if finding.what == what]
        values = sorted(finding.value for finding in same)
        sign = ">=" if same[0].at_least else "<="
        verdict = "pass" if all(finding.passed for finding in same) else "FAIL"
        unit = same[0].unit
        print(f"{verdict}  {what}: {values[0]:.4g}..{values[-1]:.4g} {unit} ({sign} {same[0].bound:g} {unit})")
    document = {
        "machine": describe_machine(),
        "arguments": {key: str(value) for key, value in vars(args).items()},
        "findings": [{**finding._asdict(), "passed": finding.passed} for finding in findings],
        "surges": [{name: arm._asdict() for name, arm in runs.items()} for runs in arms],
    }
    write_json(args.json or RESULTS / "ladder.json", document)
    return 0 if all(finding.passed for finding in findings) else 1


if __name__ == "__main__":
    sys.exit(main())
