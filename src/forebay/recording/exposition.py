"""The text of `/metrics`: samples in, slices of Prometheus' text format out.

prometheus_client writes the text; the slices exist because it takes some microseconds for each line, and
no more than a few hundred lines may be written while the event loop waits.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from itertools import islice
from math import inf
from typing import Final

from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector
from prometheus_client.samples import Sample

from forebay import __version__
from forebay.recording import families
from forebay.recording.families import Family

CONTENT_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4.encode()
SLICE_LINES: Final = 200

Labels = tuple[str, ...]
Timed = tuple[Labels, list[int], float]


class _Shown(Collector):
    """Metrics that are there already."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def plain(family: Family, values: Collection[tuple[Labels, float]]) -> Iterator[bytes]:
    """Write the samples of a counter or gauge family.

    Args:
        family: their family.
        values: label values in the family's order, and the value.
    """
    samples = (Sample(family.name, dict(zip(family.labels, labels, strict=True)), value) for labels, value in values)
    return _written(family, samples, SLICE_LINES)


def histograms(family: Family, values: Collection[Timed]) -> Iterator[bytes]:
    """Write histograms: labels, counts of each bucket (not cumulated), sum of all values in seconds."""
    lines_each = len(family.bounds_s) + 3
    samples = (sample for labels, counts, sum_s in values for sample in _buckets(family, labels, counts, sum_s))
    return _written(family, samples, max(1, SLICE_LINES // lines_each) * lines_each)


def merged(values: Iterable[Timed], place: int) -> list[Timed]:
    """Add up the histograms that agree in one label, at this place of their labels."""
    sums: dict[str, tuple[list[int], float]] = {}
    for labels, counts, sum_s in values:
        old_counts, old_sum_s = sums.get(labels[place], ([0] * len(counts), 0.0))
        sums[labels[place]] = ([a + b for a, b in zip(old_counts, counts, strict=True)], old_sum_s + sum_s)
    return [((label,), counts, sum_s) for label, (counts, sum_s) in sums.items()]


def process(values: Mapping[str, float]) -> Iterator[bytes]:
    """Write the version, and memory, CPU and file descriptors, by name."""
    yield from plain(families.BUILD, [((__version__,), 1)])
    metrics = list(ProcessCollector(registry=None).collect())
    for metric in metrics:
        metric.samples = [s._replace(value=values.get(s.name, s.value)) for s in metric.samples]
    yield generate_latest(_Shown(metrics))


def _buckets(family: Family, labels: Labels, counts: list[int], sum_s: float) -> Iterator[Sample]:
    named = dict(zip(family.labels, labels, strict=True))
    total = 0
    for bound, count in zip((*family.bounds_s, inf), counts, strict=True):
        total += count
        yield Sample(f"{family.name}_bucket", named | {"le": "+Inf" if bound == inf else str(bound)}, total)
    yield Sample(f"{family.name}_count", named, total)
    yield Sample(f"{family.name}_sum", named, sum_s)


def _written(family: Family, samples: Iterator[Sample], lines: int) -> Iterator[bytes]:
    name = family.name.removesuffix("_total") if family.type == "counter" else family.name
    begun = False
    while True:
        metric = Metric(name, family.help, family.type)
        metric.samples = list(islice(samples, lines))
        if begun and not metric.samples:
            return
        text = generate_latest(_Shown([metric]))
        # Only the first slice of a family may carry its two lines of HELP and TYPE.
        yield text.split(b"\n", 2)[2] if begun else text
        begun = True
        if len(metric.samples) < lines:
            return
