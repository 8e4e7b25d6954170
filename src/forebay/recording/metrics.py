"""The data plane's own metrics: plain integers while calls run, text only when scraped.

Label values come from the policy and from closed lists; anything else, and anything beyond the cap of a
family, folds into `other`. A call resolves its series once (`Metrics.series`), so that counting is an
addition.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Final, Generic, TypeVar

from forebay.clock import Clock
from forebay.domain import VALUES, FailureKind, Outcome
from forebay.errors import CODES
from forebay.policy import Policy
from forebay.recording import exposition, families, sheet
from forebay.recording.families import Family
from forebay.recording.sheet import Sheet
from forebay.wire.endpoints import ENDPOINTS

Labels = tuple[str, ...]
Reading = Callable[[], Iterable[tuple[Labels, float]]]

OTHER: Final = "other"
_PLACES: Final = tuple((lane, value) for lane in ("short", "long") for value in VALUES)
NO_FAILURE: Final = "none"
MAX_CHILDREN: Final = 4096
# What an installation without keys calls its one tenant (identity.keys).
_KEYLESS = "default"
STEPS: Final = ("fallback", "tenant", "output", "model", "history")
_PAINS = ("waiting", "preemptions", "first_token")
_KINDS = ("prompt", "completion", "cached")
_BOUNDS = ("low", "expected", "high")
_STATUSES = range(100, 600)
_LEFT = (("text",), ("end",))
_JOURNAL_KINDS = (("open",), ("close",))
_JOURNAL_STATES = (("ok",), ("full",), ("failing",))


class Cell:
    """One counter."""

    __slots__ = ("value",)

    def __init__(self, family: Family) -> None:
        self.value = 0


class Histogram:
    """One histogram with fixed buckets.

    Attributes:
        counts: values in each bucket, not cumulated; the last one is above all bounds.
        sum_s: of all values.
    """

    __slots__ = ("bounds_s", "counts", "sum_s")

    def __init__(self, family: Family) -> None:
        self.bounds_s = family.bounds_s
        self.counts = [0] * (len(family.bounds_s) + 1)
        self.sum_s = 0.0

    def observe(self, value_s: float) -> None:
        """Count a duration in the bucket whose bound is the first not below it."""
        self.counts[bisect_left(self.bounds_s, value_s)] += 1
        self.sum_s += value_s


Child = TypeVar("Child", Cell, Histogram)


class Children(Generic[Child]):
    """The series of one family, at most `MAX_CHILDREN` and the one that takes the rest."""

    def __init__(self, family: Family, make: Callable[[Family], Child]) -> None:
        self.family = family
        self.by_labels: dict[Labels, Child] = {}
        self._make: Callable[[Family], Child] = make

    def child(self, labels: Labels) -> Child:
        """Return the series with these labels; beyond the cap, the one whose labels are all `other`."""
        child = self.by_labels.get(labels)
        if child is None:
            if len(self.by_labels) >= MAX_CHILDREN:
                labels = (OTHER,) * len(labels)
            child = self.by_labels.setdefault(labels, self._make(self.family))
        return child

    def make_room(self, is_current: Callable[[Family, Labels], bool]) -> None:
        """Forget series of names that have left the policy once half of the cap is used."""
        if len(self.by_labels) > MAX_CHILDREN // 2:
            self.by_labels = {k: v for k, v in self.by_labels.items() if is_current(self.family, k)}


class CallSeries:
    """The series that one kind of call counts in: resolved once, kept by every such call."""

    __slots__ = ("_labels", "_requests", "cached", "completion", "duration", "ended", "first_token", "prompt")

    def __init__(self, metrics: "Metrics", endpoint: str, model: str, tenant: str) -> None:
        self._requests = metrics.requests
        self._labels = (endpoint, model, tenant)
        self.ended: dict[tuple[int, Outcome], Cell] = {}
        self.duration = metrics.duration.child((endpoint, model))
        self.first_token = metrics.first_token.child((model,))
        self.prompt, self.completion, self.cached = (metrics.tokens.child((model, kind)) for kind in _KINDS)

    def end(self, status: int, outcome: Outcome) -> None:
        """Count a call that ended; a status that HTTP does not know is `other`."""
        cell = self.ended.get((status, outcome))
        if cell is None:
            code = str(status) if status in _STATUSES else OTHER
            cell = self._requests.child((*self._labels, code, outcome.value))
            if code != OTHER:
                self.ended[(status, outcome)] = cell
        cell.value += 1


class Metrics:
    """All families; follows the policy.

    Args:
        clock: for the age of telemetry that never came.
        steps: names of the ways in which a call may be served reduced.
    """

    def __init__(self, clock: Clock, steps: tuple[str, ...] = STEPS) -> None:
        self._clock = clock
        self._steps = steps
        self._endpoints = frozenset(endpoint.name for endpoint in ENDPOINTS)
        self._models: frozenset[str] = frozenset()
        self._tenants: frozenset[str] = frozenset()
        self._pools: frozenset[str] = frozenset()
        self._rules: frozenset[str] = frozenset()
        self._known_since_s: dict[Labels, float] = {}
        self._series: dict[Labels, CallSeries] = {}
        self._tries: dict[Labels, dict[FailureKind | None, Cell]] = {}
        self._readings: dict[str, list[Reading]] = {family.name: [] for family in families.WATCHED}
        self._read_failures = 0
        self.requests = Children(families.REQUESTS, Cell)
        self.attempts = Children(families.ATTEMPTS, Cell)
        self.refusals = Children(families.REFUSED, Cell)
        self.degradations = Children(families.DEGRADED, Cell)
        self.tokens = Children(families.TOKENS, Cell)
        self.duration = Children(families.DURATION, Histogram)
        self.first_token = Children(families.FIRST_TOKEN, Histogram)

    def apply(self, policy: Policy) -> None:
        """Follow a new policy: every configured name has its series at 0, counters of the rest go on."""
        now_s = self._clock.now_s()
        self._models = frozenset(policy.models)
        self._tenants = frozenset(tenant.name for tenant in policy.tenants.values()) or frozenset((_KEYLESS,))
        self._pools = frozenset(policy.pools)
        self._rules = frozenset(rule.name for rule in policy.rules)
        replicas = [(pool.name, replica.name) for pool in policy.pools.values() for replica in pool.replicas]
        self._known_since_s = {key: self._known_since_s.get(key, now_s) for key in replicas[:MAX_CHILDREN]}
        self._series = {}
        self._tries = {}
        for counters in (self.requests, self.attempts, self.refusals, self.degradations, self.tokens):
            counters.make_room(self._is_current)
        for timers in (self.duration, self.first_token):
            timers.make_room(self._is_current)
        self._begin_at_zero(policy)

    def series(self, endpoint: str, model: str, tenant: str) -> CallSeries:
        """Return where calls of one endpoint, model and tenant count; unknown names are `other`."""
        series = self._series.get((endpoint, model, tenant))
        if series is not None:
            return series
        key = (
            endpoint if endpoint in self._endpoints else OTHER,
            model if model in self._models else OTHER,
            tenant if tenant in self._tenants else OTHER,
        )
        series = self._series.get(key)
        if series is None:
            if len(self._series) >= MAX_CHILDREN:
                key = (OTHER, OTHER, OTHER)
            series = self._series.setdefault(key, CallSeries(self, *key))
        return series

    def tried(self, pool: str, replica: str, failure: FailureKind | None) -> None:
        """Count a try that ended."""
        cells = self._tries.get((pool, replica))
        if cells is None:
            key = (pool, replica) if (pool, replica) in self._known_since_s else (OTHER, OTHER)
            cells = self._tries.setdefault(
                key, {kind: self.attempts.child((*key, kind or NO_FAILURE)) for kind in (None, *FailureKind)}
            )
        cells[failure].value += 1

    def refused(self, reason: str) -> None:
        """Count a refusal; the reason is a code of `errors.CODES`."""
        self.refusals.child((reason if reason in CODES else OTHER,)).value += 1

    def degraded(self, step: str) -> None:
        """Count a call that was served reduced."""
        self.degradations.child((step if step in self._steps else OTHER,)).value += 1

    def watch(self, name: str, reading: Reading) -> None:
        """Have a family of `families.WATCHED` read from its owner at each scrape.

        Args:
            name: of the family.
            reading: returns (label values in the family's order, value); several readings of one family
                add up to one, a later one wins for the same labels.

        Raises:
            KeyError: there is no such family.
        """
        self._readings[name].append(reading)

    def render(self) -> tuple[bytes, bytes]:
        """Return the content type and the text of everything, for `/metrics`."""
        return exposition.CONTENT_TYPE, b"".join(self.slices())

    def slices(self) -> Iterator[bytes]:
        """Yield the text in parts that each take about a millisecond, for a loop that must go on meanwhile."""
        return sheet.slices(self.sheet())

    def sheet(self) -> Sheet:
        """Return all values at this moment."""
        plain: dict[str, list[tuple[Labels, float]]] = {}
        for counters in (self.requests, self.attempts, self.refusals, self.degradations, self.tokens):
            plain[counters.family.name] = [(k, float(c.value)) for k, c in counters.by_labels.items()]
        for family in families.WATCHED:
            plain[family.name] = [(k, float(value)) for k, value in self._read(family).items()]
        plain[families.READ_FAILURES.name] = [((), float(self._read_failures))]
        timed = {
            timers.family.name: [(k, list(h.counts), h.sum_s) for k, h in timers.by_labels.items()]
            for timers in (self.duration, self.first_token)
        }
        return Sheet(plain, timed, sheet.process_values())

    def _read(self, family: Family) -> dict[Labels, float]:
        values = self._unread(family)
        strangers: dict[Labels, float] = {}
        for reading in self._readings[family.name]:
            try:
                for labels, value in reading():
                    if self._is_current(family, labels) and (labels in values or len(values) < MAX_CHILDREN):
                        values[labels] = value
                    else:
                        other = (OTHER,) * len(family.labels)
                        strangers[other] = strangers.get(other, 0) + value
            except Exception:  # noqa: BLE001 - one broken owner must not take the whole scrape away
                self._read_failures += 1
        return values | strangers

    def _unread(self, family: Family) -> dict[Labels, float]:
        """Return what a family shows where nobody has told: series at 0 of every configured name."""
        if family is families.TELEMETRY_AGE:
            now_s = self._clock.now_s()
            return {key: now_s - since_s for key, since_s in self._known_since_s.items()}
        if family in (families.RELOAD_OK, families.STORE_UP, families.NODES):
            return {(): 1}
        if family in families.UNKNOWN_AT_FIRST:
            return {}
        keys: dict[Labels, Iterable[Labels]] = {
            (): [()],
            ("model",): [(name,) for name in sorted(self._models)],
            ("model", "kind"): [(name, kind) for name in sorted(self._models) for kind in ("first_byte", "total")],
            ("pool",): [(name,) for name in sorted(self._pools)],
            ("tenant",): [(name,) for name in sorted(self._tenants)],
            ("pool", "replica"): self._known_since_s,
            ("pool", "replica", "reason"): [(*key, NO_FAILURE) for key in self._known_since_s],
            ("pool", "reason"): [(pool, pain) for pool in sorted(self._pools) for pain in _PAINS],
            ("kind",): _JOURNAL_KINDS,
            ("state",): _JOURNAL_STATES,
            ("pool", "lane", "value"): [(pool, *place) for pool in sorted(self._pools) for place in _PLACES],
            ("tenant", "limit"): [(NO_FAILURE, NO_FAILURE)],
            ("cause",): [(NO_FAILURE,)],
            ("tenant", "bound"): [(name, bound) for name in sorted(self._tenants) for bound in _BOUNDS],
            ("mode",): [("key",), ("on",), ("warn",)],
            ("left",): _LEFT,
            ("pool", "scope"): [(pool, scope) for pool in sorted(self._pools) for scope in ("pool", "tenant")],
            ("errand",): [("count",), ("telemetry",)],
            ("standing",): [("quarantined",), ("suspect",)],
            ("pool", "endpoint", "model", "feature"): [(pool, *(NO_FAILURE,) * 3) for pool in sorted(self._pools)],
            ("rule",): [(name,) for name in (NO_FAILURE, *sorted(self._rules))],
        }
        return dict.fromkeys(keys[family.labels], 0.0)

    def _is_current(self, family: Family, labels: Labels) -> bool:
        """Say whether every name among the labels is configured, or from a closed list."""
        named = dict(zip(family.labels, labels, strict=True))
        known = {"model": self._models, "tenant": self._tenants, "endpoint": self._endpoints, "rule": self._rules}
        if "replica" in named:
            return (named["pool"], named["replica"]) in self._known_since_s
        if "pool" in named:
            return named["pool"] in self._pools
        return all(value in known[label] for label, value in named.items() if label in known)

    def _begin_at_zero(self, policy: Policy) -> None:
        tenants = {tenant.name: tenant.models for tenant in policy.tenants.values()} or {_KEYLESS: None}
        for model in policy.models:
            self.duration.child(("chat", model))
            self.first_token.child((model,))
            for kind in _KINDS:
                self.tokens.child((model, kind))
            for tenant, models in tenants.items():
                if (models is None or model in models) and len(self.requests.by_labels) < MAX_CHILDREN // 2:
                    self.requests.child(("chat", model, tenant, "200", Outcome.OK.value))
        for pool, replica in self._known_since_s:
            for failure in (NO_FAILURE, *FailureKind):
                self.attempts.child((pool, replica, str(failure)))
        for reason in CODES:
            self.refusals.child((reason,))
        for step in self._steps:
            self.degradations.child((step,))
