"""`forebay prove`: the same load on an engine directly and through Forebay, with no configuration."""

import asyncio
import os
import platform
import resource
import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from msgspec import Struct
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table as RichTable

from forebay import __version__
from forebay.cli.front import answers, forebay_in_front, free_port, running, until
from forebay.clock import Clock, SystemClock, timestamp
from forebay.config.addresses import parse_replica
from forebay.config.load import environment
from forebay.domain import Replica
from forebay.engines import embedded
from forebay.engines.contract import Capabilities
from forebay.engines.discovery import PORTS, discover
from forebay.engines.probe import probe
from forebay.release.figures import report
from forebay.release.load import Client, Target
from forebay.release.mix import Lengths, check_context, lengths_for
from forebay.release.proof import Proof, Run, Unprovable, compare, measure_speed, timing_for
from forebay.release.table import Document, EngineFacts, MachineFacts, Origin, document, table
from forebay.upstream.connections import Connections
from forebay.upstream.fetch import Fetcher

_EXACT_KINDS = frozenset(("vllm", "sglang", "llamacpp"))  # they take `ignore_eos`
_WIDTH = 120  # of the table when the output is no terminal


class Wish(Struct, frozen=True):
    """What the user asked for; `key_env` names the variable that holds the engine's key."""

    url: str | None = None
    model: str | None = None
    seconds: float = 60.0
    key_env: str | None = None
    seed: int = 1


class Found(Struct, frozen=True):
    """The engine to measure: how to call it, its URL for the configuration, what it is."""

    replica: Replica
    url: str
    known: Capabilities


def run_prove(wish: Wish, *, as_json: bool = False) -> int:
    """Measure, and print the comparison.

    Args:
        wish: what to measure and for how long.
        as_json: print one JSON document instead of the table.

    Returns:
        The exit code: 0 done, 1 the engine cannot be measured, 2 wrong usage, 130 interrupted.
    """
    clock = SystemClock()
    try:
        timing = timing_for(wish.seconds)
        key = _key(wish)
        if wish.url is not None:
            _check_url(wish.url, key)
    except ValueError as error:
        print(f"forebay prove: {error}", file=sys.stderr)
        return 2
    _raise_descriptor_limit()
    console = Console(stderr=True)
    with _Bar(console, wish.seconds) as bar, asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        run = Run(timing, str(wish.seed), f"{wish.seed}/{clock.wall_s()}", clock, bar.stage)
        try:
            made = runner.run(_until_signal(lambda: _prove(wish, key, run, bar)))
        except Unprovable as error:
            bar.stop()
            print(f"forebay prove: {error}", file=sys.stderr)
            return 1
        except asyncio.CancelledError:
            bar.stop()
            print("forebay prove: stopped; nothing was measured to the end", file=sys.stderr)
            return 130
    _print(made, as_json)
    return 0


def _key(wish: Wish) -> str:
    if wish.key_env is None:
        return ""
    key = environment().get(wish.key_env, "").strip()
    if not key:
        raise ValueError(f"--key-env {wish.key_env}: there is no such variable, or it is empty; export it first")
    return key


def _check_url(url: str, key: str) -> None:
    try:
        parse_replica(url, key)
    except ValueError as error:
        raise ValueError(f"--url: {error}") from None


async def _until_signal(work: Callable[[], Awaitable[Document]]) -> Document:
    """Run; the first SIGINT or SIGTERM cancels, so that what was started is stopped. Later ones change nothing."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    heard = False

    def cancel() -> None:
        nonlocal heard
        if not heard and task is not None:
            heard = True
            task.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, cancel)
    return await work()


async def _prove(wish: Wish, key: str, run: Run, bar: "_Bar") -> Document:
    loop = asyncio.get_running_loop()
    connections = Connections(loop, run.clock)
    fetch = Fetcher(loop, connections)
    async with AsyncExitStack() as stack:
        stack.callback(connections.close)
        found = await _find(wish, key, fetch, stack, bar)
        model = _model(wish, found)
        direct = Client(Target(found.replica, model, found.known.kind in _EXACT_KINDS), run.clock)
        bar.stage("speed of the engine", 2.0)
        try:
            check_context(_context(found.known))
            speed = await measure_speed(direct, min(found.known.slots or 8, 16), run.salt)
            lengths = lengths_for(speed, _context(found.known), run.timing.arm_s)
        except (Unprovable, ValueError) as error:
            raise Unprovable(f"{found.replica.name}: {error}") from None
        bar.stage("start of Forebay", 0.0)
        ports = (free_port(), free_port())
        settings = front_settings(found, model, wish, ports, lengths)
        front = await stack.enter_async_context(forebay_in_front(settings, ports, fetch))
        through = Client(Target(front, model, found.known.kind in _EXACT_KINDS), run.clock)
        proof = await compare({"direct": direct, "forebay": through}, speed, lengths, found.known.slots, run)
    return _document(wish, found, model, proof, run.clock)


async def _find(wish: Wish, key: str, fetch: Fetcher, stack: AsyncExitStack, bar: "_Bar") -> Found:
    """Return the engine that was named, else one that runs here, else the embedded one."""
    if wish.url is not None:
        replica = parse_replica(wish.url, key)
        known = await probe(replica, fetch)
        if not known.models:
            raise Unprovable(f"{replica.name}: {await _why_not(replica, known, fetch)}")
        return Found(replica, wish.url, known)
    usable = [engine for engine in await discover(fetch) if engine.models]
    if usable:
        bar.note(f"Found an engine at {usable[0].replica.name}; name another with --url.")
        return Found(usable[0].replica, f"http://{usable[0].replica.name}", usable[0].capabilities)
    ports = ", ".join(map(str, PORTS))
    missing = embedded.available()
    if missing is not None:
        raise Unprovable(f"no engine runs on 127.0.0.1 (ports {ports}); name one with --url, or: {missing}")
    bar.note(f"No engine on 127.0.0.1 (ports {ports}): the small embedded llama.cpp is measured.")
    port = free_port()
    replica = Replica(f"127.0.0.1:{port}", "127.0.0.1", port)
    child = await stack.enter_async_context(running("embedded engine", embedded.command(port)))
    await until(child, lambda: answers(replica, "/health", fetch))
    return Found(replica, f"http://{replica.name}", await probe(replica, fetch))


async def _why_not(replica: Replica, known: Capabilities, fetch: Fetcher) -> str:
    if known.guarded:
        return "it wants an API key, or refuses this one; put it into a variable and name that: --key-env NAME"
    if known.identified:
        return "no model is loaded; load one first"
    try:
        status, _ = await fetch(replica, "/v1/models", 2.0)
    except OSError as error:
        reason = error.strerror or str(error) or "no answer in time"
        return f"cannot be reached ({reason}); is the engine running, and --url right?"
    return f"is no OpenAI-compatible engine: HTTP {status} at /v1/models; check --url"


def _model(wish: Wish, found: Found) -> str:
    models = found.known.models
    if not models:
        raise Unprovable(f"{found.replica.name}: no model is loaded; load one first")
    if wish.model is None:
        return models[0]
    if wish.model not in models:
        shown = ", ".join(models[:5]) + (", ..." if len(models) > 5 else "")
        raise Unprovable(f"{found.replica.name}: there is no model {wish.model!r}; it serves: {shown}")
    return wish.model


def _context(known: Capabilities) -> int | None:
    """Return the tokens of one call: llama.cpp divides its room among its slots."""
    bounds = [known.max_model_len]
    if known.kind == "llamacpp" and known.slots and known.kv_tokens:
        bounds.append(known.kv_tokens // known.slots)
    return min((bound for bound in bounds if bound is not None), default=None)


def front_settings(found: Found, model: str, wish: Wish, ports: tuple[int, int], lengths: Lengths) -> dict[str, Any]:
    """Return the configuration of the Forebay in front: the defaults, this engine, and what counts as long here."""
    pool: dict[str, Any] = {"engine": found.known.kind, "replicas": [{"url": found.url}]}
    if found.known.slots is not None:
        pool["max_in_flight"] = found.known.slots
    if wish.key_env is not None:
        pool["api_key"] = f"env:{wish.key_env}"
    return {
        "listen": f"127.0.0.1:{ports[0]}",
        "admin": f"127.0.0.1:{ports[1]}",
        "pools": {"proven": pool},
        "models": {model: {"pool": "proven"}},
        "admission": {"long_prompt_tokens": lengths.lane_tokens},
        "log": {"level": "warning"},
        "shutdown": {"grace_s": 1.0},
    }


def _document(wish: Wish, found: Found, model: str, proof: Proof, clock: Clock) -> Document:
    known = found.known
    engine = EngineFacts(known.product, known.version, found.replica.name, model, known.slots, _context(known))
    origin = Origin(__version__, timestamp(clock.wall_s()), engine, _machine(), wish.seconds, wish.seed)
    return document(origin, proof, report(proof, str(wish.seed)))


def _machine() -> MachineFacts:
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        cores = os.cpu_count() or 1
    name = platform.processor() or platform.machine()
    with suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
        name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), name)
    return MachineFacts(cores, name or "unknown CPU", f"{platform.system()} {platform.release()}")


def _print(made: Document, as_json: bool) -> None:
    if as_json:
        print(msgspec.json.format(msgspec.json.encode(made), indent=2).decode())
        return
    text = table(made)
    console = Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False, markup=False)
    for line in text.head:
        console.print(line, soft_wrap=True)
    shown = RichTable(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, column in enumerate(text.columns):
        shown.add_column(column, justify="left" if number in (0, len(text.columns) - 1) else "right", no_wrap=True)
    for row in text.rows:
        shown.add_row(*row)
    console.print()
    console.print(shown)
    console.print()
    for line in text.foot:
        console.print(line, soft_wrap=True)


class _Bar:
    """Shows what is being done, on a terminal with a bar, else line by line."""

    def __init__(self, console: Console, seconds: float) -> None:
        self._console = console
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        self._progress = Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
        self._task: TaskID = self._progress.add_task("looking for the engine", total=seconds)
        self._done_s = 0.0

    def __enter__(self) -> "_Bar":
        self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Take the bar away."""
        self._progress.stop()

    def note(self, line: str) -> None:
        """Say something that stays."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def stage(self, text: str, seconds: float) -> None:
        """Begin the next stage; the bar stands where the stages before it end."""
        self._progress.update(self._task, description=text, completed=self._done_s)
        self._done_s += seconds
        if self._progress.disable:
            self.note(text)


def _raise_descriptor_limit() -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # some systems call it unlimited and allow less
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
