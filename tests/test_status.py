"""The state of the data plane as the control plane sees it: true, bounded, plain."""

from typing import Any

import msgspec
import pytest
from inquests import inquest_of

from forebay.actions import Actions
from forebay.admission.gate import LocalGate, LocalPermit
from forebay.clock import ManualClock
from forebay.config.rules import refuse_long
from forebay.cost.days import Bill
from forebay.cost.forecast import Forecast
from forebay.degrading import Degrading
from forebay.domain import FailureKind, Replica, Spend, Tenant, Value
from forebay.errors import Refused
from forebay.laddering import Laddering
from forebay.lessons import Lessons
from forebay.policy import Model, Policy, PolicyHolder, Pool
from forebay.recording.metrics import Metrics
from forebay.recording.record import Recorder
from forebay.routing.budget import RetryBudgets
from forebay.routing.capacity import MIN_SAMPLES
from forebay.routing.pool import Fleet
from forebay.routing.replica import ReplicaState
from forebay.status import MAX_MODELS, MAX_REPLICAS, MAX_TENANTS, MAX_WAITING_TENANTS, Parts, describe
from forebay.timing import Timing
from forebay.traffic import Call, Work
from forebay.understanding import Understanding
from forebay.wire.endpoints import BY_PATH

CHAT = BY_PATH["/v1/chat/completions"]
LONG_TOKENS = 10_000


class NoJournal:
    """A sink that keeps nothing."""

    state = "ok"
    recovered = 0

    def write(self, line: bytes, is_open: bool = False) -> None:
        pass

    def lines_written(self) -> Any:
        return iter(())

    lines_dropped = lines_written


def pool(name: str = "main", replicas: int = 1) -> Pool:
    made = tuple(Replica(f"10.0.0.{i}:8000", "10.0.0.1", 1, authorization="Bearer CANARY") for i in range(replicas))
    return Pool(name, "vllm", made, max_in_flight=1, queue_size=500)


def tenants(count: int) -> dict[bytes, Tenant]:
    return {b"digest-CANARY-%d" % i: Tenant(f"t{i}", tokens=10**9, money=5.0) for i in range(count)}


def refused(refusal: Refused) -> None:
    pytest.fail(refusal.code)


class Plane:
    """The parts on a clock that stands still, and calls that come without a loop."""

    def __init__(self, *pools: Pool, callers: int = 20) -> None:
        self.clock = ManualClock(100.0)
        self.fleet = Fleet(self.clock)
        self.policy = PolicyHolder(
            Policy(
                {p.name: p for p in pools or (pool(),)},
                {"m": Model("m", "main")},
                tenants(callers),
                rules=(refuse_long("m", 8192),),
                hash="0123456789ab",
            )
        )
        self.bills: dict[str, Bill] = {}
        actions = Actions(self.fleet, self.clock)
        gate = LocalGate(self.clock, self.fleet)
        laddering = Laddering(self.fleet, gate.basin, actions, self.clock)
        self.parts = Parts(
            self.clock,
            self.clock.now_s(),
            self.policy,
            self.fleet,
            gate,
            RetryBudgets(self.clock.now_s),
            Understanding(),
            Recorder(self.clock, NoJournal(), Metrics(self.clock)),
            Lessons(Timing(self.fleet, self.clock), Degrading(self.fleet, actions, self.clock)),
            laddering,
            actions,
            self.bills,
            inquest_of(self.fleet, actions, self.clock),
        )
        for listener in (self.fleet, gate, self.parts.budgets, self.parts.understanding, laddering):
            self.policy.subscribe(listener)
        self.inside: list[LocalPermit] = []

    def come(self, tenant: str = "t0", tokens: int = 100, value: Value = "medium") -> None:
        """A call comes, and goes in or waits."""
        who = Tenant(tenant, high_share_ratio=1.0)
        work = Work(tokens, 50, 50)
        call = Call("c", CHAT, "m", True, False, who, tokens, 50, (), 0.0, 1e6, value, work, money=0.25)
        self.parts.gate.offer(call, "main", self.inside.append, refused)

    def state(self) -> ReplicaState:
        return next(self.fleet.states("main"))

    def shown(self, **own: Any) -> dict[str, Any]:
        """What the control plane decodes."""
        encoded = msgspec.json.encode(describe(self.parts, {"m": True}, own))
        assert b"CANARY" not in encoded
        decoded: dict[str, Any] = msgspec.json.decode(encoded)
        return decoded


def test_an_idle_plane() -> None:
    plane = Plane()
    plane.clock.advance(12.34)
    shown = plane.shown(version="1", ready=True)
    assert (shown["version"], shown["ready"], shown["uptime_s"]) == ("1", True, 12.3)
    assert (shown["policy_hash"], shown["models"], shown["in_flight"]) == ("0123456789ab", {"m": True}, 0)
    assert shown["queues"] == [
        {
            "pool": "main",
            "size": 500,
            "waiting": 0,
            "short": {"high": 0, "medium": 0, "low": 0},
            "long": {"high": 0, "medium": 0, "low": 0},
            "oldest_wait_s": 0.0,
            "tenants": [],
        }
    ]
    assert (shown["permits"], shown["month"], shown["retries_denied"], shown["estimates"]) == ({}, [], [], [])
    assert shown["rules"] == {"refuse-long:m": 0}


def test_the_queue_by_lane_value_and_tenant() -> None:
    plane = Plane()
    plane.come()
    for tenant, tokens, value in (
        ("t1", 100, "high"), ("t1", LONG_TOKENS, "low"), ("t1", 100, "low"), ("t2", LONG_TOKENS, "medium")
    ):  # fmt: skip
        plane.come(tenant, tokens, value)  # type: ignore[arg-type]
        plane.clock.advance(1.5)
    (queue,) = plane.shown()["queues"]
    assert queue["waiting"] == 4
    assert queue["short"] == {"high": 1, "medium": 0, "low": 1}
    assert queue["long"] == {"high": 0, "medium": 1, "low": 1}
    assert queue["oldest_wait_s"] == 6.0
    assert queue["tenants"] == [{"tenant": "t1", "waiting": 3}, {"tenant": "t2", "waiting": 1}]
    assert plane.shown()["permits"] == {"t0": 1, "t1": 3, "t2": 1}


def test_what_is_known_of_a_replica() -> None:
    plane = Plane()
    (entry,) = plane.shown()["replicas"]
    unknown = ("prefill_tokens_per_s", "base_s", "error_ratio", "hold_tokens", "slots", "kv_tokens", "telemetry_age_s")
    assert {name: entry[name] for name in unknown} == dict.fromkeys(unknown)
    assert (entry["samples"], entry["slowness"], entry["prefix_trust_ratio"]) == (0, 1.0, 0.5)
    assert entry["hold_s"] == plane.state().depth.hold_s
    for i in range(2 * MIN_SAMPLES):
        tokens = 100 * (i + 1)
        plane.state().speed.observe(tokens, 0.05 + tokens / 10_000)
    plane.state().noted(64, 400_000)
    plane.come(tokens=LONG_TOKENS)
    (entry,) = plane.shown()["replicas"]
    assert entry["prefill_tokens_per_s"] == pytest.approx(10_000, rel=0.01)
    assert entry["base_s"] == pytest.approx(0.05, abs=0.001)
    assert entry["hold_tokens"] == round(plane.state().depth.tokens(plane.state().speed)) > 0
    assert (entry["samples"], entry["error_ratio"]) == (2 * MIN_SAMPLES, 0.0)
    assert (entry["slots"], entry["kv_tokens"]) == (64, 400_000)
    assert (entry["in_flight"], entry["in_flight_tokens"], entry["unprefilled_tokens"]) == (1, 10_050, LONG_TOKENS)
    assert (entry["long_prefills"], entry["reserved"], entry["breaker"]) == (1, False, "closed")


def test_who_takes_part_and_what_was_done() -> None:
    plane = Plane(pool(replicas=3))
    assert [plane.shown()[name] for name in ("rotations", "actions", "tenants_degraded", "learned_timeouts")] == [
        []
    ] * 4
    plane.fleet.tick()
    assert plane.shown()["rotations"] == [{"pool": "main", "takers": 3, "panic": False}]
    for state in list(plane.fleet.states("main"))[:2]:
        for _ in range(5):
            state.breaker.failed(FailureKind.STALL, plane.clock.now_s())
        plane.parts.actions.turned(state)
    plane.fleet.tick()
    plane.parts.actions.tick()
    shown = plane.shown()
    assert shown["rotations"] == [{"pool": "main", "takers": 3, "panic": True}]
    assert [entry["kept"] for entry in shown["replicas"]] == [True, True, False]
    assert [entry["ramp"] for entry in shown["replicas"]] == [1.0] * 3
    assert sorted((line["kind"], line["what"]) for line in shown["actions"]) == [
        ("eject", "out"), ("eject", "out"), ("panic", "begun")
    ]  # fmt: skip
    assert shown["actions_put_off"] == 0


def test_a_learned_deadline_and_why() -> None:
    plane = Plane()
    learned = plane.parts.lessons.timing.learned
    learned.note("m", True, 100, 60.0, 0.5, "done")
    (row,) = plane.shown()["learned_timeouts"]
    assert (row["model"], row["kind"], row["below_tokens"], row["trend"]) == ("m", "first_byte", 128, "unknown")
    assert row["why"] == "the configured one, until 200 calls are remembered"
    for _ in range(1000):
        learned.note("m", True, 100, 60.0, 6.0, "done")
    for _ in range(100):
        plane.clock.advance(60.0)
        learned.tick(plane.clock.now_s())
        learned.note("m", True, 100, 60.0, 6.0, "done")
    (row,) = plane.shown()["learned_timeouts"]
    assert row["trend"] == "tightening" and row["advised_s"] < row["limit_s"] < 60.0
    assert "1.5 x P95 of 6" in row["why"] and "10 % an hour" in row["why"] and "0.00% of the latest" in row["why"]


def test_spending_estimates_rules_and_retries() -> None:
    plane = Plane()
    plane.come("t3")
    plane.inside[0].release(Spend(140, 0.2))
    plane.come("t4")
    plane.inside[1].release(Spend(70, 0.5))
    parts = plane.parts
    parts.understanding.rules.applied["refuse-long:m"] += 2
    while parts.budgets.try_take("main", "t1"):
        pass
    plane.bills["t4"] = Bill(Forecast(70, 80.4, 100.2, 120.0), Forecast(0.5, 0.6, 0.75, 1.0))
    shown = plane.shown()
    unknown = {"tokens_forecast": None, "money_forecast": None}
    foreseen = {
        "tokens_forecast": {"low": 80.0, "expected": 100.0, "high": 120.0},
        "money_forecast": {"low": 0.6, "expected": 0.75, "high": 1.0},
    }
    assert shown["month"] == [
        {"tenant": "t4", "tokens": 70, "tokens_limit": 10**9, "money": 0.5, "money_limit": 5.0, **foreseen},
        {"tenant": "t3", "tokens": 140, "tokens_limit": 10**9, "money": 0.2, "money_limit": 5.0, **unknown},
    ]
    assert (shown["rules"], shown["month_left_out"]) == ({"refuse-long:m": 2}, 0)
    assert shown["retries_denied"] == [{"pool": "main", "scope": "pool", "retries": 1}]


def test_long_lists_are_cut_and_say_so() -> None:
    plane = Plane(pool(replicas=MAX_REPLICAS + 3), callers=MAX_TENANTS + 50)
    for i in range(MAX_TENANTS + 7):
        plane.come(f"t{i}")
        plane.inside[-1].release(Spend(i + 1, 0.0))
    plane.policy.publish(msgspec.structs.replace(plane.policy.current, pools={"main": pool()}))
    plane.policy.publish(msgspec.structs.replace(plane.policy.current, pools={"main": pool(replicas=MAX_REPLICAS + 3)}))
    models = {f"m{i}": True for i in range(MAX_MODELS + 1)}
    shown = describe(plane.parts, models, {})
    assert (len(shown["replicas"]), shown["replicas_left_out"]) == (MAX_REPLICAS, 3)
    assert (len(shown["models"]), shown["models_left_out"]) == (MAX_MODELS, 1)
    assert (len(shown["month"]), shown["month_left_out"]) == (MAX_TENANTS, 7)
    assert shown["month"][0]["tokens"] == MAX_TENANTS + 7


def test_many_waiting_tenants_are_cut_to_those_with_most() -> None:
    plane = Plane()
    plane.come()
    for i in range(20):
        for _ in range(i % 4 + 1):
            plane.come(f"t{i}")
    (queue,) = plane.shown()["queues"]
    assert len(queue["tenants"]) == MAX_WAITING_TENANTS
    assert [one["waiting"] for one in queue["tenants"]] == [4] * 5 + [3] * 5
    assert queue["waiting"] == 50
