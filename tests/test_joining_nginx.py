"""nginx tries again what may not be done twice: with an `Idempotency-Key` the engine sees it once."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cases import rawhttp
from cases.pair import CHAT, Pair
from cases.rawhttp import chat
from gateway_process import document, eventually
from nginx import needs_nginx, nginx_before
from notation import Answer, Wait, completion, reply

pytestmark = [pytest.mark.integration, needs_nginx]


@pytest.fixture
def behind(tmp_path: Path, engine: Any, gateway: Any) -> Iterator[tuple[Pair, int]]:
    scripted = engine()
    timeouts = {"connect_s": 1, "first_byte_s": 40, "stall_s": 40, "total_s": 60}
    pair = Pair(scripted, gateway(document(scripted, timeouts=timeouts)))
    with nginx_before([pair.gateway.address] * 3, tmp_path, "proxy_read_timeout 1s") as port:
        yield pair, port


@pytest.mark.parametrize("keyed", [True, False])
def test_a_retry_by_nginx_is_charged_once(behind: tuple[Pair, int], keyed: bool) -> None:
    """Its read time-out ends before the answer is there, so it sends the call again, to the same gateway here."""
    pair, port = behind
    slow = Answer((Wait(1.4), *reply(200, completion(prompt=3, tokens=4)).steps))
    pair.engine.play(slow, reply(200, completion(prompt=3, tokens=4)))
    headers = ("Idempotency-Key: once",) if keyed else ()
    answer = rawhttp.ask(("127.0.0.1", port), "POST", CHAT, chat(stream=False), headers=headers)
    assert answer.status == 200
    assert len(pair.engine.posts) == (1 if keyed else 2)
    assert eventually(pair.gateway.idle)
    if keyed:
        kinds = ("prompt", "completion")
        assert sum(pair.gateway.metric("forebay_tokens_total", kind=kind) for kind in kinds) == 7
        assert pair.row(answer)["joined_how"] in ("key", "replay")
