"""Bounds of a client connection: sizes, times, a client that leaves, a client that does not read."""

import pytest
from edge.client_side import Client, get, post
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.policy import Limits

SMALL = Limits(body_bytes=100, header_bytes=1000)


class Listener:
    """Remembers what it is told."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def client_gone(self) -> None:
        self.told.append("gone")

    def client_ready(self, ready: bool) -> None:
        self.told.append(ready)


# sizes


def big_head(size: int) -> bytes:
    start = b"GET / HTTP/1.1\r\nHost: h\r\nX: "
    return start + b"x" * (size - len(start) - 4) + b"\r\n\r\n"


@pytest.mark.parametrize("step", [1, 7, 100, 5000])
def test_a_head_within_the_bound_passes(step: int) -> None:
    wire = big_head(990)
    client = Client(SMALL)
    client.send(*(wire[i : i + step] for i in range(0, len(wire), step)))
    assert len(client.requests) == 1


@pytest.mark.parametrize("step", [1, 7, 100, 5000])
@pytest.mark.parametrize(
    "wire",
    [
        big_head(1100),
        b"GET /" + b"x" * 1100 + b" HTTP/1.1\r\nHost: h\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\n" + b"".join(b"X%d: 1\r\n" % i for i in range(200)) + b"\r\n",
        b"GET / HTTP/1.1\r\nHost: h\r\n" + b"x" * 1100 + b": 1\r\n\r\n",
        b"G" * 1100,
    ],
    ids=["value", "target", "many lines", "name", "method"],
)
def test_a_head_beyond_the_bound_is_refused(wire: bytes, step: int) -> None:
    client = Client(SMALL)
    client.send(*(wire[i : i + step] for i in range(0, len(wire), step)))
    assert client.requests == []
    (answer,) = client.answers
    assert (answer.status, answer.code) in ((431, "headers_too_large"), (400, "bad_request"))
    assert client.transport.closing


def test_a_large_body_in_the_same_read_is_no_large_head() -> None:
    client = Client(Limits(body_bytes=100_000, header_bytes=1000))
    client.send(post(b"x" * 50_000) + post(b"y" * 50_000))
    client.answer()
    client.answer()
    assert [len(request.body) for request in client.requests] == [50_000, 50_000]


def test_a_large_head_behind_another_request_is_refused() -> None:
    client = Client(SMALL)
    client.send(get(b"/0") + big_head(2000))
    client.answer()
    assert [answer.status for answer in client.answers] == [200, 431]
    assert len(client.requests) == 1


@pytest.mark.parametrize("size", [100, 101])
@pytest.mark.parametrize("step", [1, 9, 5000])
def test_a_body_is_bounded_by_its_stated_length(size: int, step: int) -> None:
    wire = post(b"x" * size)
    client = Client(SMALL)
    client.send(*(wire[i : i + step] for i in range(0, len(wire), step)))
    if size <= 100:
        assert len(client.requests[0].body) == size
    else:
        assert client.requests == []
        assert (client.answers[0].status, client.answers[0].code) == (413, "body_too_large")
        assert client.transport.closing


def test_a_stated_length_is_refused_before_the_body_comes() -> None:
    client = Client(SMALL)
    client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 99999999999999999999\r\n\r\n")
    assert client.answers[0].status in (400, 413)
    client = Client(SMALL)
    client.send(b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 101\r\n\r\n")
    assert client.answers[0].status == 413


@pytest.mark.parametrize("pieces", [[50, 50], [50, 51], [101], [1] * 101])
@pytest.mark.parametrize("apart", [True, False])
def test_a_chunked_body_is_bounded_as_it_comes(pieces: list[int], apart: bool) -> None:
    reads = [b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"]
    reads += [b"%x\r\n%b\r\n" % (size, b"x" * size) for size in pieces]
    reads.append(b"0\r\n\r\n")
    client = Client(SMALL)
    client.send(*reads if apart else (b"".join(reads),))
    if sum(pieces) <= 100:
        assert client.requests[0].body == b"x" * 100
    else:
        assert client.requests == []
        assert client.answers[0].status == 413


@pytest.mark.parametrize("start", [b"0\r\n", b"0\r\nX: ", b"0;", b"0\r\nX", b"1\r\na\r\n000"])
@pytest.mark.parametrize("piece", [b"X: 1\r\n", b"y" * 100, b"0"])
def test_what_follows_the_last_chunk_is_bounded(start: bytes, piece: bytes) -> None:
    client = Client(SMALL)
    client.send(b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n" + start)
    for _ in range(3000 // len(piece)):
        client.send(piece)
    assert client.transport.closing
    assert client.requests == []


def test_too_many_connections_are_refused() -> None:
    client = Client(room=False)
    client.send(get())
    (answer,) = client.answers
    assert (answer.status, answer.code, answer.headers[b"retry-after"]) == (503, "too_many_connections", b"1")
    assert client.transport.closing
    assert client.requests == []


# time


def test_phases() -> None:
    client = Client()
    connection = client.connection
    assert connection.phase == "idle"
    wire = post(b"{}")
    client.send(wire[:10])
    assert connection.phase == "head"
    client.send(wire[10:-1])
    assert connection.phase == "body"
    client.send(wire[-1:])
    assert connection.phase == "exchange"
    client.answer()
    assert connection.phase == "idle"


def test_the_time_of_a_phase_begins_with_it() -> None:
    client = Client()
    connection, clock = client.connection, client.owner.clock
    assert connection.since_s == 100.0
    clock.advance(5)
    client.send(b"GET /")
    assert connection.since_s == 105.0
    clock.advance(5)
    client.send(b" HTTP/1.1\r\n")
    assert connection.since_s == 105.0, "a byte now and then buys no time"
    client.send(b"Host: h\r\n\r\n")
    clock.advance(5)
    client.answer()
    assert connection.since_s == 115.0


def test_an_idle_connection_expires_without_a_word() -> None:
    client = Client()
    client.connection.expire()
    assert client.transport.closing
    assert client.transport.sent == b""
    served = Client()
    served.send(get())
    served.answer()
    served.connection.expire()
    assert served.transport.closing
    assert len(served.answers) == 1


@pytest.mark.parametrize("sent", [1, 20, -1])
def test_a_half_sent_request_expires_with_an_answer(sent: int) -> None:
    client = Client()
    client.send(post(b"{}")[:sent])
    client.connection.expire()
    (answer,) = client.answers
    assert (answer.status, answer.code, answer.headers[b"connection"]) == (408, "request_timeout", b"close")
    assert client.transport.closing
    client.connection.expire()
    assert len(client.answers) == 1


# the client leaves


def test_the_listener_is_told_that_the_client_left() -> None:
    client = Client()
    client.send(get())
    _, reply = client.owner.exchanges[0]
    reply.listener = listener = Listener()
    client.leave()
    assert listener.told == ["gone"]
    assert reply.gone
    assert not client.owner.tasks[0].cancelled
    assert client.owner.connections == []
    reply.head(200, (), None)
    reply.write(b"x")
    reply.end()
    assert client.transport.sent == client.transport.late == b""


def test_without_a_listener_the_task_is_cancelled() -> None:
    client = Client()
    client.send(get())
    client.leave()
    assert client.owner.tasks[0].cancelled


def test_a_finished_exchange_is_not_cancelled() -> None:
    client = Client()
    client.send(get())
    client.answer()
    client.leave()
    assert not client.owner.tasks[0].cancelled


def test_waiting_requests_of_a_client_that_left_never_begin() -> None:
    client = Client()
    client.send(get(b"/0") + get(b"/1"))
    _, reply = client.owner.exchanges[0]
    reply.listener = Listener()
    client.leave()
    reply.end()
    client.owner.run()
    assert len(client.requests) == 1
    assert not client.connection.busy


def test_a_half_closed_connection_counts_as_closed() -> None:
    assert Client().connection.eof_received() is False


def test_cut_and_close() -> None:
    client = Client()
    client.connection.cut()
    assert client.transport.aborted
    client = Client()
    client.connection.close()
    assert client.transport.closing
    assert not client.transport.aborted
    client.leave()
    client.connection.cut()
    client.connection.close()


# the client does not read


def test_back_pressure_reaches_the_listener() -> None:
    client = Client()
    client.send(get())
    _, reply = client.owner.exchanges[0]
    reply.listener = listener = Listener()
    client.connection.pause_writing()
    assert reply.blocked
    client.connection.resume_writing()
    assert not reply.blocked
    assert listener.told == [False, True]
    client.answer()
    client.connection.pause_writing()
    client.connection.resume_writing()
    assert listener.told == [False, True]


def test_no_exchange_begins_while_the_client_does_not_read() -> None:
    client = Client()
    client.answers_itself()
    client.connection.pause_writing()
    client.send(*(get(b"/metrics") for _ in range(100)))
    assert len(client.requests) <= 1, "each further answer would only fill memory"
    client.connection.resume_writing()
    client.owner.run()
    assert len(client.requests) > 1


def test_a_client_that_does_not_read_is_idle_however_much_it_asked_for() -> None:
    client = Client()
    client.connection.pause_writing()
    client.send(get(b"/0") + get(b"/1") + b"GET /2")
    while client.owner.exchanges and not client.owner.exchanges[-1][1].ended:
        client.answer()
    assert client.connection.phase == "idle"
    client.connection.expire()
    assert client.transport.closing


def test_a_connection_that_cannot_be_closed_is_cut() -> None:
    for wire in (b"", b"GET /", post(b"x" * 101), get(b"/", b"Connection: close")):
        client = Client(SMALL)
        client.answers_itself()
        client.send(wire)
        client.connection.expire()
        assert client.transport.closing
        assert not client.transport.aborted or wire.startswith((b"POST", b"GET / "))
        client.connection.expire()
        assert client.transport.aborted, wire


@settings(max_examples=60, deadline=None)
@given(st.lists(st.sampled_from([get(b"/"), post(b"{}"), b"oops\r\n\r\n", b"GET", b"\r\n"]), max_size=8), st.data())
def test_a_connection_always_comes_to_rest(pieces: list[bytes], data: st.DataObject) -> None:
    """Whatever comes in, and whenever it is answered: nothing waits for ever, nothing is written after the close."""
    client = Client()
    answered = 0
    for piece in pieces:
        client.send(piece)
        if data.draw(st.booleans()) and answered < len(client.requests):
            client.answer(answered)
            answered += 1
    while answered < len(client.requests):
        client.answer(answered)
        answered += 1
    assert not client.connection.busy
    assert client.transport.closing or client.connection.phase in ("idle", "head")
    assert client.transport.late == b""
    assert all(answer.status in (200, 400) for answer in client.answers)
