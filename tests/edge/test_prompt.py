"""What a body holds for the model to read."""

import asyncio
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.edge.body import read
from forebay.edge.prompt import HEAD_BYTES, MAX_PIECES, SAMPLE_BYTES, WHOLE_BYTES, prompt_of
from forebay.traffic import Prompt
from forebay.wire.endpoints import BY_PATH

CHAT = "/v1/chat/completions"
BASE64 = "iVBORw0KGgo" * 1000


def taken(body: object, path: str = CHAT, **form: Any) -> Prompt:
    """The prompt of a body; a dict is written as compact JSON."""
    raw = body if isinstance(body, bytes) else json.dumps(body, **{"separators": (",", ":"), **form}).encode()
    return prompt_of(asyncio.run(read(raw, BY_PATH[path], 200)))


def user(content: object) -> dict[str, object]:
    return {"messages": [{"role": "user", "content": content}]}


def facts(prompt: Prompt) -> dict[str, object]:
    return {name: getattr(prompt, name) for name in Prompt.__slots__}


@pytest.mark.parametrize(
    ("body", "text", "messages"),
    [
        (user("hi"), "hi", 1),
        ({"messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "a b"}]}, "be a b", 2),
        (user([{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]), "one two", 1),
        (user(["one", "two"]), r"[\"one\",\"two\"]", 1),
        (user(None), "", 1),
        (user(""), "", 1),
        ({"messages": []}, "", 1),
        (user([{"type": "refusal", "refusal": "no"}]), "no", 1),
        (user({"text": "odd"}), "odd", 1),
        ({**user("hi"), "documents": [{"title": "t", "text": "doc"}]}, "doc hi", 2),
    ],
)
def test_contents_of_a_chat(body: dict[str, object], text: str, messages: int) -> None:
    assert facts(taken(body)) == facts(Prompt(text=text.encode(), text_bytes=len(text), messages=messages))


def test_calls_of_tools_and_their_results_are_read_too() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": 1}'}}
    messages = [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "found"},
    ]
    assert taken({"messages": messages}).text == rb"find {\"q\": 1} found"


@pytest.mark.parametrize(
    ("blocks", "text", "images"),
    [
        ([{"type": "text", "text": "hi"}], rb"sys hi", 0),
        ([{"type": "image", "source": {"type": "base64", "data": BASE64}}], rb"sys", 1),
        ([{"type": "document", "source": {"type": "base64", "data": BASE64}}], rb"sys", 1),
        ([{"type": "document", "source": {"type": "text", "data": "page"}}], rb"sys page", 0),
        ([{"type": "document", "source": 5}], rb"sys", 1),
        ([{"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}}], rb"sys {\"a\":1}", 0),
        ([{"type": "tool_result", "tool_use_id": "1", "content": "done"}], rb"sys done", 0),
        ([{"type": "tool_result", "content": [{"type": "text", "text": "x"}, {"type": "image"}]}], rb"sys x", 1),
        ([{"type": "thinking", "thinking": "hm", "signature": BASE64}], rb"sys hm", 0),
        ([{"type": "redacted_thinking", "data": BASE64}], rb"sys", 0),
    ],
)
def test_blocks_of_messages(blocks: list[dict[str, object]], text: bytes, images: int) -> None:
    prompt = taken({"system": "sys", **user(blocks)}, "/v1/messages")
    assert (prompt.text, prompt.images, prompt.messages) == (text, images, 2)


def test_a_system_prompt_in_blocks() -> None:
    prompt = taken({"system": [{"type": "text", "text": "be"}, {"type": "text", "text": "kind"}], **user("hi")})
    assert prompt.text == b"be kind hi"


@pytest.mark.parametrize(
    ("given_input", "text", "images"),
    [
        ("hi", b"rules hi", 0),
        ([{"role": "user", "content": "hi"}], b"rules hi", 0),
        ([{"role": "user", "content": [{"type": "input_text", "text": "hi"}]}], b"rules hi", 0),
        ([{"role": "user", "content": [{"type": "input_image", "image_url": BASE64}]}], b"rules", 1),
        ([{"type": "function_call", "name": "f", "arguments": "{}"}], b"rules {}", 0),
        ([{"type": "function_call_output", "call_id": "1", "output": "done"}], b"rules done", 0),
        ([{"type": "reasoning", "summary": [], "encrypted_content": BASE64}], b"rules", 0),
    ],
)
def test_items_of_responses(given_input: object, text: bytes, images: int) -> None:
    prompt = taken({"instructions": "rules", "input": given_input}, "/v1/responses")
    assert (prompt.text, prompt.images) == (text, images)


@pytest.mark.parametrize(
    ("body", "path", "text", "messages"),
    [
        ({"prompt": "once"}, "/v1/completions", b"once", 1),
        ({"prompt": ["a", "b", "c"]}, "/v1/completions", b"a b c", 3),
        ({"prompt": [1, 22, 333]}, "/v1/completions", b"1,22,333", 1),
        ({"prompt": [[1, 2], [3]]}, "/v1/completions", b"[1,2],[3]", 2),
        ({"prompt": None}, "/v1/completions", b"", 1),
        ({"prompt": []}, "/v1/completions", b"", 1),
        ({"prompt": "a", "suffix": "z"}, "/v1/completions", b"a z", 2),
        ({"input": "x"}, "/v1/embeddings", b"x", 1),
        ({"input": ["x", "y"]}, "/v1/embeddings", b"x y", 2),
        ({"prompt": "x"}, "/tokenize", b"x", 1),
        ({"content": "x"}, "/tokenize", b"x", 1),
        (user("x"), "/tokenize", b"x", 1),
        ({"tokens": [5, 6]}, "/detokenize", b"5,6", 1),
        ({"text_1": "q", "text_2": "d"}, "/score", b"q d", 2),
        ({}, "/v1/completions", b"", 1),
        ({"prompt": 7}, "/v1/completions", b"7", 1),
    ],
)
def test_prompts_and_inputs(body: dict[str, object], path: str, text: bytes, messages: int) -> None:
    assert facts(taken(body, path)) == facts(Prompt(text=text, text_bytes=len(text), messages=messages))


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"query": "q" * 10, "documents": ["one", {"text": "two"}, "three"]}, "/rerank"),
        ({"text_1": "q" * 10, "text_2": ["one", "two", "three"]}, "/score"),
    ],
)
def test_a_query_is_read_with_each_document(body: dict[str, object], path: str) -> None:
    prompt = taken(body, path)
    assert prompt.text == b"qqqqqqqqqq one two three"
    assert prompt.text_bytes == len(prompt.text) + 2 * len('"qqqqqqqqqq"')
    assert prompt.messages == 4


def test_pictures_and_sound_are_no_text() -> None:
    parts = [
        {"type": "text", "text": "look"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{BASE64}"}},
        {"type": "image_url", "image_url": {"url": "https://example.com/a.png"}},
        {"type": "input_audio", "input_audio": {"data": BASE64, "format": "wav"}},
        {"type": "video_url", "video_url": {"url": BASE64}},
        {"type": "file", "file": {"file_data": BASE64}},
    ]
    prompt = taken(user(parts))
    assert (prompt.text, prompt.text_bytes, prompt.images) == (b"look", 4, 4)
    assert prompt.audio_bytes == len(json.dumps(parts[3]["input_audio"], separators=(",", ":")))


def test_schemas_count_by_their_length() -> None:
    schemas = {
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}],
        "tool_choice": "auto",
        "response_format": {"type": "json_object"},
    }
    prompt = taken({**user("hi"), **schemas})
    assert prompt.tools_bytes == sum(len(json.dumps(schema, separators=(",", ":"))) for schema in schemas.values())
    assert prompt.text == b"hi"


@pytest.mark.parametrize("ascii_only", [True, False])
def test_text_stays_as_it_was_written(ascii_only: bool) -> None:
    text = 'say "中文"\n\\ 😀'
    prompt = taken(user(text), ensure_ascii=ascii_only)
    assert prompt.text == json.dumps(text, ensure_ascii=ascii_only).encode()[1:-1]
    assert prompt.text_bytes == len(prompt.text)


def test_spaces_between_members_do_not_matter() -> None:
    body = {**user([{"type": "text", "text": "a"}]), "tools": []}
    assert taken(body, indent=3, separators=None).text == b"a"


UNITS = {
    "words": "some words of text ",
    "chinese": "技术都今天数据今天，",
    "escapes": '\\"\n\t',
    "emoji": "😀é",
    "digits": "0123456789",
}


@pytest.mark.parametrize("ascii_only", [True, False])
@pytest.mark.parametrize("unit", UNITS.values(), ids=UNITS)
@pytest.mark.parametrize("shift", range(7))
def test_long_text_is_sampled_at_whole_characters(unit: str, ascii_only: bool, shift: int) -> None:
    text = "x" * shift + unit * (400_000 // len(json.dumps(unit, ensure_ascii=ascii_only).encode()) + 1)
    written = json.dumps(text, ensure_ascii=ascii_only).encode()[1:-1]
    prompt = taken(user(text), ensure_ascii=ascii_only)
    assert prompt.text_bytes == len(written) > WHOLE_BYTES
    whole = HEAD_BYTES + 2 * SAMPLE_BYTES
    assert whole - 4 * 64 <= len(prompt.text) <= whole + 2
    assert prompt.text[: HEAD_BYTES - 64] == written[: HEAD_BYTES - 64]
    assert prompt.text[64 - SAMPLE_BYTES :] == written[64 - SAMPLE_BYTES :]
    samples = json.loads(b'"%b"' % prompt.text)
    assert set(samples) <= set(text) | {" "}


def test_samples_are_of_all_messages_together() -> None:
    messages = [{"role": "user", "content": f"m{number} " + "y" * 1000} for number in range(600)]
    prompt = taken({"messages": messages})
    lengths = [len(str(message["content"])) for message in messages]
    assert prompt.text_bytes == sum(lengths) + 599
    assert prompt.messages == 600
    assert b"m0 " in prompt.text and b" m300 " in prompt.text and b" m599 " in prompt.text
    assert b" m200 " not in prompt.text


def test_text_of_the_greatest_whole_length_is_whole() -> None:
    assert taken(user("z" * WHOLE_BYTES)).text == b"z" * WHOLE_BYTES
    assert len(taken(user("z" * (WHOLE_BYTES + 1))).text) < WHOLE_BYTES


@pytest.mark.parametrize(
    ("body", "path"),
    [
        ({"messages": [{"role": "user", "content": "a"}] * (MAX_PIECES + 1)}, CHAT),
        ({"input": ["a"] * (4 * MAX_PIECES)}, "/v1/embeddings"),
        ({"input": [{"text": "a"}] * (MAX_PIECES + 1)}, "/v1/embeddings"),
        ({"documents": ["a", *[1] * (4 * MAX_PIECES)]}, "/rerank"),
    ],
)
def test_a_large_body_in_too_many_pieces_counts_by_its_size(body: dict[str, object], path: str) -> None:
    prompt = taken(body, path)
    (value,) = body.values()
    assert prompt.text_bytes == len(json.dumps(value, separators=(",", ":")))
    assert prompt.messages == 1
    assert len(prompt.text) < WHOLE_BYTES


def test_a_large_body_in_many_pieces_is_still_read() -> None:
    prompt = taken({"messages": [{"role": "user", "content": "a"}] * (MAX_PIECES - 2)})
    assert prompt.messages == MAX_PIECES - 2


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(["type", "text", "content", "role", "tool_calls", "function", "source", "output", "x"]),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)
KEYS = [
    "system",
    "instructions",
    "prompt",
    "input",
    "query",
    "documents",
    "text_1",
    "tools",
    "text",
    "tokens",
    "suffix",
]


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4), st.none() | st.lists(JSON, max_size=4))
def test_nothing_is_refused(members: dict[str, object], messages: list[object] | None) -> None:
    body = members if messages is None else {**members, "messages": messages}
    prompt = taken(msgspec.json.encode(body), "/v1/embeddings")
    assert len(prompt.text) <= max(prompt.text_bytes, 1)
    assert prompt.messages >= 1


@pytest.mark.parametrize("body", [b'{"input":' + b"[" * 190 + b"]" * 190 + b"}", b'{"messages":[null,1,"x"]}'])
def test_odd_shapes_count_by_their_size(body: bytes) -> None:
    prompt = taken(body, "/v1/embeddings")
    assert prompt.text_bytes >= len(body) - 14
