"""Case 051: a budget is reserved before it is used."""

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cases.pair import Pair
from cases.rawhttp import chat
from gateway_process import document
from notation import Answer, Wait, completion, reply

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("workers", [1, 4])
def test_case_051_a_burst_cannot_pass_the_cap(engine: Any, gateway: Any, workers: int) -> None:
    upstream = engine()
    tenants = [
        {"name": "a", "keys": ["key-A"], "limits": {"tokens_per_minute": 100}},
        {"name": "b", "keys": ["key-B"]},
    ]
    pair = Pair(upstream, gateway(document(upstream, tenants=tenants, workers=workers)))
    answered = reply(200, completion(prompt=2, tokens=10)).steps
    upstream.default = lambda _: Answer((Wait(0.5), *answered))
    body = chat(stream=False, max_tokens=48)
    with ThreadPoolExecutor(50) as threads:
        answers = list(threads.map(lambda _: pair.post(body), range(50)))
    statuses = [answer.status for answer in answers]
    assert set(statuses) == {200, 429}
    assert statuses.count(200) == 2, f"{statuses.count(200)} admitted; 2 + 48 tokens are reserved for each"
    assert len(upstream.posts) == 2
    refused = [answer for answer in answers if answer.status == 429]
    assert {answer.error["code"] for answer in refused} == {"insufficient_quota"}
    assert all(int(answer.value("retry-after") or 0) >= 1 for answer in refused)
    # 24 of 100 are used: the refund lets more in, one after the other, as long as 50 are left.
    admitted = 2
    while pair.post(body).status == 200:
        admitted += 1
        assert admitted <= 7, "the budget has no bottom"
    assert admitted >= 4, "what was not used did not come back"
    assert pair.gateway.metric("forebay_requests_refused_total", reason="insufficient_quota") >= 48
    pair.gateway.common_ending(key="key-B")


def test_requests_per_minute(engine: Any, gateway: Any) -> None:
    upstream = engine()
    tenants = [
        {"name": "a", "keys": ["key-A"], "limits": {"requests_per_minute": 10}},
        {"name": "b", "keys": ["key-B"]},
    ]
    pair = Pair(upstream, gateway(document(upstream, tenants=tenants)))
    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(lambda _: pair.post(chat(stream=False)), range(30)))
    assert [answer.status for answer in answers].count(200) == 10
    refused = next(answer for answer in answers if answer.status == 429)
    assert refused.error["code"] == "requests_limit" and int(refused.value("retry-after") or 0) >= 1
    assert len(upstream.posts) == 10
    pair.gateway.common_ending(key="key-B")
