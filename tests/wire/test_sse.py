"""The framer against a reference interpreter of the WHATWG rules, over every way to cut a stream."""

import re
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.wire.sse import DONE, Event, FrameError, Framer, lone_event, render

BOM = b"\xef\xbb\xbf"
LINE_END = re.compile(rb"\r\n|\n|\r")


class Dispatched(NamedTuple):
    """One event as the standard dispatches it."""

    data: bytes
    name: bytes


def reference(stream: bytes) -> list[Dispatched]:
    """Interpret a whole stream line by line, in the words of WHATWG HTML 9.2.6 (id and retry have no effect here)."""
    stream = stream.removeprefix(BOM)
    lines = LINE_END.split(stream)[:-1]
    dispatched = []
    data, name = b"", b""
    for line in lines:
        if not line:
            if data:
                dispatched.append(Dispatched(data[:-1], name))
            data, name = b"", b""
        elif line.startswith(b":"):
            continue
        else:
            field, _, value = line.partition(b":")
            if value.startswith(b" "):
                value = value[1:]
            if field == b"event":
                name = value
            elif field == b"data":
                data += value + b"\n"
    return dispatched


def expected(stream: bytes) -> list[Event]:
    """The reference without what we drop on purpose: events whose data is empty."""
    return [Event(event.data, event.name) for event in reference(stream) if event.data]


def framed(*chunks: bytes) -> list[Event]:
    framer = Framer()
    return [event for chunk in chunks for event in framer.feed(chunk)]


def cut(stream: bytes, places: list[int]) -> list[bytes]:
    edges = [0, *sorted({place % (len(stream) + 1) for place in places}), len(stream)]
    return [stream[a:b] for a, b in zip(edges, edges[1:], strict=False)]


text = st.text("ab:{} \x00é🚀\ufeff", max_size=6).map(str.encode)
field = st.sampled_from([b"data", b"data", b"data", b"event", b"id", b"retry", b"", b"dataa", b"Data", BOM + b"data"])
line = st.builds(
    bytes.__add__,
    field,
    st.one_of(st.just(b""), st.builds(lambda s, v: s + v, st.sampled_from([b":", b": ", b":  "]), text)),
)
line_end = st.sampled_from([b"\n", b"\r\n", b"\r"])
block = st.builds(
    lambda lines, end: b"".join(a + b for a, b in lines) + end,
    st.lists(st.tuples(line, line_end), max_size=4),
    line_end,
)
stream = st.builds(
    bytes.__add__, st.sampled_from([b"", b"", BOM, b"\xef\xbb"]), st.lists(block, max_size=6).map(b"".join)
)
soup = st.lists(
    st.sampled_from(
        [b"data: x", b"data:", b"data", b"event: e", b":", b" ", b"\r", b"\n", b"\r\n", BOM, b"\xef", b"z"]
    ),
    max_size=24,
).map(b"".join)
places = st.lists(st.integers(0, 400), max_size=8)


@settings(max_examples=150, deadline=None)
@given(st.one_of(stream, soup), places)
def test_any_cut_gives_what_the_standard_says(whole: bytes, where: list[int]) -> None:
    assert framed(whole) == expected(whole)
    assert framed(*cut(whole, where)) == expected(whole)


@settings(max_examples=100, deadline=None)
@given(st.one_of(stream, soup))
def test_byte_by_byte_gives_what_the_standard_says(whole: bytes) -> None:
    assert framed(*(whole[i : i + 1] for i in range(len(whole)))) == expected(whole)


@settings(max_examples=150, deadline=None)
@given(st.one_of(stream, soup))
def test_what_we_write_reads_as_the_same_events(whole: bytes) -> None:
    events = framed(whole)
    written = b"".join(map(render, events))
    assert framed(written) == events
    assert expected(written) == events


@settings(max_examples=100, deadline=None)
@given(stream, places)
def test_rest_is_the_event_that_lacks_its_blank_line(whole: bytes, where: list[int]) -> None:
    tail = whole + b"\n\ndata: last\n"
    framer = Framer()
    events = [event for chunk in cut(tail, where) for event in framer.feed(chunk)]
    last = framer.rest()
    assert [*events, last] == expected(tail + b"\n")


def test_rest_is_none_between_events() -> None:
    framer = Framer()
    assert framer.rest() is None
    framer.feed(b"data: a\n\n")
    assert framer.rest() is None
    framer.feed(b": comment\n")
    assert framer.rest() is None


STREAM_001 = (
    b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n'
    b'data: {"choices":[{"delta":{"content":"\xc3\xa9\xf0\x9f\x9a\x80"}}]}\r\n\r\n'
    b"event: error\rdata: one\rdata: two\r\r"
    b"data: [DONE]\n\n"
)
EVENTS_001 = [
    Event(b'{"choices":[{"delta":{"content":"a"}}]}'),
    Event('{"choices":[{"delta":{"content":"é🚀"}}]}'.encode()),
    Event(b"one\ntwo", b"error"),
    Event(DONE),
]


def test_one_cut_at_every_offset() -> None:
    for at in range(len(STREAM_001) + 1):
        assert framed(STREAM_001[:at], STREAM_001[at:]) == EVENTS_001, at


@pytest.mark.parametrize(
    ("wire", "events"),
    [
        pytest.param(b": queued\r\n\r\n", [], id="comment"),
        pytest.param(b"retry: 3000\r\n\r\n", [], id="retry only"),
        pytest.param(b"id: 7\n\n", [], id="id only"),
        pytest.param(b"event: ping\n\n", [], id="event without data"),
        pytest.param(b"data:\n\n", [], id="empty data"),
        pytest.param(b"data\n\n", [], id="data without colon"),
        pytest.param(b"data: \n\n", [], id="space only"),
        pytest.param(b'id: 7\r\ndata:{"a":1}\r\n\r\n', [Event(b'{"a":1}')], id="id is dropped, no space after colon"),
        pytest.param(b"data:  x\n\n", [Event(b" x")], id="one space is taken"),
        pytest.param(b"data: a\n: c\ndata: b\n\n", [Event(b"a\nb")], id="comment inside an event"),
        pytest.param(b"data: \ndata: \n\n", [Event(b"\n")], id="two empty lines are one LF"),
        pytest.param(b"event: a\nevent: b\ndata: x\n\n", [Event(b"x", b"b")], id="last name wins"),
        pytest.param(b"event: a\n\ndata: x\n\n", [Event(b"x")], id="a name does not outlive its block"),
        pytest.param(BOM + b"data: x\n\n", [Event(b"x")], id="BOM"),
        pytest.param(BOM + BOM + b"data: x\n\n", [], id="second BOM belongs to the field name"),
        pytest.param(b"data: x\n\n" + BOM + b"data: y\n\n", [Event(b"x")], id="BOM in the middle is no BOM"),
        pytest.param(b"data: x\r\rdata: y\n\r\n", [Event(b"x"), Event(b"y")], id="mixed line ends"),
        pytest.param(b"data: x\n", [], id="unfinished"),
    ],
)
def test_table(wire: bytes, events: list[Event]) -> None:
    assert framed(wire) == events
    assert framed(*(wire[i : i + 1] for i in range(len(wire)))) == events


def test_a_leading_blank_line_does_not_make_room_for_a_bom() -> None:
    wire = b"\n\n" + BOM + b"data: x\n\n"
    assert framed(wire) == framed(wire[:2], wire[2:]) == []


def test_a_crlf_cut_between_its_bytes_is_one_line_end() -> None:
    assert framed(b"data: x\r", b"\ndata: y\r", b"\n\r", b"\n") == [Event(b"x\ny")]
    assert framed(b"data: x\r", b"", b"\n\r\n") == [Event(b"x")]


def test_one_very_long_line_passes() -> None:
    content = b"x" * 600_000
    framer = Framer()
    assert framer.feed(b"data: " + content[:300_000]) == []
    assert framer.feed(content[300_000:] + b"\n\n") == [Event(content)]


def test_an_unfinished_event_is_bounded() -> None:
    framer = Framer(max_event_bytes=100)
    assert framer.feed(b"data: " + b"x" * 90) == []
    with pytest.raises(FrameError, match="100 bytes"):
        framer.feed(b"y" * 10)


def test_finished_events_do_not_count_against_the_bound() -> None:
    framer = Framer(max_event_bytes=20)
    for _ in range(50):
        assert framer.feed(b"data: 123456789\n\ndata: 12") == [Event(b"123456789")]
        assert framer.feed(b"3\n\n") == [Event(b"123")]


def test_comments_without_end_are_bounded_too() -> None:
    framer = Framer(max_event_bytes=1000)
    with pytest.raises(FrameError):
        for _ in range(1001):
            framer.feed(b":")


# one event in one HTTP chunk


def http_chunk(payload: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(payload), payload)


@pytest.mark.parametrize(
    "text", [b"x", b'{"a":1}', b" two spaces", b"x" * 15, b"x" * 16, b"x" * 70_000, "é🚀".encode()]
)
def test_a_lone_event_is_found(text: bytes) -> None:
    read = http_chunk(render(Event(text)))
    assert lone_event(read) == (text if len(read) < 0xFFFFFF else None)


@pytest.mark.parametrize(
    "read",
    [
        b"",
        b"\r\n",
        http_chunk(b"data: x\n"),
        http_chunk(b"data: x"),
        http_chunk(b"data:x\n\n"),
        http_chunk(b"data: x\r\n\r\n"),
        http_chunk(b"data: x\r\n\n"),
        http_chunk(b"data: x\ndata: y\n\n"),
        http_chunk(b"data: x\n\ndata: y\n\n"),
        http_chunk(b"event: e\ndata: x\n\n"),
        http_chunk(b": c\n\n"),
        http_chunk(b"data: x\n\n") + b"0\r\n\r\n",
        http_chunk(b"data: x\n\n") + http_chunk(b"data: x\n\n"),
        http_chunk(b"data: x\n\n")[:-1],
        http_chunk(b"data: x\n\n")[1:],
        b"9;a=b\r\ndata: x\n\n\r\n",
        b"09\r\ndata: x\n\n\r\n",
        b"a\r\ndata: x\n\n\r\n",
        b"C\r\ndata: 1234\n\n\r\n",
        b"-9\r\ndata: x\n\n\r\n",
        b"0\r\n\r\n",
    ],
)
def test_what_is_no_lone_event(read: bytes) -> None:
    assert lone_event(read) is None


@settings(max_examples=150, deadline=None)
@given(st.one_of(stream, soup, text.map(lambda t: render(Event(t)))))
def test_a_lone_event_reads_as_the_framer_reads_it(payload: bytes) -> None:
    found = lone_event(http_chunk(payload))
    if found:
        assert framed(payload) == [Event(found)]
        assert render(Event(found)) == payload
