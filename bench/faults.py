"""What do calls notice of Forebay's own faults? `python -m bench.faults`.

The shipped gateway before two simulated engines and beside a real Redis, in processes of their own, under short calls
at a fixed rate and streams. Each row has a fresh gateway and one fault (`bench.own_faults`).
"""

import argparse
import asyncio
import itertools
import json
import math
import shlex
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import NamedTuple

from bench import engines, own_faults
from bench.client import Answer, Call, ask, chat_body, run_loop
from bench.faults_table import Row, missed, render
from bench.measure import cpu_s, machine_busy_s, percentile
from bench.own_faults import BASELINE, FAULTS, KILL, ON_A_SMALL_DISK, Victim
from bench.peers import HOST, KEY, CannotRun, Process, free_ports
from bench.reckoning import Books, EngineLog, Heard, account, books, lines_of
from bench.run import RESULTS, describe_machine, exits_cleanly, write_json
from forebay.engines.sim import SimSpec

SHORT_TOKENS, STREAM_TOKENS = 2, 50
QUICK = SimSpec(iteration_base_ms=1, ms_per_prefill_token=0, ms_per_decode_seq=0, models=("short",))
PACED = SimSpec(iteration_base_ms=40, ms_per_prefill_token=0, ms_per_decode_seq=0, models=("paced",))
BEGINS, LASTS = 0.2, 0.6  # the fault, as parts of a row
CATCHES_UP_S = 15.0  # the journal: written every 50 ms, tried again every second after a fault


class Stand(NamedTuple):
    """What all rows share."""

    folder: Path
    sims: tuple[Process, Process]
    store: Process


class Load:
    """Short calls at a fixed rate and streams, one after the other, until it is over."""

    def __init__(self, port: int, args: argparse.Namespace, began_s: float) -> None:
        self._port = port
        self._args = args
        self._began_s = began_s
        self._over = asyncio.Event()

    async def run(self) -> list[Answer]:
        """Make calls until `end`; return all answers."""
        async with asyncio.TaskGroup() as group:
            parts = [group.create_task(self._streams(number)) for number in range(self._args.streams)]
            parts.append(group.create_task(self._shorts()))
        return [answer for part in parts for answer in part.result()]

    def end(self) -> None:
        """Begin no more calls."""
        self._over.set()

    async def _ask(self, model: str, tokens: int, name: str, due_s: float) -> Answer:
        call = Call(due_s, name, chat_body(model, "x", tokens), request_id=name)
        return await ask(self._port, call, due_s, self._began_s)

    async def _streams(self, number: int) -> list[Answer]:
        found: list[Answer] = []
        await asyncio.sleep(0.02 * number)
        while not self._over.is_set():
            due_s = time.monotonic() - self._began_s
            found.append(await self._ask("paced", STREAM_TOKENS, f"s{number}-{len(found)}", due_s))
            if found[-1].fault:
                await asyncio.sleep(0.05)
        return found

    async def _shorts(self) -> list[Answer]:
        async with asyncio.TaskGroup() as group:
            tasks = []
            for number in itertools.count():
                due_s = number / self._args.rps
                await asyncio.sleep(due_s - (time.monotonic() - self._began_s))
                if self._over.is_set():
                    break
                tasks.append(group.create_task(self._ask("short", SHORT_TOKENS, f"c{number}", due_s)))
        return [task.result() for task in tasks]


def broken(victim: Victim, name: str, seconds: float, began_s: float, logs: Sequence[EngineLog]) -> Heard:
    """Put a fault in the middle of a row, and read the engines' logs before and after it; return its span."""
    time.sleep(BEGINS * seconds)
    for log in logs:
        log.read()
    from_s, unproved = time.monotonic() - began_s, ""
    try:
        FAULTS[name](victim, LASTS * seconds)
    except (CannotRun, OSError, ValueError, LookupError) as error:
        unproved = f"{type(error).__name__}: {error}" if not isinstance(error, CannotRun) else str(error)
    until_s = time.monotonic() - began_s
    if name != KILL:  # after a kill nobody answers: there is nothing to wait for
        for log in logs:
            log.read()
        time.sleep((1 - BEGINS - LASTS) * seconds)
    return Heard((), (), from_s, until_s, unproved)


async def load(victim: Victim, name: str, stand: Stand, args: argparse.Namespace) -> Heard:
    """Put the load on the gateway and the fault in the middle of it; return what became of it."""
    began_s = time.monotonic()
    logs = [EngineLog(sim, time.monotonic() - began_s) for sim in stand.sims]
    calls = Load(victim.gateway.port, args, began_s)
    running = asyncio.get_running_loop().create_task(calls.run())
    try:
        heard = await asyncio.to_thread(broken, victim, name, args.seconds, began_s, logs)
    finally:
        calls.end()
        answers = await running
    for log in logs:
        log.read()
    return heard._replace(answers=answers, dispatched=[asked for log in logs for asked in log.found])


def settled(victim: Victim, heard: Heard, name: str) -> tuple[Books, int, int]:
    """Wait for the journal; after a kill, start the gateway again, which closes what it finds open.

    Returns:
        The books as the fault has left them, the calls that were open, and how many of these were closed in the end.
    """
    if name == KILL:
        left = books(lines_of(victim.journal))
        victim.gateway.stop()
        victim.gateway.start()
        engines.wait_for(victim.gateway, "/health/serving")
        wanted = left.open_calls
    else:
        wanted = {asked.call_id for asked in heard.dispatched}
    deadline = time.monotonic() + CATCHES_UP_S
    after = books(lines_of(victim.journal))
    while not all(map(after.closed_once, wanted)) and time.monotonic() < deadline:
        time.sleep(0.2)
        after = books(lines_of(victim.journal))
    if name != KILL:
        return after, len(after.open_calls), 0
    return left, len(wanted), sum(map(after.closed_once, wanted))


def judged(name: str, number: int, heard: Heard, victim: Victim, cores: tuple[float, float]) -> Row:
    """Count what went wrong."""
    answers, killed = heard.answers, name == KILL
    counted = [a for a in answers if not killed or a.end_s < heard.from_s]
    faults = [a for a in counted if a.fault]
    shorts = [a for a in answers if a.group[0] == "c"]
    hit = [a for a in counted if a.group[0] == "c" and not a.fault]
    times_ms = [1000 * (a.end_s - a.due_s) for a in hit if killed or heard.from_s <= a.due_s < heard.until_s]
    dropped = 0.0
    if not killed:
        dropped = sum(v for k, v in victim.metrics().items() if k.startswith("forebay_journal_dropped_total"))
    left, orphans, closed = settled(victim, heard, name)
    found = account(heard, left, killed=killed)
    return Row(
        fault=name,
        round=number,
        sent_per_s=len(shorts) / max((a.due_s for a in shorts if a.due_s), default=math.inf),
        calls=len(answers),
        failed=len(faults),
        cut=sum(a.status == 200 for a in faults),
        p50_ms=percentile(times_ms, 0.5) if times_ms else math.nan,
        p99_ms=percentile(times_ms, 0.99) if times_ms else math.nan,
        longest_stream_ms=max(
            (1000 * (a.end_s - a.due_s) for a in counted if a.group[0] == "s" and not a.fault), default=math.nan
        ),
        served=sum(not a.fault for a in answers),
        dispatched=len(heard.dispatched),
        **found._asdict(),
        dropped=dropped,
        orphans=orphans,
        orphans_closed=closed,
        gateway_cores=cores[0],
        busy_cores=cores[1],
        unproved=heard.unproved,
        first_faults=[a.fault for a in faults[:3]],
    )


def one_row(name: str, number: int, stand: Stand, args: argparse.Namespace) -> Row:
    """Start a gateway, load it, break it."""
    sims, store, cores = stand.sims, stand.store, engines.split_cores()
    with ExitStack() as stack:
        folder = stand.folder / f"{number}-{list(FAULTS).index(name)}"
        folder.mkdir()
        if name == ON_A_SMALL_DISK:
            stack.enter_context(own_faults.mounted(folder / "data", own_faults.DISK))
        clock = folder / "clock"
        own_faults.set_clock(clock, 0)
        settings = {
            "pools": {
                model: {"engine": "vllm", "replicas": [{"url": f"http://{HOST}:{sim.port}"} for sim in pair]}
                for model, pair in (("short", sims[:1]), ("paced", sims[1:]))
            },
            "models": {model: {"pool": model} for model in ("short", "paced")},
            "tenants": [{"name": "bench", "keys": [KEY], "limits": {"concurrency": 10_000}}],
            "store": {"url": f"redis://{HOST}:{store.port}/0"},
            "node": "n1",
        }
        preload = f"env LD_PRELOAD={own_faults.clock_shim()} FOREBAY_BENCH_CLOCK={shlex.quote(str(clock))}"
        gateway = engines.gateway(folder, cores.front, settings, f"{preload} {args.forebay_cmd}")
        stack.callback(gateway.stop)
        gateway.start()
        engines.wait_for(gateway, "/health/ready")
        admin = json.loads((folder / "forebay.yaml").read_text())["admin"]
        victim = Victim(gateway, store, folder, clock, admin)
        own_faults.prepare(victim)
        pids, busy_s, began_s = gateway.pids(), machine_busy_s(), time.monotonic()
        used_s = cpu_s(pids)
        heard = run_loop(load(victim, name, stand, args))
        took_s = time.monotonic() - began_s
        used_s = math.nan if name == KILL else cpu_s(pids) - used_s
        return judged(name, number, heard, victim, (used_s / took_s, (machine_busy_s() - busy_s) / took_s))


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bench.faults", description="Forebay's own faults, under load.")
    parser.add_argument("--seconds", type=float, default=60.0, help="of each row (default 60)")
    parser.add_argument("--rps", type=float, default=200.0, help="short calls a second (default 200)")
    parser.add_argument("--streams", type=int, default=50, help="at once (default 50)")
    parser.add_argument("--rounds", type=int, default=1, help="of all rows (default 1)")
    parser.add_argument("--only", action="append", choices=list(FAULTS), help="beside the baseline; may be repeated")
    parser.add_argument("--forebay-cmd", default=engines.FOREBAY, help="command with {config}, {data} and {port}")
    parser.add_argument("--json", type=Path, help="where the rows go (default bench/results/local/)")
    args = parser.parse_args(argv)
    if args.seconds < 5 or args.rps <= 0 or args.streams < 1 or args.rounds < 1:
        parser.error("--seconds must be at least 5, --rps above 0, --streams and --rounds at least 1")
    return args


def measured(args: argparse.Namespace) -> tuple[list[Row], dict[str, str]]:
    """Run all rows of all rounds; return them, and why some could not be run."""
    cores = engines.split_cores()
    rows: list[Row] = []
    left_out: dict[str, str] = {}
    # The client is on the engines' core: the gateway has its own.
    with engines.workshop(cores.engine) as (folder, started):
        sims = tuple(started(engines.simulator(n, folder, cores.engine, s)) for n, s in (("q", QUICK), ("p", PACED)))
        store = started(own_faults.redis(folder, free_ports(1)[0], cores.engine))
        stand = Stand(folder, (sims[0], sims[1]), store)
        for number in range(args.rounds):
            for name in FAULTS:
                if args.only and name not in (BASELINE, *args.only):
                    continue
                try:
                    rows.append(one_row(name, number, stand, args))
                    print(f"  {number + 1} {name}: {rows[-1].calls} calls, {rows[-1].failed} failed", flush=True)
                except (CannotRun, OSError) as error:
                    left_out[name] = str(error)
                    print(f"  {number + 1} {name}: not measured: {error}", flush=True)
    return rows, left_out


def measure(args: argparse.Namespace, machine: dict[str, str]) -> bool:
    """Measure, print, save; return whether every bound holds and no row was left out."""
    began_s = time.monotonic()
    rows, left_out = measured(args)
    print("\n" + "\n".join(f"{key}: {value}" for key, value in machine.items()))
    print(
        f"{args.rps:g} short calls a second and {args.streams} streams, {args.seconds:g} s a row, {args.rounds} rounds"
    )
    print(f"\n{render(rows)}\n")
    for name, why in left_out.items():
        print(f"{name}: NOT MEASURED: {why}")
    for row in rows:
        if row.first_faults:
            print(f"{row.fault}: {row.first_faults}")
    path = args.json or RESULTS / f"faults-{machine['date'].replace(':', '')}.json"
    asked = {key: str(value) for key, value in vars(args).items()}
    document = {"machine": machine, "settings": asked, "left_out": left_out, "rows": [row._asdict() for row in rows]}
    write_json(path, document)
    print(f"{time.monotonic() - began_s:.0f} s; every row in {path}")
    return not left_out and not any(missed(rows, row.fault) for row in rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, save. Exit 0: every bound holds; 1: one does not; 2: it could not be measured."""
    args, machine = arguments(argv), describe_machine()
    return exits_cleanly(lambda: measure(args, machine))


if __name__ == "__main__":
    sys.exit(main())
