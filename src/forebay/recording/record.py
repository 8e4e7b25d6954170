"""The record of one call: facts as they come, counted and written when it is closed, exactly once."""

from collections.abc import Callable, Iterator
from typing import Final, Protocol

import msgspec
from msgspec import Struct

from forebay.clock import Clock
from forebay.domain import FailureKind, Outcome, Usage
from forebay.ports import Lease
from forebay.recording.lines import Attempt, CloseLine, OpenLine
from forebay.recording.metrics import OTHER, CallSeries, Metrics
from forebay.traffic import Call

Counts = Iterator[tuple[tuple[str, ...], float]]

NOTHING_USED: Final = Usage()

_NEVER_S: Final = -1.0
# Durations are cut to whole microseconds. `x * 1e6 // 1.0 / 1e3` makes milliseconds of seconds at a fifth
# of the cost of round(). Looking up a member of an enum costs as much as one in a
# dictionary does.
_ENGINE_ERROR: Final = Outcome.ENGINE_ERROR
_REFUSED: Final = Outcome.REFUSED


class Sink(Protocol):
    """Where lines go: the journal."""

    @property
    def state(self) -> str:
        """`ok`, `full` or `failing: reason`."""
        ...

    @property
    def recovered(self) -> int:
        """Calls of dead processes that were closed as lost."""
        ...

    def write(self, line: bytes, is_open: bool = False) -> None:
        """Take a line; must not block and must not raise."""
        ...

    def lines_written(self) -> Counts:
        """Yield lines written by kind."""
        ...

    def lines_dropped(self) -> Counts:
        """Yield lines lost by kind."""
        ...


class _Desk(Struct, frozen=True, eq=False):
    """What all records of a recorder share."""

    now_s: Callable[[], float]
    wall_s: Callable[[], float]
    encode: Callable[[object], bytes]
    write: Callable[..., None]
    metrics: Metrics
    in_flight: dict[str, "CallRecord"]


class CallRecord:
    """The facts of one call; its one owner is the pipeline.

    Attributes:
        row: what the `close` line will say.
        opened_s: monotonic seconds.
        usage: as the engine counted it; None until it did.
        input_estimate_tokens: of the prompt; 0 means that none was made.
        output_events: content events sent to the client, one for about one token.
        queue_ms: until the permit was granted.
        engine_prefill_ms: as the engine reports it.
        engine_decode_ms: as the engine reports it.
        hygiene: what was odd about the request.
        output_flags: what the output watch saw.
        continued: how often the answer went on from another replica.
        lease: of the latest try; hears of the first token.
        before: what another call has counted of the answer already; None for a whole one.
    """

    __slots__ = (
        "attempts", "before", "closed", "continued", "desk", "dispatched_s", "engine_decode_ms", "engine_prefill_ms",
        "first_token_s", "hygiene", "input_estimate_tokens", "lease", "opened_s", "output_events", "output_flags",
        "prefill_s", "queue_ms", "refusal", "row", "series", "trying", "usage",
    )  # fmt: skip

    def __init__(self, desk: _Desk, row: CloseLine, series: CallSeries, opened_s: float) -> None:
        self.desk = desk
        self.row = row
        self.series = series
        self.opened_s = opened_s
        self.usage: Usage | None = None
        self.input_estimate_tokens = 0
        self.output_events = 0
        self.queue_ms: float | None = None
        self.engine_prefill_ms: float | None = None
        self.engine_decode_ms: float | None = None
        self.hygiene: tuple[str, ...] = ()
        self.output_flags: tuple[str, ...] = ()
        self.continued = 0
        self.lease: Lease | None = None
        self.before: Usage | None = None
        self.closed = False
        self.dispatched_s = _NEVER_S
        self.first_token_s = _NEVER_S
        self.prefill_s = 0.0
        self.attempts: tuple[Attempt, ...] = ()
        self.trying = False
        self.refusal = ""

    def identified(self, tenant: str, model: str, stream: bool) -> None:
        """Tell who calls what.

        Args:
            tenant: its name.
            model: as the client names it.
            stream: whether the answer is streamed.
        """
        row = self.row
        row.tenant = tenant
        row.model = model
        row.stream = stream
        self.series = self.desk.metrics.series(row.endpoint, model, tenant)

    def understood(self, call: Call) -> None:
        """Tell who calls what, and what the call was estimated to be."""
        self.identified(call.tenant.name, call.model, call.stream)
        row = self.row
        self.input_estimate_tokens = row.input_estimate_tokens = call.prompt_tokens
        row.output_estimate_tokens = call.output_tokens
        row.max_tokens = call.max_tokens
        row.request_value = call.value
        row.retry_count = call.retries
        row.prompt_template_id = call.template or None
        row.rule = call.rule or None

    def resumed(self, call_id: str, before: Usage) -> None:
        """Tell that the call goes on with the answer of another one, in whose row the tokens before stand."""
        self.before, self.input_estimate_tokens = before, 0
        self.row.resumed_from = call_id
        self.row.resumed_tokens = before.prompt_tokens + before.completion_tokens

    def admitted(self, received_s: float) -> None:
        """Tell that the call has its permit; its request was whole at `received_s` monotonic seconds."""
        self.queue_ms = (self.desk.now_s() - received_s) * 1e3

    def answered_by(self, model: str) -> None:
        """Tell that another model than the one asked for answers."""
        row = self.row
        row.model = model
        self.series = self.desk.metrics.series(row.endpoint, model, row.tenant or OTHER)

    def dispatched(self, pool: str, replica: str) -> None:
        """Tell that a try begins; the first one writes the `open` line."""
        row = self.row
        row.pool = pool
        row.replica = replica
        self.trying = True
        if self.dispatched_s < 0.0:
            self._write_open(row, pool, replica)
        self.dispatched_s = self.desk.now_s()

    def attempt_failed(self, kind: FailureKind, status: int) -> None:
        """Tell that the latest try failed.

        Args:
            kind: how.
            status: HTTP status of the engine's answer, 0 without one.
        """
        self._end_attempt(kind, status or None, self.desk.now_s())

    def first_token(self) -> None:
        """Tell that the first content goes to the client; means nothing for an answer that is not streamed."""
        if self.row.stream and self.first_token_s < 0.0:
            self.first_token_s = now_s = self.desk.now_s()
            self.prefill_s = now_s - self.dispatched_s
            self.series.first_token.observe(now_s - self.opened_s)
            if self.lease is not None:
                self.lease.first_token()

    def degraded(self, step: str) -> None:
        """Tell that the call is served in a reduced way."""
        self.row.degraded += (step,)
        self.desk.metrics.degraded(step)

    def joined(self, call_id: str, how: str) -> None:
        """Tell that the call is the same as another one.

        Args:
            call_id: of the other one.
            how: `on`, `key`, `replay`: it gets that one's answer and is not run; `warn`: it might have.
        """
        self.row.joined = call_id
        self.row.joined_how = how

    def refused(self, code: str) -> None:
        """Tell the error code of a refusal; `close` counts it."""
        self.refusal = code

    def server_timing(self) -> bytes:
        """Return the value of `Server-Timing`: the wait before the engine, and the engine's until now."""
        engine_ms = (self.desk.now_s() - self.dispatched_s) * 1e3 if self.dispatched_s >= 0.0 else 0.0
        return b"queue;dur=%.1f, engine;dur=%.1f" % (self.queue_ms or 0.0, engine_ms)

    def settled_usage(self) -> Usage:
        """Return what the closed call counts against limits; the same tokens as its `close` line."""
        row = self.row
        if row.total_tokens is None:
            return NOTHING_USED
        return Usage(row.input_length or 0, row.output_length or 0, row.cached_tokens, row.usage_estimated)

    @property
    def model(self) -> str:
        """The model that answered, or that was asked for."""
        return self.row.model or ""

    @property
    def complete(self) -> bool:
        """Whether the answer came to its end."""
        return self.row.outcome in (Outcome.OK, Outcome.FALLBACK)

    def close(self, status: int, outcome: Outcome, error_code: str = "") -> None:
        """End the call; only the first time counts.

        Args:
            status: HTTP status that the client got, 0 if none; 499 for a client that left.
            outcome: how it ended.
            error_code: a code of `errors.CODES`, or empty.
        """
        if self.closed:
            return
        self.closed = True
        desk, row, series = self.desk, self.row, self.series
        now_s = desk.now_s()
        desk.in_flight.pop(row.call_id, None)
        if self.trying:
            self._end_attempt(None, status or None, now_s)
        row.ts = desk.wall_s() * 1e3 // 1.0 / 1e3
        row.status = status or None
        row.outcome = outcome
        row.error_code = error_code or self.refusal or None
        row.attempts = self.attempts
        row.hygiene = self.hygiene
        row.output_flags = self.output_flags
        row.continued = self.continued
        self._count_tokens(row, outcome)
        self._take_times(row, now_s)
        total_s = now_s - self.opened_s
        row.total_ms = total_s * 1e6 // 1.0 / 1e3
        row.total_source = "gateway"
        series.end(status, outcome)
        series.duration.observe(total_s)
        if outcome is _REFUSED:
            desk.metrics.refused(row.error_code or OTHER)
        desk.write(desk.encode(row))

    def _write_open(self, row: CloseLine, pool: str, replica: str) -> None:
        desk = self.desk
        line = OpenLine(
            desk.wall_s() * 1e3 // 1.0 / 1e3,
            row.call_id,
            row.request_id,
            row.tenant,
            row.model,
            row.endpoint,
            row.stream,
            pool,
            replica,
            self.input_estimate_tokens or None,
            row.prompt_template_id,
            row.client_address,
        )
        desk.write(desk.encode(line), True)

    def _end_attempt(self, failure: FailureKind | None, status: int | None, now_s: float) -> None:
        if not self.trying:
            return
        self.trying = False
        pool, replica = self.row.pool or OTHER, self.row.replica or OTHER
        ms = (now_s - self.dispatched_s) * 1e6 // 1.0 / 1e3
        self.attempts += (Attempt(pool, replica, failure, status, ms),)
        self.desk.metrics.tried(pool, replica, failure)

    def _count_tokens(self, row: CloseLine, outcome: Outcome) -> None:
        """Fill in the tokens: the engine's count, else the estimate and the events sent (case 053).

        A call that no engine worked on, or whose engine failed before any content, counts nothing.
        """
        usage, series, before = self.usage, self.series, self.before
        if usage is not None and before is not None:
            usage = Usage(0, max(0, usage.completion_tokens - before.completion_tokens), None, usage.estimated)
        if usage is not None:
            prompt, completion = usage.prompt_tokens, usage.completion_tokens
            row.usage_estimated = usage.estimated
            if usage.cached_tokens is not None:
                row.cached_tokens = usage.cached_tokens
                row.kv_cache_hit = usage.cached_tokens > 0
                series.cached.value += usage.cached_tokens
        else:
            prompt, completion = self.input_estimate_tokens, self.output_events
            if not completion and (self.dispatched_s < 0.0 or outcome in (_ENGINE_ERROR, _REFUSED)):
                row.input_length = prompt or None
                return
        row.input_length = prompt
        row.output_length = completion
        row.total_tokens = prompt + completion
        series.prompt.value += prompt
        series.completion.value += completion

    def _take_times(self, row: CloseLine, now_s: float) -> None:
        """Fill in the durations, each with its source."""
        if self.queue_ms is not None:
            row.queue_ms = self.queue_ms * 1e3 // 1.0 / 1e3
            row.queue_source = "gateway"
        first_s = self.first_token_s
        if first_s >= 0.0:
            row.ttft_ms = (first_s - self.opened_s) * 1e6 // 1.0 / 1e3
            row.ttft_source = "gateway"
        if self.engine_prefill_ms is not None:
            row.prefill_time_ms = self.engine_prefill_ms
            row.prefill_time_source = "engine"
        elif first_s >= 0.0 and self.dispatched_s >= 0.0:
            row.prefill_time_ms = self.prefill_s * 1e6 // 1.0 / 1e3
            row.prefill_time_source = "gateway"
        if self.engine_decode_ms is not None:
            row.decode_time_ms = self.engine_decode_ms
            row.decode_time_source = "engine"
        elif first_s >= 0.0 and self.dispatched_s >= 0.0:
            row.decode_time_ms = (now_s - first_s) * 1e6 // 1.0 / 1e3
            row.decode_time_source = "gateway"


class Recorder:
    """Opens records, and knows which are not closed.

    Args:
        clock: monotonic and wall time.
        journal: takes the lines.
        metrics: counts the calls, and shows the journal's state.
    """

    def __init__(self, clock: Clock, journal: Sink, metrics: Metrics) -> None:
        self._journal = journal
        self._metrics = metrics
        self._now_s = clock.now_s
        self._in_flight: dict[str, CallRecord] = {}
        encode = msgspec.json.Encoder().encode
        self._desk = _Desk(clock.now_s, clock.wall_s, encode, journal.write, metrics, self._in_flight)
        metrics.watch("forebay_requests_in_flight", self._in_flight_by_model)
        metrics.watch("forebay_requests_oldest_age_seconds", lambda: [((), self.oldest_age_s())])
        metrics.watch("forebay_journal_lines_total", journal.lines_written)
        metrics.watch("forebay_journal_dropped_total", journal.lines_dropped)
        metrics.watch("forebay_journal_state", lambda: [((journal.state.partition(":")[0],), 1)])
        metrics.watch("forebay_journal_recovered_total", lambda: [((), journal.recovered)])

    @property
    def in_flight(self) -> int:
        """Number of calls that are not closed."""
        return len(self._in_flight)

    def oldest_age_s(self) -> float:
        """Return the age of the oldest call that is not closed, 0 without any."""
        for record in self._in_flight.values():
            return self._now_s() - record.opened_s
        return 0.0

    def open(self, call_id: str, request_id: str, endpoint: str, client_address: str) -> CallRecord:
        """Begin the record of a call.

        Args:
            call_id: unique.
            request_id: the client's, which need not be unique.
            endpoint: name of the route, never a raw path.
            client_address: of the client, behind trusted proxies.
        """
        row = CloseLine(0.0, call_id, request_id, endpoint, client_address)
        record = CallRecord(self._desk, row, self._metrics.series(endpoint, OTHER, OTHER), self._now_s())
        self._in_flight[call_id] = record
        return record

    def unrouted(self, code: str, status: int) -> None:
        """Count a request that is no call: no route has its path or method. It gets no journal line."""
        self._metrics.series(OTHER, OTHER, OTHER).end(status, Outcome.REFUSED)
        self._metrics.refused(code)

    def _in_flight_by_model(self) -> Counts:
        counts: dict[str, int] = {}
        for record in self._in_flight.values():
            model = record.row.model or OTHER
            counts[model] = counts.get(model, 0) + 1
        for model, count in counts.items():
            yield (model,), count
