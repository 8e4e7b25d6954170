"""vLLM: CUDA, Ascend, Cambricon, Gaudi, TPU and CPU builds, which share one server and one metrics page.

Names of vLLM 0.32; older builds and forks trail by up to twenty minor versions, so the former name of KV
usage is read as well.
"""

from forebay.engines.contract import Advice, EndpointName, Telemetry, reported
from forebay.engines.prometheus import Sample, Samples, by_label, max_of, read_samples, sum_of
from forebay.policy import EngineKind

_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
# Newest first: renamed in 0.10, the old name was removed in 0.12.
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
_CACHE = "vllm:cache_config_info"
# The engine's own name has no suffix; its client library adds one to counters, older ones did not.
_PREEMPTIONS = ("vllm:num_preemptions_total", "vllm:num_preemptions")
_WANTED = frozenset({_RUNNING, _WAITING, _CACHE, *_USAGE, *_PREEMPTIONS})

_NO_STATS = Advice(
    flag="--disable-log-stats",
    why="its load and its KV room are invisible",
    fix="start vLLM without --disable-log-stats",
)
_NO_PREFIX_CACHE = Advice(
    flag="--enable-prefix-caching",
    why="every prompt is computed from its first token",
    fix="start vLLM without --no-enable-prefix-caching",
)
_CACHED_TOKENS = Advice(
    flag="--enable-prompt-tokens-details",
    why="without it usage does not say how many prompt tokens came from the cache",
    fix="add --enable-prompt-tokens-details",
    certain=False,
)
_PRIORITY = Advice(
    flag="--scheduling-policy priority",
    why="without it the engine takes priorities and ignores them",
    fix="add --scheduling-policy priority",
    certain=False,
)
_SHUTDOWN = Advice(
    flag="--shutdown-timeout",
    why="with its default of 0 a stop leaves running streams silent until they stall",
    fix="add --shutdown-timeout 30",
    certain=False,
)


class Vllm:
    """The adapter of vLLM."""

    kind: EngineKind = "vllm"
    endpoints: frozenset[EndpointName] = frozenset(
        ("chat", "completions", "embeddings", "responses", "messages", "rerank", "score", "tokenize", "detokenize")
    )
    denied_fields = frozenset(
        {
            "cache_salt",
            "ec_transfer_params",
            "kv_transfer_params",
            "priority",
            "request_id",
            "return_token_ids",
            "session_id",
            "stream_interval",
            "vllm_xargs",
        }
    )
    health_path = "/health"
    telemetry_path: str | None = "/metrics"

    def read_telemetry(self, body: bytes) -> Telemetry:
        """Translate `/metrics`: sums over the engine label (data-parallel rank), for usage the fullest rank.

        Raises:
            ValueError: the page is too large.
        """
        samples = read_samples(body, _WANTED)
        usage = next((samples[name] for name in _USAGE if name in samples), [])
        preemptions = next((samples[name] for name in _PREEMPTIONS if name in samples), [])
        return Telemetry(
            running=reported(sum_of(samples.get(_RUNNING, ()))),
            waiting=reported(sum_of(samples.get(_WAITING, ()))),
            kv_usage_ratio=reported(max_of(usage)),
            kv_tokens=reported(_kv_tokens(samples)),
            preemptions=reported(sum_of(preemptions)),
        )


def missing_flags(page: bytes, has_priority: bool) -> tuple[Advice, ...]:
    """Return the flags that a vLLM should have for all that Forebay can do with it.

    Args:
        page: its `/metrics`, empty when it could not be read.
        has_priority: whether its request schema has the field `priority`.
    """
    missing = []
    samples = read_samples(page, _WANTED)
    if page and _RUNNING not in samples:
        missing.append(_NO_STATS)
    if any(sample.labels.get("enable_prefix_caching") == "False" for sample in samples.get(_CACHE, ())):
        missing.append(_NO_PREFIX_CACHE)
    missing.append(_CACHED_TOKENS)
    if has_priority:
        missing.append(_PRIORITY)
    missing.append(_SHUTDOWN)
    return tuple(missing)


def _kv_tokens(samples: Samples) -> float | None:
    ranks = by_label(samples.get(_CACHE, ()), "engine").values()
    sizes = [size for rank in ranks if (size := _largest(rank, "kv_cache_size_tokens")) is not None]
    if sizes:
        return float(sum(sizes))
    # Before kv_cache_size_tokens the block count was already summed over ranks in some versions: adding it
    # up could promise room that is not there, so one rank's figure is taken.
    return max((blocks for rank in ranks if (blocks := _blocks(rank)) is not None), default=None)


def _blocks(rank: list[Sample]) -> float | None:
    blocks, size = _largest(rank, "num_gpu_blocks"), _largest(rank, "block_size")
    return None if blocks is None or size is None else float(blocks * size)


def _largest(rank: list[Sample], label: str) -> int | None:
    """Return the largest of a label's values; the label is the text `None` until the engine knows it."""
    return max((int(v) for s in rank if (v := s.labels.get(label, "")).isdecimal()), default=None)
