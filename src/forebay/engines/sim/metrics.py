"""The metrics page of a simulated engine: vLLM's names, labels, buckets and habits.

A habit to know: sequences that are aborted never appear in the counters and histograms of finished ones.
"""

from bisect import bisect_left

from msgspec import Struct

from forebay.engines.sim.model import EngineModel, Iteration
from forebay.engines.sim.spec import SimSpec

# Source of all buckets: vLLM 0.32, v1/metrics/buckets.py.
LATENCY_S = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0),
    *(120.0, 240.0, 480.0, 960.0, 1920.0, 7680.0),
)
FIRST_TOKEN_S = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
BETWEEN_TOKENS_S = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75),
    *(1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0),
)
ITERATION_TOKENS = (1.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0, 2048.0, 4096.0, 8192.0, 16384.0)
FINISH_REASONS = ("stop", "length", "abort", "error", "repetition")

CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

Labels = dict[str, str]


class Finished(Struct, frozen=True):
    """The times of a sequence that ended well, in monotonic seconds, and its sizes."""

    arrived_s: float
    scheduled_s: float
    first_token_s: float
    last_token_s: float
    prompt_tokens: int
    generated_tokens: int
    max_tokens: int
    preemptions: int


class Histogram:
    """Counts per bucket; `buckets` are upper bounds, the last one (+Inf) is implied."""

    def __init__(self, buckets: tuple[float, ...]) -> None:
        self.buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.buckets, value)] += 1
        self.total += value


def token_buckets(max_model_len: int) -> tuple[float, ...]:
    """Return the 1-2-5 series up to the length of the model."""
    series = (digit * 10**power for power in range(10) for digit in (1, 2, 5))
    return tuple(float(value) for value in series if value <= max_model_len)


class EngineMetrics:
    """What a simulated engine counts; all series are there from the start.

    Args:
        spec: names the model and gives the sizes.
        created_s: Unix seconds, for the `_created` series.
    """

    def __init__(self, spec: SimSpec, created_s: float) -> None:
        self._spec = spec
        self._created_s = created_s
        self.prompt_tokens = 0
        self.generation_tokens = 0
        self.preemptions = 0
        self.queue_rejections = 0
        self.finished = dict.fromkeys(FINISH_REASONS, 0)
        self.http: dict[tuple[str, str, str], int] = {}
        sizes = token_buckets(spec.max_model_len)
        self.histograms = {
            "time_to_first_token_seconds": Histogram(FIRST_TOKEN_S),
            "inter_token_latency_seconds": Histogram(BETWEEN_TOKENS_S),
            "request_time_per_output_token_seconds": Histogram(BETWEEN_TOKENS_S),
            "e2e_request_latency_seconds": Histogram(LATENCY_S),
            "request_queue_time_seconds": Histogram(LATENCY_S),
            "request_inference_time_seconds": Histogram(LATENCY_S),
            "request_prefill_time_seconds": Histogram(LATENCY_S),
            "request_decode_time_seconds": Histogram(LATENCY_S),
            "request_prompt_tokens": Histogram(sizes),
            "request_generation_tokens": Histogram(sizes),
            "request_params_max_tokens": Histogram(sizes),
            "request_params_n": Histogram((1.0, 2.0, 5.0, 10.0, 20.0)),
            "request_num_preemptions": Histogram((1.0, 2.0, 3.0, 4.0, 5.0, 10.0, 20.0)),
            "iteration_tokens_total": Histogram(ITERATION_TOKENS),
        }
        self._first_token = self.histograms["time_to_first_token_seconds"]
        self._between_tokens = self.histograms["inter_token_latency_seconds"]

    def iteration(self, iteration: Iteration) -> None:
        """Count one iteration."""
        self.generation_tokens += len(iteration.emitted)
        self.preemptions += len(iteration.preempted)
        self.histograms["iteration_tokens_total"].observe(iteration.prefill_tokens + iteration.decode_seqs)

    def first_token(self, prompt_tokens: int, waited_s: float) -> None:
        """Count a prompt that is computed."""
        self.prompt_tokens += prompt_tokens
        self._first_token.observe(waited_s)

    def next_token(self, gap_s: float) -> None:
        """Count the time between two tokens of one sequence."""
        self._between_tokens.observe(gap_s)

    def finish(self, end: Finished, reason: str) -> None:
        """Count a sequence that ended well."""
        self.finished[reason] += 1
        decode_s = end.last_token_s - end.first_token_s
        values = {
            "e2e_request_latency_seconds": end.last_token_s - end.arrived_s,
            "request_queue_time_seconds": end.scheduled_s - end.arrived_s,
            "request_inference_time_seconds": end.last_token_s - end.scheduled_s,
            "request_prefill_time_seconds": end.first_token_s - end.scheduled_s,
            "request_decode_time_seconds": decode_s,
            "request_time_per_output_token_seconds": decode_s / max(1, end.generated_tokens - 1),
            "request_prompt_tokens": end.prompt_tokens,
            "request_generation_tokens": end.generated_tokens,
            "request_params_max_tokens": end.max_tokens,
            "request_params_n": 1,
            "request_num_preemptions": end.preemptions,
        }
        for name, value in values.items():
            self.histograms[name].observe(value)

    def http_answer(self, handler: str, method: str, status: int) -> None:
        """Count an answer at its headers, by class of status; handlers come from a closed list."""
        key = (handler, method, f"{status // 100}xx")
        self.http[key] = self.http.get(key, 0) + 1

    def render(self, model: EngineModel) -> bytes:
        """Return the page, with the gauges read from the model now."""
        page = _Page(self._created_s)
        labels = {"engine": "0", "model_name": self._spec.models[0]}
        self._gauges(page, labels, model)
        self._counters(page, labels)
        for name, histogram in self.histograms.items():
            page.histogram(f"vllm:{name}", labels, histogram)
        page.counter(
            "http_requests",
            [
                ({"handler": handler, "method": method, "status": status}, count)
                for (handler, method, status), count in sorted(self.http.items())
            ],
        )
        return page.text()

    def _gauges(self, page: "_Page", labels: Labels, model: EngineModel) -> None:
        page.gauge("vllm:num_requests_running", [(labels, model.running)])
        page.gauge("vllm:num_requests_waiting", [(labels, model.waiting)])
        reasons = (("capacity", model.waiting), ("deferred", 0))
        page.gauge("vllm:num_requests_waiting_by_reason", [(labels | {"reason": r}, n) for r, n in reasons])
        page.gauge("vllm:kv_cache_usage_perc", [(labels, model.kv_usage_ratio)])
        states = (("awake", 1), ("weights_offloaded", 0), ("discard_all", 0))
        page.gauge("vllm:engine_sleep_state", [(labels | {"sleep_state": s}, n) for s, n in states])
        blocks, size = self._spec.kv_blocks, self._spec.block_size_tokens
        info = {
            "block_size": str(size),
            "cache_dtype": "auto",
            "enable_prefix_caching": "False",
            "engine": "0",
            "kv_cache_size_tokens": str(blocks * size),
            "num_gpu_blocks": str(blocks),
        }
        page.gauge("vllm:cache_config_info", [(info, 1)])

    def _counters(self, page: "_Page", labels: Labels) -> None:
        page.counter("vllm:prefix_cache_queries", [(labels, self.prompt_tokens)])
        page.counter("vllm:prefix_cache_hits", [(labels, 0)])
        page.counter("vllm:num_preemptions", [(labels, self.preemptions)])
        page.counter("vllm:prompt_tokens", [(labels, self.prompt_tokens)])
        sources = (("local_compute", self.prompt_tokens), ("local_cache_hit", 0), ("external_kv_transfer", 0))
        page.counter("vllm:prompt_tokens_by_source", [(labels | {"source": s}, n) for s, n in sources])
        page.counter("vllm:prompt_tokens_cached", [(labels, 0)])
        page.counter("vllm:generation_tokens", [(labels, self.generation_tokens)])
        reasons = self.finished.items()
        page.counter("vllm:request_success", [(labels | {"finished_reason": r}, n) for r, n in reasons])
        model_name = {"model_name": labels["model_name"]}
        rejections = (("max_num_queued_reqs", self.queue_rejections), ("max_num_queued_tokens", 0))
        page.counter("vllm:admission_rejections", [(model_name | {"reason": r}, n) for r, n in rejections])


class _Page:
    """Prometheus text, written family by family."""

    def __init__(self, created_s: float) -> None:
        self._created_s = created_s
        self._lines: list[str] = []

    def gauge(self, name: str, samples: list[tuple[Labels, float]]) -> None:
        self._lines += [f"# HELP {name} Simulated.", f"# TYPE {name} gauge"]
        self._lines += [f"{name}{_labels(labels)} {float(value)}" for labels, value in samples]

    def counter(self, name: str, samples: list[tuple[Labels, float]]) -> None:
        self._lines += [f"# HELP {name}_total Simulated.", f"# TYPE {name}_total counter"]
        self._lines += [f"{name}_total{_labels(labels)} {float(value)}" for labels, value in samples]
        self.gauge(f"{name}_created", [(labels, self._created_s) for labels, _ in samples])

    def histogram(self, name: str, labels: Labels, histogram: Histogram) -> None:
        self._lines += [f"# HELP {name} Simulated.", f"# TYPE {name} histogram"]
        below = 0
        for bound, count in zip((*histogram.buckets, float("inf")), histogram.counts, strict=True):
            below += count
            edge = "+Inf" if bound == float("inf") else str(bound)
            self._lines.append(f"{name}_bucket{_labels(labels | {'le': edge})} {float(below)}")
        self._lines.append(f"{name}_count{_labels(labels)} {float(below)}")
        self._lines.append(f"{name}_sum{_labels(labels)} {histogram.total}")
        self.gauge(f"{name}_created", [(labels, self._created_s)])

    def text(self) -> bytes:
        return ("\n".join(self._lines) + "\n").encode()


def _labels(labels: Labels) -> str:
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
