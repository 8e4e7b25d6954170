"""The status of several processes as one: pure, on plain values."""

from collections.abc import Sequence
from typing import Any, Final

State = dict[str, Any]

MAX_ACTIONS: Final = 300
MAX_ROWS: Final = 1000

# What workers know each for itself, and how it is put together.
_SUMS: Final = ("in_flight", "actions_put_off")
_MOST: Final = ("oldest_age_s", "loop_lag_ms")
_TABLES: Final = ("rules", "exact_counts", "joining")
_ROWS: Final = ("learned_timeouts", "tenants_degraded")
_OWN: Final = ("number", "pid", "connections", "in_flight", "loop_lag_ms", "policy_hash", "ready", "journal")


def of_all(gate: State, workers: Sequence[State]) -> State:
    """Return one status: the gate's, with what the workers add to it.

    Args:
        gate: of the process that has the gate, the queue and the replicas.
        workers: with `number`, `pid` and `connections` of each.
    """
    whole = dict(gate)
    for name in _SUMS:
        whole[name] = sum(worker.get(name) or 0 for worker in workers) + (gate.get(name) or 0)
    for name in _MOST:
        whole[name] = max((worker.get(name) or 0 for worker in (gate, *workers)), default=0)
    for name in _TABLES:
        whole[name] = _added([worker.get(name) for worker in (gate, *workers)])
    for name in _ROWS:
        whole[name] = [{**row, "worker": w.get("number")} for w in workers for row in w.get(name) or ()][:MAX_ROWS]
    whole["estimates"] = _best([row for worker in workers for row in worker.get("estimates") or ()])
    actions = [row for worker in (gate, *workers) for row in worker.get("actions") or ()]
    whole["actions"] = sorted(actions, key=lambda row: str(row.get("at")), reverse=True)[:MAX_ACTIONS]
    journals = [worker.get("journal") for worker in workers]
    whole["journal"] = next((state for state in journals if state != "ok"), gate.get("journal"))
    whole["workers"] = [{name: worker.get(name) for name in _OWN} for worker in workers]
    return whole


def _added(tables: Sequence[Any]) -> dict[str, Any]:
    """Add up tables of numbers; what is no number is that of the first."""
    sums: dict[str, Any] = {}
    for table in tables:
        for name, value in (table or {}).items():
            known = sums.get(name)
            both = isinstance(known, int | float) and isinstance(value, int | float)
            sums[name] = known + value if both else known if name in sums else value
    return sums


def _best(rows: Sequence[State]) -> list[State]:
    """Return of each model's estimates those that were seen most."""
    best: dict[str, State] = {}
    for row in rows:
        known = best.get(str(row.get("model")))
        if known is None or (row.get("samples") or 0) > (known.get("samples") or 0):
            best[str(row.get("model"))] = row
    return list(best.values())
