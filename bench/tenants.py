"""One of a hundred tenants goes bad: what do the others notice? `python -m bench.tenants`, on a virtual clock.

Each realisation is run once with all tenants well, and once for each way of going bad, with the same calls of the
others (`bench.crowd`). Nothing here depends on the machine.
"""

import argparse
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, get_args

from bench.callers import Plan, Way, capacity_per_s
from bench.crowd import Seen, Stage
from bench.measure import spread
from bench.peers import CannotRun
from bench.run import RESULTS, describe_machine, exits_cleanly, write_json

WAYS: tuple[Way, ...] = get_args(Way)
WELL, REDRAWN = WAYS[:2]
PERCENT = 1.0
Realisation = dict[Way, Seen]


class Finding(NamedTuple):
    """One figure of all realisations with its bound; the median is judged.

    Attributes:
        bound: None for what is only told.
    """

    way: Way
    what: str
    values: tuple[float, ...]
    unit: str
    bound: float | None = None

    @property
    def passed(self) -> bool:
        """Whether it holds."""
        return self.bound is None or spread(self.values).median <= self.bound

    def line(self) -> str:
        """Return it for the table."""
        found = spread(self.values)
        verdict = "    " if self.bound is None else "pass" if self.passed else "FAIL"
        bound = "" if self.bound is None else f" (<= {self.bound:g} {self.unit})"
        figures = f"{found.median:.4g} ({found.low:.4g}..{found.high:.4g}) {self.unit}"
        return f"{verdict}  {self.way}: {self.what}: {figures}{bound}"


def realise(plan: Plan, seed: int) -> Realisation:
    """Run one realisation in all ways.

    Raises:
        CannotRun: the reference has lost calls, or the bad one was not bad: nothing can be compared.
    """
    runs: Realisation = {way: Stage(plan, way, seed).run() for way in WAYS}
    if runs[WELL].errors:
        raise CannotRun(f"realisation {seed}: with all tenants well calls are lost; take a lower --load")
    for way, seen in runs.items():
        if way not in (WELL, REDRAWN) and not seen.bad_errors:
            raise CannotRun(f"realisation {seed}, {way}: none of his calls failed; take a longer --bad-s")
    return runs


def compare(runs: Sequence[Realisation], plan: Plan) -> list[Finding]:
    """Hold each way against all well."""
    findings = []
    for way in WAYS[1:]:
        arms = [run[way] for run in runs]
        judged = way != REDRAWN
        changes = tuple(100 * (run[way].p99_s / run[WELL].p99_s - 1) for run in runs)
        errors = tuple(100 * arm.errors for arm in arms)
        findings += [
            Finding(way, "the others' first token, P99, change", changes, "%", PERCENT if judged else None),
            Finding(way, "the others' errors", errors, "%", PERCENT if judged else None),
            Finding(way, "others who were moved", tuple(float(arm.strangers) for arm in arms), "", 0.0),
        ]
        if judged:
            returned = tuple(arm.returned_s for arm in arms)
            findings += [
                Finding(way, "his errors", tuple(100 * arm.bad_errors for arm in arms), "%"),
                Finding(way, "moved after", tuple(arm.moved_s for arm in arms), "s"),
                Finding(way, "moves", tuple(float(arm.moves) for arm in arms), ""),
                Finding(way, "home for good after he is well", returned, "s", plan.after_s),
            ]
    return findings


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    usual = Plan()
    parser = argparse.ArgumentParser(prog="bench.tenants", description="One of many tenants goes bad.")
    parser.add_argument("--seeds", type=int, default=5, help="realisations (default 5)")
    parser.add_argument("--seed", type=int, default=1, help="the first of them (default 1)")
    parser.add_argument("--tenants", type=int, default=usual.tenants, help="at an equal rate (default 100)")
    parser.add_argument("--load", type=float, default=0.7, help="part of the capacity (default 0.7)")
    parser.add_argument("--bad-s", type=float, default=usual.bad_s, help="seconds that he is bad (default 600)")
    parser.add_argument("--ttl-s", type=float, default=usual.ttl_s, help="of a first move (default 600)")
    parser.add_argument("--json", type=Path, help="where the figures go (default bench/results/local/)")
    args = parser.parse_args(argv)
    if args.seeds < 1 or args.tenants < 10 or args.bad_s <= 0 or args.ttl_s <= 0 or not 0 < args.load < 1:
        parser.error("--seeds from 1, --tenants from 10, --bad-s and --ttl-s above 0, --load between 0 and 1")
    return args


def measure(args: argparse.Namespace) -> bool:
    """Run all realisations, print and save; return whether all bounds hold."""
    usual, capacity = Plan(), capacity_per_s()
    rate = args.load * capacity * usual.engines / args.tenants
    # No stay is longer than six times the first one.
    plan = Plan(args.tenants, calls_per_s=rate, bad_s=args.bad_s, ttl_s=args.ttl_s, after_s=6 * args.ttl_s)
    print(f"an engine finishes {capacity:.1f} calls/s of a backlog; {plan.engines} of them at {args.load:.0%}")
    runs: list[Realisation] = []
    for seed in range(args.seed, args.seed + args.seeds):
        runs.append(realise(plan, seed))
        well = runs[-1][WELL]
        print(f"realisation {seed}: {well.calls} calls of the others, first token P99 {well.p99_s:.3f} s", flush=True)
    findings = compare(runs, plan)
    print("\nmedian (lowest..highest) over realisations\n", *(finding.line() for finding in findings), sep="\n")
    document = {
        "machine": describe_machine(),
        "arguments": {key: str(value) for key, value in vars(args).items()},
        "findings": [{**finding._asdict(), "passed": finding.passed} for finding in findings],
        "runs": [{way: seen._asdict() for way, seen in run.items()} for run in runs],
    }
    write_json(args.json or RESULTS / "tenants.json", document)
    return all(finding.passed for finding in findings)


def main(argv: Sequence[str] | None = None) -> int:
    """Run. Exit 0: all bounds hold; 1: one does not; 2: it could not be measured."""
    args = arguments(argv)
    logging.disable(logging.WARNING)
    return exits_cleanly(lambda: measure(args))


if __name__ == "__main__":
    sys.exit(main())
