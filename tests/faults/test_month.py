"""What the month will come to, on a real node that is started again on its folder."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from cases.pair import Pair
from cases.rawhttp import chat
from gateway_process import Gateway, document, eventually

pytestmark = pytest.mark.integration


def test_a_node_shows_what_was_spent_and_what_is_to_come(engine: Any, node: Callable[..., Gateway]) -> None:
    scripted = engine()
    price = {"input_per_million": 1_000_000, "output_per_million": 2_000_000}
    settings = document(scripted, models={"m": {"pool": "main", "price": price}})
    first = Pair(scripted, node(settings))
    zero = first.gateway.metric("forebay_month_forecast_money", tenant="b", bound="expected")
    assert zero == first.gateway.metric("forebay_month_spent_money", tenant="a") == 0.0
    assert first.post(chat(stream=False)).status == 200
    assert eventually(lambda: first.gateway.metric("forebay_month_spent_money", tenant="a") == 4.0)
    assert first.gateway.metric("forebay_month_spent_tokens", tenant="a") == 3
    assert first.gateway.stop() == 0
    second = node(settings)

    def foreseen(bound: str) -> float:
        return second.metric("forebay_month_forecast_money", tenant="a", bound=bound)

    assert eventually(lambda: foreseen("expected") >= 4.0, 30)
    assert 4.0 <= foreseen("low") <= foreseen("expected") <= foreseen("high")

    def shown() -> bool:
        status, body = second.admin_get("/api/status")
        plane = json.loads(body)["data_plane"]["status"] if status == 200 else None
        if not plane or not plane["month"]:
            return False
        (row,) = plane["month"]
        return bool(row["money"] == 4.0 <= row["money_forecast"]["low"] <= row["money_forecast"]["high"])

    assert eventually(shown, 30)
