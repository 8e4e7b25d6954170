"""`forebay traffic`: what came in, read from the journal: lengths, reuse, hours, outcomes."""

import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table

from forebay.clock import SystemClock, timestamp
from forebay.recording.census import Group, Guesses, Lengths, Template, Traffic
from forebay.recording.reading import Reader

_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_SPAN = re.compile(r"(\d{1,6})([smhd])")
_BAR = 30  # characters of the longest bar
_SHOWN = 15  # rows of a list that could be long
_WIDTH = 120  # when the output is no terminal


class _Document(Struct, frozen=True):
    """The form for machines; `skipped` lines of the journal could not be read."""

    since: str
    segments: int
    skipped: int
    traffic: Traffic


def run_traffic(data_dir: Path, since: str, *, as_json: bool = False) -> int:
    """Count the journal and print what it shows.

    Args:
        data_dir: of the Forebay whose journal is read, running or not.
        since: how far back, such as `90m`, `24h` or `7d`.
        as_json: print one JSON document instead of tables.

    Returns:
        The exit code: 0 done, also with an empty journal; 1 it cannot be read; 2 wrong usage.
    """
    span_s = span_of(since)
    if span_s is None:
        print(f"forebay traffic: --since {since}: write a number and s, m, h or d, such as 24h", file=sys.stderr)
        return 2
    from_s = SystemClock().wall_s() - span_s
    folder = data_dir / "journal"
    reader = Reader(folder)
    traffic = Traffic()
    try:
        for line in reader.closes(from_s):
            traffic.add(line)
    except OSError as error:
        print(f"forebay traffic: {error.filename or folder} cannot be read: {error.strerror}", file=sys.stderr)
        return 1
    if as_json:
        made = _Document(timestamp(from_s), reader.segments, reader.skipped, traffic)
        print(msgspec.json.format(msgspec.json.encode(made), indent=2).decode())
    else:
        _show(traffic, reader, folder, since)
    return 0


def span_of(text: str) -> float | None:
    """Return the seconds of a span such as `24h`; None when it is not one."""
    match = _SPAN.fullmatch(text.strip())
    return float(match[1]) * _UNITS_S[match[2]] if match else None


def _show(traffic: Traffic, reader: Reader, folder: Path, since: str) -> None:
    console = Console(width=None if sys.stdout.isatty() else _WIDTH, highlight=False, markup=False)
    if reader.skipped:
        console.print(f"Lines left out because they are half written or damaged: {reader.skipped:,}.")
    if not traffic.calls:
        console.print(_nothing(folder, since), soft_wrap=True)
        return
    first, last = timestamp(traffic.first_s or 0.0), timestamp(traffic.last_s or 0.0)
    console.print(f"{traffic.calls:,} calls ended between {first} and {last}", soft_wrap=True)
    console.print(
        f"{traffic.input.tokens:,} input and {traffic.output.tokens:,} output tokens; the engine did not count "
        f"those of {_share(traffic.estimated, traffic.calls)} of the calls"
    )
    for table in _tables(traffic):
        if table.row_count:
            console.print()
            console.print(table)
    console.print()
    for line in _facts(traffic):
        console.print(line, soft_wrap=True)


def _nothing(folder: Path, since: str) -> str:
    if not folder.is_dir():
        return f"There is no journal in {folder}: name the folder of the running Forebay with --data-dir."
    return f"No call ended in the last {since}, says the journal in {folder}; look further back with --since 7d."


def _tables(traffic: Traffic) -> Iterator[Table]:
    yield _histogram("Input tokens", traffic.input)
    yield _histogram("Output tokens", traffic.output)
    yield _long_inputs(traffic)
    yield _groups(list(traffic.groups.values()))
    yield _templates(list(traffic.templates.values()))
    yield _hours(traffic)
    yield _counts("Outcome", traffic.outcomes, traffic.calls)
    yield _counts("Error", traffic.codes, traffic.calls)


def _table(*columns: str) -> Table:
    """Return an empty table: the first column is left-aligned, the others are numbers."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left", no_wrap=True)
    return table


def _bars(table: Table, rows: Sequence[tuple[str, int, Sequence[str]]]) -> Table:
    """Fill a table with name, number, further cells and a bar for the number."""
    table.add_column("", justify="left", no_wrap=True)
    most = max((number for _, number, _ in rows), default=0)
    for name, number, cells in rows:
        length = max(1, round(_BAR * number / most)) if number and most else 0
        table.add_row(name, f"{number:,}", *cells, "█" * length)
    return table


def _histogram(title: str, lengths: Lengths) -> Table:
    used = [number for number, calls in enumerate(lengths.buckets) if calls]
    rows: list[tuple[str, int, Sequence[str]]] = []
    if used:
        for number in range(used[0], used[-1] + 1):
            calls = lengths.buckets[number]
            rows.append((_range_of(number), calls, (_share(calls, lengths.calls),)))
    return _bars(_table(title, "calls", "share"), rows)


def _range_of(bucket: int) -> str:
    return "0" if bucket == 0 else "1" if bucket == 1 else f"{1 << (bucket - 1):,} .. {(1 << bucket) - 1:,}"


def _long_inputs(traffic: Traffic) -> Table:
    table = _table("Input longer than", "calls", "share of calls", "share of input tokens")
    for above in traffic.above:
        shares = _share(above.calls, traffic.input.calls), _share(above.tokens, traffic.input.tokens)
        table.add_row(f"{above.threshold_tokens:,}", f"{above.calls:,}", *shares)
    return table


def _groups(groups: list[Group]) -> Table:
    table = _table("Tenant", "model", "calls", "input", "P50 <=", "P95 <=", "P99 <=", "output", "P50 <=", "P95 <=")
    for group in sorted(groups, key=lambda g: -(g.input.tokens + g.output.tokens))[:_SHOWN]:
        table.add_row(
            group.tenant,
            group.model,
            f"{group.calls:,}",
            f"{group.input.tokens:,}",
            *(_length(group.input.percentile(ratio)) for ratio in (0.5, 0.95, 0.99)),
            f"{group.output.tokens:,}",
            *(_length(group.output.percentile(ratio)) for ratio in (0.5, 0.95)),
        )
    return table


def _templates(templates: list[Template]) -> Table:
    rows: list[tuple[str, int, Sequence[str]]] = [
        (_plain(t.name), t.calls, (f"{t.input_tokens:,}", f"{t.output_tokens:,}"))
        for t in sorted(templates, key=lambda t: -t.calls)[:_SHOWN]
    ]
    return _bars(_table(f"Template ({len(templates)})", "calls", "input", "output"), rows)


def _hours(traffic: Traffic) -> Table:
    rows: list[tuple[str, int, Sequence[str]]] = [
        (f"{hour.hour:02d}:00", hour.calls, (f"{hour.tokens:,}",)) for hour in traffic.hours if hour.calls
    ]
    return _bars(_table("Hour (UTC)", "calls", "tokens"), rows)


def _counts(title: str, counts: dict[str, int], calls: int) -> Table:
    some: Iterable[tuple[str, int]] = sorted(counts.items(), key=lambda item: -item[1])
    rows: list[tuple[str, int, Sequence[str]]] = [(n, c, (_share(c, calls),)) for n, c in some if c]
    return _bars(_table(title, "calls", "share"), rows[:_SHOWN])


def _facts(traffic: Traffic) -> Iterator[str]:
    if traffic.cache_calls:
        part = _share(traffic.cached_tokens, traffic.cache_input_tokens)
        told = _share(traffic.cache_calls, traffic.calls)
        yield f"Reuse: {part} of the input tokens came from the engines' caches (known for {told} of the calls)."
    else:
        yield "Reuse: unknown; no engine reported cached tokens."
    yield (
        f"Retries: {_share(traffic.retried, traffic.calls)} of the calls were retries of the client; "
        f"{_share(traffic.tried_again, traffic.calls)} were tried again by Forebay, {traffic.continued:,} went on "
        "from another replica."
    )
    peak = max(traffic.hours, key=lambda hour: hour.tokens)
    tokens = sum(hour.tokens for hour in traffic.hours)
    yield f"Peak: {peak.hour:02d}:00 UTC, with {_share(peak.tokens, tokens)} of all tokens."
    yield from _guesses("input", traffic.input_guesses)
    yield from _guesses("output", traffic.output_guesses)


def _guesses(name: str, guesses: Guesses) -> Iterator[str]:
    if guesses.calls and guesses.counted_tokens:
        ratio = guesses.estimated_tokens / guesses.counted_tokens
        yield (
            f"Estimates of the {name}: {ratio:.2f} times what the engines counted, over all; "
            f"{_share(guesses.near, guesses.calls)} of {guesses.calls:,} calls within 20 %."
        )


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole else "-"


def _plain(name: str) -> str:
    """Return what a client sent, fit for a terminal."""
    return "".join(char if char.isprintable() else "?" for char in name[:60])


def _length(tokens: int | None) -> str:
    return "-" if tokens is None else f"{tokens:,}"
