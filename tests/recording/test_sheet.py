"""The values of several processes as those of one."""

from prometheus_client.parser import text_string_to_metric_families
from recording.scrape import policy

from forebay.clock import ManualClock
from forebay.domain import Outcome
from forebay.recording import families, sheet
from forebay.recording.metrics import Metrics
from forebay.recording.sheet import Sheet

REQUESTS = families.REQUESTS.name


def one(calls: int, in_flight: float, *, reloaded: float = 1.0, lag_s: float = 0.0) -> Sheet:
    """What a process says that has served so many calls."""
    metrics = Metrics(ManualClock())
    metrics.apply(policy(models=("m",)))
    metrics.watch(families.IN_FLIGHT.name, lambda: [(("m",), in_flight)])
    metrics.watch(families.LOOP_LAG.name, lambda: [((), lag_s)])
    metrics.watch(families.RELOAD_OK.name, lambda: [((), reloaded)])
    metrics.watch(families.RELOAD_FAILURES.name, lambda: [((), 2)])
    metrics.watch(families.MISSING_DONE.name, lambda: [((), calls)])
    series = metrics.series("chat", "m", "a")
    for _ in range(calls):
        series.end(200, Outcome.OK)
        series.duration.observe(0.2)
    return metrics.sheet()


def values(whole: Sheet) -> dict[str, float]:
    """The sums of all samples by name."""
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(b"".join(sheet.slices(whole)).decode()):
        for sample in family.samples:
            if sample.labels.get("le") in (None, "+Inf"):
                found[sample.name] = found.get(sample.name, 0.0) + sample.value
    return found


def test_counts_add_up_and_gauges_are_what_they_mean() -> None:
    gate = one(0, 0.0)
    seen = values(sheet.together(gate, [one(3, 2.0, lag_s=0.5), one(4, 1.0, reloaded=0.0)], Sheet()))
    assert seen[REQUESTS] == seen["forebay_request_duration_seconds_count"] == 7
    assert round(seen["forebay_request_duration_seconds_sum"], 6) == 1.4
    assert seen["gen_ai_server_request_duration_seconds_count"] == 7
    assert seen["forebay_upstream_missing_done_total"] == 7
    assert seen["forebay_requests_in_flight"] == 3
    assert seen["forebay_loop_lag_seconds"] == 0.5
    assert seen["forebay_config_last_reload_ok"] == 0
    assert seen["forebay_config_reload_failures_total"] == 2, "all processes refuse the same file"
    assert seen["process_resident_memory_bytes"] > 2 * gate.process["process_resident_memory_bytes"]


def test_what_the_gate_alone_knows_is_not_added() -> None:
    def with_permits(held: float) -> Sheet:
        metrics = Metrics(ManualClock())
        metrics.apply(policy(tenants=("a",)))
        metrics.watch(families.PERMITS.name, lambda: [(("a",), held)])
        return metrics.sheet()

    whole = sheet.together(with_permits(5.0), [with_permits(0.0), with_permits(9.0)], Sheet())
    assert dict(whole.plain[families.PERMITS.name]) == {("a",): 5.0}


def test_those_that_are_gone_still_count() -> None:
    gone = sheet.lasting(sheet.lasting(Sheet(), one(3, 7.0)), one(2, 1.0))
    seen = values(sheet.together(one(0, 0.0), [one(4, 1.0)], gone))
    assert seen[REQUESTS] == seen["forebay_request_duration_seconds_count"] == 9
    assert seen["forebay_requests_in_flight"] == 1
    assert gone.process["process_cpu_seconds_total"] > 0


def test_it_is_the_page_of_one_process_when_there_is_one() -> None:
    alone = one(3, 2.0, lag_s=0.25)
    assert values(sheet.together(alone, [], Sheet()))[REQUESTS] == values(alone)[REQUESTS] == 3
