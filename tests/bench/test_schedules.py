"""The pure parts of the benchmarks of scheduling: what is offered, and how the answers are judged."""

import argparse
import json
import math
import random

import pytest

from bench import classes, collapse, engines, fairness, stand
from bench.client import Answer, Call, chat_body, request_bytes
from bench.mix import Lengths, Mix, even, longs_first, prompt, schedule, text_of_bytes
from bench.peers import CannotRun
from bench.scenarios import SCENARIOS
from bench.table import Check, Run, bound_text, judge, render

MIX = Mix(0.15, Lengths(40, 90), Lengths(900, 1500), Lengths(8, 16))
ALONE = collapse.Alone(short_ttft_s=0.2, long_ttft_s=4.0, prefill_s_per_token=0.004)
FLOOR = Check("s", "rate", "throughput", "tokens/s", "floor", 0.97, "through", "direct")


def answer(group: str, due_s: float, first_s: float, **fields: object) -> Answer:
    return Answer(group, due_s, first_s, first_s + 1, 200, 1000, 10)._replace(**fields)


def test_every_seed_offers_the_same_work_at_other_times() -> None:
    one, two = (schedule(MIX, 120, 0.8, random.Random(seed)) for seed in (1, 2))
    assert one == schedule(MIX, 120, 0.8, random.Random(1))
    assert [item.due_s for item in one] != [item.due_s for item in two]
    for lane, count in (("long", 18), ("short", 102)):
        lengths = [sorted(i.prompt_tokens for i in items if i.lane == lane) for items in (one, two)]
        assert lengths[0] == lengths[1]
        assert len(lengths[0]) == count
    assert one == sorted(one)
    assert 0 <= one[0].due_s and one[-1].due_s <= 120 / 0.8


def test_lengths_are_spread_evenly_and_stay_inside() -> None:
    assert even(Lengths(0, 100), 4) == [12, 38, 62, 88]
    assert set(even(Lengths(7, 7), 3)) == {7}


def test_the_last_calls_of_a_capacity_run_are_short() -> None:
    items = schedule(MIX, 100, 1.0, random.Random(1))
    ordered = longs_first(items, 85, random.Random(2))
    assert sorted(ordered) == items
    assert {item.lane for item in ordered[85:]} == {"short"}


def test_prompts_have_no_common_beginning() -> None:
    rng = random.Random(1)
    texts = [prompt(60, mark, rng) for mark in rng.sample(range(10**6), 50)]
    assert len({text[:7] for text in texts}) == 50
    assert len(texts[0].split()) == 1 + 60 - 38
    assert [len(text_of_bytes(size, 5, rng)) for size in (7, 100, 4001)] == [7, 100, 4001]


def test_a_call_goes_out_with_its_key_and_its_value() -> None:
    body = chat_body("m", "text", 12)
    text = request_bytes(Call(0, "a", body, key="k", value="high")).decode()
    assert "Authorization: Bearer k\r\n" in text
    assert "X-Request-Value: high\r\n" in text
    assert f"Content-Length: {len(body)}\r\n" in text
    assert json.loads(text.partition("\r\n\r\n")[2])["max_tokens"] == 12
    assert "X-Request-Value" not in request_bytes(Call(0, "a", body)).decode()


def test_overlap_counts_no_moment_twice() -> None:
    spans = [(0.0, 2.0), (1.0, 3.0), (5.0, 6.0)]
    assert collapse.overlap_s(spans, 0.5, 10.0) == pytest.approx(2.5 + 1)
    assert collapse.overlap_s(spans, 3.0, 5.0) == 0


def test_the_wait_behind_long_prompts_is_that_of_the_slowest_short_ones() -> None:
    answers = [answer("long", 0, 4), *(answer("short", 0.1 * n, 0.1 * n + 0.2) for n in range(20))]
    answers.append(answer("short", 1, 6))  # the slowest: waits 5 s, for 3 of which the long prompt is computed
    assert collapse.behind_long(answers, 0.004) == pytest.approx(3 / 5)


def test_a_run_is_summed_up_over_whole_answers_only() -> None:
    answers = [answer("long", 0, 4), answer("short", 0, 1), answer("short", 2, 4, fault="cut")]
    figures = collapse.summary(answers, ALONE)
    assert figures["lost"] == 1
    assert figures["short_p99_s"] == 1
    assert figures["calls_per_s"] == pytest.approx(2 / 5)
    assert figures["tokens_per_s"] == pytest.approx(2020 / 5)
    with pytest.raises(CannotRun, match="no long call"):
        collapse.summary([answer("short", 0, 1), answer("long", 0, 1, fault="cut")], ALONE)


def test_a_lost_call_fails_the_run() -> None:
    figures = {"short_p99_s": 1.0, "long_p99_s": 1.0, "tokens_per_s": 1.0, "lost": 0.0}
    runs = [Run("collapse", 0, arm, dict(figures)) for arm in ("direct", "through")]
    lost = next(check for check in collapse.CHECKS if check.figure == "lost")
    assert judge(lost, runs).passed
    runs[1].figures["lost"] = 1.0
    assert not judge(lost, runs).passed


def test_a_floor_must_be_reached() -> None:
    runs = [Run("s", 0, "direct", {"rate": 100.0}), Run("s", 0, "through", {"rate": 97.0})]
    assert judge(FLOOR, runs).passed
    assert bound_text(FLOOR) == ">= x 0.97"
    runs[1].figures["rate"] = 96.0
    verdict = judge(FLOOR, runs)
    assert not verdict.passed
    head, _, row = render([verdict]).splitlines()
    assert head.split()[2:4] == ["through", "direct"]
    assert row.endswith("FAIL")


def test_the_table_names_the_other_side_when_there_are_several() -> None:
    checks = [FLOOR, FLOOR._replace(against="idle")]
    runs = [Run("s", 0, peer, {"rate": 100.0}) for peer in ("direct", "idle", "through")]
    text = render([judge(check, runs) for check in checks])
    assert "100 (100..100) idle" in text
    assert "other" in text.splitlines()[0]


def test_peers_are_measured_only_where_a_check_asks_for_them() -> None:
    present = ["forebay", "nginx", "vllm-router"]
    asked = {scenario.name: scenario.peers(present) for scenario in SCENARIOS}
    assert asked["ns_1c"] == present
    assert asked["rss"] == ["forebay", "nginx"]
    scenario = next(s for s in SCENARIOS if s.name == "ns_1c")
    assert {check.against for check in scenario.checks_for(["forebay", "nginx"])} == {"nginx"}


@pytest.mark.parametrize("text", ["", "5", "9-3", "0-4", "a-b"])
def test_lengths_are_low_and_high(text: str) -> None:
    assert collapse.lengths("3-9") == Lengths(3, 9)
    with pytest.raises(argparse.ArgumentTypeError, match="LOW-HIGH"):
        collapse.lengths(text)


def test_command_lines_are_checked() -> None:
    assert collapse.arguments(["--pool", "{max_in_flight: 4}"]).pool == {"max_in_flight": 4}
    for wrong in (["--pairs", "0"], ["--ctx", "512"]):
        with pytest.raises(SystemExit):
            collapse.arguments(wrong)
    with pytest.raises(SystemExit):
        fairness.arguments(["--rates-s", "60"])


def test_calls_at_the_engine_are_counted_while_they_run() -> None:
    def entry(arrived_s: float, ended_s: float | None, left_s: float | None = None) -> dict[str, object]:
        return {"arrived_s": arrived_s, "ended_s": ended_s, "disconnected_s": left_s}

    assert stand.most_at_once([entry(0, 1), entry(1, 2), entry(1.5, 3)]) == 2
    assert stand.most_at_once([entry(0, None), entry(9, 10)]) == 2
    # The next call comes in the moment in which the engine has not yet seen that the caller before it has left.
    assert stand.most_at_once([entry(0, None, 1.0), entry(0.995, 2)]) == 1


def test_the_fullest_window_is_half_open() -> None:
    events = [(0.0, 5), (30.0, 1), (60.0, 4), (89.0, 2)]
    assert stand.largest_window(events, 60.0) == 7
    assert stand.largest_window([], 60.0) == 0


def test_jain_is_one_for_equal_shares_and_falls_to_one_over_n() -> None:
    assert stand.jain([3.0] * 10) == pytest.approx(1)
    assert stand.jain([1.0, *[0.0] * 9]) == pytest.approx(0.1)


def test_findings_judge_the_median_or_the_extreme() -> None:
    assert stand.finding("p", "l", [8, 8, 9], "<=", 8).passed
    assert not stand.finding("p", "l", [8, 8, 9], "never above", 8).passed
    assert not stand.finding("p", "l", [0.9, 0.9, 1.0], ">=", 0.95).passed


def test_only_expected_refusals_are_let_pass() -> None:
    stand.expect([answer("a", 0, 1), answer("a", 0, math.nan, fault="requests_limit")], {"requests_limit"})
    with pytest.raises(CannotRun, match="engine_error"):
        stand.expect([answer("a", 0, math.nan, fault="engine_error")], {"requests_limit"})


def test_prometheus_samples_are_read_with_their_labels() -> None:
    assert engines.samples('# HELP a b\na{x="1 2"} 3\nb 4.5\n') == {'a{x="1 2"}': 3.0, "b": 4.5}


def test_a_refused_call_misses_its_target() -> None:
    calls = [classes.Served("high", False, 0.7), classes.Served("high", False, math.inf)]
    calls += [classes.Served("high", True, 7.9), classes.Served("medium", False, 1.6), classes.Served("low", True, 49)]
    found = classes.outcome("Forebay, latency", calls)
    assert found.in_target == {"high": pytest.approx(2 / 3), "medium": 0, "low": 1}
    assert found.refused_ratio == pytest.approx(1 / 5)
    assert not classes.best([found])
    assert classes.best([found._replace(in_target={"high": 0.99})])
