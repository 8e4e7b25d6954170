"""Requests that kill engines, and features that do: how far they get, and what everybody else notices of it."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from faults import console_client
from faults.client import Timed
from faults.mortals import Asked, Field, Sim, all_whole, one, ready, settings_for
from gateway_process import Document, Gateway, eventually

from forebay.routing.suspects import TRIAL_S

pytestmark = pytest.mark.integration

REPLICAS = 8
POISON = "POISON-7"
DIES: Document = {"action": "die", "if_body": POISON, "always": True}
PATIENT = {"connect_s": 2, "first_byte_s": 30, "stall_s": 10, "total_s": 60}
Start = Callable[..., Field]


@pytest.fixture
def start(thread: Any, gateway: Any) -> Iterator[Start]:
    sims: list[Sim] = []

    def field(count: int, *faults: Document, **pool: Any) -> Field:
        sims.extend(Sim() for _ in range(count))
        for sim in sims:
            sim.wait()
        made = ready(Field(thread, sims, gateway(settings_for(sims, **pool) | {"timeouts": PATIENT})))
        for sim in sims:
            sim.faults(*faults)
        return made

    yield field
    for sim in sims:
        sim.stop()


def poison(stream: bool = True, tokens: int = 40, **more: Any) -> Asked:
    """The request that kills, each time the same body."""
    said: Document = {"messages": [{"role": "user", "content": POISON}], "stream": stream}
    return one(tokens=tokens, usage=stream, more=said | more)


def error_of(timed: Timed) -> Document:
    answer = timed.response
    return dict((answer.events[-1].json() if answer.events else answer.json())["error"])


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
def test_a_request_that_kills_takes_two_of_eight_engines_and_nobody_else_loses_a_word(
    start: Start, stream: bool
) -> None:
    field = start(REPLICAS, DIES)
    others = [one(tokens=400, shape="completions" if number % 2 else "chat") for number in range(104)]
    answers: list[Timed] = []

    def attack() -> None:
        field.under_way(len(others))
        # Its client tries again and again, as SDKs do.
        answers.extend(field.ask([poison(stream)])[0] for _ in range(6))

    all_whole(field, others, field.ask(others, attack), TRIAL_S + 5)
    assert sum(sim.died for sim in field.sims) == 2
    assert [(timed.response.status, error_of(timed)["code"]) for timed in answers] == [(422, "request_quarantined")] * 6
    assert {dict(timed.response.headers)["x-should-retry"] for timed in answers} == {"false"}
    pardoned(field)


def state_of(gateway: Gateway) -> Document:
    """The state of the data plane as the admin port shows it; empty while nobody answers."""
    return dict((console_client.status(gateway).get("data_plane") or {}).get("status") or {})


def pardoned(field: Field) -> None:
    """It is shown everywhere, and a person lets it go."""
    gateway = field.gateway
    assert eventually(lambda: bool(state_of(gateway).get("suspects")), 30)
    status = state_of(gateway)
    (shown,) = [entry for entry in status["suspects"] if entry["standing"] == "quarantined"]
    assert (status["engine_deaths"], shown["deaths"], shown["reason"]) == (2, 2, "second death")
    assert {line["kind"] for line in status["actions"]} >= {"death", "poison"}
    assert gateway.metric("forebay_engine_deaths_total") == 2
    assert gateway.metric("forebay_suspect_requests", standing="quarantined") == 1
    assert gateway.metric("forebay_requests_refused_total", reason="request_quarantined") == 6
    assert POISON not in gateway.log and POISON not in str(status)
    code, made = console_client.override(gateway, "pardon", shown["fingerprint"])
    assert code == 201, made
    assert eventually(lambda: gateway.metric("forebay_suspect_requests", standing="quarantined") == 0, 5)


def test_an_engine_that_dies_by_itself_costs_nobody_his_answer_and_nobody_is_accused(start: Start) -> None:
    field = start(3)
    calls = [one(tokens=200) for _ in range(24)]

    def die() -> None:
        field.under_way(len(calls))
        field.sims[0].stop()

    all_whole(field, calls, field.ask(calls, die), TRIAL_S + 5)
    assert field.gateway.metric("forebay_engine_deaths_total") == 1
    assert field.gateway.metric("forebay_suspect_requests", standing="quarantined") == 0


TOOLS: Document = {"tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}], "stream": False}


def test_a_feature_that_fails_is_cut_off_while_everything_else_is_served(start: Start) -> None:
    field = start(2, {"action": "status", "status": 500, "if_body": '"tools"', "always": True})
    codes: list[tuple[int, str]] = []
    for _ in range(12):
        plain = [one(tokens=5) for _ in range(6)]
        asked = [*plain, *(one(tokens=5, usage=False, more=TOOLS) for _ in range(2))]
        answers = field.ask(asked)
        assert [timed.response.status for timed in answers[:6]] == [200] * 6
        codes += [(timed.response.status, error_of(timed)["code"]) for timed in answers[6:]]
    assert codes[-1] == (503, "feature_unavailable"), codes
    assert field.gateway.metric("forebay_feature_cut_off", feature="tools") == 2
    assert all(
        field.gateway.metric("forebay_replica_up", replica=s.url.removeprefix("http://")) == 1 for s in field.sims
    )
