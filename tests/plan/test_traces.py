"""Traces are read as they are published, and brought to a load."""

from pathlib import Path
from random import Random

import pytest

from forebay.plan.traces import (
    Arrival,
    Synthetic,
    TraceError,
    merged,
    read_azure,
    read_folder,
    read_mooncake,
    realisation,
    synthetic,
    unrounded,
    window,
    with_load,
)

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2225670,0,0
"""
MOONCAKE = """{"timestamp": 0, "input_length": 6758, "output_length": 500, "hash_ids": [0, 1, 2]}
{"timestamp": 3000, "input_length": 2290, "output_length": 316, "hash_ids": [0, 42]}

{"timestamp": 3000, "input_length": 700, "output_length": 0}
"""


def arrival(at_s: float, prompt_tokens: int = 100, output_tokens: int = 10, tenant: str = "a") -> Arrival:
    return Arrival(at_s, prompt_tokens, output_tokens, tenant)


def folder(path: Path, azure: str = AZURE, mooncake: str = MOONCAKE) -> Path:
    for name, text in (
        ("azure2023/AzureLLMInferenceTrace_conv.csv", azure),
        ("mooncake/conversation_trace.jsonl", mooncake),
    ):
        if text:
            (path / name).parent.mkdir(parents=True)
            (path / name).write_text(text)
    return path


def test_azure_counts_from_its_first_line(tmp_path: Path) -> None:
    (trace, _) = read_folder(folder(tmp_path))
    assert [(one.prompt_tokens, one.output_tokens) for one in trace] == [(374, 44), (396, 109), (1, 1)]
    assert [one.at_s for one in trace] == pytest.approx([0, 4.314579, 4.541977], abs=1e-5)
    assert {one.tenant for one in trace} == {"azure"}


def test_mooncake_keeps_its_blocks(tmp_path: Path) -> None:
    (_, trace) = read_folder(folder(tmp_path))
    assert [one.at_s for one in trace] == [0, 3, 3]
    assert [one.blocks for one in trace] == [(0, 1, 2), (0, 42), ()]
    assert [one.output_tokens for one in trace] == [500, 316, 1]


@pytest.mark.parametrize(
    ("name", "text", "line"),
    [("a.csv", "TIMESTAMP,ContextTokens\n2023-11-16 18:15:46.68,1\n", 2), ("a.csv", "TIMESTAMP,ContextTokens,"
     "GeneratedTokens\n2023-11-16 18:15:46.68,1,1\nnoon,1,1\n", 3), ("b.jsonl", '{"timestamp": 1}\n', 1)],
)  # fmt: skip
def test_a_bad_line_is_named(tmp_path: Path, name: str, text: str, line: int) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(TraceError, match=rf"{name}:{line}: "):
        (read_azure if name.endswith("csv") else read_mooncake)(path)


def test_one_trace_is_enough_and_none_says_what_is_wanted(tmp_path: Path) -> None:
    assert len(read_folder(folder(tmp_path / "one", mooncake=""))) == 1
    with pytest.raises(TraceError, match="azure2023.*mooncake"):
        read_folder(tmp_path)


def test_a_window_begins_anew_where_the_trace_ends() -> None:
    trace = [arrival(float(second)) for second in range(10)]
    assert [one.at_s for one in window(trace, 2.5, 3.0)] == [0.5, 1.5, 2.5]
    wrapped = window(trace, 8.5, 3.0)
    assert len(wrapped) == 3
    assert all(0 <= one.at_s < 3 for one in wrapped)
    with pytest.raises(ValueError, match="lasts 10 s.*11 s"):
        window(trace, 0.0, 11.0)


def test_rounded_times_are_spread_until_the_next_one() -> None:
    trace = [arrival(0.0), arrival(3.0), arrival(3.0), arrival(3.0), arrival(6.0), arrival(6.0)]
    spread = unrounded(trace, Random(1))
    assert spread[0].at_s == 0.0
    assert all(3 <= one.at_s < 6 for one in spread[1:4])
    assert all(6 <= one.at_s < 9 for one in spread[4:])
    assert len({one.at_s for one in spread}) == 6


def test_less_load_leaves_arrivals_out_and_more_load_lets_them_come_sooner() -> None:
    trace = [arrival(second / 10) for second in range(10_000)]  # 1,000 tokens/s
    less = with_load(trace, 1000.0, 300.0, Random(1))
    assert len(less) == pytest.approx(3000, rel=0.1)
    assert less[-1].at_s > 990
    more = with_load(trace, 1000.0, 1500.0, Random(1))
    assert len(more) == 10_000
    assert more[-1].at_s == pytest.approx(trace[-1].at_s / 1.5)


def test_realisations_differ_and_equal_seeds_agree() -> None:
    random = Random(7)
    traces = [[arrival(float(second), random.randint(50, 150), 10, name) for second in range(500)] for name in "ab"]
    made = [realisation(traces, number, 200.0, 150.0, seed=3) for number in range(3)]
    assert made[0] == realisation(traces, 0, 200.0, 150.0, seed=3)
    assert made[0] != realisation(traces, 0, 200.0, 150.0, seed=4)
    assert made[0] != made[1] != made[2]
    for arrivals in made:
        assert arrivals == merged([arrivals])
        assert sum(one.prompt_tokens for one in arrivals) / 200 == pytest.approx(150, rel=0.15)


def test_a_load_far_above_the_traces_own_is_made_of_layers() -> None:
    traces = [[arrival(float(second)) for second in range(500)]]  # 100 tokens/s
    arrivals = realisation(traces, 0, 200.0, 750.0, seed=1)
    assert len(arrivals) == pytest.approx(1400, abs=10)
    assert arrivals[-1].at_s == pytest.approx(200 * 7 / 7.5, rel=0.02)


def test_synthetic_traffic_has_the_load_and_the_mix_that_is_asked_for() -> None:
    shape = Synthetic()
    arrivals = synthetic(shape, 2000.0, 20_000.0, Random(5))
    assert sum(one.prompt_tokens for one in arrivals) / 2000 == pytest.approx(20_000, rel=0.1)
    assert sum(one.prompt_tokens > 3000 for one in arrivals) / len(arrivals) == pytest.approx(0.15, abs=0.03)
    counts = [sum(one.tenant == f"tenant{number}" for one in arrivals) for number in range(shape.tenants)]
    assert counts == sorted(counts, reverse=True)
    assert arrivals == synthetic(shape, 2000.0, 20_000.0, Random(5))
    assert all(0 < one.at_s < 2000 and one.prompt_tokens <= shape.max_prompt_tokens for one in arrivals)
