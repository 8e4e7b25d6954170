"""What engines were asked for, what clients got and what the journal has of it, held against each other."""

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from bench import engines
from bench.client import Answer
from bench.peers import CannotRun, Process

LOST_S = 0.2  # docs/records.md: of lines, by a kill
MARK = "/ping"  # a gateway asks `/health`


class Dispatched(NamedTuple):
    """One request that an engine was to work on.

    Attributes:
        call_id: the gateway's own.
        at_s: when the engine had it, from the start of the row.
    """

    call_id: str
    at_s: float


class Heard(NamedTuple):
    """All answers and dispatches of a row with the fault's span, in seconds from the start.

    Attributes:
        unproved: why the fault is not known to have been there, or to be over; empty when it is.
    """

    answers: Sequence[Answer]
    dispatched: Sequence[Dispatched]
    from_s: float
    until_s: float
    unproved: str = ""


class Books(NamedTuple):
    """How many lines of each kind a call and a client's request have."""

    calls: Mapping[str, Counter[str]]
    requests: Mapping[str, Counter[str]]

    @property
    def open_calls(self) -> set[str]:
        """The calls that have been opened and not closed."""
        return {call for call, kinds in self.calls.items() if kinds["open"] and not kinds["close"]}

    def closed_once(self, call: str) -> bool:
        """Say whether a call has one close line."""
        return call in self.calls and self.calls[call]["close"] == 1


class Account(NamedTuple):
    """What is wrong with the journal.

    Attributes:
        no_line: calls that an engine was asked for and that have neither line.
        too_young: those of them that a kill may take: dispatched at most `LOST_S` before it. They are not in `no_line`.
        twice: calls with two lines of a kind.
        unclosed: answers that ended and whose call has no close line.
        unclosed_ms: how long before the kill the first of these ended; 0 without a kill.
    """

    no_line: int
    too_young: int
    twice: int
    unclosed: int
    unclosed_ms: float


class EngineLog:
    """A simulated engine's log, read in parts, since it keeps only the last 10,000 requests."""

    def __init__(self, engine: Process, now_s: float) -> None:
        """Empty the log.

        Args:
            now_s: time from the start of the row.
        """
        self._port = engine.port
        engines.fetch(self._port, "/sim/reset", "POST")
        engines.fetch(self._port, MARK)
        self._read, entries = new_entries(self._document(0), 0)
        mark_s = next(entry["arrived_s"] for entry in entries if entry["path"] == MARK)
        self._offset_s = now_s - mark_s
        self.found: list[Dispatched] = []

    def read(self) -> None:
        """Take in what has come since the last time.

        Raises:
            CannotRun: some of it has left the log.
        """
        self._read, entries = new_entries(self._document(self._read), self._read)
        self.found += dispatched(entries, self._offset_s)

    def _document(self, after: int) -> dict[str, Any]:
        return dict(json.loads(engines.fetch(self._port, f"/sim/log?after={after}")))


def new_entries(document: Mapping[str, Any], after: int) -> tuple[int, list[dict[str, Any]]]:
    """Return the number of the last request and all requests with a number above `after`.

    Raises:
        CannotRun: some are missing.
    """
    entries = list(document["requests"])
    if len(entries) != document["seen"] - after:
        raise CannotRun(f"an engine's log has {len(entries)} of {document['seen'] - after} requests: too many at once")
    return document["seen"], entries


def dispatched(entries: Iterable[Mapping[str, Any]], offset_s: float) -> list[Dispatched]:
    """Return the requests for work; the gateway names each by its `call_id`.

    Args:
        offset_s: the start of the engine's clock, from the start of the row.
    """
    found = []
    for entry in entries:
        if entry["attempt"]:
            names = {name.lower(): value for name, value in entry["headers"]}
            found.append(Dispatched(names.get("x-request-id", ""), entry["arrived_s"] + offset_s))
    return found


def lines_of(journal: Path) -> Iterator[dict[str, Any]]:
    """Read every whole line of a journal."""
    for path in sorted(journal.glob("*.jsonl")):
        for line in path.read_bytes().split(b"\n")[:-1]:
            yield json.loads(line)


def books(lines: Iterable[Mapping[str, Any]]) -> Books:
    """Count lines."""
    calls: dict[str, Counter[str]] = defaultdict(Counter)
    requests: dict[str, Counter[str]] = defaultdict(Counter)
    for line in lines:
        calls[line["call_id"]][line["kind"]] += 1
        requests[line["request_id"]][line["kind"]] += 1
    return Books(dict(calls), dict(requests))


def account(heard: Heard, has: Books, *, killed: bool) -> Account:
    """Hold a journal against what was asked and answered. After a kill, the last `LOST_S` may be missing."""
    ages_s = [heard.until_s - asked.at_s for asked in heard.dispatched if asked.call_id not in has.calls]
    lost = [age_s for age_s in ages_s if not killed or age_s > LOST_S]
    none: Counter[str] = Counter()
    unclosed = [
        heard.until_s - answer.end_s
        for answer in heard.answers
        if not answer.fault and not has.requests.get(answer.group, none)["close"]
    ]
    return Account(
        no_line=len(lost),
        too_young=len(ages_s) - len(lost),
        twice=sum(max(kinds.values()) > 1 for kinds in has.calls.values()),
        unclosed=len(unclosed),
        unclosed_ms=1000 * max(unclosed, default=0.0) if killed else 0.0,
    )
