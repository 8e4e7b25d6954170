"""vLLM's metrics page, as 0.32 writes it, as older builds did, and with what can be wrong in it."""

import pytest

from forebay.domain import ABSENT
from forebay.engines.vllm import Vllm, missing_flags

PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="Qwen/Qwen3-8B"} 3.0
vllm:num_requests_running{engine="1",model_name="Qwen/Qwen3-8B"} 2.0
# HELP vllm:num_requests_waiting Number of requests waiting to be processed.
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="Qwen/Qwen3-8B"} 0.0
vllm:num_requests_waiting{engine="1",model_name="Qwen/Qwen3-8B"} 7.0
# HELP vllm:num_requests_waiting_by_reason Number of waiting requests by reason.
# TYPE vllm:num_requests_waiting_by_reason gauge
vllm:num_requests_waiting_by_reason{engine="0",model_name="Qwen/Qwen3-8B",reason="capacity"} 5.0
vllm:num_requests_waiting_by_reason{engine="1",model_name="Qwen/Qwen3-8B",reason="deferred"} 2.0
# HELP vllm:kv_cache_usage_perc KV-cache usage. 1 means 100 percent usage.
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="Qwen/Qwen3-8B"} 0.25
vllm:kv_cache_usage_perc{engine="1",model_name="Qwen/Qwen3-8B"} 0.75
# HELP vllm:num_preemptions_total Cumulative number of preemption from the engine.
# TYPE vllm:num_preemptions_total counter
vllm:num_preemptions_total{engine="0",model_name="Qwen/Qwen3-8B"} 0.0
# HELP vllm:cache_config_info Information of the LLMEngine CacheConfig
# TYPE vllm:cache_config_info gauge
vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="0",\
kv_cache_size_tokens="98304",num_gpu_blocks="6144",num_gpu_blocks_override="None",sliding_window="None"} 1.0
vllm:cache_config_info{block_size="16",cache_dtype="auto",enable_prefix_caching="True",engine="1",\
kv_cache_size_tokens="98304",num_gpu_blocks="6144",num_gpu_blocks_override="None",sliding_window="None"} 1.0
"""

# vLLM 0.8: no engine label, the former name of KV usage, no kv_cache_size_tokens.
OLD_PAGE = """\
vllm:num_requests_running{model_name="m"} 1.0
vllm:num_requests_waiting{model_name="m"} 0.0
vllm:gpu_cache_usage_perc{model_name="m"} 0.5
vllm:cache_config_info{block_size="16",enable_prefix_caching="False",num_cpu_blocks="1024",num_gpu_blocks="573"} 1.0
"""


def test_ranks_are_added_up_and_the_fullest_one_counts() -> None:
    load = Vllm().read_telemetry(PAGE.encode())
    assert (load.running.value, load.waiting.value) == (5.0, 7.0)
    assert load.kv_usage_ratio.value == 0.75
    assert load.kv_tokens.value == 196_608
    assert load.running.source == "engine"
    assert load.slots == ABSENT


def test_preemptions_are_added_up_under_both_names() -> None:
    assert Vllm().read_telemetry(PAGE.encode()).preemptions.value == 0.0
    former = 'vllm:num_preemptions{engine="0"} 3\nvllm:num_preemptions{engine="1"} 4\n'
    assert Vllm().read_telemetry(former.encode()).preemptions.value == 7.0
    assert Vllm().read_telemetry(OLD_PAGE.encode()).preemptions == ABSENT


def test_the_former_names_are_read() -> None:
    load = Vllm().read_telemetry(OLD_PAGE.encode())
    assert load.kv_usage_ratio.value == 0.5
    assert load.kv_tokens.value == 573 * 16
    assert load.waiting.value == 0.0


def test_the_present_name_wins_over_a_hidden_former_one() -> None:
    page = 'vllm:gpu_cache_usage_perc{engine="0"} 0.9\nvllm:kv_cache_usage_perc{engine="0"} 0.1\n'
    assert Vllm().read_telemetry(page.encode()).kv_usage_ratio.value == 0.1


def test_nan_is_absent() -> None:
    load = Vllm().read_telemetry(b"vllm:kv_cache_usage_perc NaN\nvllm:num_requests_running NaN\n")
    assert load.kv_usage_ratio == ABSENT
    assert load.running == ABSENT


def test_a_page_without_the_names_has_no_zeros() -> None:
    load = Vllm().read_telemetry(b"process_cpu_seconds_total 3\n")
    assert (load.running, load.waiting, load.kv_usage_ratio, load.kv_tokens) == (ABSENT,) * 4


@pytest.mark.parametrize("blocks", ["None", "", "x"])
def test_a_block_count_that_is_not_known_yet_is_absent(blocks: str) -> None:
    page = f'vllm:cache_config_info{{block_size="16",num_gpu_blocks="{blocks}",kv_cache_size_tokens="None"}} 1.0\n'
    assert Vllm().read_telemetry(page.encode()).kv_tokens == ABSENT


def test_two_series_of_one_rank_count_once() -> None:
    page = (
        'vllm:cache_config_info{engine="0",kv_cache_size_tokens="None"} 1.0\n'
        'vllm:cache_config_info{engine="0",kv_cache_size_tokens="100"} 1.0\n'
    )
    assert Vllm().read_telemetry(page.encode()).kv_tokens.value == 100


def test_block_counts_of_older_builds_are_not_added_up() -> None:
    page = "".join(
        f'vllm:cache_config_info{{engine="{rank}",block_size="16",num_gpu_blocks="10"}} 1.0\n' for rank in range(2)
    )
    assert Vllm().read_telemetry(page.encode()).kv_tokens.value == 160


def test_flags_that_the_page_shows_to_be_missing() -> None:
    certain = {advice.flag for advice in missing_flags(OLD_PAGE.encode(), has_priority=True) if advice.certain}
    assert certain == {"--enable-prefix-caching"}
    assert [a for a in missing_flags(PAGE.encode(), has_priority=True) if a.certain] == []
    stripped = missing_flags(b"python_info 1\n", has_priority=True)
    assert [a.flag for a in stripped if a.certain] == ["--disable-log-stats"]


def test_an_unread_page_accuses_nobody() -> None:
    assert [a for a in missing_flags(b"", has_priority=False) if a.certain] == []


def test_priority_is_advised_only_where_it_exists() -> None:
    flag = "--scheduling-policy priority"
    assert flag in {a.flag for a in missing_flags(PAGE.encode(), has_priority=True)}
    assert flag not in {a.flag for a in missing_flags(PAGE.encode(), has_priority=False)}
