"""Requests in: strict HTTP/1.1, whatever the reads look like."""

import pytest
from edge.client_side import Client, get, post
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.edge.connection import MAX_PIPELINED
from forebay.policy import Limits

CHUNKED = (
    b"POST /v1/x?a=b&c HTTP/1.1\r\nhost: h\r\nX-One:  a b \r\nTransfer-Encoding: chunked\r\n\r\n"
    b"4;ext=1\r\nab\r\n\r\n3\r\n\x00\xffz\r\n0\r\n\r\n"
)
THREE = post(b'{"a":1}', b"X-A: 1") + CHUNKED + get(b"/health/live", b"Connection: close")


def check_three(client: Client) -> None:
    first, second, third = client.requests
    assert (first.method, first.path, first.query, first.body) == (b"POST", b"/v1/chat/completions", b"", b'{"a":1}')
    assert first.headers == {b"host": b"h", b"content-length": b"7", b"x-a": b"1"}
    assert (second.path, second.query, second.body) == (b"/v1/x", b"a=b&c", b"ab\r\n\x00\xffz")
    assert second.headers == {b"host": b"h", b"x-one": b"a b", b"transfer-encoding": b"chunked"}
    assert (third.method, third.path, third.body) == (b"GET", b"/health/live", b"")
    assert [answer.status for answer in client.answers] == [200, 200, 200]
    assert client.transport.closing
    assert not client.transport.late


def test_one_request() -> None:
    client = Client()
    client.send(post(b"{}"))
    (request,) = client.requests
    assert (request.peer, request.received_s, request.repeated) == ("203.0.113.9", 100.0, frozenset())
    assert client.connection.busy
    client.answer(body=b"hello")
    (answer,) = client.answers
    assert (answer.status, answer.body) == (200, b"hello")
    assert not client.connection.busy
    assert not client.transport.closing


def test_a_stream_of_requests_split_at_every_byte() -> None:
    for at in range(len(THREE)):
        client = Client()
        client.answers_itself()
        client.send(THREE[:at], THREE[at:])
        check_three(client)


def test_a_stream_of_requests_byte_by_byte() -> None:
    client = Client()
    client.answers_itself()
    client.send(*(THREE[i : i + 1] for i in range(len(THREE))))
    check_three(client)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, len(THREE)), max_size=6))
def test_a_stream_of_requests_split_anywhere(places: list[int]) -> None:
    edges = sorted({0, len(THREE), *places})
    client = Client()
    client.answers_itself()
    client.send(*(THREE[a:b] for a, b in zip(edges, edges[1:], strict=False)))
    check_three(client)


def test_repeated_headers_are_joined_and_named() -> None:
    client = Client()
    client.send(get(b"/", b"X-A: 1", b"x-a: 2", b"X-B: 3"))
    (request,) = client.requests
    assert request.headers[b"x-a"] == b"1, 2"
    assert request.repeated == {b"x-a"}


def test_the_peer_of_a_unix_socket() -> None:
    client = Client(peername="")
    client.send(get())
    assert client.requests[0].peer == "unix"


# pipelining


def test_pipelined_requests_wait_in_order() -> None:
    client = Client()
    client.send(b"".join(get(b"/%d" % i) for i in range(3)))
    assert [request.path for request in client.requests] == [b"/0"]
    client.answer(body=b"a")
    client.answer(body=b"b")
    assert [request.path for request in client.requests] == [b"/0", b"/1", b"/2"]
    client.answer(body=b"c")
    assert [answer.body for answer in client.answers] == [b"a", b"b", b"c"]
    assert not client.connection.busy


def test_a_client_that_sends_far_ahead_is_not_read() -> None:
    client = Client()
    for _ in range(MAX_PIPELINED + 1):
        assert client.transport.reading
        client.send(get())
    assert not client.transport.reading
    client.answer()
    assert client.transport.reading
    for _ in range(MAX_PIPELINED):
        client.answer()
    assert len(client.answers) == MAX_PIPELINED + 1


def test_a_client_that_sends_far_ahead_in_one_read_is_not_read_before_its_requests_are_served() -> None:
    client = Client()
    client.send(get() * 100)
    for waiting in range(99, -1, -1):
        assert client.transport.reading is (waiting < MAX_PIPELINED), waiting
        client.answer()
    assert len(client.answers) == 100


def test_a_bad_request_behind_a_running_one_is_refused_in_its_turn() -> None:
    client = Client()
    client.send(get(b"/0") + b"oops\r\n\r\n")
    assert client.transport.sent == b""
    client.answer(body=b"a")
    assert [answer.status for answer in client.answers] == [200, 400]
    assert client.transport.closing


def test_a_bad_request_behind_waiting_ones_is_refused_in_its_turn() -> None:
    client = Client()
    client.send(get(b"/0") + get(b"/1") + b"oops\r\n\r\n")
    client.answer(0)
    assert len(client.requests) == 2, "the waiting request never begins"
    client.answer(1)
    assert [answer.status for answer in client.answers] == [200, 200, 400]
    assert client.transport.closing


def test_nothing_is_served_behind_connection_close() -> None:
    client = Client()
    client.send(get(b"/0", b"Connection: close") + get(b"/1"))
    client.answer()
    assert [answer.status for answer in client.answers] == [200]
    assert client.answers[0].headers[b"connection"] == b"close"
    assert client.transport.closing
    assert len(client.requests) == 1


def test_a_draining_server_ends_the_connection_with_the_running_exchange() -> None:
    client = Client()
    client.send(get(b"/0") + get(b"/1"))
    client.owner.closing = True
    client.answer()
    assert client.transport.closing
    assert len(client.answers) == 1
    later = Client()
    later.owner.draining = True
    later.send(get())
    later.answer()
    assert later.answers[0].headers[b"connection"] == b"close"


def test_what_was_promised_to_stay_open_stays_until_its_next_answer() -> None:
    client = Client()
    client.send(get(b"/0"))
    client.owner.draining = True
    client.answer()
    assert not client.transport.closing
    client.send(get(b"/1"))
    client.answer()
    assert client.transport.closing
    assert [answer.status for answer in client.answers] == [200, 200]
    assert client.answers[1].headers[b"connection"] == b"close"


# versions and methods


@pytest.mark.parametrize("lines", [(), (b"Connection: keep-alive",)])
def test_http_1_0(lines: tuple[bytes, ...]) -> None:
    client = Client()
    client.send(b"\r\n".join((b"GET / HTTP/1.0", *lines, b"", b"")))
    _, reply = client.owner.exchanges[0]
    reply.head(200, (), None)
    reply.write(b"a")
    reply.write(b"b")
    reply.end()
    (answer,) = client.answers
    assert answer.body == b"ab"
    assert b"transfer-encoding" not in answer.headers
    assert answer.headers[b"connection"] == b"close"
    assert client.transport.closing


@pytest.mark.parametrize(("lines", "stays"), [((), False), ((b"Connection: keep-alive",), True)])
def test_http_1_0_keeps_the_connection_when_asked_to(lines: tuple[bytes, ...], stays: bool) -> None:
    client = Client()
    client.send(b"\r\n".join((b"GET / HTTP/1.0", *lines, b"", b"")))
    client.answer()
    assert client.transport.closing is not stays


def test_http_1_0_is_not_chunked_behind_another_request_either() -> None:
    client = Client()
    client.send(get(b"/0") + b"GET /1 HTTP/1.0\r\n\r\n")
    client.answer()
    _, reply = client.owner.exchanges[1]
    reply.head(200, (), None)
    reply.write(b"a")
    reply.end()
    assert b"transfer-encoding" not in client.answers[1].headers


def test_head_gets_no_body() -> None:
    client = Client()
    client.send(b"HEAD / HTTP/1.1\r\nHost: h\r\n\r\n")
    client.answer(body=b"hello")
    sent = client.transport.sent
    assert sent.endswith(b"\r\n\r\n")
    assert b"content-length: 5\r\n" in sent
    assert not client.transport.closing
    client.send(get())
    client.answer()
    assert client.transport.sent[len(sent) :].startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("version", [b"0.9", b"2.0", b"1.2", b"3.0"])
def test_other_versions_are_refused(version: bytes) -> None:
    client = Client()
    client.send(get(version=version))
    assert client.requests == []
    assert client.answers[0].status in (400, 505)


# what is ambiguous is refused

REFUSED = {
    "no host": b"GET / HTTP/1.1\r\n\r\n",
    "two hosts": b"GET / HTTP/1.1\r\nHost: a\r\nHost: a\r\n\r\n",
    "length and chunked": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n"
    b"\r\n0\r\n\r\n",
    "chunked and length": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\nContent-Length: 5\r\n"
    b"\r\n0\r\n\r\n",
    "two lengths": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
    "two equal lengths": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1\r\nContent-Length: 1\r\n\r\na",
    "length list": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 1, 1\r\n\r\na",
    "length with sign": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: +1\r\n\r\na",
    "length in hex": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: 0x1\r\n\r\na",
    "empty length": b"POST / HTTP/1.1\r\nHost: h\r\nContent-Length: \r\n\r\n",
    "unknown coding": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: gzip\r\n\r\n",
    "coding behind chunked": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, gzip\r\n\r\n0\r\n\r\n",
    "chunked twice": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
    "chunked in 1.0": b"POST / HTTP/1.0\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "bare LF": b"GET / HTTP/1.1\nHost: h\n\n",
    "bare LF in the head": b"GET / HTTP/1.1\r\nHost: h\nX: 1\r\n\r\n",
    "bare LF at the end of the head": b"GET / HTTP/1.1\r\nHost: h\r\n\n",
    "bare CR": b"GET / HTTP/1.1\r\nHost: h\rX: 1\r\n\r\n",
    "folded line": b"GET / HTTP/1.1\r\nHost: h\r\nX: 1\r\n 2\r\n\r\n",
    "space before the colon": b"GET / HTTP/1.1\r\nHost : h\r\n\r\n",
    "space before the first name": b"GET / HTTP/1.1\r\n Host: h\r\n\r\n",
    "no colon": b"GET / HTTP/1.1\r\nHost: h\r\nX\r\n\r\n",
    "empty name": b"GET / HTTP/1.1\r\nHost: h\r\n: 1\r\n\r\n",
    "NUL in a value": b"GET / HTTP/1.1\r\nHost: h\r\nX: \x00\r\n\r\n",
    "no version": b"GET /\r\n\r\n",
    "unknown method": b"BREW / HTTP/1.1\r\nHost: h\r\n\r\n",
    "h2 preface": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    "TLS hello": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    "chunk size with sign": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n+1\r\na\r\n0\r\n\r\n",
    "chunk size with 0x": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n0x1\r\na\r\n0\r\n\r\n",
    "chunk size too long": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    + b"1" * 20
    + b"\r\na\r\n0\r\n\r\n",
    "chunk without its end": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n0\r\n\r\n",
    "chunk with bare LF": b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\na\r\n0\r\n\r\n",
    "CONNECT": b"CONNECT example.com:443 HTTP/1.1\r\nHost: example.com:443\r\n\r\n",
}


@pytest.mark.parametrize("wire", REFUSED.values(), ids=REFUSED)
def test_what_is_ambiguous_is_refused(wire: bytes) -> None:
    for reads in ((wire,), tuple(wire[i : i + 1] for i in range(len(wire)))):
        client = Client()
        client.send(*reads)
        assert client.requests == []
        (answer,) = client.answers
        assert (answer.status, answer.code) == (400, "bad_request")
        assert answer.headers[b"connection"] == b"close"
        assert client.transport.closing
        client.connection.data_received(get())
        assert client.requests == []
        assert len(client.answers) == 1


def test_the_fields_behind_a_chunked_body_are_no_headers() -> None:
    head = b"POST / HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n0\r\n"
    trailers = b"X-A: 1\r\nAuthorization: Bearer k\r\nHost: evil\r\n"
    client = Client()
    client.send(head + trailers + b"\r\n")
    if client.requests:
        (request,) = client.requests
        assert request.headers == {b"host": b"h", b"transfer-encoding": b"chunked"}
        assert request.repeated == frozenset()
        assert request.body == b"a"
    else:
        assert client.answers[0].status == 400


# Expect and Upgrade


@pytest.mark.parametrize("value", [b"100-continue", b"100-Continue"])
def test_expect_gets_its_continue(value: bytes) -> None:
    wire = post(b"{}", b"Expect: " + value)
    client = Client()
    client.send(wire[:-2])
    assert client.transport.sent == b"HTTP/1.1 100 Continue\r\n\r\n"
    client.send(wire[-2:])
    client.answer()
    assert [answer.status for answer in client.answers] == [100, 200]


def test_expect_of_a_refused_request_gets_the_refusal() -> None:
    client = Client(Limits(body_bytes=10))
    client.send(post(b"x" * 11, b"Expect: 100-continue")[:-11])
    assert [answer.status for answer in client.answers] == [413]


def test_no_continue_in_the_middle_of_another_answer() -> None:
    client = Client()
    client.send(get())
    client.owner.exchanges[0][1].head(200, (), None)
    client.owner.exchanges[0][1].write(b"a")
    client.send(post(b"{}", b"Expect: 100-continue")[:-2])
    assert b"100 Continue" not in client.transport.sent


UPGRADES = {
    "h2c": (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA"),
    "websocket": (b"Upgrade: websocket", b"Connection: upgrade"),
    "lower case": (b"upgrade: h2c", b"connection: upgrade"),
    "twice": (b"Upgrade: h2c", b"Upgrade: websocket", b"Connection: Upgrade"),
}


@pytest.mark.parametrize("lines", UPGRADES.values(), ids=UPGRADES)
def test_an_offer_to_upgrade_is_declined_by_a_plain_answer(lines: tuple[bytes, ...]) -> None:
    for wire, body in ((post(b'{"a":1}', *lines), b'{"a":1}'), (get(b"/", *lines), b"")):
        client = Client()
        client.send(wire + get(b"/next"))
        assert client.requests[0].body == body
        assert b"upgrade" not in client.requests[0].headers
        client.answer()
        client.answer()
        assert [request.path for request in client.requests][1:] == [b"/next"]
        assert [answer.status for answer in client.answers] == [200, 200]


def test_an_offer_to_upgrade_over_many_reads_is_served_or_refused_once() -> None:
    wire = post(b'{"a":1}', b"Connection: Upgrade", b"Upgrade: h2c") + get(b"/next")
    for at in range(1, len(wire)):
        client = Client()
        client.answers_itself()
        client.send(wire[:at], wire[at:])
        paths = [request.path for request in client.requests]
        statuses = [answer.status for answer in client.answers]
        assert (paths, statuses) in (
            ([b"/v1/chat/completions", b"/next"], [200, 200]),
            ([], [400]),
        ), at


def test_the_end_of_a_head_that_offers_to_upgrade_is_never_a_request() -> None:
    hidden = b"GET /hidden HTTP/1.1\r\nHost: h\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n"
    client = Client()
    client.answers_itself()
    client.send(get(b"/0") + b"GET /1 HTTP/1.1\r\nX: ", hidden)
    assert b"/hidden" not in [request.path for request in client.requests]


def test_the_body_behind_an_offer_to_upgrade_is_never_a_request() -> None:
    hidden = get(b"/hidden", b"Connection: Upgrade", b"Upgrade: h2c")
    wire = post(hidden, b"Connection: Upgrade", b"Upgrade: h2c")
    for at in range(1, len(wire)):
        client = Client()
        client.answers_itself()
        client.send(wire[:at], wire[at:])
        assert b"/hidden" not in [request.path for request in client.requests], at
