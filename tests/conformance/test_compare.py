"""The comparison itself: it must be able to fail."""

import pytest
from cases.rawhttp import Response
from conformance.compare import Repeated, answer, differences, flatten, header_differences, read, renamed, varying


def body(text: str, content_type: str = "application/json", clean: bool = True) -> Response:
    return Response(200, [("content-type", content_type)], text.encode(), clean, 0.0)


@pytest.mark.parametrize(
    "other",
    [
        '{"a": 1.0, "b": [null, {}], "c": "x"}',
        '{"b": [null, {}], "a": 1, "c": "x"}',
        '{"a": 1, "b": [null, []], "c": "x"}',
        '{"a": 1, "b": [null], "c": "x"}',
        '{"a": 1, "b": [{}, null], "c": "x"}',
        '{"a": 1, "b": [false, {}], "c": "x"}',
        '{"a": "1", "b": [null, {}], "c": "x"}',
        '{"a": 1, "b": [null, {}], "c": "x", "d": null}',
        '{"a": 1, "b": [null, {}]}',
    ],
)
def test_a_difference_is_found(other: str) -> None:
    expected = flatten(read('{"a": 1, "b": [null, {}], "c": "x"}'))
    assert differences(expected, flatten(read(other)))


def test_spaces_and_escapes_are_no_difference() -> None:
    assert differences(flatten(read('{"a":"\\u00e9","b":[1e2]}')), flatten(read('{ "a" : "é", "b" : [ 1e2 ] }'))) == []


def test_a_loose_value_keeps_its_kind() -> None:
    expected, loose = flatten(read('{"id": "a", "t": 1}')), frozenset({"id", "t"})
    assert differences(expected, flatten(read('{"id": "b", "t": 2.5}')), loose) == []
    assert differences(expected, flatten(read('{"id": null, "t": 2}')), loose)
    assert differences(expected, flatten(read('{"id": "b", "t": "2"}')), loose)


def test_what_an_engine_does_not_repeat_is_found() -> None:
    one, other = (flatten(read(f'{{"id": "{i}", "created": {i}, "n": 1}}')) for i in "12")
    assert varying(one, other) == {"id", "created"}


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('{"choices": [{"message": {"content": "a"}}]}', '{"choices": [{"message": {"content": "b"}}]}'),
        ('{"data": [{"embedding": [1, 2]}]}', '{"data": [{"embedding": [1, 3]}]}'),
        ('{"a": 1}', '{"a": 1, "b": 2}'),
    ],
)
def test_an_engine_that_does_not_repeat_itself_proves_nothing(one: str, other: str) -> None:
    with pytest.raises(AssertionError, match="does not repeat"):
        varying(flatten(read(one)), flatten(read(other)))


def engine_that_says(*ids: int) -> Repeated:
    answers = iter(ids)
    return Repeated(lambda: flatten(read(f'{{"id": {next(answers)}, "n": 1}}')))


def test_a_difference_is_believed_only_if_the_engine_does_not_show_it_too() -> None:
    assert engine_that_says(1, 1, 2).faults(flatten(read('{"id": 3, "n": 1}')), "m") == []
    assert engine_that_says(1, 1, 1, 1, 1).faults(flatten(read('{"id": 3, "n": 1}')), "m")
    assert engine_that_says(1, 1, 2, 3, 4).faults(flatten(read('{"id": 3, "n": 2}')), "m")
    assert engine_that_says(1, 2).faults(flatten(read('{"id": 3}')), "m", frozenset({"n"})) == []


def test_a_member_that_stands_twice_is_a_fault() -> None:
    with pytest.raises(AssertionError, match="stands twice"):
        flatten(read('{"a": 1, "a": 2}'))


def test_only_the_models_name_is_renamed() -> None:
    whole = flatten(read('{"model": "m", "metadata": {"model": "m"}, "message": {"model": "m"}, "response": {}}'))
    assert [path for path, leaf in renamed(whole, "n").items() if leaf == "n"] == ["model", "message.model"]
    event = answer(body('data: {"model":"m","response":{"model":"m"},"a":{"model":"m"}}\n\n', "text/event-stream"))
    changed = [path for path, leaf in renamed(event, "n").items() if leaf == "n"]
    assert changed == ["events[0].data.model", "events[0].data.response.model"]


def test_comments_of_a_stream_are_left_out_and_its_sentinel_counts() -> None:
    stream = 'event: a\ndata: {"b":1}\n\n: ping\n\ndata: [DONE]\n\n'
    found = answer(body(stream, "text/event-stream; charset=utf-8"))
    assert found == {
        "events[0].name": "a", "events[0].data.b": "1", "events[1].name": "message", "events[1].data": "[DONE]",
    }  # fmt: skip


def test_a_cut_body_is_a_fault() -> None:
    with pytest.raises(AssertionError, match="framing"):
        answer(body("{}", clean=False))


OURS = [(name, "x") for name in ("date", "x-request-id", "x-forebay-call-id", "x-forebay-pool", "server-timing")]


@pytest.mark.parametrize(
    ("headers", "faults"),
    [
        ([("content-type", "a"), ("x-own", "1"), *OURS], []),
        ([("content-type", "a"), ("x-own", "1"), *OURS[1:]], ["missing: ['date']"]),
        ([("content-type", "a"), *OURS], ["x-own: expected '1', found None"]),
        ([("content-type", "a"), ("x-own", "1"), ("x-own", "1"), *OURS], ["x-own stands twice"]),
        ([("content-type", "a"), ("x-own", "1"), ("x-new", "1"), *OURS], ["x-new: expected None, found '1'"]),
    ],
)
def test_headers_are_compared(headers: list[tuple[str, str]], faults: list[str]) -> None:
    direct = Response(200, [("server", "s"), ("x-own", "1"), ("content-type", "a")], b"", True, 0.0)
    assert header_differences(direct, direct._replace(headers=headers)) == faults
