"""The status of several processes as one."""

from typing import Any

from forebay.crossing.states import of_all


def worker(number: int, **more: Any) -> dict[str, Any]:
    state = {
        "number": number,
        "pid": 100 + number,
        "connections": 7,
        "in_flight": 2,
        "oldest_age_s": float(number),
        "loop_lag_ms": 0.5,
        "journal": "ok",
        "rules": {"r": 1, f"of-{number}": 1},
        "joining": {"replayed": 1},
        "learned_timeouts": [{"model": "m"}],
        "estimates": [{"model": "m", "samples": 10 * number, "error_ratio": 0.1}],
        "actions": [{"at": f"2026-01-0{number + 1}", "kind": "tenant"}],
    }
    return state | more


def test_what_adds_up_and_what_does_not() -> None:
    gate = {"in_flight": 0, "queues": [1], "actions": [{"at": "2026-01-05", "kind": "eject"}], "policy_hash": "x"}
    whole = of_all(gate, [worker(0, loop_lag_ms=9.0), worker(1, journal="full")])
    assert whole["queues"] == [1] and whole["policy_hash"] == "x"
    assert (whole["in_flight"], whole["oldest_age_s"], whole["loop_lag_ms"]) == (4, 1.0, 9.0)
    assert whole["rules"] == {"r": 2, "of-0": 1, "of-1": 1} and whole["joining"] == {"replayed": 2}
    assert [row["worker"] for row in whole["learned_timeouts"]] == [0, 1]
    assert whole["estimates"] == [{"model": "m", "samples": 10, "error_ratio": 0.1}]
    assert [row["at"] for row in whole["actions"]] == ["2026-01-05", "2026-01-02", "2026-01-01"]
    assert whole["journal"] == "full"
    assert [(each["number"], each["pid"], each["in_flight"]) for each in whole["workers"]] == [(0, 100, 2), (1, 101, 2)]


def test_nobody_there_is_the_gate_alone() -> None:
    whole = of_all({"in_flight": 0, "journal": "ok"}, [])
    assert whole["in_flight"] == 0 and whole["journal"] == "ok" and whole["workers"] == []
