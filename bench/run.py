"""The benchmark's command line: `python -m bench.run`, or `make bench`."""

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.peers import EXTRA_PEERS, CannotRun, Rig, build_tools, install_router, pick_cores
from bench.scenarios import QUICK, SCENARIOS, Scale, Scenario
from bench.table import Run, Verdict, judge, render

REPO = Path(__file__).resolve().parent.parent
TOOLS = REPO.parent / "shared" / "bench"
RESULTS = Path(__file__).parent / "results" / "local"
NOISY_CORES = 0.15
LIBRARIES = ("forebay", "uvloop", "httptools", "msgspec")


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bench.run", description="Measure the data plane against nginx.")
    parser.add_argument("--rounds", type=int, default=5, help="runs of each scenario on each peer (default 5)")
    parser.add_argument("--quick", action="store_true", help="tiny runs and 1 round: a smoke test, bounds not judged")
    parser.add_argument("--only", action="append", choices=[s.name for s in SCENARIOS], help="may be repeated")
    parser.add_argument("--peers", action="append", choices=EXTRA_PEERS, default=[], help="installed on first use")
    parser.add_argument("--json", type=Path, help="where the raw runs go (default bench/results/local/DATE.json)")
    parser.add_argument(
        "--forebay-cmd",
        default=f"{Path(sys.executable).parent / 'forebay'} serve -c {{config}} --data-dir {{data}}",
        help="command with {config} {port} {data} {engine}; 'nginx' measures nginx against itself",
    )
    args = parser.parse_args(argv)
    if args.rounds < 1:
        parser.error("--rounds must be at least 1")
    return args


def first_line(command: list[str]) -> str:
    """Return the first line that a program prints about its version."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10)
    except OSError:
        return "absent"
    return (done.stdout + done.stderr).strip().partition("\n")[0]


def installed(name: str) -> str:
    """Return the installed version of a package."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "absent"


def describe_machine() -> dict[str, str]:
    """Say where and with what this was measured."""
    cpu = [line.partition(": ")[2] for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line]
    memory_mib = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    env = {**os.environ, "PATH": f"{os.environ.get('PATH', '')}:/usr/sbin"}
    nginx = subprocess.run(["sh", "-c", "nginx -v"], capture_output=True, text=True, timeout=10, env=env).stderr.strip()
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "cpu": f"{len(os.sched_getaffinity(0))} x {cpu[0] if cpu else platform.machine()}",
        "memory_mib": str(memory_mib),
        "kernel": platform.release(),
        "python": f"{platform.python_version()} ({platform.python_compiler()})",
        "nginx": nginx,
        "commit": first_line(["git", "-C", str(REPO), "describe", "--always", "--dirty"]),
        **{name: installed(name) for name in LIBRARIES},
        "load_1min": f"{os.getloadavg()[0]:.2f}",
    }


def measure(rig: Rig, scenarios: list[Scenario], rounds: int, scale: Scale) -> list[Run]:
    """Run each scenario, alternating between the peers; who goes first changes with the round."""
    runs = []
    for scenario in scenarios:
        if scenario.name != "rss":
            rig.warm()
        for number in range(rounds):
            peers = scenario.peers(rig.peers)
            for name in peers if number % 2 == 0 else reversed(peers):
                figures = scenario.run(rig, rig.peers[name], scale)
                runs.append(Run(scenario.name, number, name, figures))
        print(f"  {scenario.name} done", flush=True)
    return runs


def router_if(wanted: Sequence[str]) -> Path | None:
    """Return vllm-router's program when it is wanted and can be had; else say why it is left out."""
    if not wanted:
        return None
    try:
        return install_router()
    except CannotRun as error:
        print(f"bench: without {', '.join(wanted)}: {error}", file=sys.stderr)
        return None


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Keep this process, which mostly sleeps, off the proxy's core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def exits_cleanly(work: Callable[[], bool]) -> int:
    """Do the work and return the exit code: 0 it held, 1 it did not, 2 it could not be measured (said on stderr)."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    try:
        return int(not work())
    except CannotRun as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2


def write_json(path: Path, document: Mapping[str, object]) -> None:
    """Write a result, and the folder for it where that is missing."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def save(path: Path, machine: dict[str, str], runs: list[Run], verdicts: list[Verdict]) -> None:
    """Write machine, every run and every verdict as JSON."""
    document = {
        "machine": machine,
        "runs": [run._asdict() for run in runs],
        "verdicts": [
            {**v.check._asdict(), "measured": v.measured, "errors": v.errors, "passed": v.passed} for v in verdicts
        ],
    }
    write_json(path, document)


def report_noise(runs: list[Run]) -> str:
    """Say how much of the machine others used while we measured."""
    others = [run.figures["other_cores"] for run in runs if "other_cores" in run.figures]
    if not others:
        return ""
    noisy = sum(value > NOISY_CORES for value in others)
    return f"others used at most {max(others):.2f} cores; more than {NOISY_CORES} in {noisy} of {len(others)} runs"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, save. Exit 0: every bound holds; 1: one does not; 2: it could not be measured."""
    args = arguments(argv)
    scale, rounds = (QUICK, 1) if args.quick else (Scale(), args.rounds)
    chosen = [s for s in SCENARIOS if not args.only or s.name in args.only]
    machine = describe_machine()
    path = args.json or RESULTS / f"{machine['date'].replace(':', '')}.json"
    began = time.monotonic()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that what was started is stopped
    try:
        tools = build_tools(Path(os.environ.get("FOREBAY_BENCH_TOOLS", TOOLS)))
        cores = pick_cores()
        with on_core(cores.other), Rig(tools, cores, args.forebay_cmd, router_if(args.peers)) as rig:
            for name, peer in rig.peers.items():
                if name not in chosen[0].peers(rig.peers) or chosen[0].name != "rss":
                    peer.start()
            runs, present = measure(rig, chosen, rounds, scale), list(rig.peers)
    except CannotRun as error:
        print(f"bench: {error}", file=sys.stderr)
        return 2
    verdicts = [judge(check, runs) for scenario in chosen for check in scenario.checks_for(present)]
    save(path, machine, runs, verdicts)
    print("\n" + "\n".join(f"{key}: {value}" for key, value in machine.items()))
    print(f"{rounds} rounds, peers interleaved, {time.monotonic() - began:.0f} s; raw runs in {path}")
    print(f"{report_noise(runs)}\nmedian (lowest..highest) over rounds\n\n{render(verdicts)}")
    if args.quick:
        print("\nquick: a smoke test, so only failed requests count, not the bounds")
        return int(any(v.errors for v in verdicts))
    return int(not all(v.passed for v in verdicts))


if __name__ == "__main__":
    sys.exit(main())
