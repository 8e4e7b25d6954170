"""SGLang: its metrics page has one series per rank, so each reading says how it was folded."""

from forebay.engines.contract import Advice, EndpointName, Telemetry, reported
from forebay.engines.prometheus import Sample, Samples, by_label, max_of, read_samples
from forebay.policy import EngineKind

_RUNNING = "sglang:num_running_reqs"
_WAITING = "sglang:num_queue_reqs"
_USAGE = "sglang:token_usage"
_USED = "sglang:kv_used_tokens"
_ROOM = "sglang:max_total_num_tokens"
_RETRACTED = "sglang:num_retracted_requests_total"
_WANTED = frozenset({_RUNNING, _WAITING, _USAGE, _USED, _ROOM, _RETRACTED})

# `token_usage` is rounded to two decimals, so it may stand this far above the exact ratio.
_ROUNDING = 0.005

_METRICS = Advice(
    flag="--enable-metrics",
    why="its load and its KV room are invisible",
    fix="add --enable-metrics",
)
_CACHE_REPORT = Advice(
    flag="--enable-cache-report",
    why="usage does not say how many prompt tokens came from the cache",
    fix="add --enable-cache-report",
)
_PRIORITY = Advice(
    flag="--enable-priority-scheduling",
    why="the engine ignores priorities",
    fix="add --enable-priority-scheduling",
)


class Sglang:
    """The adapter of SGLang."""

    kind: EngineKind = "sglang"
    endpoints: frozenset[EndpointName] = frozenset(
        ("chat", "completions", "embeddings", "responses", "messages", "rerank", "score", "tokenize", "detokenize")
    )
    denied_fields = frozenset(
        {
            "bootstrap_host",
            "bootstrap_port",
            "bootstrap_room",
            "cache_salt",
            "conversation_id",
            "custom_labels",
            "custom_logit_processor",
            "custom_params",
            "data_parallel_rank",
            "disagg_prefill_dp_rank",
            "extra_key",
            "input_ids",
            "lora_path",
            "priority",
            "request_id",
            "return_hidden_states",
            "return_routed_experts",
            "return_token_ids",
            "rid",
            "routed_dp_rank",
            "session_id",
            "session_params",
        }
    )
    # `/health` and `/health_generate` run a generation and take a second or more; `/ready` is too new to rely on.
    health_path = "/v1/models"
    telemetry_path: str | None = "/metrics"

    def read_telemetry(self, body: bytes) -> Telemetry:
        """Translate `/metrics` (needs `--enable-metrics`).

        The ranks of one tensor-parallel group report the same work: the largest counts. Data-parallel ranks
        work on different calls: they are added up, except for usage, where the fullest counts.

        Raises:
            ValueError: the page is too large.
        """
        samples = read_samples(body, _WANTED)
        return Telemetry(
            running=reported(_over_ranks(samples.get(_RUNNING, []))),
            waiting=reported(_over_ranks(samples.get(_WAITING, []))),
            kv_usage_ratio=reported(_usage(samples)),
            kv_tokens=reported(_over_ranks(samples.get(_ROOM, []))),
            preemptions=reported(_over_ranks(samples.get(_RETRACTED, []))),
        )


def missing_flags(metrics: bool | None, cache_report: bool | None, priority: bool | None) -> tuple[Advice, ...]:
    """Return the flags that an SGLang should have, from its own launch arguments; None is unknown, not off."""
    asked = ((metrics, _METRICS), (cache_report, _CACHE_REPORT), (priority, _PRIORITY))
    return tuple(advice for value, advice in asked if value is False)


def _over_ranks(samples: list[Sample]) -> float | None:
    # With priority scheduling there is also one series per priority; the total has an empty label.
    totals = [sample for sample in samples if not sample.labels.get("priority")]
    ranks = [top for rank in by_label(totals, "dp_rank").values() if (top := max_of(rank)) is not None]
    return sum(ranks) if ranks else None


def _usage(samples: Samples) -> float | None:
    used, room = by_label(samples.get(_USED, ()), "dp_rank"), by_label(samples.get(_ROOM, ()), "dp_rank")
    exact = None
    for rank in used.keys() & room.keys():
        top_used, top_room = max_of(used[rank]), max_of(room[rank])
        if top_used is not None and top_room:
            exact = max(exact or 0.0, top_used / top_room)
    rounded = max_of(samples.get(_USAGE, ()))
    if exact is None or rounded is None:
        return rounded if exact is None else exact
    # Beyond rounding, the higher figure is of another pool (sliding window, state space) that fills first.
    return rounded if rounded > exact + _ROUNDING else exact
