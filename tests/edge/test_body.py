"""What a body asks for (recorded cases 014, 031, 033, 035)."""

import asyncio
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.edge.body import Asked, limit_key, read
from forebay.edge.prompt import choices
from forebay.errors import Refused
from forebay.wire.endpoints import BY_PATH, Endpoint

CHAT = BY_PATH["/v1/chat/completions"]
MESSAGES = [{"role": "user", "content": "hi"}]


def ask(payload: object, path: str = "/v1/chat/completions") -> Asked:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    return asyncio.run(read(body, BY_PATH[path], 128))


def refused(payload: object, path: str = "/v1/chat/completions") -> Refused:
    with pytest.raises(Refused) as caught:
        ask(payload, path)
    assert caught.value.status == 400
    assert caught.value.spec.type == "invalid_request_error"
    return caught.value


def test_what_is_asked() -> None:
    asked = ask({"model": "org/m", "messages": MESSAGES, "stream": True, "max_tokens": 7})
    assert (asked.model, asked.stream, asked.wants_usage, asked.max_tokens) == ("org/m", True, False, 7)
    assert list(asked.members.values) == ["model", "messages", "stream", "max_tokens"]


def test_null_means_absent() -> None:
    nulls = dict.fromkeys(("stream", "stream_options", "tools", "max_tokens", "stop", "user", "metadata"))
    asked = ask({"model": "m", "messages": MESSAGES, **nulls})
    assert (asked.stream, asked.wants_usage, asked.max_tokens) == (False, False, None)
    assert ask({"model": None, "messages": MESSAGES}).model == ""
    assert ask({"messages": MESSAGES}).model == ""


@pytest.mark.parametrize(
    ("members", "code", "param"),
    [
        ({"model": 5}, "invalid_value", "model"),
        ({"model": ["m"]}, "invalid_value", "model"),
        ({"model": "x" * 513}, "invalid_value", "model"),
        ({"messages": None}, "missing_value", "messages"),
        ({"messages": "hi"}, "invalid_value", "messages"),
        ({"messages": {}}, "invalid_value", "messages"),
        ({"stream": "true"}, "invalid_value", "stream"),
        ({"stream": 1}, "invalid_value", "stream"),
        ({"stream": True, "stream_options": []}, "invalid_value", "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": "yes"}}, "invalid_value", "stream_options"),
        ({"max_tokens": "9"}, "invalid_value", "max_tokens"),
        ({"max_tokens": 9.5}, "invalid_value", "max_tokens"),
        ({"max_tokens": -1}, "invalid_value", "max_tokens"),
        ({"max_tokens": True}, "invalid_value", "max_tokens"),
        ({"max_completion_tokens": []}, "invalid_value", "max_completion_tokens"),
    ],
)
def test_wrong_types_are_named(members: dict[str, object], code: str, param: str) -> None:
    refusal = refused({"model": "m", "messages": MESSAGES, **members})
    assert (refusal.code, refusal.param) == (code, param)


def test_messages_are_required_where_they_are_the_prompt() -> None:
    for path in ("/v1/chat/completions", "/v1/messages"):
        refusal = refused({"model": "m"}, path)
        assert (refusal.code, refusal.param) == ("missing_value", "messages")
    for path in ("/v1/completions", "/v1/responses", "/v1/embeddings", "/tokenize"):
        assert ask({"model": "m"}, path).model == "m"


@pytest.mark.parametrize(
    "body", [b"[]", b"null", b'"x"', b"", b'{"a":1} x', b"1", b"{", b"\xff", b'{"a":"\xff', b"\x00"]
)
def test_what_is_no_object_is_invalid(body: bytes) -> None:
    assert refused(body).code == "invalid_json"


BASE = b'"messages":[{"role":"user","content":"hi"}]'


@pytest.mark.parametrize(
    ("body", "param"),
    [
        (b'{"model":"cheap","model":"forbidden",' + BASE + b"}", "model"),
        (b'{"model":"forbidden","model":"cheap",' + BASE + b"}", "model"),
        (b'{"model":"m","max_tokens":1,"max_tokens":9999,' + BASE + b"}", "max_tokens"),
        (b'{"model":"m","stream":false,' + BASE + b',"stream":true}', "stream"),
        (b'{"model":"m","mod\\u0065l":"n",' + BASE + b"}", "model"),
        (b'{"model":"m",' + BASE + b"," + BASE + b"}", "messages"),
    ],
)
def test_duplicate_keys_are_refused(body: bytes, param: str) -> None:
    refusal = refused(body)
    assert refusal.code == "duplicate_key"
    assert refusal.param is not None
    assert param in refusal.message


def test_a_doubled_include_usage_is_refused() -> None:
    options = b'{"include_usage":true,"include_usage":false}'
    refusal = refused(b'{"model":"m","stream":true,"stream_options":' + options + b"," + BASE + b"}")
    assert refusal.param == "stream_options"


@pytest.mark.parametrize("escape", ["\\ud83d", "\\ude00"])
@pytest.mark.parametrize(
    "template",
    [
        '{"model":"m","messages":[{"role":"user","content":"cut %s"}]}',
        '{"model":"m","messages":[],"tools":[{"function":{"description":"cut %s"}}]}',
        '{"model":"m","messages":[],"user":"cut %s"}',
        '{"model":"m","messages":[],"cut %s":1}',
        '{"model":"cut %s","messages":[]}',
        '{"model":"m","messages":[],"user":"cut %s and more text behind the cut"}',
    ],
)
def test_a_lone_surrogate_goes_on_untouched_or_is_refused(template: str, escape: str) -> None:
    body = (template % escape).encode()
    try:
        asked = ask(body)
    except Refused as refusal:
        assert refusal.code in ("invalid_json", "invalid_value")
        refusal.message.encode()
    else:
        assert asked.members.raw == body


def test_a_surrogate_pair_passes() -> None:
    body = b'{"model":"\\ud83d\\ude80","messages":[{"role":"user","content":"\\ud83d\\ude80"}]}'
    assert ask(body).model == "🚀"


@pytest.mark.parametrize("before", [b"", b" \r\n"])
@pytest.mark.parametrize("levels", [129, 1_000, 1_025, 20_000])
def test_deep_bodies_are_refused(levels: int, before: bytes) -> None:
    arrays = b'{"model":"m",' + BASE + b',"x":' + b"[" * levels + b"]" * levels + b"}"
    parameters = b'{"a":' * levels + b"1" + b"}" * levels
    objects = b'{"model":"m",' + BASE + b',"tools":[{"type":"function","function":{"parameters":' + parameters + b"}}]}"
    for body in (arrays, objects):
        assert refused(before + body).code == "json_too_deep"


def test_depth_within_the_limit_passes() -> None:
    body = b'{"model":"m",' + BASE + b',"x":' + b"[" * 127 + b"]" * 127 + b"}"
    assert ask(body).model == "m"


@pytest.mark.parametrize(
    ("members", "wants"),
    [
        ({"stream": True, "stream_options": {"include_usage": True}}, True),
        ({"stream": True, "stream_options": {"include_usage": True, "other": [1]}}, True),
        ({"stream": True, "stream_options": {"include_usage": False}}, False),
        ({"stream": True, "stream_options": {"include_usage": None}}, False),
        ({"stream": True, "stream_options": {}}, False),
        ({"stream": True, "stream_options": None}, False),
        ({"stream": True}, False),
        ({"stream": False, "stream_options": {"include_usage": True}}, False),
    ],
)
def test_whether_usage_is_wanted(members: dict[str, object], wants: bool) -> None:
    assert ask({"model": "m", "messages": MESSAGES, **members}).wants_usage is wants


@pytest.mark.parametrize(
    ("members", "limit"),
    [
        ({"max_tokens": 0}, 0),
        ({"max_tokens": 5, "max_completion_tokens": 7}, 7),
        ({"max_tokens": 5, "max_completion_tokens": None}, 5),
        ({"max_output_tokens": 3}, None),
        ({}, None),
    ],
)
def test_the_clients_own_limit(members: dict[str, object], limit: int | None) -> None:
    assert ask({"model": "m", "messages": MESSAGES, **members}).max_tokens == limit


@pytest.mark.parametrize(
    ("path", "members", "limit", "key"),
    [
        ("/v1/chat/completions", {"max_output_tokens": 1}, None, "max_tokens"),
        ("/v1/chat/completions", {"max_output_tokens": 1, "max_tokens": 9}, 9, "max_tokens"),
        ("/v1/chat/completions", {"max_completion_tokens": 7, "max_tokens": 9}, 7, "max_completion_tokens"),
        ("/v1/completions", {"max_completion_tokens": 1, "max_tokens": 100_000}, 100_000, "max_tokens"),
        ("/v1/completions", {"max_completion_tokens": 1}, None, "max_tokens"),
        ("/v1/responses", {"max_tokens": 1, "max_output_tokens": 9}, 9, "max_output_tokens"),
        ("/v1/responses", {"max_tokens": 1}, None, "max_output_tokens"),
        ("/v1/messages", {"max_completion_tokens": 1, "max_tokens": 9}, 9, "max_tokens"),
    ],
)
def test_only_a_limit_that_the_endpoint_knows_counts(
    path: str, members: dict[str, object], limit: int | None, key: str
) -> None:
    asked = ask({"model": "m", "messages": MESSAGES, **members}, path)
    assert asked.max_tokens == limit
    assert limit_key(asked, BY_PATH[path].shape) == key


@pytest.mark.parametrize(
    ("members", "count"),
    [
        ({}, 1),
        ({"n": None, "prompt": None}, 1),
        ({"n": 3}, 3),
        ({"n": 3, "prompt": "a"}, 3),
        ({"n": 0}, 1),
        ({"n": "3"}, 1),
        ({"n": 2.0}, 1),
        ({"n": 123456}, 1),
        ({"prompt": ["a", "b"]}, 2),
        ({"prompt": [], "n": 2}, 2),
        ({"prompt": [1, 2, 3]}, 1),
        ({"prompt": [[1, 2], [3]], "n": 2}, 4),
        ({"prompt": {"a": ["b"]}}, 1),
    ],
)
def test_the_choices_that_are_due(members: dict[str, object], count: int) -> None:
    assert choices(ask({"model": "m", **members}, "/v1/completions")) == count


def test_whole_endpoints_never_stream() -> None:
    assert ask({"model": "m", "input": "x", "stream": True}, "/v1/embeddings").stream is False


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        st.binary(max_size=40),
        st.dictionaries(
            st.sampled_from(["model", "stream", "stream_options", "max_tokens", "messages", "x"]),
            st.sampled_from([None, True, 1, -1, 1.5, "m", [], {}, {"include_usage": True}, [{"a": 1}]]),
        ).map(lambda members: json.dumps(members).encode()),
    ),
    st.sampled_from(sorted({endpoint.name: endpoint for endpoint in BY_PATH.values()}.values(), key=str)),
)
def test_nothing_but_a_refusal_comes_out(body: bytes, endpoint: Endpoint) -> None:
    try:
        asked = asyncio.run(read(body, endpoint, 128))
    except Refused as refusal:
        assert refusal.status == 400
    else:
        assert asked.members.raw == body
        assert isinstance(json.loads(body), dict)
