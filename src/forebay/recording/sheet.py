"""All values of `/metrics` at one moment: of one process, or of several added up. Pure but for `process_values`."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from msgspec import Struct
from prometheus_client.process_collector import ProcessCollector

from forebay.recording import exposition, families
from forebay.recording.families import Family

Labels = tuple[str, ...]
Plain = dict[str, list[tuple[Labels, float]]]
Timed = dict[str, list[tuple[Labels, list[int], float]]]

MAX_DEPARTED: Final = 4096
"""Series of a family that are kept of processes that are gone."""

_WATCHED: Final = {family.name: family for family in families.WATCHED}
_PLAIN: Final = {family.name: family for family in (*families.COUNTED, *families.WATCHED, families.READ_FAILURES)}
# What the gate alone knows; the workers have a copy that is a moment older.
_OF_THE_GATE: Final = frozenset(
    family.name
    for family in (
        families.QUEUE_DEPTH,
        families.PERMITS,
        families.TELEMETRY_AGE,
        families.REPLICA_UP,
        families.REPLICA_IN_FLIGHT,
        families.EJECTED,
        families.QUEUE_WAITING,
        families.SPEED,
        families.UNPREFILLED,
        families.POOL_PANIC,
        families.STORE_UP,
        families.STORE_AGE,
        families.STORE_FAILURES,
        families.NODES,
        families.PORTION,
        families.LADDER_LEVEL,
        families.LADDER_KV,
        families.LADDER_PAIN,
    )
)
_SUMMED: Final = frozenset({families.IN_FLIGHT.name})
_LEAST: Final = frozenset({families.RELOAD_OK.name})
# All processes follow the same files and refuse the same ones.
_MOST: Final = frozenset({families.RELOAD_FAILURES.name})
_CPU: Final = "process_cpu_seconds_total"
_PROCESS_SUMS: Final = (_CPU, "process_virtual_memory_bytes", "process_resident_memory_bytes", "process_open_fds")


class Sheet(Struct, frozen=True, array_like=True):
    """Values by family.

    Attributes:
        plain: counters and gauges.
        timed: histograms: counts of each bucket, not cumulated, and the sum in seconds.
        process: memory, CPU, descriptors, by name.
    """

    plain: Plain = {}
    timed: Timed = {}
    process: dict[str, float] = {}


def process_values() -> dict[str, float]:
    """Return memory, CPU and descriptors of this process."""
    metrics = ProcessCollector(registry=None).collect()
    return {sample.name: sample.value for metric in metrics for sample in metric.samples}


def slices(sheet: Sheet) -> Iterator[bytes]:
    """Yield the text in parts that each take about a millisecond, for a loop that must go on meanwhile."""
    for family in families.COUNTED:
        yield from exposition.plain(family, sheet.plain.get(family.name, []))
    durations = sheet.timed.get(families.DURATION.name, [])
    yield from exposition.histograms(families.DURATION, durations)
    yield from exposition.histograms(families.GENAI_DURATION, exposition.merged(durations, place=1))
    first_tokens = sheet.timed.get(families.FIRST_TOKEN.name, [])
    yield from exposition.histograms(families.FIRST_TOKEN, first_tokens)
    yield from exposition.histograms(families.GENAI_FIRST_TOKEN, first_tokens)
    for family in (*families.WATCHED, families.READ_FAILURES):
        yield from exposition.plain(family, sheet.plain.get(family.name, []))
    yield from exposition.process(sheet.process)


def together(gate: Sheet, workers: Sequence[Sheet], departed: Sheet) -> Sheet:
    """Add up the sheets of all processes.

    Args:
        gate: of the process that has the gate.
        workers: of those that serve clients.
        departed: what `lasting` has kept of workers that are gone.
    """
    sheets = (gate, *workers, departed)
    plain: Plain = {}
    for name, family in _PLAIN.items():
        if name in _OF_THE_GATE:
            plain[name] = gate.plain.get(name, [])
        else:
            plain[name] = _combined(family, [sheet.plain.get(name, []) for sheet in sheets])
    return Sheet(plain, _added_times(sheets), _added_process(sheets))


def lasting(departed: Sheet, gone: Sheet) -> Sheet:
    """Add what must not go back, counters and histograms, of a worker that is gone to what is kept of others."""
    plain: Plain = {}
    for name, family in _PLAIN.items():
        if family.type == "counter":
            values = [departed.plain.get(name, []), gone.plain.get(name, [])]
            plain[name] = _combined(family, values)[:MAX_DEPARTED]
    cpu_s = departed.process.get(_CPU, 0.0) + gone.process.get(_CPU, 0.0)
    return Sheet(plain, _added_times((departed, gone)), {_CPU: cpu_s})


def _combined(family: Family, lists: Sequence[list[tuple[Labels, float]]]) -> list[tuple[Labels, float]]:
    values: dict[Labels, float] = {}
    for labels, value in (entry for entries in lists for entry in entries):
        known = values.get(labels)
        values[labels] = value if known is None else _one(family, known, value)
    return list(values.items())


def _one(family: Family, a: float, b: float) -> float:
    if family.name in _LEAST:
        return min(a, b)
    if family.name in _SUMMED or (family.type == "counter" and family.name not in _MOST):
        return a + b
    return max(a, b)


def _added_times(sheets: Iterable[Sheet]) -> Timed:
    timed: Timed = {}
    for family in families.TIMED:
        sums: dict[Labels, tuple[list[int], float]] = {}
        for labels, counts, sum_s in (entry for sheet in sheets for entry in sheet.timed.get(family.name, [])):
            old = sums.get(labels)
            both = counts if old is None else [a + b for a, b in zip(old[0], counts, strict=True)]
            sums[labels] = (both, sum_s if old is None else old[1] + sum_s)
        timed[family.name] = [(labels, counts, sum_s) for labels, (counts, sum_s) in sums.items()]
    return timed


def _added_process(sheets: Sequence[Sheet]) -> dict[str, float]:
    found: dict[str, list[float]] = {}
    for sheet in sheets:
        for name, value in sheet.process.items():
            found.setdefault(name, []).append(value)
    return {name: sum(values) if name in _PROCESS_SUMS else min(values) for name, values in found.items()}
