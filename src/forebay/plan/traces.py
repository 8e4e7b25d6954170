"""Arrivals: read from public traces, or made by a seeded generator, and brought to the load wanted.

The traces are named with their licences in docs/plan.md; none is part of the package.
"""

import csv
from collections.abc import Iterable, Sequence
from datetime import datetime
from itertools import groupby
from math import floor
from pathlib import Path
from random import Random

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from forebay.domain import Value

AZURE_FILE = Path("azure2023") / "AzureLLMInferenceTrace_conv.csv"
MOONCAKE_FILE = Path("mooncake") / "conversation_trace.jsonl"


class TraceError(Exception):
    """A trace cannot be read; says which file, where in it, and what is wrong."""


class Arrival(Struct, frozen=True, gc=False):
    """One request of a trace.

    Attributes:
        at_s: seconds since the trace began.
        prompt_tokens: at least 1.
        output_tokens: tokens that the engine will generate, at least 1.
        blocks: ids of the prompt's leading blocks, where the trace has them.
    """

    at_s: float
    prompt_tokens: int
    output_tokens: int
    tenant: str
    value: Value = "medium"
    blocks: tuple[int, ...] = ()


class _MooncakeLine(Struct):
    timestamp: float
    input_length: int
    output_length: int
    hash_ids: tuple[int, ...] = ()


def read_azure(path: Path) -> list[Arrival]:
    """Read a CSV of the Azure LLM inference traces, 2023: TIMESTAMP, ContextTokens, GeneratedTokens.

    Raises:
        OSError: the file cannot be read.
        TraceError: it is not in that form.
    """
    arrivals: list[Arrival] = []
    first_s: float | None = None
    with path.open(encoding="utf-8", newline="") as file:
        for number, row in enumerate(csv.DictReader(file), 2):
            try:
                # The traces have seven decimals; Python takes six.
                at_s = datetime.fromisoformat(f"{row['TIMESTAMP'][:26]}+00:00").timestamp()
                prompt_tokens, output_tokens = int(row["ContextTokens"]), int(row["GeneratedTokens"])
            except (KeyError, TypeError, ValueError) as error:
                raise TraceError(
                    f"{path}:{number}: TIMESTAMP,ContextTokens,GeneratedTokens expected: {error}"
                ) from None
            first_s = at_s if first_s is None else first_s
            arrivals.append(Arrival(at_s - first_s, max(1, prompt_tokens), max(1, output_tokens), "azure"))
    return arrivals


def read_mooncake(path: Path) -> list[Arrival]:
    """Read a JSONL of the Mooncake traces: timestamp in ms, input_length, output_length, hash_ids of 512-token blocks.

    Raises:
        OSError: the file cannot be read.
        TraceError: it is not in that form.
    """
    arrivals: list[Arrival] = []
    decoder = msgspec.json.Decoder(_MooncakeLine)
    with path.open("rb") as file:
        for number, text in enumerate(file, 1):
            if not text.strip():
                continue
            try:
                line = decoder.decode(text)
            except msgspec.MsgspecError as error:
                raise TraceError(f"{path}:{number}: not a line of a Mooncake trace: {error}") from None
            lengths = max(1, line.input_length), max(1, line.output_length)
            arrivals.append(Arrival(line.timestamp / 1000, *lengths, "mooncake", blocks=line.hash_ids))
    return arrivals


def read_folder(folder: Path) -> list[list[Arrival]]:
    """Read the conversation traces of a folder: AZURE_FILE and MOONCAKE_FILE, those that are there.

    Raises:
        OSError: a file cannot be read.
        TraceError: neither is there, or one is not in its form.
    """
    readers = ((AZURE_FILE, read_azure), (MOONCAKE_FILE, read_mooncake))
    traces = [read(folder / name) for name, read in readers if (folder / name).is_file()]
    traces = [trace for trace in traces if trace]
    if not traces:
        raise TraceError(f"{folder}: found neither {AZURE_FILE} nor {MOONCAKE_FILE}; see docs/plan.md for both")
    return traces


def window(trace: Sequence[Arrival], start_s: float, length_s: float) -> list[Arrival]:
    """Cut a window out of a trace, which begins anew when it ends; times count from the window's start.

    Args:
        trace: in order of time; not empty.
        start_s: where the window begins.
        length_s: of the window; at most the length of the trace, so that no arrival comes twice.

    Raises:
        ValueError: the trace is shorter than the window.
    """
    span_s = trace[-1].at_s + trace[-1].at_s / len(trace)  # and the usual gap after the last one
    if length_s > span_s:
        raise ValueError(
            f"the trace lasts {span_s:.0f} s, a window of {length_s:.0f} s is wanted: ask for fewer seconds"
        )
    shifted = ((arrival.at_s - start_s) % span_s for arrival in trace)
    cut = [replace(arrival, at_s=at_s) for arrival, at_s in zip(trace, shifted, strict=True) if at_s < length_s]
    return sorted(cut, key=_time)


def unrounded(trace: Sequence[Arrival], random: Random) -> list[Arrival]:
    """Spread arrivals that a trace gives the same time over the time until its next one.

    Mooncake's timestamps are in steps of 3 s: taken at their word, a dozen long prompts would come at once.
    """
    groups = [(at_s, list(group)) for at_s, group in groupby(trace, _time)]
    spread: list[Arrival] = []
    step_s = 0.0
    for place, (at_s, group) in enumerate(groups):
        if place + 1 < len(groups):
            step_s = groups[place + 1][0] - at_s
        if len(group) > 1:
            group = [replace(arrival, at_s=at_s + random.random() * step_s) for arrival in group]
        spread += group
    return sorted(spread, key=_time)


def merged(traces: Iterable[Sequence[Arrival]]) -> list[Arrival]:
    """Put traces together, on their own times."""
    return sorted((arrival for trace in traces for arrival in trace), key=_time)


def with_load(
    arrivals: Sequence[Arrival], length_s: float, prefill_tokens_per_s: float, random: Random
) -> list[Arrival]:
    """Bring a window to a load: leave arrivals out at random, or let all come sooner and so the window be shorter.

    Args:
        arrivals: of the window.
        length_s: of the window.
        prefill_tokens_per_s: mean of the prompt tokens that arrive in a second, as wanted.
        random: decides who stays.
    """
    factor = prefill_tokens_per_s / _prefill_rate(arrivals, length_s)
    if factor <= 1:
        return [arrival for arrival in arrivals if random.random() < factor]
    return [replace(arrival, at_s=arrival.at_s / factor) for arrival in arrivals]


def realisation(
    traces: Sequence[Sequence[Arrival]], number: int, length_s: float, prefill_tokens_per_s: float, seed: int
) -> list[Arrival]:
    """Make one realisation of merged traces at a load.

    Number 0 is the beginning of each trace. In the others each trace begins at a random place of its own. A load of
    more than twice the traces' own is made of several such windows on top of each other, so that it stays long.

    Args:
        traces: each in order of time.
        number: from 0.
        length_s: of the window that is cut out of each trace.
        prefill_tokens_per_s: see `with_load`.
        seed: of what is random.

    Raises:
        ValueError: a trace is shorter than the window.
    """
    random = Random(f"{seed}/{number}")
    mixed = _layer(traces, length_s, random, moved=number > 0)
    layers = floor(prefill_tokens_per_s / _prefill_rate(mixed, length_s))
    mixed = merged([mixed, *(_layer(traces, length_s, random, moved=True) for _ in range(layers - 1))])
    return with_load(mixed, length_s, prefill_tokens_per_s, random)


def _layer(traces: Sequence[Sequence[Arrival]], length_s: float, random: Random, *, moved: bool) -> list[Arrival]:
    """Return a window of each trace, merged; `moved` begins each at a random place."""
    starts = [random.random() * trace[-1].at_s if moved else 0.0 for trace in traces]
    return merged(
        window(unrounded(trace, random), start_s, length_s) for trace, start_s in zip(traces, starts, strict=True)
    )


def _prefill_rate(arrivals: Sequence[Arrival], length_s: float) -> float:
    return max(1, sum(arrival.prompt_tokens for arrival in arrivals)) / length_s


def _time(arrival: Arrival) -> float:
    return arrival.at_s


class Synthetic(Struct, frozen=True, kw_only=True):
    """Traffic by formula: gaps by a gamma distribution, lengths by lognormal ones.

    Attributes:
        gap_cv: coefficient of variation of the gaps; 1 is a Poisson process, above 1 it comes in bursts.
        long_share_ratio: part of the requests that is long.
        short_tokens: median prompt of a short request.
        long_tokens: median prompt of a long one.
        output_tokens: median answer.
        sigma: standard deviation of the logarithm of each length.
        max_prompt_tokens: longer prompts are cut.
        max_output_tokens: longer answers are cut.
        tenants: who share the traffic, each half of what the one before has.
    """

    gap_cv: float = 1.5
    long_share_ratio: float = 0.15
    short_tokens: int = 500
    long_tokens: int = 9000
    output_tokens: int = 150
    sigma: float = 0.7
    max_prompt_tokens: int = 100_000
    max_output_tokens: int = 2000
    tenants: int = 4


def synthetic(shape: Synthetic, length_s: float, prefill_tokens_per_s: float, random: Random) -> list[Arrival]:
    """Make arrivals at a load.

    Args:
        shape: of the traffic.
        length_s: seconds in which they come.
        prefill_tokens_per_s: mean of the prompt tokens that arrive in a second.
        random: makes them.
    """
    mean_tokens = _mean_prompt_tokens(shape)
    gap_s = mean_tokens / prefill_tokens_per_s
    # A gamma distribution of shape k has the coefficient of variation 1 / sqrt(k).
    k = 1 / shape.gap_cv**2
    weights = [0.5**tenant for tenant in range(shape.tenants)]
    names = [f"tenant{tenant}" for tenant in range(shape.tenants)]
    arrivals = []
    at_s = random.gammavariate(k, gap_s / k)
    while at_s < length_s:
        is_long = random.random() < shape.long_share_ratio
        prompt = _length(random, shape.long_tokens if is_long else shape.short_tokens, shape, shape.max_prompt_tokens)
        output = _length(random, shape.output_tokens, shape, shape.max_output_tokens)
        arrivals.append(Arrival(at_s, prompt, output, random.choices(names, weights)[0]))
        at_s += random.gammavariate(k, gap_s / k)
    return arrivals


def _length(random: Random, median: int, shape: Synthetic, longest: int) -> int:
    return max(1, min(longest, round(median * random.lognormvariate(0, shape.sigma))))


def _mean_prompt_tokens(shape: Synthetic) -> float:
    """Return the mean by a sample of its own: the cut of the longest makes a formula unwieldy."""
    random = Random(0)
    medians = (shape.short_tokens, shape.long_tokens)
    short, long = (
        sum(_length(random, median, shape, shape.max_prompt_tokens) for _ in range(20_000)) / 20_000
        for median in medians
    )
    return (1 - shape.long_share_ratio) * short + shape.long_share_ratio * long
