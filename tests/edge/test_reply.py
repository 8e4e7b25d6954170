"""Answers out: heads, framing, what is dropped."""

import pytest
from edge.client_side import DATE, FakeTransport, read_answers
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.edge.reply import DROPPED, Reply


class Answering:
    """A reply with its transport and the times that it reported its end."""

    def __init__(self, *, chunked: bool = True, keep_alive: bool = True, bodiless: bool = False) -> None:
        self.transport = FakeTransport()
        self.ends: list[Reply] = []
        self.bodiless = bodiless
        self.reply = Reply(
            self.transport,  # type: ignore[arg-type]
            self.ends.append,
            date=DATE,
            chunked=chunked,
            keep_alive=keep_alive,
            bodiless=bodiless,
        )

    @property
    def answer(self) -> tuple[int, dict[bytes, bytes], bytes]:
        (answer,) = read_answers(self.transport.sent, bodiless=self.bodiless)
        return answer


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.binary(max_size=40), max_size=6),
    st.sampled_from(["length", "chunked", "closed"]),
    st.booleans(),
    st.booleans(),
)
def test_the_framing_is_what_the_head_says(parts: list[bytes], framing: str, keep_alive: bool, bodiless: bool) -> None:
    body = b"".join(parts)
    answering = Answering(chunked=framing != "closed", keep_alive=keep_alive, bodiless=bodiless)
    reply = answering.reply
    reply.head(200, (), len(body) if framing == "length" else None)
    for part in parts:
        reply.write(part)
    assert answering.ends == []
    reply.end()
    assert answering.ends == [reply]
    status, headers, seen = answering.answer
    assert (status, seen) == (200, b"" if bodiless else body)
    assert headers[b"date"] == DATE
    assert (b"transfer-encoding" in headers) == (framing == "chunked")
    assert headers.get(b"content-length") == (b"%d" % len(body) if framing == "length" else None)
    assert reply.keep_alive == (keep_alive and framing != "closed")
    assert (headers.get(b"connection") == b"close") == (not reply.keep_alive)
    if bodiless:
        assert answering.transport.sent.endswith(b"\r\n\r\n")


def test_head_and_first_part_are_one_write() -> None:
    answering = Answering()
    answering.reply.head(200, (), None)
    assert answering.transport.writes == 0
    answering.reply.write(b"a")
    assert answering.transport.writes == 1
    answering.reply.write(b"b")
    answering.reply.end()
    assert answering.transport.writes == 3


def test_an_empty_part_does_not_end_a_chunked_answer() -> None:
    answering = Answering()
    answering.reply.head(200, (), None)
    answering.reply.write(b"")
    answering.reply.write(b"a")
    answering.reply.write(b"")
    answering.reply.end()
    assert answering.answer[2] == b"a"


def test_a_chunk_that_is_framed_already_goes_out_as_it_is() -> None:
    answering = Answering()
    reply = answering.reply
    reply.head(200, (), None)
    assert reply.framed
    reply.pass_chunk(b"3\r\nabc\r\n")
    reply.write(b"d")
    reply.pass_chunk(b"1\r\ne\r\n")
    reply.end()
    assert answering.answer[2] == b"abcde"


@pytest.mark.parametrize("options", [{"chunked": False}, {}])
def test_only_chunked_answers_are_framed(options: dict[str, bool]) -> None:
    for length in (None, 5):
        reply = Answering(**options).reply
        reply.head(200, (), length)
        assert reply.framed is (length is None and not options)


def test_a_stream_is_not_buffered_by_proxies() -> None:
    for chunked in (True, False):
        answering = Answering(chunked=chunked)
        answering.reply.head(200, ((b"content-type", b"text/event-stream"),), None)
        answering.reply.end()
        headers = answering.answer[1]
        assert headers[b"x-accel-buffering"] == b"no"
        assert headers[b"cache-control"] == b"no-cache"


def test_hop_by_hop_headers_stay_behind() -> None:
    answering = Answering()
    passed = ((b"content-type", b"text/plain"), (b"retry-after", b"2"), (b"x-kept", b"1"))
    dropped = tuple((name, b"chunked" if name == b"transfer-encoding" else b"1") for name in sorted(DROPPED))
    answering.reply.whole(200, (*dropped, *passed), b"abc")
    _, headers, body = answering.answer
    assert body == b"abc"
    assert headers == {b"date": DATE, b"content-length": b"3", **dict(passed)}


@pytest.mark.parametrize(
    "lines",
    [
        [b"close, X-Hop , x-other"],
        [b"x-hop,x-other"],
        [b"keep-alive", b"X-Hop, X-Other"],
    ],
)
def test_what_connection_names_is_hop_by_hop_too(lines: list[bytes]) -> None:
    answering = Answering()
    headers = [(b"x-hop", b"1"), (b"x-other", b"2"), (b"x-kept", b"3"), *((b"connection", line) for line in lines)]
    answering.reply.whole(200, tuple(headers), b"")
    assert answering.answer[1] == {b"date": DATE, b"content-length": b"0", b"x-kept": b"3"}


def test_headers_of_ours_and_timing() -> None:
    answering = Answering()
    answering.reply.extra += b"x-forebay-call-id: c\r\n"
    answering.reply.timing = lambda: b"queue;dur=1.5"
    answering.reply.whole(200, ((b"x-request-id", b"engine's own"),), b"")
    assert answering.answer[1][b"x-forebay-call-id"] == b"c"
    assert answering.answer[1][b"server-timing"] == b"queue;dur=1.5"
    assert b"x-request-id" not in answering.answer[1]


def test_an_unknown_status_has_an_empty_reason() -> None:
    answering = Answering()
    answering.reply.whole(299, (), b"")
    assert answering.transport.sent.startswith(b"HTTP/1.1 299 \r\n")


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_that_has_no_body_states_no_length(status: int) -> None:
    answering = Answering()
    answering.reply.whole(status, (), b"")
    assert b"content-length" not in answering.transport.sent
    assert b"transfer-encoding" not in answering.transport.sent


def test_a_second_end_does_nothing() -> None:
    answering = Answering()
    answering.reply.whole(200, (), b"a")
    sent = answering.transport.sent
    answering.reply.end()
    answering.reply.abort()
    assert len(answering.ends) == 1
    assert answering.transport.sent == sent
    assert not answering.transport.closing


def test_abort_cuts_the_connection() -> None:
    answering = Answering()
    answering.reply.head(200, (), None)
    answering.reply.write(b"a")
    answering.reply.abort()
    assert answering.transport.aborted
    assert not answering.transport.sent.endswith(b"0\r\n\r\n")
    assert not answering.reply.keep_alive
    answering.reply.end()
    assert len(answering.ends) == 1


def test_nothing_is_written_to_a_client_that_left() -> None:
    answering = Answering()
    reply = answering.reply
    assert reply.client_gone() is False
    reply.head(200, (), None)
    reply.write(b"a")
    reply.pass_chunk(b"1\r\na\r\n")
    reply.end()
    assert answering.transport.sent == b""
    assert answering.ends == [reply]
