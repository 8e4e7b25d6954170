"""What the rooms know and `/metrics` shows: read when scraped, so that it costs calls nothing."""

from collections.abc import Callable, Iterator

from forebay.admission.gate import LocalGate
from forebay.clock import Clock
from forebay.continuing import Continuer
from forebay.cost.days import Bill
from forebay.cost.forecast import Forecast
from forebay.domain import Spend
from forebay.inquest import Inquest
from forebay.joining import Joining
from forebay.laddering import Laddering
from forebay.ledger import MonthLedger
from forebay.lessons import Lessons
from forebay.recording.metrics import Metrics
from forebay.resuming import Resuming
from forebay.routing.budget import RetryBudgets
from forebay.routing.errands import ERRANDS
from forebay.routing.pool import Fleet
from forebay.understanding import Understanding
from forebay.upstream.send import Upstream

Readings = Iterator[tuple[tuple[str, ...], float]]


class Gauges:
    """Readings of admission, routing and upstream, in the form that metrics take."""

    def __init__(self, fleet: Fleet, upstream: Upstream, clock: Clock) -> None:
        self._fleet = fleet
        self._upstream = upstream
        self._clock = clock
        self._started_s = clock.now_s()

    def watch(self, metrics: Metrics, gate: LocalGate, lag_s: Callable[[], float]) -> None:
        """Register all readings."""
        metrics.watch("forebay_queue_depth", gate.basin.depths)
        metrics.watch("forebay_permits_held", gate.permits_held)
        metrics.watch("forebay_replica_up", self._up)
        metrics.watch("forebay_replica_in_flight", self._in_flight)
        metrics.watch("forebay_replica_ejected", self._ejected)
        metrics.watch("forebay_telemetry_age_seconds", self._telemetry_age)
        metrics.watch("forebay_upstream_connections_total", self._connections)
        metrics.watch("forebay_upstream_missing_done_total", lambda: [((), self._upstream.missing_done)])
        metrics.watch("forebay_loop_lag_seconds", lambda: [((), lag_s())])
        metrics.watch("forebay_queue_waiting", lambda: _waiting(gate))
        metrics.watch("forebay_high_claims_lowered_total", lambda: [((), gate.basin.claims.lowered)])
        metrics.watch("forebay_replica_prefill_tokens_per_second", self._speed)
        metrics.watch("forebay_replica_unprefilled_tokens", self._unprefilled)

    def watch_work(
        self, metrics: Metrics, budgets: RetryBudgets, continuer: Continuer, understanding: Understanding
    ) -> None:
        """Register the readings of estimates, rules, retries and continuations."""
        metrics.watch("forebay_retries_denied_total", budgets.exhausted)
        metrics.watch("forebay_continuations_total", lambda: [((p,), n) for p, n in continuer.moved.items()])
        metrics.watch("forebay_continuations_lost_total", lambda: [((r,), n) for r, n in continuer.lost.items()])
        metrics.watch("forebay_rule_applied_total", lambda: [((n,), c) for n, c in understanding.rules.applied.items()])
        metrics.watch(
            "forebay_estimate_error_ratio", lambda: [((m,), error) for m, error, _ in understanding.estimator.report()]
        )

    def watch_resuming(self, metrics: Metrics, resuming: Resuming) -> None:
        """Register the readings of resumed answers."""
        metrics.watch("forebay_resumes_total", lambda: [((left,), n) for left, n in resuming.resumed.items()])

    def watch_automata(self, metrics: Metrics, lessons: Lessons, laddering: Laddering) -> None:
        """Register the readings of what Forebay decides by itself."""
        metrics.watch("forebay_ladder_level", laddering.gauge_levels)
        metrics.watch("forebay_ladder_kv_ratio", laddering.gauge_kv)
        metrics.watch("forebay_ladder_pain", laddering.gauge_pains)
        metrics.watch("forebay_tenant_degraded", lessons.degrading.moved)
        metrics.watch("forebay_pool_panic", self._panic)
        metrics.watch("forebay_learned_timeout_seconds", lambda: _deadlines(lessons))

    def watch_joining(self, metrics: Metrics, joining: Joining) -> None:
        """Register the readings of requests that are not run twice."""
        metrics.watch("forebay_requests_joined_total", joining.counts)
        metrics.watch("forebay_idempotency_replays_total", lambda: [((), joining.replayed)])

    def watch_money(self, metrics: Metrics, gate: LocalGate, ledger: MonthLedger) -> None:
        """Register the readings of what tenants have spent in this month, and of what it will come to."""

        def spent() -> Iterator[tuple[str, Spend]]:
            yield from gate.quota.spent(self._clock.now_s(), self._clock.wall_s()).items()

        metrics.watch("forebay_month_spent_tokens", lambda: (((name,), spend.tokens) for name, spend in spent()))
        metrics.watch("forebay_month_spent_money", lambda: (((name,), spend.money) for name, spend in spent()))
        metrics.watch("forebay_month_forecast_tokens", lambda: _foreseen(ledger, lambda bill: bill.tokens))
        metrics.watch("forebay_month_forecast_money", lambda: _foreseen(ledger, lambda bill: bill.money))

    def watch_deaths(self, metrics: Metrics, inquest: Inquest) -> None:
        """Register the readings of engines that died under calls, and of what follows."""
        metrics.watch("forebay_engine_deaths_total", lambda: [((), inquest.deaths)])
        metrics.watch("forebay_suspect_requests", inquest.standings)
        metrics.watch("forebay_suspects_waiting", lambda: [((p,), n) for p, n in inquest.waiting().items()])
        metrics.watch("forebay_feature_cut_off", inquest.cutoffs.readings)
        metrics.watch("forebay_errands_left_alone", self._errands)

    def _errands(self) -> Readings:
        alone = [each.errand for each in self._fleet.errands.left_alone(self._clock.now_s())]
        for errand in ERRANDS:
            yield (errand,), alone.count(errand)

    def _panic(self) -> Readings:
        for pool, rotation in self._fleet.rotations.items():
            yield (pool,), float(rotation.panic)

    def _up(self) -> Readings:
        now_s = self._clock.now_s()
        for state in self._fleet.states():
            may_serve = state.up is not False and not state.drained and state.breaker.allows(now_s)
            yield (state.pool.name, state.replica.name), float(may_serve)

    def _in_flight(self) -> Readings:
        for state in self._fleet.states():
            yield (state.pool.name, state.replica.name), state.in_flight

    def _ejected(self) -> Readings:
        for state in self._fleet.states():
            reason = state.breaker.reason
            if reason is not None:
                yield (state.pool.name, state.replica.name, reason), 1.0

    def _speed(self) -> Readings:
        for state in self._fleet.states():
            if state.speed.known:
                yield (state.pool.name, state.replica.name), state.speed.tokens_per_s

    def _unprefilled(self) -> Readings:
        for state in self._fleet.states():
            yield (state.pool.name, state.replica.name), state.unprefilled_tokens

    def _telemetry_age(self) -> Readings:
        now_s = self._clock.now_s()
        for state in self._fleet.states():
            since_s = self._started_s if state.polled_at_s is None else state.polled_at_s
            yield (state.pool.name, state.replica.name), now_s - since_s

    def _connections(self) -> Readings:
        opened = self._upstream.connections.opened
        for state in self._fleet.states():
            yield (state.pool.name, state.replica.name), opened.get(state.replica.name, 0)


def _foreseen(ledger: MonthLedger, kind: Callable[[Bill], Forecast]) -> Readings:
    for tenant, bill in ledger.bills.items():
        made = kind(bill)
        yield (tenant, "low"), made.low
        yield (tenant, "expected"), made.expected
        yield (tenant, "high"), made.high


def _deadlines(lessons: Lessons) -> Readings:
    shortest_s: dict[tuple[str, ...], float] = {}
    for row in lessons.timing.learned.report():
        if row.limit_s is not None:
            key = (row.model, row.kind)
            shortest_s[key] = min(row.limit_s, shortest_s.get(key, row.limit_s))
    yield from shortest_s.items()


def _waiting(gate: LocalGate) -> Readings:
    for pool, queue in gate.basin.queues():
        for (lane, value), count in queue.depths():
            yield (pool, lane, value), count
