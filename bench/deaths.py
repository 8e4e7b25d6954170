"""Do clients notice that an engine dies in the middle of their answers? `python -m bench.deaths`.

Simulated engines whose every token is known before it is said, in processes of their own, behind a real gateway: they
are killed, stopped, cut, made to fail inside the stream or to fall silent under many streams at once, in all four
modes of a continuation. With `--llamacpp N` also N deaths of real llama.cpp (`bench.deaths_real`).
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import uvloop

from bench import deaths_real, engines
from bench.answers import Heard, Wanted, hear
from bench.deaths_real import ask_json
from bench.deaths_table import Death, Finding, counted, render
from bench.peers import CannotRun, Process
from bench.run import RESULTS, describe_machine, exits_cleanly, write_json
from forebay.engines.sim import SimSpec
from forebay.engines.sim.spec import VocabularyName
from forebay.engines.sim.tokens import VOCABULARIES

MODEL = "sim"
SPEC = SimSpec(iteration_base_ms=8, ms_per_prefill_token=0, ms_per_decode_seq=0.05)
TOKENS = 60
AT_ONCE = 34
STALL_S = 1.0
SECRET = "a system prompt that nobody may see, with signs of its own: 7f3a9c"
KINDS = ("rst", "error", "hang", "kill", "fin", "stop", "abort")
MODES = ("exact", "text", "words", "restart")
HANGS = frozenset({"hang", "stop"})
SETTINGS: dict[str, Any] = {
    "timeouts": {"connect_s": 1, "first_byte_s": 5, "stall_s": STALL_S, "total_s": 60},
}
STEPS: dict[str, dict[str, Any]] = {
    "rst": {"action": "cut", "how": "rst"},
    "fin": {"action": "cut", "how": "fin"},
    "error": {"action": "error_event"},
    "abort": {"action": "abort_finish"},
    "hang": {"action": "stall"},
}


class Case(NamedTuple):
    """One round: how engines die, how answers go on, in which vocabulary."""

    kind: str
    mode: str
    vocabulary: VocabularyName


class Stand(NamedTuple):
    """What is measured.

    Attributes:
        sims: the two engines.
        killed: numbers of those that were killed, in order: one that has come back gets few calls at first.
    """

    sims: tuple[Process, Process]
    gateway: Process
    journal: Path
    numbers: "itertools.count[int]"
    killed: list[int]

    async def round(self, case: Case) -> list[Death]:
        """Let an engine die under many streams; return what became of those that it had begun."""
        victim = 1 - self.killed[-1]
        self._script(case, victim)
        wanted = [self._wanted(case) for _ in range(AT_ONCE)]
        tasks = [asyncio.ensure_future(hear(self.gateway.port, one)) for one in wanted]
        pid = self.sims[victim].pids()[0]
        if case.kind in ("kill", "stop"):
            # Early enough that none is over, late enough that all have begun.
            await asyncio.sleep(0.15 + 0.02 * (next(self.numbers) % 7))
            os.kill(pid, signal.SIGKILL if case.kind == "kill" else signal.SIGSTOP)
        heard = await asyncio.gather(*tasks)
        if case.kind == "stop":
            os.kill(pid, signal.SIGCONT)
        if case.kind == "kill":
            self.killed.append(victim)
            await asyncio.to_thread(self._again, self.sims[victim])
        rows = await self._rows([one.request_id for one in wanted])
        text = VOCABULARIES[case.vocabulary].texts(0, TOKENS)
        met = [(one, rows.get(w.request_id, [])) for w, one in zip(wanted, heard, strict=True)]
        return [judged(case, one, text, found) for one, found in met if died(one, found)]

    def _script(self, case: Case, victim: int) -> None:
        step = STEPS.get(case.kind)
        steps = [step | {"after_tokens": 1 + 7 * n % (TOKENS - 1)} for n in range(2 * AT_ONCE)] if step else []
        refuses = [{"action": "refuse_prefix", "always": True}] if case.mode == "restart" else []
        for number, sim in enumerate(self.sims):
            ask_json(sim.port, "/sim/faults", steps if number == victim and steps else refuses)

    def _wanted(self, case: Case) -> Wanted:
        number = next(self.numbers)
        body: dict[str, Any] = {"model": MODEL, "stream": True, "max_tokens": TOKENS, "sim_vocabulary": case.vocabulary}
        body["stream_options"] = {"include_usage": True}
        if case.mode != "exact":
            # To leave a stop string out, an engine holds text back: its ids run ahead, and the answer goes on by text.
            body["stop"] = ["nobody says this"]
        if case.mode == "words":
            body["temperature"] = 0
        shape = "completions" if number % 2 else "chat"
        if shape == "chat":
            body["messages"] = [{"role": "system", "content": SECRET}, {"role": "user", "content": f"call {number}"}]
        else:
            body["prompt"] = f"{SECRET} {number}"
        return Wanted(f"death-{number}", shape, body)

    async def _rows(self, names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
        """Wait for the close lines of these calls."""
        for _ in range(100):
            rows = read_rows(self.journal, names)
            if len(rows) == len(names):
                break
            await asyncio.sleep(0.03)
        return rows

    def _again(self, dead: Process) -> None:
        """Start a killed engine again, and wait until it gets calls."""
        dead.stop()
        dead.start()
        name = f'forebay_replica_up{{pool="main",replica="127.0.0.1:{dead.port}"}}'
        deadline = time.monotonic() + 20
        time.sleep(2.2)  # the gateway polls every 2 s
        while engines.samples(engines.fetch(self.gateway.port, "/metrics").decode()).get(name) != 1.0:
            if time.monotonic() > deadline:
                raise CannotRun("an engine that was started again gets no calls")
            time.sleep(0.1)


def read_rows(journal: Path, names: Sequence[str]) -> dict[str, list[dict[str, Any]]]:
    """Read the close lines of some calls."""
    wanted = set(names)
    found: dict[str, list[dict[str, Any]]] = {}
    # Rounds are short: the latest lines of the latest files have them.
    for path in sorted(journal.glob("*.jsonl"))[-2:]:
        for line in path.read_bytes().split(b"\n")[:-1][-8 * AT_ONCE :]:
            if b'"outcome"' in line:
                row = json.loads(line)
                if row["request_id"] in wanted:
                    found.setdefault(row["request_id"], []).append(row)
    return found


def died(heard: Heard, rows: list[dict[str, Any]]) -> bool:
    """Say whether an answer met a death, or went wrong in any other way."""
    return not heard.whole or len(rows) != 1 or len(rows[0]["attempts"]) > 1


def judged(case: Case, heard: Heard, expected: str, rows: list[dict[str, Any]]) -> Death:
    """Compare an answer with the one that would have come without a death."""
    row = rows[0] if len(rows) == 1 else {}
    usage = heard.usages[-1] if len(heard.usages) == 1 else {}
    said = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    # Where an answer has gone on by its text, and no ids were counted, events are.
    counts = row and said == (row["input_length"], row["output_length"])
    exact = row.get("output_length") == TOKENS or bool(row.get("usage_estimated"))
    return Death(
        kind=case.kind,
        mode=case.mode,
        vocabulary=case.vocabulary,
        hang=case.kind in HANGS,
        whole=heard.whole,
        error=heard.error,
        wrong_chars=wrong_chars(heard.text, expected, whole=heard.whole),
        leaked=SECRET.encode() in heard.raw or b'token_ids":[' in heard.raw,
        replaced="\ufffd" in heard.text,
        gap_s=heard.gap_s,
        prefill_s=0.0,
        rows=len(rows),
        sums=bool(counts and exact and usage.get("total_tokens") == sum(v or 0 for v in said)),
        exact_usage=row.get("output_length") == TOKENS and not row.get("usage_estimated"),
        continued=int(row.get("continued") or 0),
        same=heard.text == expected,
        agrees=heard.text == expected,
    )


def wrong_chars(text: str, expected: str, *, whole: bool) -> int:
    """Return how many characters are lost or doubled; what a typed error leaves out is not lost silently."""
    if text == expected or (not whole and expected.startswith(text)):
        return 0
    same = len(os.path.commonprefix([text, expected]))
    return max(len(text), len(expected)) - same


def on_sims(count: int, command: str) -> list[Death]:
    """Let so many answers go through a death on simulated engines."""
    cores = engines.split_cores()
    with engines.workshop(cores.front) as (folder, started):
        sims = tuple(started(engines.simulator(f"sim{n}", folder, cores.engine, SPEC)) for n in range(2))
        pool = {"breaker": {"failures": 1_000_000, "open_s": 1}}
        settings = engines.one_pool("vllm", [sim.port for sim in sims], MODEL, **pool) | SETTINGS
        gateway = started(engines.gateway(folder, cores.front, settings, command))
        engines.wait_for(gateway, "/health/serving")
        time.sleep(2.5)  # the gateway's first poll tells it that the engines send token ids
        stand = Stand((sims[0], sims[1]), gateway, folder / "data" / "journal", itertools.count(), [1])
        return run(rounds(stand, count))


async def rounds(stand: Stand, count: int) -> list[Death]:
    """Go through all cases until there are enough deaths."""
    names: tuple[VocabularyName, ...] = ("ascii", "unicode")
    cases = [Case(kind, mode, name) for kind in KINDS for name in names for mode in MODES]
    random.Random(1).shuffle(cases)
    found: list[Death] = []
    for number, case in enumerate(itertools.cycle(cases)):
        if len(found) >= count or number > 20 * len(cases):
            break
        found += await stand.round(case)
        print(f"\r{len(found)} deaths of {count}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


def run(work: Coroutine[Any, Any, list[Death]]) -> list[Death]:
    """Run on uvloop, since the client must be cheap."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def arguments(argv: Sequence[str] | None) -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="bench.deaths", description="Engines that die in the middle of answers.")
    parser.add_argument("--deaths", type=int, default=1000, help="on simulated engines (default 1000)")
    parser.add_argument("--llamacpp", type=int, default=0, help="on two real llama.cpp engines (default 0)")
    parser.add_argument("--forebay-cmd", default=engines.FOREBAY, help="command with {config}, {data} and {port}")
    parser.add_argument("--json", type=Path, help="where the figures go (default bench/results/local/)")
    return parser.parse_args(argv)


def measure(args: argparse.Namespace, machine: dict[str, str]) -> bool:
    """Measure, print, save; return whether every mark is reached."""
    began_s = time.monotonic()
    parts: list[tuple[str, int, Callable[[int, str], list[Death]]]] = [
        ("simulated", args.deaths, on_sims),
        ("llama.cpp", args.llamacpp, deaths_real.on_llamacpp),
    ]
    found = {name: part(count, args.forebay_cmd) for name, count, part in parts if count}
    findings: list[Finding] = [f for name, deaths in found.items() for f in counted(name, deaths)]
    print("\n".join(f"{key}: {value}" for key, value in machine.items()))
    print(f"\n{render(found, findings)}")
    path = args.json or RESULTS / f"deaths-{machine['date'].replace(':', '')}.json"
    raw = {name: [death._asdict() for death in deaths] for name, deaths in found.items()}
    write_json(path, {"machine": machine, "findings": [f._asdict() for f in findings], "deaths": raw})
    print(f"\n{time.monotonic() - began_s:.0f} s; every death in {path}")
    return all(finding.passed for finding in findings)


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, print, save. Exit 0: every mark is reached; 1: one is not; 2: it could not be measured."""
    args, machine = arguments(argv), describe_machine()
    return exits_cleanly(lambda: measure(args, machine))


if __name__ == "__main__":
    sys.exit(main())
