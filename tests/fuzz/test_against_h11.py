"""Every stream of requests means the same to us as to h11, or one of the two refuses it.

h11 is an HTTP/1.1 implementation with another parser, so what both accept is what a proxy in front of us
will have understood too. A difference in how many requests a stream holds, or in where one ends, is a way
to smuggle a request past that proxy: it fails here. That we refuse more than h11 is fine.
"""

import ast
import random
from collections import Counter
from typing import NamedTuple

import h11
import pytest
from edge.client_side import Client
from fuzz import grammar

from forebay.traffic import Request

QUICK, FULL = 20_000, 100_000

# What h11 refuses and we take, with the reason why no framing hangs on it.
EMPTY_LINES = "empty lines before a request line are skipped, as RFC 9112, 2.2 asks for"
SPACES = "more than one space around the target: RFC 9112, 3 lets a server read it so"
CODINGS = "another coding before the final `chunked`: both end the body there, and it will be no JSON"
KEEP_ALIVE = "keep-alive of HTTP/1.0, which h11 does not know"


class Read(NamedTuple):
    """One request, in the form in which two readings are compared."""

    method: bytes
    target: bytes
    headers: dict[bytes, bytes]
    body: bytes


class Reading(NamedTuple):
    """What one side made of a stream.

    `end` is `open` (it waits for more), `closed` (nothing further is served), or why it refuses what follows.
    """

    requests: list[Read]
    end: str
    versions: list[bytes]


def by_h11(wire: bytes) -> Reading:
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1_000_000)
    connection.receive_data(wire)
    done: list[Read] = []
    versions: list[bytes] = []
    head: h11.Request | None = None
    body: list[bytes] = []
    while True:
        try:
            event = connection.next_event()
        except h11.RemoteProtocolError as error:
            return Reading(done, str(error), versions)
        if event is h11.NEED_DATA:
            return Reading(done, "open", versions)
        if event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
            return Reading(done, "closed", versions)
        if isinstance(event, h11.Request):
            head, body = event, []
        elif isinstance(event, h11.Data):
            body.append(bytes(event.data))
        else:
            assert head is not None
            joined: dict[bytes, bytes] = {}
            for name, value in head.headers:
                joined[name] = joined[name] + b", " + value if name in joined else value
            done.append(Read(head.method, head.target, joined, b"".join(body)))
            versions.append(head.http_version)
            connection.send(h11.Response(status_code=403, headers=[("content-length", "0")]))
            connection.send(h11.EndOfMessage())
            if connection.our_state is h11.MUST_CLOSE:
                return Reading(done, "closed", versions)
            connection.start_next_cycle()


def by_us(pieces: list[bytes]) -> Reading:
    client = Client()
    client.answers_itself(body=b"")
    client.send(*pieces)
    answers = [answer for answer in client.answers if answer.status >= 200]
    assert client.transport.late == b""
    assert [answer.status for answer in answers[: len(client.requests)]] == [200] * len(client.requests)
    refusals = answers[len(client.requests) :]
    assert len(refusals) <= 1
    if refusals:
        assert refusals[0].status in (400, 413, 431)
        assert client.transport.closing
    end = refusals[0].body.decode() if refusals else "closed" if client.transport.closing else "open"
    assert not client.connection.busy
    return Reading([_comparable(request) for request in client.requests], end, [])


def _comparable(request: Request) -> Read:
    query = b"?" + request.query if request.query else b""
    return Read(request.method, request.path + query, request.headers, request.body)


def _normal(headers: dict[bytes, bytes]) -> dict[bytes, bytes]:
    """Header values modulo white space and what h11 normalises; the declined offer to upgrade is left out."""
    values = {name: b",".join(part.strip(b" \t") for part in value.split(b",")) for name, value in headers.items()}
    values.pop(b"upgrade", None)
    if b"transfer-encoding" in values:
        values[b"transfer-encoding"] = values[b"transfer-encoding"].lower()
    if b"content-length" in values:
        values[b"content-length"] = values[b"content-length"].split(b",")[0].lstrip(b"0") or b"0"
    return values


def verdict(ours: Reading, theirs: Reading) -> str:
    """Name the kind of agreement; `FAULT: ...` where there is none.

    Requests that both sides read must be equal, one by one; then the sides must stop for compatible reasons.
    """
    for mine, other in zip(ours.requests, theirs.requests, strict=False):
        if mine.method != other.method or mine.target.rstrip(b"?") != other.target.rstrip(b"?"):
            return "FAULT: request line"
        if mine.body != other.body:
            return "FAULT: body"
        if _normal(mine.headers) != _normal(other.headers):
            return "FAULT: headers"
    surplus = len(ours.requests) - len(theirs.requests)
    we_refuse = ours.end.startswith("{")
    if surplus < 0:
        return "only we refuse" if we_refuse or ours.end == "closed" else "FAULT: we wait where h11 has a request"
    they_refuse = theirs.end not in ("open", "closed")
    if surplus > 0:
        why = _harmless(ours.requests[len(theirs.requests)], theirs)
        return f"taken: {why}" if why else f"FAULT: h11 says '{theirs.end}' where we have a request"
    if they_refuse:
        return "both refuse" if we_refuse else "only h11 refuses what we wait for the end of"
    return "only we refuse" if we_refuse else "same"


def _harmless(taken: Read, theirs: Reading) -> str | None:
    """Say why a request that we take and h11 does not is no danger, if it is none."""
    if theirs.end == "no request line received":
        return EMPTY_LINES
    if theirs.end.startswith("illegal request line: "):
        line = ast.literal_eval(theirs.end.partition("bytearray(")[2][:-1])
        if not line.strip(b"\r"):
            return EMPTY_LINES
        known = [taken.method, taken.target]
        return SPACES if line.split(b" ") != line.split() and line.split()[:2] == known else None
    codings = taken.headers.get(b"transfer-encoding", b"").lower().split(b",")
    if theirs.end == "Only Transfer-Encoding: chunked is supported" and codings[-1].strip() == b"chunked":
        return CODINGS
    if theirs.end == "closed" and theirs.versions[-1] == b"1.0":
        return KEEP_ALIVE
    return None


def run(count: int, seed: int) -> Counter[str]:
    """Compare both readings of many streams.

    Returns:
        How many streams came to which verdict; `requests` counts those that were served.
    """
    kinds: Counter[str] = Counter()
    for number in range(count):
        dice = random.Random(seed * 1_000_003 + number)
        wire = grammar.stream(dice)
        pieces = grammar.reads(dice, wire)
        ours, theirs = by_us(pieces), by_h11(wire)
        kind = verdict(ours, theirs)
        assert not kind.startswith("FAULT"), f"{kind}\n{pieces!r}\nours: {ours}\nh11: {theirs}"
        kinds[kind] += 1
        kinds["requests"] += len(ours.requests)
    return kinds


def check(kinds: Counter[str], count: int) -> None:
    """The streams were not all refused: a fuzzer whose input is noise proves nothing."""
    for kind, times in kinds.most_common():
        print(f"{times:7} {kind}")
    assert kinds["same"] > count // 5
    assert kinds["both refuse"] > count // 50
    assert kinds["requests"] > count // 2


def test_a_quick_run() -> None:
    check(run(QUICK, seed=1), QUICK)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_full_run() -> None:
    check(run(FULL, seed=2), FULL)
