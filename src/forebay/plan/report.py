"""Summaries: what a run was worth to short and to long requests, and how far realisations differ."""

from collections.abc import Sequence
from math import ceil
from statistics import fmean, pstdev

from msgspec import Struct
from msgspec.structs import asdict, fields

from forebay.plan.run import Row


class Slo(Struct, frozen=True):
    """What counts as good: a first token within these seconds; a refusal never counts as good.

    Attributes:
        long_prompt_tokens: prompts of more tokens are long.
    """

    short_s: float = 1.0
    long_s: float = 10.0
    long_prompt_tokens: int = 2048

    def is_long(self, row: Row) -> bool:
        """Say which target binds a request."""
        return row.arrival.prompt_tokens > self.long_prompt_tokens

    def is_met(self, row: Row) -> bool:
        """Say whether a request was served in time."""
        return row.ttft_s is not None and row.ttft_s <= (self.long_s if self.is_long(row) else self.short_s)


class Summary(Struct, frozen=True):
    """One run in numbers; a percentile of nobody is None. Times to the first token are of those that were served.

    Attributes:
        in_slo_ratio: served in time, of all that arrived.
        refused_ratio: turned away, of all that arrived.
        short_in_slo_ratio: of the short ones; None when there are none.
        long_in_slo_ratio: of the long ones; None when there are none.
        slo_tokens_ratio: prompt and output tokens of those served in time, of all that arrived.
        goodput_tokens_per_s: prompt and output tokens of those served in time, in a second of the run.
        throughput_tokens_per_s: of all that were served.
        run_s: from time 0 until the last request ended.
    """

    requests: int
    short_p50_s: float | None
    short_p99_s: float | None
    long_p50_s: float | None
    long_p99_s: float | None
    in_slo_ratio: float
    short_in_slo_ratio: float | None
    long_in_slo_ratio: float | None
    refused_ratio: float
    slo_tokens_ratio: float
    goodput_tokens_per_s: float
    throughput_tokens_per_s: float
    run_s: float


class Spread(Struct, frozen=True):
    """A number over realisations.

    Attributes:
        deviation: standard deviation of the realisations themselves; 0 for one.
    """

    mean: float
    deviation: float
    low: float
    high: float


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the smallest value that at least this share of all values does not exceed; None of no values.

    Args:
        values: in any order.
        share: 0..1.
    """
    if not values:
        return None
    return sorted(values)[max(0, ceil(share * len(values)) - 1)]


def summary(rows: Sequence[Row], slo: Slo) -> Summary:
    """Summarise one run."""
    short = [row for row in rows if not slo.is_long(row)]
    long = [row for row in rows if slo.is_long(row)]
    good = [row for row in rows if slo.is_met(row)]
    served = [row for row in rows if row.e2e_s is not None]
    run_s = max((row.arrival.at_s + (row.e2e_s or row.queue_s) for row in rows), default=0.0)
    return Summary(
        requests=len(rows),
        short_p50_s=_ttft(short, 0.5),
        short_p99_s=_ttft(short, 0.99),
        long_p50_s=_ttft(long, 0.5),
        long_p99_s=_ttft(long, 0.99),
        in_slo_ratio=len(good) / max(1, len(rows)),
        short_in_slo_ratio=_met(short, slo),
        long_in_slo_ratio=_met(long, slo),
        refused_ratio=sum(bool(row.refused) for row in rows) / max(1, len(rows)),
        slo_tokens_ratio=_tokens(good) / max(1, _tokens(rows)),
        goodput_tokens_per_s=_tokens(good) / run_s if run_s else 0.0,
        throughput_tokens_per_s=_tokens(served) / run_s if run_s else 0.0,
        run_s=run_s,
    )


def spread(summaries: Sequence[Summary]) -> dict[str, Spread | None]:
    """Return each number of the summaries over the realisations; None where no realisation has it."""
    columns: dict[str, Spread | None] = {}
    for field in fields(Summary):
        found = [getattr(one, field.name) for one in summaries]
        values = [float(value) for value in found if value is not None]
        columns[field.name] = Spread(fmean(values), pstdev(values), min(values), max(values)) if values else None
    return columns


def as_json(policies: dict[str, list[Summary]]) -> dict[str, object]:
    """Return plain values for JSON: of each policy all realisations, and their spread."""
    return {
        name: {
            "realisations": [asdict(one) for one in summaries],
            "spread": {key: asdict(value) if value else None for key, value in spread(summaries).items()},
        }
        for name, summaries in policies.items()
    }


def _ttft(rows: Sequence[Row], share: float) -> float | None:
    return percentile([row.ttft_s for row in rows if row.ttft_s is not None], share)


def _met(rows: Sequence[Row], slo: Slo) -> float | None:
    return sum(slo.is_met(row) for row in rows) / len(rows) if rows else None


def _tokens(rows: Sequence[Row]) -> int:
    return sum(row.arrival.prompt_tokens + row.arrival.output_tokens for row in rows)
