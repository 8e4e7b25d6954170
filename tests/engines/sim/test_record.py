"""The log of what an engine saw, and its bounds."""

import json

from forebay.engines.sim import record
from forebay.engines.sim.record import RequestLog, Seen


def seen(number: int, body: bytes = b"{}") -> Seen:
    return Seen(
        number=number,
        arrived_s=float(number),
        method="POST",
        path="/v1/completions",
        headers=[("X-A", "b")],
        body_bytes=len(body),
        body=body,
        connection=1,
        nth=number,
    )


def test_a_request_is_shown_whole() -> None:
    log = RequestLog()
    log.add(seen(1, b'{"a": [1]}'))
    shown = json.loads(log.render())
    assert shown["seen"] == 1
    (entry,) = shown["requests"]
    assert entry["json"] == {"a": [1]}
    assert entry["headers"] == [["X-A", "b"]]
    assert entry["body_bytes"] == 10
    assert "body" not in entry


def test_a_body_that_is_no_json_is_shown_as_none() -> None:
    log = RequestLog()
    log.add(seen(1, b"\xff{"))
    assert json.loads(log.render())["requests"][0]["json"] is None


def test_only_what_came_after_a_number_is_shown() -> None:
    log = RequestLog()
    for number in (1, 2, 3):
        log.add(seen(number))
    assert [entry.number for entry in log.entries(after=2)] == [3]


def test_the_oldest_entries_go_first() -> None:
    log = RequestLog()
    for number in range(1, record.MAX_ENTRIES + 11):
        log.add(seen(number))
    entries = log.entries()
    assert (len(entries), entries[0].number) == (record.MAX_ENTRIES, 11)
    assert log.requests == record.MAX_ENTRIES + 10


def test_the_oldest_bodies_go_when_there_is_no_room() -> None:
    log = RequestLog()
    half = b"x" * (record.MAX_BODY_BYTES // 2)
    for number in (1, 2, 3):
        log.add(seen(number, half))
    assert [entry.body is None for entry in log.entries()] == [True, False, False]
    assert log.entries()[0].body_bytes == len(half)


def test_a_cleared_log_counts_from_one() -> None:
    log = RequestLog()
    log.add(seen(1))
    log.count_attempt(log.entries()[0])
    log.clear()
    assert (log.requests, log.attempts, log.entries()) == (0, 0, [])
