"""Engines that fail while their health path says that all is well: no client notices, and operators see why."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from faults.client import Timed
from faults.engines import LoopThread
from faults.mortals import Field, Sim, all_whole, one, ready, settings_for
from gateway_process import Document, eventually

pytestmark = [pytest.mark.integration, pytest.mark.timeout(180)]

PATIENT_S = 60.0
"""A gap that no test here is about; the total deadline is shorter."""
DRAIN: Document = {"action": "drain", "always": True}
SHUT_DOWN: Document = {"action": "status", "status": 503, "message": "shutting down", "always": True}
Start = Callable[..., Field]


@pytest.fixture
def start(thread: LoopThread, gateway: Any) -> Iterator[Start]:
    sims: list[Sim] = []

    def field(count: int, **pool: Any) -> Field:
        sims.extend(Sim() for _ in range(count))
        for sim in sims:
            sim.wait()
        started = ready(Field(thread, sims, gateway(settings_for(sims, **pool))))
        assert eventually(lambda: started.gateway.admin_get("/api/status")[0] == 200, 30), "no control plane"
        return started

    yield field
    for sim in sims:
        sim.stop()


def name_of(sim: Sim) -> str:
    return sim.url.removeprefix("http://")


def status_of(field: Field) -> Document:
    code, body = field.gateway.admin_get("/api/status")
    assert code == 200
    return dict(json.loads(body)["data_plane"]["status"])


def shown(field: Field, sim: Sim) -> Document:
    """What the status says of a replica."""
    (row,) = [row for row in status_of(field)["replicas"] if row["replica"] == name_of(sim)]
    return dict(row)


def served(field: Field, count: int = 4) -> bool:
    """Ask some calls at once; each gets its whole answer, whatever the engines do."""
    asked = [one(tokens=3) for _ in range(count)]
    all_whole(field, asked, field.ask(asked), PATIENT_S)
    return True


def ejected(field: Field, sim: Sim, reason: str) -> bool:
    samples = field.gateway.metrics().items()
    wanted = {("replica", name_of(sim)), ("reason", reason)}
    return any(name == "forebay_replica_ejected" and wanted <= labels and value for (name, labels), value in samples)


def is_out(field: Field, sim: Sim) -> bool:
    return field.gateway.metric("forebay_replica_ejected", replica=name_of(sim)) != 0


def taken_out_and_back(field: Field, ill: Sim, reason: str) -> None:
    """Under calls, none of which fails, a replica is taken out, tried again, and taken back once it is well."""
    assert eventually(lambda: served(field) and ejected(field, ill, reason), 60), shown(field, ill)

    def said() -> bool:
        row = shown(field, ill)
        return (row["up"], row["breaker_reason"]) == (True, reason) and row["breaker"] in ("open", "half_open")

    # The status is a moment behind the metrics.
    assert eventually(said, 30), shown(field, ill)
    health = {entry["status"] for entry in ill.steer("log")["requests"] if entry["path"] == "/health"}
    assert health <= {0, 200}, "its health path was to be well, or it is asked at this moment"
    tried = ill.steer("log")["attempts"]
    assert eventually(lambda: served(field) and ill.steer("log")["attempts"] > tried, 60), "it was not tried again"
    ill.steer("reset")
    assert eventually(lambda: served(field) and not is_out(field, ill), 90), shown(field, ill)
    assert eventually(lambda: shown(field, ill)["breaker"] == "closed", 30), shown(field, ill)
    tried = ill.steer("log")["attempts"]
    assert eventually(lambda: served(field) and ill.steer("log")["attempts"] > tried, 30), "it gets no calls"


@pytest.mark.parametrize("fault", [DRAIN, SHUT_DOWN], ids=["500", "503"])
def test_an_engine_that_drains(start: Start, fault: Document) -> None:
    field = start(2, breaker={"failures": 2, "open_s": 1})
    field.sims[0].faults(fault)
    taken_out_and_back(field, field.sims[0], "status")


def test_a_frozen_core_behind_a_healthy_health_path(start: Start) -> None:
    field = start(2, breaker={"failures": 1, "open_s": 1})
    field.sims[0].faults({"action": "freeze", "always": True})
    taken_out_and_back(field, field.sims[0], "first_byte")


def refusal(code: int, **more: Any) -> Document:
    kind = "ServiceUnavailableError" if code == 503 else "RateLimitError"
    text = "the engine has too many requests waiting"
    return {"action": "error_event", "after_tokens": 0, "code": code, "type": kind, "message": text, **more}


def test_overload_as_the_first_event_of_a_stream_is_tried_elsewhere(start: Start) -> None:
    field = start(2, breaker={"failures": 1, "open_s": 60})
    full = field.sims[0]
    full.faults(refusal(503, times=3))
    assert eventually(lambda: served(field, 2) and full.steer("log")["attempts"] > 3, 60), "it was left alone"
    assert field.gateway.metric("forebay_attempts_total", replica=name_of(full), failure="in_band") == 3
    assert not is_out(field, full)
    assert field.gateway.metric("forebay_engine_deaths_total") == 0


@pytest.mark.parametrize("code", [503, 429])
def test_overload_of_all_is_said_with_a_time_and_nobody_is_taken_out(start: Start, code: int) -> None:
    field = start(2, breaker={"failures": 1, "open_s": 60})
    for sim in field.sims:
        sim.faults(refusal(code, always=True))
    for answer in refused(field, 6):
        error = answer.response.json()["error"]
        assert answer.response.status == code, answer.response.body
        assert error["message"] and error["type"] and int(answer.response.value("retry-after") or 0) >= 1
    for sim in field.sims:
        assert not is_out(field, sim)
        sim.steer("reset")
    assert field.gateway.metric("forebay_pool_panic") == 0
    assert served(field), "the pool is well again at once"


def refused(field: Field, count: int) -> list[Timed]:
    return [field.ask([one(tokens=3)])[0] for _ in range(count)]


def test_telemetry_that_is_dead_stops_no_call(start: Start) -> None:
    field = start(3)
    for sim, how in zip(field.sims, ("status", "garbage", "hang"), strict=True):
        assert eventually(lambda sim=sim: shown(field, sim)["telemetry_age_s"] is not None, 30), "never polled"
        sim.faults({"action": "telemetry", "how": how, "always": True})
    # Polled every two seconds, a page would never be this old.
    assert eventually(lambda: served(field) and all(age > 6 for age in ages(field)), 60), ages(field)
    assert all(field.gateway.metric("forebay_telemetry_age_seconds", replica=name_of(s)) > 6 for s in field.sims)
    tried = [sim.steer("log")["attempts"] for sim in field.sims]
    assert eventually(
        lambda: (
            served(field, 6) and all(s.steer("log")["attempts"] > t for s, t in zip(field.sims, tried, strict=True))
        ),
        60,
    ), "a replica gets no calls any more"
    assert {(row["up"], row["breaker"]) for row in status_of(field)["replicas"]} == {(True, "closed")}
    for sim in field.sims:
        sim.steer("reset")
    assert eventually(lambda: all(age < 6 for age in ages(field)), 90), ages(field)


def ages(field: Field) -> list[float]:
    return [float(row["telemetry_age_s"]) for row in status_of(field)["replicas"]]


PERIOD_S, LATE_S = 2.0, 1.5
"""How often is asked, and how late a question may arrive: then it is given up."""


def test_what_forebay_asks_by_itself_generates_nothing_and_is_rare(start: Start) -> None:
    field = start(2)
    polls = 4

    def seen(sim: Sim) -> list[Document]:
        return list(sim.steer("log")["requests"])

    def asked(sim: Sim, path: str) -> list[float]:
        return [entry["arrived_s"] for entry in seen(sim) if entry["path"] == path]

    for sim in field.sims:
        for path in ("/health", "/metrics"):
            assert eventually(lambda s=sim, p=path: len(asked(s, p)) > polls, 60), f"{path} is not asked"
            times = asked(sim, path)
            assert (len(times) - 1) * PERIOD_S <= times[-1] - times[0] + LATE_S, f"{path}: {times}"
        assert {entry["method"] for entry in seen(sim)} == {"GET"}
        assert sim.steer("log")["attempts"] == 0, "it was asked to generate"


def out_of(field: Field) -> int:
    """How many replicas get no calls: ill, and not kept as a doubt."""
    return sum(row["breaker"] != "closed" and not row["kept"] for row in status_of(field)["replicas"])


def test_never_more_than_half_of_a_pool_is_out(start: Start) -> None:
    field = start(4, max_attempts=4, breaker={"failures": 1, "open_s": 60})
    for sim in field.sims[:3]:
        sim.faults(DRAIN)

    def panic() -> bool:
        field.ask([one(tokens=3)])
        assert out_of(field) <= 2
        return field.gateway.metric("forebay_pool_panic", pool="main") == 1

    assert eventually(panic, 60), status_of(field)["rotations"]
    for _ in range(10):
        assert served(field, 1)
        assert out_of(field) <= 2

    def said() -> bool:
        status = status_of(field)
        kept = {row["replica"] for row in status["replicas"] if row["kept"]}
        return kept == {name_of(sim) for sim in field.sims[:3]} and [r["panic"] for r in status["rotations"]] == [True]

    assert eventually(said, 30), status_of(field)
