"""`forebay plan`: compare policies on a virtual clock, and fit the model to a real engine."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random
from typing import Annotated

import msgspec
import typer
from msgspec import Struct
from rich import box
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.table import Table

from forebay.cli.calibrated import read_spec
from forebay.cli.options import AS_JSON
from forebay.clock import SystemClock
from forebay.engines.sim import SimSpec
from forebay.plan.calibrate import Calibration, Effort, calibrate
from forebay.plan.compare import Study, compare, policy_names
from forebay.plan.report import Slo, Spread, Summary, as_json, spread
from forebay.plan.timing import Engine, EngineError
from forebay.plan.traces import TraceError, read_folder

# Field of Summary, heading, factor, decimals.
_COLUMNS = (
    ("in_slo_ratio", "in SLO %", 100, 1),
    ("short_in_slo_ratio", "short %", 100, 1),
    ("long_in_slo_ratio", "long %", 100, 1),
    ("refused_ratio", "refused %", 100, 1),
    ("short_p50_s", "short P50 s", 1, 2),
    ("short_p99_s", "short P99 s", 1, 2),
    ("long_p99_s", "long P99 s", 1, 2),
    ("slo_tokens_ratio", "SLO tokens %", 100, 1),
    ("goodput_tokens_per_s", "SLO tokens k/s", 0.001, 1),
    ("throughput_tokens_per_s", "all tokens k/s", 0.001, 1),
)
_SPEEDS = (
    ("iteration_base_ms", "ms for an iteration"),
    ("ms_per_prefill_token", "ms for a prompt token"),
    ("ms_per_decode_seq", "ms for a decoding sequence"),
)


class Comparison(Struct, frozen=True, kw_only=True):
    """What `forebay plan compare` is asked for: its options."""

    traces: Annotated[Path | None, typer.Option(help="Folder with public traces; without it arrivals are made.")] = None
    engine: Annotated[Path | None, typer.Option(help="JSON of `forebay plan calibrate` [the engine of the study].")] = (
        None
    )
    replicas: Annotated[int, typer.Option(help="Engines.")] = 3
    load_ratio: Annotated[float, typer.Option("--load", help="Of the prefill peak of all engines.")] = 0.87
    policies: Annotated[
        list[str], typer.Option("--policy", help="A policy to compare; may come several times [all].")
    ] = []
    realisations: Annotated[int, typer.Option(help="Samples of the traffic.")] = 3
    seconds: Annotated[float, typer.Option(help="Length of each, on the virtual clock.")] = 1500.0
    seed: Annotated[int, typer.Option(help="Of what is random.")] = 1
    slo_short_s: Annotated[float, typer.Option(help="Until the first token of a short prompt.")] = 1.0
    slo_long_s: Annotated[float, typer.Option(help="Until the first token of a long prompt.")] = 10.0
    json: Annotated[bool, AS_JSON] = False


class Calibrating(Struct, frozen=True, kw_only=True):
    """What `forebay plan calibrate` is asked for: its options."""

    url: Annotated[str, typer.Option(help="The engine.")]
    model: Annotated[str, typer.Option(help="Its name there.")]
    key_file: Annotated[Path | None, typer.Option(help="A file with the engine's API key.")] = None
    slots: Annotated[int, typer.Option(help="Calls that the engine runs at once.")] = 4
    chunk_tokens: Annotated[int, typer.Option(help="Tokens that it computes in one iteration at most.")] = 2048
    kv_tokens: Annotated[int, typer.Option(help="Its KV room.")] = 400_000
    longest_tokens: Annotated[int, typer.Option(help="Longest prompt that is tried, roughly.")] = 1024
    seed: Annotated[int, typer.Option(help="Of the prompts and the mixed load.")] = 1
    json: Annotated[bool, AS_JSON] = False


def run_plan_compare(wanted: Comparison) -> int:
    """Compare ways of letting calls in, on simulated engines and the same arrivals.

    Returns:
        Exit code: 0, or 2 when the options or a file cannot be used.
    """
    try:
        study = Study(
            traces=tuple(tuple(trace) for trace in read_folder(wanted.traces)) if wanted.traces is not None else (),
            spec=read_spec(wanted.engine),
            replicas=wanted.replicas,
            load_ratio=wanted.load_ratio,
            seconds=wanted.seconds,
            realisations=wanted.realisations,
            seed=wanted.seed,
            slo=Slo(wanted.slo_short_s, wanted.slo_long_s),
        )
        with _bar() as tell:
            results = compare(study, tuple(wanted.policies) or policy_names(study), tell)
    except (OSError, TraceError, ValueError) as error:
        return _failed(error)
    if wanted.json:
        _print_json({"setup": _setup(wanted), "policies": as_json(results)})
    else:
        Console().print(_table(study, results))
    return 0


def run_plan_calibrate(wanted: Calibrating) -> int:
    """Fit the model of the planner to a real engine, and state its error.

    Returns:
        Exit code: 0; 2 when the options cannot be used; 1 when the engine could not be measured.
    """
    try:
        key = wanted.key_file.read_text(encoding="utf-8").strip() if wanted.key_file is not None else ""
        spec = SimSpec(
            max_num_seqs=wanted.slots,
            max_num_batched_tokens=max(wanted.chunk_tokens, wanted.slots),
            kv_tokens=wanted.kv_tokens,
            max_model_len=wanted.kv_tokens // 16 * 16,
            models=(wanted.model,),
        )
        engine = Engine(wanted.url, wanted.model, key, SystemClock(), Random(wanted.seed))
    except (OSError, ValueError) as error:
        return _failed(error)
    try:
        with _bar() as tell:
            effort = Effort(longest_words=wanted.longest_tokens)
            found = calibrate(engine, spec, effort, Random(wanted.seed), lambda step: tell(step, None))
    except (EngineError, ValueError) as error:
        return _failed(error, code=1)
    if wanted.json:
        errors = {one.name: msgspec.to_builtins(one) | {"error_ratio": one.error_ratio} for one in found.errors}
        _print_json({"spec": found.spec, "requests": found.requests, "errors": errors})
    else:
        _show(found)
    return 0


def _failed(error: Exception, code: int = 2) -> int:
    print(f"forebay plan: {error}", file=sys.stderr)
    return code


def _print_json(document: dict[str, object]) -> None:
    print(msgspec.json.format(msgspec.json.encode(document)).decode())


def _setup(wanted: Comparison) -> dict[str, object]:
    """Return the options as plain values; folders stay out, they may name a person."""
    files = {"traces": wanted.traces is not None, "engine": wanted.engine is not None}
    return msgspec.structs.asdict(wanted) | files


def _table(study: Study, results: dict[str, list[Summary]]) -> Table:
    requests = [one.requests for summaries in results.values() for one in summaries]
    title = (
        f"{study.replicas} engines at {study.load_ratio:.0%} of their prefill peak, "
        f"{study.realisations} realisations of {min(requests)} to {max(requests)} requests; "
        f"SLO {study.slo.short_s:g} s short, {study.slo.long_s:g} s long"
    )
    caption = "Means over the realisations; +- is their standard deviation. A refusal is not in SLO."
    if study.cells > 1:
        caption += f" One cell of {study.cell_replicas} engines was run, and its sums scaled."
    table = Table(title=title, caption=caption, box=box.SIMPLE, padding=(0, 1, 0, 0))
    table.add_column("policy", no_wrap=True)
    for _, heading, _, _ in _COLUMNS:
        table.add_column(heading, justify="right")
    for name, summaries in results.items():
        columns = spread(summaries)
        cells = [_cell(columns[field], factor, digits) for field, _, factor, digits in _COLUMNS]
        in_slo = columns["in_slo_ratio"]
        if in_slo is not None and len(summaries) > 1:
            cells[0] += f" +-{100 * in_slo.deviation:.1f}"
        table.add_row(name, *cells)
    return table


def _cell(value: Spread | None, factor: float, digits: int) -> str:
    return "-" if value is None else f"{value.mean * factor:.{digits}f}"


def _show(found: Calibration) -> None:
    for field, unit in _SPEEDS:
        print(f"{field:22} {getattr(found.spec, field):10.3f}  {unit}")
    print(f"\non a mixed load of {found.requests} requests that the fit has not seen:")
    for error in found.errors:
        numbers = f"{1000 * error.measured_s:9.1f} ms measured {1000 * error.modelled_s:9.1f} ms modelled"
        print(f"{error.name:9} {numbers} {error.error_ratio:+7.1%}")


@contextmanager
def _bar() -> Iterator[Callable[[str, float | None], None]]:
    """Show a bar on standard error while it is a terminal; give what moves it."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def tell(name: str, share: float | None) -> None:
            if share is None:
                bar.update(task, description=name)
            else:
                bar.update(task, description=name, total=1.0, completed=share)

        yield tell
