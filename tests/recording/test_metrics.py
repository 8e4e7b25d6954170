"""What /metrics shows: bounded, at zero from the start, and true."""

import math
from typing import Any

import pytest
from recording.scrape import labels_of, policy, samples, value

from forebay.clock import ManualClock
from forebay.degrade.pressure import PAINS
from forebay.domain import FailureKind, Outcome, Tenant
from forebay.errors import CODES
from forebay.policy import Model, Policy
from forebay.recording import families
from forebay.recording.metrics import MAX_CHILDREN, STEPS, Metrics


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now_s=1000.0)


@pytest.fixture
def metrics(clock: ManualClock) -> Metrics:
    made = Metrics(clock)
    made.apply(policy())
    return made


def test_every_family_is_there_from_the_start(metrics: Metrics) -> None:
    text = metrics.render()[1].decode()
    for family in families.FAMILIES:
        assert text.count(f"# TYPE {family.name} {family.type}\n") == 1, family.name
        assert text.count(f"# HELP {family.name} ") == 1, family.name
    names = {name for name, _ in samples(metrics)}
    for family in set(families.FAMILIES) - families.UNKNOWN_AT_FIRST:
        assert (f"{family.name}_count" if family.bounds_s else family.name) in names, family.name
    assert {"process_resident_memory_bytes", "process_open_fds"} <= names


def test_every_configured_name_is_there_at_zero(metrics: Metrics) -> None:
    for name in ("forebay_requests_total", "forebay_request_duration_seconds_count", "forebay_requests_in_flight"):
        assert {row["model"] for row in labels_of(metrics, name)} == {"m", "unused"}
    assert {row["tenant"] for row in labels_of(metrics, "forebay_requests_total")} == {"a", "b"}
    assert {row["pool"] for row in labels_of(metrics, "forebay_queue_depth")} == {"main", "spare"}
    replicas = {("main", "h:1"), ("main", "h:2"), ("spare", "h:1")}
    for name in ("forebay_replica_up", "forebay_replica_in_flight", "forebay_telemetry_age_seconds"):
        assert {(row["pool"], row["replica"]) for row in labels_of(metrics, name)} == replicas
    assert {row["failure"] for row in labels_of(metrics, "forebay_attempts_total")} == {"none", *FailureKind}
    assert {row["reason"] for row in labels_of(metrics, "forebay_requests_refused_total")} == set(CODES)
    assert {row["step"] for row in labels_of(metrics, "forebay_requests_degraded_total")} == set(STEPS)
    assert {row["reason"] for row in labels_of(metrics, "forebay_ladder_pain")} == set(PAINS)
    assert {row["kind"] for row in labels_of(metrics, "forebay_tokens_total")} == {"prompt", "completion", "cached"}
    ours = {key: v for key, v in samples(metrics).items() if key[0].startswith(("forebay", "gen_ai"))}
    assert {key[0] for key, v in ours.items() if v} == {
        "forebay_build_info",
        "forebay_config_last_reload_ok",
        "forebay_store_up",
        "forebay_nodes",
    }


def test_labels_do_not_grow_with_what_clients_send(metrics: Metrics) -> None:
    def send(number: int) -> None:
        metrics.series(f"/v1/x{number}", f"model-{number}", f"user-{number}").end(404, Outcome.REFUSED)
        metrics.series("chat", "m", "a").end(200, Outcome.OK)
        metrics.series("chat", "m", "a").end(100_000 + number, Outcome.OK)
        metrics.refused(f"reason-{number}")
        metrics.degraded(f"step-{number}")
        metrics.tried(f"pool-{number}", f"replica-{number}", FailureKind.RESET)

    send(0)
    before = set(samples(metrics))
    for number in range(1, 300):
        send(number)
    assert set(samples(metrics)) == before
    assert value(metrics, "forebay_requests_refused_total", reason="other") == 300
    assert value(metrics, "forebay_attempts_total", pool="other", replica="other", failure="reset") == 300
    folded = {"endpoint": "other", "model": "other", "tenant": "other", "code": "404", "outcome": "refused"}
    assert value(metrics, "forebay_requests_total", **folded) == 300
    odd = {"endpoint": "chat", "model": "m", "tenant": "a", "code": "other", "outcome": "ok"}
    assert value(metrics, "forebay_requests_total", **odd) == 300
    assert len(metrics._series) <= 3 and len(metrics.series("chat", "m", "a").ended) == 1


def test_a_family_has_a_hard_cap(clock: ManualClock) -> None:
    metrics = Metrics(clock)
    tenants = tuple(f"t{number}" for number in range(MAX_CHILDREN + 100))
    metrics.apply(policy(models=("m",), tenants=tenants))
    for tenant in tenants:
        metrics.series("chat", "m", tenant).end(200, Outcome.OK)
        metrics.series("chat", "m", tenant).end(500, Outcome.ENGINE_ERROR)
    assert len(metrics.requests.by_labels) <= MAX_CHILDREN + 1
    assert len(metrics._series) <= MAX_CHILDREN + 1
    assert sum(cell.value for cell in metrics.requests.by_labels.values()) == 2 * len(tenants)


@pytest.mark.parametrize("seconds", [(0.02, 5.0, 70.0, 400.0)])
def test_case_057_four_durations_fall_in_four_finite_buckets(metrics: Metrics, seconds: tuple[float, ...]) -> None:
    series = metrics.series("chat", "m", "a")
    for lasting_s in seconds:
        series.duration.observe(lasting_s)
    used = [place for place, count in enumerate(series.duration.counts) if count]
    assert len(used) == 4 and used[-1] < len(families.DURATION_BOUNDS_S)
    assert families.DURATION_BOUNDS_S[-2] >= 600
    assert families.DURATION_BOUNDS_S != families.FIRST_TOKEN_BOUNDS_S


def test_a_histogram_is_cumulated_and_a_bound_is_inclusive(metrics: Metrics) -> None:
    timer = metrics.series("chat", "m", "a").duration
    for lasting_s in (0.005, 0.0051, 7200.0):
        timer.observe(lasting_s)
    labels = {"endpoint": "chat", "model": "m"}
    name = "forebay_request_duration_seconds"
    assert value(metrics, f"{name}_bucket", **labels, le="0.005") == 1
    assert value(metrics, f"{name}_bucket", **labels, le="0.01") == 2
    assert value(metrics, f"{name}_bucket", **labels, le="1800.0") == 2
    assert value(metrics, f"{name}_bucket", **labels, le="+Inf") == value(metrics, f"{name}_count", **labels) == 3
    assert math.isclose(value(metrics, f"{name}_sum", **labels), 7200.0101)


def test_the_opentelemetry_names_show_the_same(metrics: Metrics) -> None:
    for endpoint in ("chat", "completions"):
        metrics.series(endpoint, "m", "a").duration.observe(1.0)
    metrics.series("chat", "m", "a").first_token.observe(0.3)
    labels = {"gen_ai_request_model": "m"}
    assert value(metrics, "gen_ai_server_request_duration_seconds_count", **labels) == 2
    assert value(metrics, "gen_ai_server_request_duration_seconds_sum", **labels) == 2.0
    assert value(metrics, "gen_ai_server_time_to_first_token_seconds_count", **labels) == 1


def test_watched_gauges_are_read_when_scraped(metrics: Metrics) -> None:
    depth = {"main": 3}
    metrics.watch("forebay_queue_depth", lambda: [((pool,), number) for pool, number in depth.items()])
    assert value(metrics, "forebay_queue_depth", pool="main") == 3
    assert value(metrics, "forebay_queue_depth", pool="spare") == 0
    depth["main"] = 5
    assert value(metrics, "forebay_queue_depth", pool="main") == 5


def test_watched_strangers_fold(metrics: Metrics) -> None:
    metrics.watch("forebay_permits_held", lambda: [(("a",), 1), (("gone",), 2), (("gone too",), 3)])
    assert value(metrics, "forebay_permits_held", tenant="other") == 5
    assert len(labels_of(metrics, "forebay_permits_held")) == 3


def test_ejected_has_its_reason(metrics: Metrics) -> None:
    metrics.watch("forebay_replica_ejected", lambda: [(("main", "h:2", "first_byte"), 1)])
    assert value(metrics, "forebay_replica_ejected", pool="main", replica="h:2", reason="first_byte") == 1
    assert value(metrics, "forebay_replica_ejected", pool="main", replica="h:2", reason="none") == 0


def test_a_broken_reading_does_not_break_the_scrape(metrics: Metrics) -> None:
    def broken() -> Any:
        yield (("main",), 1)
        raise RuntimeError("a bug of its owner")

    metrics.watch("forebay_queue_depth", broken)
    assert value(metrics, "forebay_queue_depth", pool="main") == 1
    metrics.watch("forebay_loop_lag_seconds", lambda: [(("too", "many"), 1.0)])
    assert value(metrics, "forebay_metrics_read_failures_total") >= 2


def test_an_unknown_family_cannot_be_watched(metrics: Metrics) -> None:
    with pytest.raises(KeyError):
        metrics.watch("forebay_typo", list)


def test_telemetry_that_never_came_grows_old(metrics: Metrics, clock: ManualClock) -> None:
    labels = {"pool": "main", "replica": "h:1"}
    assert value(metrics, "forebay_telemetry_age_seconds", **labels) == 0
    clock.advance(30)
    metrics.apply(policy(replicas=3))
    assert value(metrics, "forebay_telemetry_age_seconds", **labels) == 30
    assert value(metrics, "forebay_telemetry_age_seconds", pool="main", replica="h:3") == 0
    metrics.watch("forebay_telemetry_age_seconds", lambda: [(("main", "h:1"), 2.5)])
    assert value(metrics, "forebay_telemetry_age_seconds", **labels) == 2.5


def test_counters_go_on_over_a_reload(metrics: Metrics) -> None:
    before = metrics.series("chat", "m", "a")
    before.end(200, Outcome.OK)
    metrics.apply(policy(models=("m", "new")))
    before.end(200, Outcome.OK)  # a call that was in flight during the reload
    metrics.series("chat", "m", "a").end(200, Outcome.OK)
    labels = {"endpoint": "chat", "model": "m", "tenant": "a", "code": "200", "outcome": "ok"}
    assert value(metrics, "forebay_requests_total", **labels) == 3
    assert "new" in {row["model"] for row in labels_of(metrics, "forebay_requests_total")}


def test_names_that_left_make_room_when_it_gets_narrow(clock: ManualClock) -> None:
    metrics = Metrics(clock)
    metrics.apply(policy(models=("m",), tenants=tuple(f"t{n}" for n in range(MAX_CHILDREN // 2))))
    for number in range(MAX_CHILDREN // 2):
        metrics.series("chat", "m", f"t{number}").end(500, Outcome.ENGINE_ERROR)
    metrics.apply(policy(tenants=("t0", "late")))
    metrics.series("chat", "m", "late").end(200, Outcome.OK)
    assert {row["tenant"] for row in labels_of(metrics, "forebay_requests_total")} == {"t0", "late"}


def test_without_keys_there_is_one_tenant(clock: ManualClock) -> None:
    metrics = Metrics(clock)
    metrics.apply(policy(tenants=()))
    metrics.series("chat", "m", "default").end(200, Outcome.OK)
    assert {row["tenant"] for row in labels_of(metrics, "forebay_requests_total")} == {"default"}


def test_a_restricted_tenant_has_no_series_of_other_models(clock: ManualClock) -> None:
    metrics = Metrics(clock)
    metrics.apply(Policy(pools={}, models={"m": Model("m", "p"), "n": Model("n", "p")},
                         tenants={b"a": Tenant("a", models=frozenset({"n"}))}))  # fmt: skip
    assert [row["model"] for row in labels_of(metrics, "forebay_requests_total")] == ["n"]


def test_before_a_policy_there_is_something_to_scrape(clock: ManualClock) -> None:
    assert "forebay_build_info" in Metrics(clock).render()[1].decode()


def test_slices_are_small_and_make_the_same_text(clock: ManualClock) -> None:
    metrics = Metrics(clock)
    metrics.apply(policy(models=tuple(f"m{n}" for n in range(40)), tenants=tuple(f"t{n}" for n in range(20))))
    slices = list(metrics.slices())
    assert max(text.count(b"\n") for text in slices) <= 202
    text = b"".join(slices).decode()
    assert text.count("# TYPE forebay_requests_total counter\n") == 1
    assert text.count("# TYPE forebay_request_duration_seconds histogram\n") == 1
    assert len(labels_of(metrics, "forebay_requests_total")) == 800
    assert len(labels_of(metrics, "forebay_request_duration_seconds_count")) == 40


def test_awkward_label_values_are_escaped(clock: ManualClock) -> None:
    metrics = Metrics(clock)
    metrics.apply(policy(models=('q"uote', "back\\slash", "中文")))
    assert {row["model"] for row in labels_of(metrics, "forebay_requests_in_flight")} == {
        'q"uote',
        "back\\slash",
        "中文",
    }
