"""What a request asks for, as a mask."""

import json
from typing import Any

import pytest

from forebay.routing.features import FEATURES, LONG_TOKENS, VERY_LONG_TOKENS, mask_of, places_of
from forebay.wire.members import read_members


def features(tokens: int = 10, **body: Any) -> list[str]:
    members = read_members(json.dumps({"model": "m", "messages": [{"role": "user", "content": "hi"}]} | body).encode())
    return [FEATURES[place] for place in places_of(mask_of(members, tokens))]


TOOL = {"type": "function", "function": {"name": "f"}}
PICTURE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:"}}]}]
SOUND = [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({}, []),
        ({"tools": [], "logprobs": False, "n": 1, "response_format": {"type": "text"}, "lora": None}, []),
        ({"tools": [TOOL]}, ["tools"]),
        ({"response_format": {"type": "json_object"}}, ["guided"]),
        ({"structured_outputs": {"regex": "a+"}}, ["guided"]),
        ({"logprobs": True}, ["logprobs"]),
        ({"logprobs": 5}, ["logprobs"]),
        ({"messages": PICTURE}, ["images"]),
        ({"messages": SOUND}, ["audio"]),
        ({"lora": [{"id": 0, "scale": 1.0}]}, ["lora"]),
        ({"n": 2, "tools": [TOOL]}, ["tools", "choices"]),
    ],
)
def test_what_a_body_asks_for(body: dict[str, Any], expected: list[str]) -> None:
    assert features(**body) == expected


def test_long_prompts_are_features_too() -> None:
    assert features(LONG_TOKENS - 1) == [] and features(LONG_TOKENS) == ["long"]
    assert features(VERY_LONG_TOKENS) == ["long", "very_long"]
