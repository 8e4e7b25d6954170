"""Every metric family of the data plane: the list behind `/metrics` and docs/metrics.md."""

from typing import Final, Literal, NamedTuple

_REPLICA = ("pool", "replica")

# A fixed set, so that series of different versions and replicas add up. The last finite bound lies above
# the longest `total_s` that is common (600 s), so that a call that ran into it is still told from a hang.
DURATION_BOUNDS_S: Final = (
    0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0, 1800.0,
)  # fmt: skip
# First tokens come sooner and are compared more finely: targets lie between 0.1 and 2 s.
FIRST_TOKEN_BOUNDS_S: Final = (
    0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.15, 0.2, 0.3, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip


class Family(NamedTuple):
    """A family of series.

    Attributes:
        name: as scraped; counters end in `_total`.
        bounds_s: upper bounds of the buckets, without infinity; empty unless it is a histogram.
    """

    name: str
    type: Literal["counter", "gauge", "histogram"]
    labels: tuple[str, ...]
    help: str
    bounds_s: tuple[float, ...] = ()


REQUESTS: Final = Family(
    "forebay_requests_total",
    "counter",
    ("endpoint", "model", "tenant", "code", "outcome"),
    "Calls that ended.",
)
DURATION: Final = Family(
    "forebay_request_duration_seconds",
    "histogram",
    ("endpoint", "model"),
    "Time from the whole request to the end of the answer.",
    DURATION_BOUNDS_S,
)
FIRST_TOKEN: Final = Family(
    "forebay_time_to_first_token_seconds",
    "histogram",
    ("model",),
    "Time from the whole request to the first content of a streamed answer.",
    FIRST_TOKEN_BOUNDS_S,
)
ATTEMPTS: Final = Family(
    "forebay_attempts_total",
    "counter",
    (*_REPLICA, "failure"),
    "Tries on replicas that ended; failure is none when the engine did its part.",
)
REFUSED: Final = Family("forebay_requests_refused_total", "counter", ("reason",), "Requests refused, by error code.")
DEGRADED: Final = Family("forebay_requests_degraded_total", "counter", ("step",), "Calls served in a reduced way.")
TOKENS: Final = Family(
    "forebay_tokens_total", "counter", ("model", "kind"), "Tokens counted at the end of calls: as in the journal."
)

# Read from their owners when scraped.
IN_FLIGHT: Final = Family("forebay_requests_in_flight", "gauge", ("model",), "Calls that have not ended.")
OLDEST_AGE: Final = Family(
    "forebay_requests_oldest_age_seconds", "gauge", (), "Age of the oldest call in flight, 0 without any."
)
QUEUE_DEPTH: Final = Family("forebay_queue_depth", "gauge", ("pool",), "Calls that wait for a replica.")
QUEUE_WAITING: Final = Family(
    "forebay_queue_waiting",
    "gauge",
    ("pool", "lane", "value"),
    "Calls that wait for a replica, by lane and request value.",
)
HIGH_LOWERED: Final = Family(
    "forebay_high_claims_lowered_total",
    "counter",
    (),
    "Calls that claimed high beyond their tenant's share while others waited.",
)
SPEED: Final = Family(
    "forebay_replica_prefill_tokens_per_second", "gauge", _REPLICA, "Prompt tokens that it computes in a second."
)
UNPREFILLED: Final = Family(
    "forebay_replica_unprefilled_tokens", "gauge", _REPLICA, "Prompt tokens sent whose first token has not come."
)
RETRIES_DENIED: Final = Family(
    "forebay_retries_denied_total", "counter", ("pool", "scope"), "Tries that the retry budget did not allow."
)
CONTINUED: Final = Family(
    "forebay_continuations_total", "counter", ("pool",), "Times that a broken answer went on with another engine."
)
CONTINUATIONS_LOST: Final = Family(
    "forebay_continuations_lost_total", "counter", ("cause",), "Broken answers that could not go on."
)
RESUMED: Final = Family(
    "forebay_resumes_total", "counter", ("left",), "Answers that clients came back for, by what was left of them."
)
RULE_APPLIED: Final = Family("forebay_rule_applied_total", "counter", ("rule",), "Calls that a rule decided on.")
ESTIMATE_ERROR: Final = Family(
    "forebay_estimate_error_ratio", "gauge", ("model",), "Median error of the estimates of prompt tokens, relative."
)
PERMITS: Final = Family("forebay_permits_held", "gauge", ("tenant",), "Permits that calls of the tenant hold.")
TELEMETRY_AGE: Final = Family(
    "forebay_telemetry_age_seconds",
    "gauge",
    _REPLICA,
    "Age of the engine's latest telemetry; without any, time since the replica is known.",
)
REPLICA_UP: Final = Family("forebay_replica_up", "gauge", _REPLICA, "1 if the replica may get calls.")
REPLICA_IN_FLIGHT: Final = Family("forebay_replica_in_flight", "gauge", _REPLICA, "Tries that run on the replica.")
EJECTED: Final = Family(
    "forebay_replica_ejected", "gauge", (*_REPLICA, "reason"), "1 while the replica's breaker is not closed."
)
CONNECTIONS: Final = Family(
    "forebay_upstream_connections_total", "counter", _REPLICA, "Connections opened to the replica."
)
MISSING_DONE: Final = Family(
    "forebay_upstream_missing_done_total", "counter", (), "Streams that engines ended without [DONE]."
)
JOURNAL_LINES: Final = Family("forebay_journal_lines_total", "counter", ("kind",), "Journal lines written.")
JOURNAL_DROPPED: Final = Family("forebay_journal_dropped_total", "counter", ("kind",), "Journal lines lost.")
JOURNAL_STATE: Final = Family("forebay_journal_state", "gauge", ("state",), "1 for the state that the journal is in.")
JOURNAL_RECOVERED: Final = Family(
    "forebay_journal_recovered_total", "counter", (), "Calls of dead processes that were closed as lost."
)
RELOAD_FAILURES: Final = Family(
    "forebay_config_reload_failures_total", "counter", (), "Documents that were refused after the start."
)
RELOAD_OK: Final = Family("forebay_config_last_reload_ok", "gauge", (), "1 if the latest documents are in force.")
LOOP_LAG: Final = Family("forebay_loop_lag_seconds", "gauge", (), "How late the event loop's latest tick was.")
TENANT_DEGRADED: Final = Family(
    "forebay_tenant_degraded", "gauge", ("tenant",), "1 while the tenant is served by another model."
)
LADDER_LEVEL: Final = Family("forebay_ladder_level", "gauge", ("pool",), "Level of the pool on the ladder, 0 to 3.")
LADDER_KV: Final = Family(
    "forebay_ladder_kv_ratio", "gauge", ("pool",), "KV usage that is foreseen for the pool; absent where nobody knows."
)
LADDER_PAIN: Final = Family(
    "forebay_ladder_pain", "gauge", ("pool", "reason"), "1 while calls on the pool suffer in this way."
)
POOL_PANIC: Final = Family(
    "forebay_pool_panic", "gauge", ("pool",), "1 while more than half of its replicas seem ill: a doubt, no verdict."
)
LEARNED_TIMEOUT: Final = Family(
    "forebay_learned_timeout_seconds",
    "gauge",
    ("model", "kind"),
    "The shortest learned deadline in force, 0 while only the configured one holds.",
)
JOINED: Final = Family(
    "forebay_requests_joined_total", "counter", ("mode",), "Requests that got the answer of another one that ran."
)
REPLAYS: Final = Family(
    "forebay_idempotency_replays_total", "counter", (), "Requests that got the kept answer of an earlier one."
)
STORE_UP: Final = Family("forebay_store_up", "gauge", (), "1 if the shared store answers, or there is none.")
STORE_AGE: Final = Family("forebay_store_age_seconds", "gauge", (), "Time since the shared store last answered.")
STORE_FAILURES: Final = Family(
    "forebay_store_failures_total", "counter", (), "Rounds in which the shared store did not answer as it should."
)
NODES: Final = Family("forebay_nodes", "gauge", (), "Nodes that are there, as far as this one knows.")
PORTION: Final = Family(
    "forebay_limit_portion", "gauge", ("tenant", "limit"), "What this node may use of a limit that the nodes share."
)
MONTH_TOKENS: Final = Family(
    "forebay_month_spent_tokens", "gauge", ("tenant",), "Tokens that the tenant has spent in this month (UTC)."
)
MONTH_MONEY: Final = Family(
    "forebay_month_spent_money", "gauge", ("tenant",), "Money that the tenant has spent in this month (UTC)."
)
FORECAST_TOKENS: Final = Family(
    "forebay_month_forecast_tokens", "gauge", ("tenant", "bound"), "Tokens that its month will have come to."
)
FORECAST_MONEY: Final = Family(
    "forebay_month_forecast_money", "gauge", ("tenant", "bound"), "Money that its month will have come to."
)
ENGINE_DEATHS: Final = Family("forebay_engine_deaths_total", "counter", (), "Replicas that died under calls.")
SUSPECTS: Final = Family(
    "forebay_suspect_requests", "gauge", ("standing",), "Requests under which engines died: suspected, or quarantined."
)
SUSPECTS_WAITING: Final = Family(
    "forebay_suspects_waiting", "gauge", ("pool",), "Calls that wait to be tried again by themselves."
)
FEATURE_CUT: Final = Family(
    "forebay_feature_cut_off",
    "gauge",
    ("pool", "endpoint", "model", "feature"),
    "Replicas to which requests with the feature are not sent.",
)
ERRANDS_ALONE: Final = Family(
    "forebay_errands_left_alone", "gauge", ("errand",), "Replicas that are not asked for it for now, because it failed."
)
BUILD: Final = Family("forebay_build_info", "gauge", ("version",), "Always 1.")
READ_FAILURES: Final = Family(
    "forebay_metrics_read_failures_total", "counter", (), "Gauges that could not be read when scraped."
)

# The same data under the names of the OpenTelemetry conventions for generative AI.
GENAI_DURATION: Final = Family(
    "gen_ai_server_request_duration_seconds",
    "histogram",
    ("gen_ai_request_model",),
    "forebay_request_duration_seconds over all endpoints.",
    DURATION_BOUNDS_S,
)
GENAI_FIRST_TOKEN: Final = Family(
    "gen_ai_server_time_to_first_token_seconds",
    "histogram",
    ("gen_ai_request_model",),
    "forebay_time_to_first_token_seconds.",
    FIRST_TOKEN_BOUNDS_S,
)

WATCHED: Final = (
    IN_FLIGHT, OLDEST_AGE, QUEUE_DEPTH, PERMITS, TELEMETRY_AGE, REPLICA_UP, REPLICA_IN_FLIGHT, EJECTED, CONNECTIONS,
    MISSING_DONE, JOURNAL_LINES, JOURNAL_DROPPED, JOURNAL_STATE, JOURNAL_RECOVERED, RELOAD_FAILURES, RELOAD_OK,
    LOOP_LAG, QUEUE_WAITING, HIGH_LOWERED, SPEED, UNPREFILLED, RETRIES_DENIED, RULE_APPLIED, CONTINUED,
    CONTINUATIONS_LOST, ESTIMATE_ERROR, TENANT_DEGRADED, POOL_PANIC, LEARNED_TIMEOUT, JOINED,
    REPLAYS, LADDER_LEVEL, LADDER_KV, LADDER_PAIN, STORE_UP, STORE_AGE, STORE_FAILURES, NODES, PORTION,
    RESUMED, MONTH_TOKENS, MONTH_MONEY, FORECAST_TOKENS, FORECAST_MONEY, ENGINE_DEATHS, SUSPECTS, SUSPECTS_WAITING,
    FEATURE_CUT, ERRANDS_ALONE,
)  # fmt: skip
UNKNOWN_AT_FIRST: Final = frozenset({LADDER_KV})
"""Families that have no series while nobody knows: 0 would be a lie."""
COUNTED: Final = (REQUESTS, ATTEMPTS, REFUSED, DEGRADED, TOKENS)
TIMED: Final = (DURATION, FIRST_TOKEN)
FAMILIES: Final = (*COUNTED, *TIMED, GENAI_DURATION, GENAI_FIRST_TOKEN, *WATCHED, BUILD, READ_FAILURES)
