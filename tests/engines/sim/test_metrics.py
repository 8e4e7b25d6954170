"""The metrics page, read by the product's own adapter and by the reference parser."""

from prometheus_client.parser import text_string_to_metric_families

from forebay.engines.sim.metrics import EngineMetrics, Finished, Histogram, token_buckets
from forebay.engines.sim.model import EngineModel, Seq
from forebay.engines.sim.spec import SimSpec
from forebay.engines.vllm import Vllm

SPEC = SimSpec(kv_tokens=160, max_model_len=100, max_num_seqs=1)


def page_of(metrics: EngineMetrics, model: EngineModel) -> dict[str, float]:
    """Every sample of the page, keyed by name and sorted label values."""
    samples = {}
    for family in text_string_to_metric_families(metrics.render(model).decode()):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            samples[f"{sample.name}{{{labels}}}"] = sample.value
    return samples


def test_the_product_reads_its_load() -> None:
    model = EngineModel(SPEC)
    model.submit(Seq(1, 32, 4))
    model.submit(Seq(2, 32, 4))
    model.step()
    telemetry = Vllm().read_telemetry(EngineMetrics(SPEC, 0.0).render(model))
    assert telemetry.running.value == 1
    assert telemetry.waiting.value == 1
    assert telemetry.kv_usage_ratio.value == 0.2
    assert telemetry.kv_tokens.value == 160


def test_everything_is_there_at_zero_from_the_start() -> None:
    samples = page_of(EngineMetrics(SPEC, 1.0), EngineModel(SPEC))
    labels = "engine=0,model_name=sim"
    for name in ("prompt_tokens", "generation_tokens", "num_preemptions"):
        assert samples[f"vllm:{name}_total{{{labels}}}"] == 0
    assert samples["vllm:time_to_first_token_seconds_bucket{engine=0,le=+Inf,model_name=sim}"] == 0
    for reason in ("stop", "length", "abort", "error", "repetition"):
        assert samples[f"vllm:request_success_total{{engine=0,finished_reason={reason},model_name=sim}}"] == 0
    assert samples["vllm:admission_rejections_total{model_name=sim,reason=max_num_queued_reqs}"] == 0


def test_a_finished_sequence_is_in_every_histogram_of_its_kind() -> None:
    metrics = EngineMetrics(SPEC, 0.0)
    metrics.first_token(32, 0.02)
    metrics.first_token(8, 0.2)
    metrics.next_token(0.03)
    metrics.finish(Finished(1.0, 1.5, 2.0, 5.0, 32, 4, 4, 0), "length")
    samples = page_of(metrics, EngineModel(SPEC))
    labels = "{engine=0,model_name=sim}"
    assert samples[f"vllm:e2e_request_latency_seconds_sum{labels}"] == 4.0
    assert samples[f"vllm:request_queue_time_seconds_sum{labels}"] == 0.5
    assert samples[f"vllm:request_prefill_time_seconds_sum{labels}"] == 0.5
    assert samples[f"vllm:request_decode_time_seconds_sum{labels}"] == 3.0
    assert samples[f"vllm:request_time_per_output_token_seconds_sum{labels}"] == 1.0
    assert samples[f"vllm:prompt_tokens_total{labels}"] == 40
    assert samples["vllm:time_to_first_token_seconds_bucket{engine=0,le=0.02,model_name=sim}"] == 1
    assert samples["vllm:time_to_first_token_seconds_bucket{engine=0,le=0.01,model_name=sim}"] == 0
    assert samples["vllm:time_to_first_token_seconds_bucket{engine=0,le=0.25,model_name=sim}"] == 2
    assert samples[f"vllm:time_to_first_token_seconds_count{labels}"] == 2


def test_a_bound_belongs_to_its_bucket() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (1.0, 1.5, 2.0, 2.5):
        histogram.observe(value)
    assert histogram.counts == [1, 2, 1]


def test_sizes_end_at_the_length_of_the_model() -> None:
    assert token_buckets(100) == (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)


def test_http_answers_are_counted_by_class() -> None:
    metrics = EngineMetrics(SPEC, 0.0)
    metrics.http_answer("/health", "GET", 200)
    metrics.http_answer("/health", "GET", 204)
    samples = page_of(metrics, EngineModel(SPEC))
    assert samples["http_requests_total{handler=/health,method=GET,status=2xx}"] == 2
