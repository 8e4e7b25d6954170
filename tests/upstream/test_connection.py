"""Answers of an engine on one connection, and whether it may be used again."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from upstream.engine_side import HEAD, LAST, Line

from forebay.domain import FailureKind
from forebay.traffic import Header


class Taker:
    """Remembers one answer."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.body = b""
        self.headers: list[Header] = []

    def on_head(self, status: int, headers: list[Header]) -> None:
        self.told.append(status)
        self.headers = headers

    def takes(self, _read: bytes) -> bool:
        return False

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_end(self) -> None:
        self.told.append("end")

    def on_lost(self, kind: FailureKind) -> None:
        self.told.append(kind)


WHOLE = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nX-A: 1\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\no\r\n1\r\nk\r\n0\r\n\r\n"


def ask(line: Line, *reads: bytes) -> Taker:
    taker = Taker()
    line.connection.send(b"request", b"", taker)
    line.feed(*reads)
    return taker


@pytest.mark.parametrize("wire", [WHOLE, CHUNKED])
def test_an_answer_cut_at_every_byte(wire: bytes) -> None:
    for at in range(len(wire) + 1):
        line = Line()
        taker = ask(line, wire[:at], wire[at:])
        assert (taker.told, taker.body) == ([200, "end"], b"ok"), at
        assert line.idle
        assert not line.transport.closing


def test_a_connection_serves_one_answer_after_the_other() -> None:
    line = Line()
    for _ in range(50):
        assert ask(line, WHOLE).told == [200, "end"]
        assert line.pool.take(line.connection.replica) is line.connection
        assert line.connection.reused
    assert line.transport.sent == b"request" * 50
    assert line.pool.take(line.connection.replica) is None


def test_a_large_request_is_sent_in_parts() -> None:
    line = Line()
    line.connection.send(b"head", b"body", Taker())
    assert line.transport.sent == b"headbody"


@pytest.mark.parametrize(
    "head",
    [
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\n\r\n",
    ],
)
def test_an_engine_that_will_close_is_not_asked_again(head: bytes) -> None:
    line = Line()
    taker = ask(line, head)
    assert (taker.told, taker.body) == ([200, "end"], b"ok")
    assert line.transport.closing
    assert line.pool.take(line.connection.replica) is None


@pytest.mark.parametrize("status", [204, 304])
def test_answers_without_a_body(status: int) -> None:
    line = Line()
    assert ask(line, b"HTTP/1.1 %d X\r\nX-A: 1\r\n\r\n" % status).told == [status, "end"]
    assert line.idle


def test_interim_answers_are_left_out() -> None:
    line = Line()
    taker = ask(line, b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + WHOLE)
    assert (taker.told, taker.body) == ([200, "end"], b"ok")
    assert [name for name, _ in taker.headers] == [b"content-length", b"x-a"]
    assert line.idle


def test_a_body_until_the_close() -> None:
    line = Line()
    taker = ask(line, b"HTTP/1.1 200 OK\r\nContent-Type: x\r\n\r\nabc", b"def")
    assert taker.told == [200]
    line.end()
    assert (taker.told, taker.body) == ([200, "end"], b"abcdef")
    assert line.pool.take(line.connection.replica) is None


def test_a_body_until_the_close_that_is_reset_is_no_whole_answer() -> None:
    line = Line()
    taker = ask(line, b"HTTP/1.1 200 OK\r\n\r\nabc")
    line.lose()
    assert taker.told == [200, FailureKind.TRUNCATED]


@pytest.mark.parametrize("sent", [WHOLE[:-1], CHUNKED[:-1], WHOLE[:10], CHUNKED[:-5], b"HTTP/1.1 100 Continue\r\n\r\n"])
def test_an_answer_that_is_cut(sent: bytes) -> None:
    line = Line()
    taker = ask(line, sent)
    line.end()
    assert taker.told[-1] is FailureKind.TRUNCATED
    assert len([told for told in taker.told if told != 200]) == 1


def test_a_connection_lost_before_a_byte_of_answer() -> None:
    line = Line()
    taker = ask(line)
    assert not line.connection.answered
    line.end()
    assert taker.told == [FailureKind.RESET]
    assert not line.connection.answered


def test_a_request_on_a_connection_that_has_gone() -> None:
    line = Line()
    line.lose()
    assert ask(line).told == [FailureKind.RESET]
    line = Line()
    line.transport.closing = True
    assert ask(line).told == [FailureKind.RESET]


@pytest.mark.parametrize(
    "wire",
    [
        b"oops\r\n\r\n",
        b"\x00" * 20,
        b"HTTP/1.1 2000 OK\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: x\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\nPRI",
    ],
)
def test_what_is_no_http(wire: bytes) -> None:
    line = Line()
    taker = ask(line, wire)
    assert taker.told[-1] is FailureKind.BAD_ANSWER
    assert line.transport.aborted
    line.lose()
    assert taker.told.count(FailureKind.BAD_ANSWER) == 1


def test_bytes_that_nobody_asked_for_end_the_connection() -> None:
    line = Line()
    ask(line, WHOLE)
    line.feed(b"HTTP/1.1 408 Request Timeout\r\n\r\n")
    assert line.transport.aborted
    assert line.pool.take(line.connection.replica) is None


@pytest.mark.parametrize("extra", [WHOLE, b"HTTP/1.1", b"x", b"\r\n"])
def test_a_surplus_behind_an_answer_is_never_the_next_calls(extra: bytes) -> None:
    line = Line()
    taker = ask(line, WHOLE + extra)
    assert taker.told == [200, "end"]
    taken = line.pool.take(line.connection.replica)
    assert taken is None or extra == b"\r\n"
    assert line.transport.aborted or extra == b"\r\n"


# leaving an answer before its end


def test_a_released_answer_is_read_to_its_end_and_the_connection_kept() -> None:
    line = Line()
    taker = ask(line, HEAD + b"2\r\nok\r\n")
    line.connection.release(taker)
    assert line.pool.take(line.connection.replica) is None
    line.feed(b"3\r\nabc\r\n", LAST)
    assert (taker.told, taker.body) == ([200], b"ok")
    assert line.idle
    assert ask(line, WHOLE).told == [200, "end"]


def test_a_released_answer_that_does_not_end_is_cut() -> None:
    line = Line()
    line.connection.release(ask(line, HEAD + b"2\r\nok\r\n"))
    line.clock.advance(0.9)
    line.pool.sweep()
    assert not line.transport.closing
    line.clock.advance(0.2)
    line.pool.sweep()
    assert line.transport.aborted
    line.lose()
    line.pool.sweep()


def test_a_dropped_answer_cuts_the_connection() -> None:
    line = Line()
    taker = ask(line, HEAD + b"2\r\nok\r\n")
    line.connection.drop(taker)
    assert line.transport.aborted
    line.lose()
    assert taker.told == [200]


def test_only_the_receiver_of_the_answer_can_end_it() -> None:
    line = Line()
    old = ask(line, WHOLE)
    new = ask(line, WHOLE[:10])
    line.connection.drop(old)
    line.connection.release(old)
    line.feed(WHOLE[10:])
    assert new.told == [200, "end"]


# back-pressure


def test_a_slow_client_slows_the_engine() -> None:
    line = Line()
    ask(line, HEAD)
    line.connection.pause(True)
    assert not line.transport.reading
    line.connection.pause(False)
    assert line.transport.reading
    line.lose()
    line.connection.pause(True)


# reads that are passed on as they are


class Express(Taker):
    """Takes every read that it is offered, and can tell what it was."""

    def __init__(self) -> None:
        super().__init__()
        self.taken: list[bytes] = []

    def takes(self, read: bytes) -> bool:
        self.taken.append(read)
        return True


@settings(max_examples=150, deadline=None)
@given(st.lists(st.integers(1, 300), min_size=1, max_size=5), st.data())
def test_a_read_is_offered_only_where_a_chunk_begins(sizes: list[int], data: st.DataObject) -> None:
    chunks = [b"%x\r\n%b\r\n" % (size, b"x" * size) for size in sizes]
    wire = HEAD + b"".join(chunks)
    starts = {len(HEAD) + sum(map(len, chunks[:i])) for i in range(len(chunks) + 1)}
    at = data.draw(st.integers(1, len(wire) - 1))
    line = Line()
    taker = Express()
    line.connection.send(b"request", b"", taker)
    line.feed(wire[:at], wire[at:])
    if taker.taken:
        assert at in starts
        assert at > len(HEAD), "the first chunk must have been seen by the parser"


def test_no_read_is_offered_in_the_middle_of_a_chunk_size() -> None:
    line = Line()
    taker = Express()
    line.connection.send(b"request", b"", taker)
    line.feed(HEAD + b"1\r\nx\r\n1", b"0\r\n0123456789abcdef\r\n")
    assert taker.taken == []
    assert taker.body == b"x0123456789abcdef"
