"""SGLang's metrics page: one series per rank and, with priority scheduling, per priority."""

import pytest

from forebay.domain import ABSENT
from forebay.engines.sglang import Sglang, missing_flags


def series(name: str, value: float, **labels: object) -> str:
    known = {"model_name": "m", "engine_type": "unified", "tp_rank": 0, "pp_rank": 0, "moe_ep_rank": 0} | labels
    inside = ",".join(f'{key}="{text}"' for key, text in sorted(known.items()))
    return f"# TYPE sglang:{name} gauge\nsglang:{name}{{{inside}}} {value}\n"


def read(*lines: str) -> tuple[float | None, ...]:
    load = Sglang().read_telemetry("".join(lines).encode())
    return load.running.value, load.waiting.value, load.kv_usage_ratio.value, load.kv_tokens.value


PAGE = "".join(
    (
        series("num_running_reqs", 4.0),
        series("num_queue_reqs", 2.0),
        series("token_usage", 0.13),
        series("kv_used_tokens", 12_800.0),
        series("max_total_num_tokens", 100_000.0),
        series("gen_throughput", 812.5),
    )
)


def test_one_rank_with_the_exact_usage() -> None:
    assert read(PAGE) == (4.0, 2.0, 0.128, 100_000.0)


def test_tensor_parallel_ranks_report_the_same_work() -> None:
    lines = [series("num_running_reqs", 4.0, tp_rank=rank) for rank in range(4)]
    lines += [series("max_total_num_tokens", 1000.0, tp_rank=rank) for rank in range(4)]
    assert read(*lines) == (4.0, None, None, 1000.0)


def test_data_parallel_ranks_are_added_up_and_the_fullest_one_counts() -> None:
    lines = []
    for dp_rank, used in enumerate((100.0, 900.0)):
        for tp_rank in range(2):
            rank = {"dp_rank": dp_rank, "tp_rank": tp_rank}
            lines.append(series("num_running_reqs", 3.0, **rank))
            lines.append(series("num_queue_reqs", float(dp_rank), **rank))
            lines.append(series("kv_used_tokens", used, **rank))
            lines.append(series("max_total_num_tokens", 1000.0, **rank))
    assert read(*lines) == (6.0, 1.0, 0.9, 2000.0)


def test_retracted_requests_are_its_preemptions() -> None:
    lines = [series("num_retracted_requests_total", 2.0, tp_rank=rank) for rank in range(2)]
    assert Sglang().read_telemetry("".join(lines).encode()).preemptions.value == 2.0
    assert Sglang().read_telemetry(PAGE.encode()).preemptions == ABSENT


def test_queues_by_priority_do_not_count_twice() -> None:
    lines = [series("num_queue_reqs", 5.0, priority="")]
    lines += [series("num_queue_reqs", 9.0, priority=1), series("num_queue_reqs", 2.0, priority="None")]
    assert read(*lines)[1] == 5.0


def test_usage_from_the_rounded_figure_alone() -> None:
    assert read(series("token_usage", 0.37))[2] == 0.37


def test_a_fuller_pool_of_another_kind_counts() -> None:
    lines = [series("token_usage", 0.8), series("kv_used_tokens", 100.0), series("max_total_num_tokens", 1000.0)]
    assert read(*lines)[2] == 0.8


def test_room_of_zero_gives_no_ratio() -> None:
    assert read(series("kv_used_tokens", 0.0), series("max_total_num_tokens", 0.0))[2] is None


def test_nothing_is_no_zero() -> None:
    load = Sglang().read_telemetry(b"http_requests_total 3\n" + series("num_running_reqs", float("nan")).encode())
    assert (load.running, load.waiting, load.kv_usage_ratio, load.kv_tokens, load.slots) == (ABSENT,) * 5


@pytest.mark.parametrize(
    ("asked", "flags"),
    [
        ((False, False, False), ["--enable-metrics", "--enable-cache-report", "--enable-priority-scheduling"]),
        ((True, False, True), ["--enable-cache-report"]),
        ((None, None, None), []),
    ],
)
def test_flags_from_its_launch_arguments(asked: tuple[bool | None, bool | None, bool | None], flags: list[str]) -> None:
    assert [advice.flag for advice in missing_flags(*asked)] == flags
