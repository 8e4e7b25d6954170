"""The pure parts of the benchmark: reading /proc, statistics, verdicts, table."""

import json
import os
import socket
import statistics
from pathlib import Path

import pytest

from bench.measure import (
    Spread,
    Stat,
    cpu_s,
    descendants,
    listening_pids,
    parse_listeners,
    parse_stat,
    parse_vm_rss_kib,
    percentile,
    rss_mib,
    spread,
)
from bench.peers import CannotRun, build_tools, forebay_conf, free_ports, nginx_conf
from bench.run import arguments, report_noise
from bench.scenarios import SCENARIOS, flatten
from bench.table import Check, Kind, Run, bound_text, compared, judge, number, render
from forebay.config.load import load

RATIO = Check("ns", "us", "CPU per request", "us", "ratio", 3.5)
STAT = "42 (a) b (c)) S 1 42 42 0 -1 4194560 900 0 5 0 {} 20 0 1 0 100 1000 50 0"


def runs(ours: list[float], theirs: list[float], errors: float = 0) -> list[Run]:
    """Make the runs of one scenario, round by round."""
    made = [Run("ns", n, "forebay", {"us": value, "errors": errors}) for n, value in enumerate(ours)]
    return made + [Run("ns", n, "nginx", {"us": value}) for n, value in enumerate(theirs)]


def test_stat_is_read_after_the_last_parenthesis_of_the_name() -> None:
    stat = parse_stat(STAT.format("11 22 33 44"))
    assert stat == Stat(user=11, system=22, children_user=33, children_system=44)
    assert stat.total_s == pytest.approx(110 / os.sysconf("SC_CLK_TCK"))


@pytest.mark.parametrize("text", ["", "42 (a) S 1", "42 a S " + "1 " * 40])
def test_a_broken_stat_line_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="not a /proc/PID/stat line"):
        parse_stat(text)


def test_vm_rss_is_in_kib() -> None:
    assert parse_vm_rss_kib("Name:\tx\nVmHWM:\t  99 kB\nVmRSS:\t    1234 kB\n") == 1234
    with pytest.raises(ValueError, match="no VmRSS"):
        parse_vm_rss_kib("Name:\tkthreadd\n")


def test_only_listening_sockets_of_the_port_count() -> None:
    head = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
    row = "   0: 0100007F:{:04X} 00000000:0000 {} 00000000:00000000 00:00000000 00000000     0        0 {} 1 0\n"
    table = head + row.format(7080, "0A", 11) + row.format(7080, "01", 12) + row.format(7081, "0A", 13)
    assert parse_listeners(table, 7080) == {"11"}
    assert parse_listeners(head, 7080) == set()


def test_the_process_that_listens_is_found() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert listening_pids(port, os.getpid()) == [os.getpid()]
    assert listening_pids(port, os.getpid()) == []
    assert os.getpid() in descendants(os.getppid())


def test_cpu_clock_agrees_with_the_process_itself() -> None:
    times = os.times()
    children_s = times.children_user + times.children_system
    assert cpu_s([os.getpid()]) - children_s == pytest.approx(times.user + times.system, abs=0.1)
    assert rss_mib([os.getpid()]) > 1


def test_percentile_is_by_nearest_rank() -> None:
    values = [float(n) for n in range(101)]
    assert [percentile(values, share) for share in (0, 0.5, 0.99, 1)] == [0, 50, 99, 100]
    assert percentile([3.0, 1.0], 0.99) == 3.0
    with pytest.raises(ValueError, match="no values"):
        percentile([], 0.5)


def test_spread_is_median_and_range() -> None:
    assert spread([5.0, 1.0, 3.0]) == Spread(median=3.0, low=1.0, high=5.0)
    with pytest.raises(statistics.StatisticsError):
        spread([])


def test_ratio_is_the_median_of_the_ratios_of_each_round() -> None:
    verdict = judge(RATIO, runs([30, 60, 20], [10, 10, 10]))
    assert verdict.value == Spread(median=3.0, low=2.0, high=6.0)
    assert verdict.passed
    assert not judge(RATIO, runs([36, 36, 36], [10, 10, 10])).passed


@pytest.mark.parametrize(("kind", "measured"), [("added", 20.0), ("median", 30.0), ("worst", 60.0)])
def test_each_kind_of_check_looks_at_its_own_figure(kind: Kind, measured: float) -> None:
    check = RATIO._replace(kind=kind)
    assert judge(check, runs([30, 60, 20], [10, 10, 10])).measured == measured


def test_a_run_with_failed_requests_does_not_pass() -> None:
    verdict = judge(RATIO, runs([10, 10], [10, 10], errors=1))
    assert not verdict.passed
    assert "FAIL: 2 failed requests" in render([verdict])


def test_rounds_without_their_pair_are_refused() -> None:
    with pytest.raises(ValueError, match="differ"):
        judge(RATIO, runs([1, 2], [1]))


def test_table_shows_figure_bound_and_verdict_in_line() -> None:
    head, rule, row = render([judge(RATIO, runs([30, 60, 20], [10, 10, 10]))]).splitlines()
    assert len(rule) == len(head)
    assert row.split("  ")[0].strip() == "ns"
    for part in ("CPU per request, us", "30.0 (20.0..60.0)", "10.0 (10.0..10.0)", "x 3.00 (2.00..6.00)", "<= x 3.5"):
        assert part in row
    assert row.endswith("pass")
    assert head.index("bound") == row.index("<= x 3.5")


def test_figures_are_written_in_the_form_of_their_bound() -> None:
    added = RATIO._replace(kind="added", bound=100)
    assert bound_text(added) == "<= +100"
    assert compared(judge(added, runs([12], [10]))) == "+2.0 (+2.0..+2.0)"
    assert bound_text(RATIO._replace(kind="worst", bound=80)) == "<= 80"
    assert [number(v) for v in (0.123, 12.34, 123.4)] == ["0.12", "12.3", "123"]


def test_load_makers_line_is_flattened_with_its_errors() -> None:
    line = {"done": 5, "err": 1, "err_http": 1, "short": 2, "unfinished": 3, "lat_us": {"p50": 7.5}}
    flat = flatten(json.dumps(line))
    assert flat["lat_us.p50"] == 7.5
    assert flat["errors"] == 6
    for text in ("", "need -p", "[]", "{}"):
        with pytest.raises(CannotRun, match="printed"):
            flatten(text)


def test_configurations_name_both_engines_and_every_limit(tmp_path: Path) -> None:
    nginx = nginx_conf(tmp_path, 7000, [7001, 7002])
    assert "server 127.0.0.1:7001; server 127.0.0.1:7002; keepalive 512;" in nginx
    forebay = forebay_conf(7000, 7003, [7001, 7002])
    path = tmp_path / "forebay.yaml"
    path.write_text(forebay)
    policy = load(path, {}, 0.0).policy
    assert [replica.port for replica in policy.pools["main"].replicas] == [7001, 7002]
    (tenant,) = policy.tenants.values()
    assert tenant.concurrency == 4096
    assert tenant.requests_per_minute and tenant.tokens_per_minute


def test_missing_tools_stop_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CannotRun, match="FOREBAY_BENCH_TOOLS"):
        build_tools(tmp_path)


def test_free_ports_differ() -> None:
    assert len(set(free_ports(5))) == 5


def test_every_scenario_can_be_chosen_and_checks_its_own_figures() -> None:
    for scenario in SCENARIOS:
        assert arguments(["--only", scenario.name]).only == [scenario.name]
        assert scenario.checks
        assert {check.scenario for check in scenario.checks} == {scenario.name}
    with pytest.raises(SystemExit):
        arguments(["--rounds", "0"])


def test_noise_of_others_is_reported() -> None:
    noisy = [Run("ns", n, "nginx", {"other_cores": value}) for n, value in enumerate((0.01, 0.4))]
    assert report_noise(noisy) == "others used at most 0.40 cores; more than 0.15 in 1 of 2 runs"
    assert report_noise([]) == ""
