"""The state of the data plane as plain values, for the control plane: read when asked, bounded, without secrets."""

from collections.abc import Mapping
from heapq import nlargest
from typing import Any

import msgspec
from msgspec import Struct

from forebay.actions import Actions
from forebay.admission.gate import LocalGate
from forebay.admission.queue import Queue
from forebay.clock import Clock
from forebay.cost.days import Bill
from forebay.domain import Spend
from forebay.inquest import Inquest
from forebay.laddering import Laddering
from forebay.lessons import Lessons
from forebay.policy import PolicyHolder
from forebay.recording.record import Recorder
from forebay.routing.budget import RetryBudgets
from forebay.routing.pool import Fleet
from forebay.routing.replica import ReplicaState
from forebay.understanding import Understanding
from forebay.upstream.learned import ADVISED_FACTOR, FLOOR_S, MIN_CALLS, Learned

MAX_REPLICAS = 1000
MAX_MODELS = 1000
MAX_POOLS = 200
MAX_RULES = 300
MAX_TENANTS = 100
"""Those that have spent the most, or hold the most permits."""
MAX_WAITING_TENANTS = 10
MAX_SUSPECTS = 100


class Parts(Struct, frozen=True):
    """What is described.

    Attributes:
        started_s: monotonic seconds of the start.
        bills: what the month will come to, by tenant.
    """

    clock: Clock
    started_s: float
    policy: PolicyHolder
    fleet: Fleet
    gate: LocalGate
    budgets: RetryBudgets
    understanding: Understanding
    recorder: Recorder
    lessons: Lessons
    laddering: Laddering
    actions: Actions
    bills: Mapping[str, Bill]
    inquest: Inquest


def describe(parts: Parts, serving: Mapping[str, bool], own: Mapping[str, Any]) -> dict[str, Any]:
    """Describe the state: what is in flight, the queues, the replicas, what was learned, what was spent.

    Long lists are cut, and `..._left_out` says by how many entries. Times are seconds, rates are per second.

    Args:
        parts: where it is read from.
        serving: for each model, whether an engine can serve it now.
        own: what the caller adds, by name; plain values.
    """
    now_s = parts.clock.now_s()
    states = list(parts.fleet.states())
    return {
        **own,
        "uptime_s": round(now_s - parts.started_s, 1),
        "policy_hash": parts.policy.current.hash,
        "in_flight": parts.recorder.in_flight,
        "oldest_age_s": round(parts.recorder.oldest_age_s(), 3),
        "models": dict(list(serving.items())[:MAX_MODELS]),
        "models_left_out": max(0, len(serving) - MAX_MODELS),
        **_queues(parts, now_s),
        "permits": _permits(parts.gate),
        "replicas": [_replica(state, now_s) for state in states[:MAX_REPLICAS]],
        "replicas_left_out": max(0, len(states) - MAX_REPLICAS),
        "rules": dict(list(parts.understanding.rules.applied.items())[:MAX_RULES]),
        "retries_denied": _denials(parts.budgets),
        "estimates": [
            {"model": model, "error_ratio": round(error, 4), "samples": samples}
            for model, error, samples in parts.understanding.estimator.report()
        ],
        **_month(parts, now_s),
        **_automata(parts),
        **_deaths(parts, now_s),
    }


def _deaths(parts: Parts, now_s: float) -> dict[str, Any]:
    """Describe the requests that engines died under, the features that are cut off, and our own errands that are."""
    inquest = parts.inquest
    entries = sorted(inquest.entries(), key=lambda entry: (entry.standing != "quarantined", -entry.left_s))
    cut = inquest.cutoffs.features.shown(now_s)
    return {
        "engine_deaths": inquest.deaths,
        "suspects": [{**msgspec.to_builtins(e), "left_s": round(e.left_s, 1)} for e in entries[:MAX_SUSPECTS]],
        "suspects_left_out": max(0, len(entries) - MAX_SUSPECTS),
        "suspects_waiting": inquest.waiting(),
        "errands_left_alone": msgspec.to_builtins(list(parts.fleet.errands.left_alone(now_s))[:MAX_SUSPECTS]),
        "features_cut_off": [{**msgspec.to_builtins(c), "left_s": round(c.left_s, 1)} for c in cut[:MAX_SUSPECTS]],
    }


def _automata(parts: Parts) -> dict[str, Any]:
    """Describe what Forebay decides by itself: who takes part, deadlines, tenants, and the latest actions."""
    rotations = list(parts.fleet.rotations.items())[:MAX_POOLS]
    return {
        "rotations": [{"pool": pool, **msgspec.to_builtins(rotation)} for pool, rotation in rotations],
        "learned_timeouts": [_deadline(row) for row in parts.lessons.timing.learned.report()],
        "tenants_degraded": parts.lessons.degrading.shown(),
        "ladder": parts.laddering.shown(MAX_POOLS),
        "actions": msgspec.to_builtins(parts.actions.shown()),
        "actions_put_off": parts.actions.arbiter.denied,
    }


def _deadline(row: Learned) -> dict[str, Any]:
    """Describe one learned deadline, and why it is what it is."""
    shown = {name: round(v, 2) if isinstance(v, float) else v for name, v in msgspec.to_builtins(row).items()}
    return {**shown, "timeout_ratio": row.timeout_ratio, "why": _why(row)}


def _why(row: Learned) -> str:
    late = f"{row.timeout_ratio:.2%} of the latest calls timed out"
    if row.trend == "unknown":
        return f"the configured one, until {MIN_CALLS:.0f} calls are remembered"
    if row.p95_s is None or row.advised_s is None:
        return f"the configured one or near it: so many calls were given up that nothing can be advised; {late}"
    advised = f"{ADVISED_FACTOR:g} x P95 of {row.p95_s:.2f} s, at least P99.9 and {FLOOR_S:g} s: {row.advised_s:.2f} s"
    doing = {
        "open": "the configured one is shorter",
        "held": "held: it is reached, or calls timed out",
        "tightening": "on its way there by 10 % an hour",
        "opening": "opened, because calls need longer",
    }
    return f"{advised}; {doing[row.trend]}; {late}"


def _queues(parts: Parts, now_s: float) -> dict[str, Any]:
    queues = list(parts.gate.basin.queues())
    pools = parts.policy.current.pools
    shown = []
    for name, queue in queues[:MAX_POOLS]:
        pool = pools.get(name)
        shown.append({"pool": name, "size": 0 if pool is None else pool.queue_size, **_queue(queue, now_s)})
    return {
        "queues": shown,
        "queues_left_out": max(0, len(queues) - MAX_POOLS),
        "high_claims_lowered": parts.gate.basin.claims.lowered,
    }


def _queue(queue: Queue, now_s: float) -> dict[str, Any]:
    """Describe what waits for one pool."""
    lanes: dict[str, dict[str, int]] = {"short": {}, "long": {}}
    for (lane, value), count in queue.depths():
        lanes[lane][value] = count
    first_s = min((waiting.arrived_s for waiting in queue.waiting()), default=now_s)
    most = nlargest(MAX_WAITING_TENANTS, queue.tenants().items(), key=lambda entry: entry[1])
    return {
        "waiting": queue.size,
        **lanes,
        "oldest_wait_s": round(now_s - first_s, 3),
        "tenants": [{"tenant": tenant, "waiting": count} for tenant, count in most],
    }


def _permits(gate: LocalGate) -> dict[str, int]:
    held = [(tenant, count) for tenant, count in gate.quota.held().items() if count]
    return dict(nlargest(MAX_TENANTS, held, key=lambda entry: entry[1]))


def _replica(state: ReplicaState, now_s: float) -> dict[str, Any]:
    return {
        "pool": state.pool.name,
        "replica": state.replica.name,
        "up": state.up,
        "loading": state.loading,
        "drained": state.drained,
        "breaker": state.breaker.state,
        "breaker_reason": state.breaker.reason,
        "kept": state.kept,
        "ramp": round(state.ramp, 2),
        "in_flight": state.in_flight,
        "in_flight_tokens": state.in_flight_tokens,
        "slots": state.slots,
        "kv_tokens": state.kv_tokens,
        "unprefilled_tokens": state.unprefilled_tokens,
        "long_prefills": state.long_prefills,
        "reserved": state.reserved,
        **_learned(state),
        "telemetry": msgspec.to_builtins(state.telemetry),
        "telemetry_age_s": None if state.polled_at_s is None else round(now_s - state.polled_at_s, 1),
    }


def _learned(state: ReplicaState) -> dict[str, Any]:
    """Describe what a replica's first tokens taught, and the hold that follows; None while it is not known."""
    speed = state.speed
    known = speed.known
    return {
        "prefill_tokens_per_s": round(speed.tokens_per_s) if known else None,
        "base_s": round(speed.base_s, 4) if known else None,
        "error_ratio": round(speed.error_ratio, 3) if known else None,
        "samples": speed.samples,
        "hold_tokens": round(state.depth.tokens(speed)) if known else None,
        "hold_s": round(state.depth.hold_s, 3),
        "slowness": state.slowness,
        "prefix_trust_ratio": round(state.prefixes.trust_ratio, 3),
    }


def _denials(budgets: RetryBudgets) -> list[dict[str, Any]]:
    """Describe the retries that a budget did not allow, of at most `MAX_POOLS` pools."""
    denied = [(labels, count) for labels, count in budgets.exhausted() if count]
    return [
        {"pool": pool, "scope": scope, "retries": round(count)}
        for (pool, scope), count in nlargest(2 * MAX_POOLS, denied, key=lambda entry: entry[1])
    ]


def _month(parts: Parts, now_s: float) -> dict[str, Any]:
    """Describe what tenants have spent in this month, beside their limits; those first that have spent the most."""
    spent = {
        name: spend
        for name, spend in parts.gate.quota.spent(now_s, parts.clock.wall_s()).items()
        if spend.tokens or spend.money
    }
    tenants = {tenant.name: tenant for tenant in parts.policy.current.tenants.values()}
    shown = []
    for name, spend in nlargest(MAX_TENANTS, spent.items(), key=lambda entry: _order(entry[1])):
        tenant = tenants.get(name)
        shown.append(
            {
                "tenant": name,
                "tokens": spend.tokens,
                "tokens_limit": None if tenant is None else tenant.tokens,
                "money": round(spend.money, 6),
                "money_limit": None if tenant is None else tenant.money,
                **_foreseen(parts.bills.get(name)),
            }
        )
    return {"month": shown, "month_left_out": len(spent) - len(shown)}


def _foreseen(bill: Bill | None) -> dict[str, Any]:
    """Describe what a month will come to: the best guess between two bounds, each with 10 % beyond it."""
    if bill is None:
        return {"tokens_forecast": None, "money_forecast": None}
    return {
        f"{kind}_forecast": {
            "low": round(made.low, digits),
            "expected": round(made.expected, digits),
            "high": round(made.high, digits),
        }
        for kind, made, digits in (("tokens", bill.tokens, 0), ("money", bill.money, 6))
    }


def _order(spend: Spend) -> tuple[float, int]:
    return spend.money, spend.tokens
