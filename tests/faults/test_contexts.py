"""A prompt that is too long for a model goes to the fallback that has room for it, and to no other."""

from typing import Any

import pytest
from cases.pair import CHAT
from cases.rawhttp import Response, ask, chat
from faults.engines import QUICK, Engines
from gateway_process import document, eventually
from msgspec.structs import replace

pytestmark = pytest.mark.integration

SIZES = {"small": 200, "smaller": 150, "large": 100_000}
TOO_LONG = [{"role": "user", "content": "word " * 400}]


def test_too_long_for_one_model_is_served_by_a_larger_one_or_gets_the_engines_own_error(
    engines: Engines, gateway: Any
) -> None:
    for name, tokens in SIZES.items():
        engines.start(name, spec=replace(QUICK, max_model_len=tokens, models=(name,)))
    models = {
        "small": {"pool": "small", "fallback": ["smaller", "large"]},
        "alone": {"pool": "small", "upstream_model": "small", "fallback": ["smaller"]},
        "smaller": {"pool": "smaller"},
        "large": {"pool": "large"},
    }
    running = gateway(document(pools=engines.pools(), models=models))

    def call(model: str, **body: Any) -> Response:
        return ask(running.address, "POST", CHAT, chat(model, stream=False, max_tokens=5, **body))

    for name in SIZES:
        assert call(name).status == 200
    # The sizes are known once the engines have been probed, a moment after the start.
    assert eventually(lambda: "smaller" not in said(call("alone", messages=TOO_LONG)), 30)
    before = [server.log.attempts for server in engines.of("smaller")]
    answer = call("small", messages=TOO_LONG)
    assert (answer.status, answer.json()["model"]) == (200, "large")
    assert answer.value("x-forebay-degraded") == "fallback"
    refused = call("alone", messages=TOO_LONG)
    assert refused.status == 400 and "maximum context length is 200 tokens" in refused.error["message"]
    assert before == [server.log.attempts for server in engines.of("smaller")], "it was not asked"


def said(answer: Response) -> str:
    """Which size an engine's refusal speaks of."""
    return "smaller" if "150 tokens" in answer.body.decode() else ""
