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
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from bench import engines, own_faults
from bench.client import Answer, Call, ask, chat_body, run_loop
from bench.measure import cpu_s, machine_busy_s, percentile, spread
from bench.own_faults import FAULTS, KILL, ON_A_SMALL_DISK, Victim
from bench.peers import HOST, KEY, CannotRun, Process, free_ports
from bench.run import RESULTS, describe_machine, exits_cleanly, write_json
from bench.table import with_spread
from forebay.engines.sim import SimSpec

SHORT_TOKENS, STREAM_TOKENS = 2, 50
QUICK = SimSpec(iteration_base_ms=1, ms_per_prefill_token=0, ms_per_decode_seq=0, models=("short",))
PACED = SimSpec(iteration_base_ms=40, ms_per_prefill_token=0, ms_per_decode_seq=0, models=("paced",))
BEGINS, LASTS = 0.2, 0.6  # the fault, as parts of a row
ADDED_MS, LOST_S = 5.0, 0.2


class Row(NamedTuple):
    """One row of one round: what calls noticed, and what the journal has of them."""

    fault: str
    round: int
    sent_per_s: float
    calls: int
    failed: int
    cut: int
    p50_ms: float
    p99_ms: float
    longest_stream_ms: float
    no_line: int
    twice: int
    unclosed_ms: float
    dropped: float
    orphans: int
    orphans_closed: int
    gateway_cores: float
    busy_cores: float
    first_faults: list[str]


class Stand(NamedTuple):
    """What all rows share."""

    folder: Path
    sims: tuple[Process, Process]
    store: Process


class Heard(NamedTuple):
    """Answers with the fault's span, in seconds from the start, and what it took."""

    answers: list[Answer]
    from_s: float
    until_s: float


async def load(victim: Victim, name: str, args: argparse.Namespace) -> Heard:
    """Put the load on the gateway, the fault in the middle of it; return answers and span."""
    port, began_s = victim.gateway.port, time.monotonic()
    span: list[float] = []
    over = asyncio.Event()
    loop = asyncio.get_running_loop()

    def fault() -> None:
        time.sleep(BEGINS * args.seconds)
        span.append(time.monotonic() - began_s)
        FAULTS[name](victim, LASTS * args.seconds)
        span.append(time.monotonic() - began_s)
        # After a kill nobody answers: there is nothing to wait for.
        time.sleep(0 if name == KILL else (1 - BEGINS - LASTS) * args.seconds)
        loop.call_soon_threadsafe(over.set)

    async def stream(number: int) -> list[Answer]:
        found = []
        await asyncio.sleep(0.02 * number)
        for turn in itertools.count():
            if over.is_set():
                break
            due_s = time.monotonic() - began_s
            call = Call(
                due_s, f"s{number}-{turn}", chat_body("paced", "x", STREAM_TOKENS), request_id=f"s{number}-{turn}"
            )
            found.append(await ask(port, call, due_s, began_s))
            if found[-1].fault:
                await asyncio.sleep(0.05)
        return found

    async def shorts() -> list[Answer]:
        async with asyncio.TaskGroup() as group:
            tasks = []
            body = chat_body("short", "x", SHORT_TOKENS)
            for number in itertools.count():
                due_s = number / args.rps
                await asyncio.sleep(due_s - (time.monotonic() - began_s))
                if over.is_set():
                    break
                call = Call(due_s, f"c{number}", body, request_id=f"c{number}")
                tasks.append(group.create_task(ask(port, call, due_s, began_s)))
        return [task.result() for task in tasks]

    async with asyncio.TaskGroup() as group:
        parts = [group.create_task(stream(number)) for number in range(args.streams)]
        parts.append(group.create_task(shorts()))
        group.create_task(asyncio.to_thread(fault))
    answers = [answer for part in parts for answer in part.result()]
    return Heard(answers, span[0], span[1])


def lines(journal: Path) -> Iterator[dict[str, Any]]:
    """Read every whole line of a journal."""
    for path in sorted(journal.glob("*.jsonl")):
        for line in path.read_bytes().split(b"\n")[:-1]:
            yield json.loads(line)


def kinds_of(journal: Path) -> dict[str, Counter[str]]:
    """Return how many lines of each kind a request has."""
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for line in lines(journal):
        found[line["request_id"]][line["kind"]] += 1
    return found


def judged(name: str, number: int, heard: Heard, victim: Victim, cores: tuple[float, float]) -> Row:
    """Count what went wrong; after a kill, start the gateway again and see what it makes of the open calls."""
    answers, killed = heard.answers, name == KILL
    counted = [a for a in answers if not killed or a.end_s < heard.from_s]
    faults = [a for a in counted if a.fault]
    hit = [a for a in counted if a.group[0] == "c" and not a.fault]
    hit = [a for a in hit if killed or heard.from_s <= a.due_s < heard.until_s]
    times = [1000 * (a.end_s - a.due_s) for a in hit]
    if not killed:
        time.sleep(1.0)  # the journal is written every 50 ms; after a fault it has caught up
    kinds = kinds_of(victim.journal)
    # An engine was asked for sure when its first token came.
    dispatched = [a for a in answers if not math.isnan(a.first_s)]
    late_s = {a.group: heard.until_s - a.first_s for a in dispatched if not kinds[a.group]}
    no_line = [group for group, age_s in late_s.items() if not killed or age_s > LOST_S]
    ended = [a for a in counted if not a.fault and not kinds[a.group]["close"]]
    orphans = {group for group, found in kinds.items() if found["open"] and not found["close"]}
    dropped = 0.0
    if killed:
        victim.gateway.stop()
        victim.gateway.start()
        engines.wait_for(victim.gateway, "/health/serving")
        deadline = time.monotonic() + 15
        while time.monotonic() < deadline and not all(kinds_of(victim.journal)[o]["close"] for o in orphans):
            time.sleep(0.2)
        kinds = kinds_of(victim.journal)
    else:
        dropped = sum(v for k, v in victim.metrics().items() if k.startswith("forebay_journal_dropped_total"))
    streams = [1000 * (a.end_s - a.due_s) for a in counted if a.group[0] == "s" and not a.fault]
    return Row(
        fault=name,
        round=number,
        sent_per_s=sum(a.group[0] == "c" for a in answers) / max(a.due_s for a in answers if a.group[0] == "c"),
        calls=len(answers),
        failed=len(faults),
        cut=sum(a.status == 200 for a in faults),
        p50_ms=percentile(times, 0.5),
        p99_ms=percentile(times, 0.99),
        longest_stream_ms=max(streams, default=math.nan),
        no_line=len(no_line),
        twice=sum(found["close"] > 1 or found["open"] > 1 for found in kinds.values()),
        unclosed_ms=max((1000 * (heard.until_s - a.end_s) for a in ended), default=0.0),
        dropped=dropped,
        orphans=len(orphans),
        orphans_closed=sum(kinds[o]["close"] == 1 for o in orphans),
        gateway_cores=cores[0],
        busy_cores=cores[1],
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
        heard = run_loop(load(victim, name, args))
        took_s = time.monotonic() - began_s
        used_s = math.nan if name == KILL else cpu_s(pids) - used_s
        return judged(name, number, heard, victim, (used_s / took_s, (machine_busy_s() - busy_s) / took_s))


def bounds(rows: Sequence[Row], name: str) -> list[str]:
    """Say which bounds a fault has missed, over its rounds; the latency that it adds is against the round's own."""
    mine = [row for row in rows if row.fault == name]
    sums = {key: sum(getattr(row, key) for row in mine) for key in ("failed", "cut", "no_line", "twice", "dropped")}
    missed = [f"{key} {value:g}" for key, value in sums.items() if value]
    if name == KILL:
        late = max(row.unclosed_ms for row in mine)
        missed += [f"closes lost {late:.0f} ms before the kill"] * (late > 1000 * LOST_S)
        missed += ["orphans left open"] * any(row.orphans != row.orphans_closed for row in mine)
        return missed
    missed += ["calls without a close line"] * any(row.unclosed_ms or row.orphans for row in mine)
    added = spread(added_ms(rows, name, "p99_ms")).median
    return missed + [f"p99 +{added:.1f} ms"] * (added > ADDED_MS)


def added_ms(rows: Sequence[Row], name: str, figure: str) -> list[float]:
    """Return what a fault adds to a percentile in each round; in a round without a baseline, nan."""
    base = {row.round: getattr(row, figure) for row in rows if row.fault == "nothing"}
    return [getattr(row, figure) - base.get(row.round, math.nan) for row in rows if row.fault == name]


def render(rows: Sequence[Row]) -> str:
    """Lay the rows out as a table, one line for each fault: median (lowest..highest) over the rounds."""
    head: tuple[str, ...] = ("fault", "sent/s", "calls", "failed", "cut", "p50 added, ms", "p99, ms", "p99 added, ms")
    head += ("no line", "twice", "unclosed, ms", "orphans closed", "gateway cores", "busy", "verdict")
    table = [head]
    for name in dict.fromkeys(row.fault for row in rows):
        mine = [row for row in rows if row.fault == name]
        cells = [name, with_spread(spread([row.sent_per_s for row in mine])), str(sum(row.calls for row in mine))]
        cells += [str(sum(row.failed for row in mine)), str(sum(row.cut for row in mine))]
        cells.append(with_spread(spread(added_ms(rows, name, "p50_ms"))))
        cells.append(with_spread(spread([row.p99_ms for row in mine])))
        cells.append("-" if name == KILL else with_spread(spread(added_ms(rows, name, "p99_ms"))))
        cells += [str(sum(row.no_line for row in mine)), str(sum(row.twice for row in mine))]
        cells.append(f"{max(row.unclosed_ms for row in mine):.0f}")
        cells.append(f"{sum(row.orphans_closed for row in mine)} of {sum(row.orphans for row in mine)}")
        cells += [
            f"{spread([getattr(row, key) for row in mine]).median:.2f}" for key in ("gateway_cores", "busy_cores")
        ]
        cells.append("FAIL: " + ", ".join(missed) if (missed := bounds(rows, name)) else "pass")
        table.append(tuple(cells))
    widths = [max(len(row[i]) for row in table) for i in range(len(head))]
    return "\n".join("  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in table)


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
                if args.only and name not in ("nothing", *args.only):
                    continue
                try:
                    rows.append(one_row(name, number, stand, args))
                    print(f"  {number + 1} {name}: {rows[-1].calls} calls, {rows[-1].failed} failed", flush=True)
                except CannotRun as error:
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
    return not left_out and not any(bounds(rows, row.fault) for row in rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, save. Exit 0: every bound holds; 1: one does not; 2: it could not be measured."""
    args, machine = arguments(argv), describe_machine()
    return exits_cleanly(lambda: measure(args, machine))


if __name__ == "__main__":
    sys.exit(main())
