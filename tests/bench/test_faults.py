"""The judging of Forebay's own faults: what is missing, late or not compared is never a pass."""

import math
from collections.abc import Mapping
from typing import Any

import pytest

from bench.client import Answer
from bench.faults import arguments
from bench.faults_table import Row, missed, render
from bench.own_faults import BASELINE, FAULTS, KILL
from bench.peers import CannotRun
from bench.reckoning import Account, Books, Dispatched, Heard, account, books, dispatched, new_entries

STOPPED = "redis stopped"
GOOD = Row(
    fault=BASELINE,
    round=0,
    sent_per_s=200.0,
    calls=100,
    failed=0,
    cut=0,
    p50_ms=3.0,
    p99_ms=6.0,
    longest_stream_ms=2000.0,
    served=100,
    dispatched=100,
    no_line=0,
    too_young=0,
    twice=0,
    unclosed=0,
    unclosed_ms=0.0,
    dropped=0.0,
    orphans=0,
    orphans_closed=0,
    gateway_cores=0.2,
    busy_cores=0.5,
    unproved="",
    first_faults=[],
)
KILLED = GOOD._replace(fault=KILL, orphans=10, orphans_closed=10, unclosed_ms=150.0, too_young=1)


def lines(*of: tuple[str, str]) -> list[Mapping[str, str]]:
    """Make journal lines from (kind, call); the client's name of a call is its own in upper case."""
    return [{"kind": kind, "call_id": call, "request_id": call.upper()} for kind, call in of]


def answer(group: str, end_s: float, fault: str = "") -> Answer:
    """Make an answer."""
    return Answer(group, due_s=0.0, end_s=end_s, status=200, fault=fault)


def heard(answers: list[Answer], asked: list[Dispatched]) -> Heard:
    """Make a row whose fault was there from 5 to 10 s."""
    return Heard(answers, asked, 5.0, 10.0)


def test_a_row_within_all_marks_passes() -> None:
    rows = [GOOD, GOOD._replace(fault=STOPPED, p99_ms=11.0), KILLED]
    assert [missed(rows, row.fault) for row in rows] == [[], [], []]
    assert render(rows).count("pass") == 3


@pytest.mark.parametrize(
    ("changes", "mark"),
    [
        ({"failed": 2}, "failed 2"),
        ({"no_line": 1}, "no_line 1"),
        ({"twice": 1}, "twice 1"),
        ({"dropped": 3.0}, "dropped 3"),
        ({"unclosed": 1}, "no close line 1"),
        ({"orphans": 2}, "no close line 2"),
        ({"p99_ms": 11.1}, "p99 +5.1 ms"),
        ({"p99_ms": math.nan}, "p99 not compared"),
        ({"round": 1}, "p99 not compared"),
        ({"dispatched": 99}, "engine's log is not whole"),
        ({"unproved": "the disk was never full"}, "the disk was never full"),
    ],
)
def test_each_mark_can_be_missed(changes: dict[str, Any], mark: str) -> None:
    rows = [GOOD, GOOD._replace(fault=STOPPED, **changes)]
    assert missed(rows, STOPPED) == [mark]
    assert f"FAIL: {mark}" in render(rows)


@pytest.mark.parametrize(
    ("changes", "mark"),
    [
        ({"unclosed_ms": 201.0}, "closes of 201 ms lost"),
        ({"orphans_closed": 9}, "orphans left open"),
        ({"orphans": 0, "orphans_closed": 0}, "nothing was open"),
        ({"no_line": 1}, "no_line 1"),
        ({"failed": 1}, "failed 1"),
    ],
)
def test_each_mark_of_a_kill_can_be_missed(changes: dict[str, Any], mark: str) -> None:
    assert missed([KILLED._replace(**changes)], KILL) == [mark]


def test_without_a_baseline_nothing_passes() -> None:
    assert missed([GOOD._replace(fault=STOPPED)], STOPPED) == ["p99 not compared"]


def test_one_bad_round_is_not_hidden_by_a_good_one() -> None:
    rows = [row._replace(round=n) for n in (0, 1) for row in (GOOD, GOOD._replace(fault=STOPPED, failed=n))]
    assert missed(rows, STOPPED) == ["failed 1"]


def test_a_dispatched_call_without_a_line_is_found_though_no_client_heard_of_it() -> None:
    has = books(lines(("open", "a"), ("close", "a")))
    asked = [Dispatched("a", 6.0), Dispatched("b", 9.9)]
    found = account(heard([answer("A", 7.0), answer("B", 9.9, "cut")], asked), has, killed=False)
    assert found == Account(no_line=1, too_young=0, twice=0, unclosed=0, unclosed_ms=0.0)


def test_a_kill_may_take_the_lines_of_200_ms() -> None:
    asked = [Dispatched("a", 9.7), Dispatched("b", 9.9)]
    found = account(heard([answer("A", 9.75), answer("B", 9.95)], asked), books([]), killed=True)
    assert (found.no_line, found.too_young, found.unclosed) == (1, 1, 2)
    assert found.unclosed_ms == pytest.approx(250)


def test_lines_that_come_twice_and_calls_that_stay_open_are_counted() -> None:
    has = books(lines(("open", "a"), ("open", "a"), ("close", "a"), ("open", "b")))
    assert account(heard([], []), has, killed=False).twice == 1
    assert has.open_calls == {"b"}
    assert [has.closed_once(call) for call in ("a", "b", "c")] == [True, False, False]
    assert books([]) == Books({}, {})


def test_only_requests_for_work_are_dispatched_calls() -> None:
    entries = [
        {"attempt": 0, "headers": [], "arrived_s": 1.0},
        {"attempt": 1, "headers": [("X-Request-Id", "a")], "arrived_s": 2.5},
    ]
    assert dispatched(entries, 10.0) == [Dispatched("a", 12.5)]


def test_a_log_that_has_lost_requests_is_refused() -> None:
    document = {"requests": [{"number": 8}], "seen": 8}
    assert new_entries(document, 7) == (8, [{"number": 8}])
    with pytest.raises(CannotRun, match="1 of 2 requests"):
        new_entries(document, 6)


def test_every_fault_can_be_chosen() -> None:
    assert arguments(["--only", STOPPED]).only == [STOPPED]
    assert list(FAULTS)[0] == BASELINE
    with pytest.raises(SystemExit):
        arguments(["--seconds", "1"])
