"""Cases 016, 018 and 053: clients that leave, slots that come back, and who pays."""

import json
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import pytest
from cases.pair import CHAT, Pair
from cases.rawhttp import Client, chat, request_bytes
from gateway_process import PATIENCE, Gateway, document, eventually, pool
from notation import DONE, FIN, HANG, STOP, USAGE, D, Wait, reply, stream
from real_redis import RealRedis

pytestmark = pytest.mark.integration


def begin(pair: Pair, payload: object, request_id: str, target: str = CHAT, key: str = "key-A") -> Client:
    client = Client(pair.gateway.address)
    client.send(request_bytes("POST", target, payload, key=key, headers=(f"X-Request-Id: {request_id}",)))
    return client


@pytest.mark.parametrize("leave", [Client.close, Client.reset])
def test_case_016_client_leaves_mid_stream(pair: Pair, leave: Callable[[Client], None]) -> None:
    pair.engine.play(stream(*(D(f"word{i} ") for i in range(600)), STOP, USAGE(2, 600), DONE, gap_s=0.1))
    request_id = f"leaves-{leave.__name__}"
    client = begin(pair, chat(), request_id)
    client.read_events(3)
    left_s = time.monotonic()
    leave(client)
    seen = pair.engine.posts[0]
    assert eventually(lambda: seen.closed_s is not None, 30)
    assert (seen.closed_s or 0) - left_s < PATIENCE, "the engine works for nobody"
    row = pair.gateway.close_line(request_id)
    assert (row["outcome"], row["status"]) == ("client_closed", 499)
    assert 3 <= row["output_length"] < 100 and row["usage_estimated"] is True
    assert [attempt.get("failure") for attempt in row["attempts"]] in ([None], [""])
    pair.gateway.common_ending()


def test_case_016_client_leaves_while_it_waits_for_a_whole_answer(pair: Pair) -> None:
    pair.engine.play(lambda _: stream(HANG))
    client = begin(pair, chat(stream=False), "leaves-waiting")
    assert eventually(lambda: len(pair.engine.posts) == 1)
    client.close()
    assert eventually(lambda: pair.engine.posts[0].closed_s is not None, 30)
    assert pair.gateway.close_line("leaves-waiting")["outcome"] == "client_closed"
    pair.gateway.common_ending()


@pytest.fixture(scope="module")
def narrow_pair(module_engine: Any, module_gateway: Any) -> Pair:
    engine = module_engine()
    settings = document(
        engine,
        pools={"main": pool(engine, breaker={"failures": 100_000, "open_s": 1}, max_attempts=1)},
        tenants=[{"name": "a", "keys": ["key-A"], "limits": {"concurrency": 1}}, {"name": "b", "keys": ["key-B"]}],
        models={"m": {"pool": "main"}, "hasty": {"pool": "main", "timeouts": {"first_byte_s": 0.05}}},
    )
    return Pair(engine, module_gateway(settings))


@pytest.fixture
def narrow(narrow_pair: Pair) -> Iterator[Pair]:
    narrow_pair.engine.reset()
    yield narrow_pair


def payload_for(target: str, *, streamed: bool, model: str = "m") -> dict[str, Any]:
    if target.endswith("/embeddings"):
        return {"model": model, "input": "hi"}
    if target.endswith("/chat/completions"):
        return chat(model, stream=streamed)
    return {"model": model, "prompt": "hi", "stream": streamed}


def abort_mid_way(pair: Pair, target: str) -> None:
    pair.engine.play(stream(D("a"), D("b"), D("c"), Wait(5), HANG))
    with Client(pair.gateway.address) as client:
        client.send(request_bytes("POST", target, payload_for(target, streamed=True)))
        if not target.endswith("/embeddings"):
            client.read_until(b"data:")
        assert eventually(lambda: not pair.engine.script)
    assert eventually(pair.gateway.idle, 1), "the slot of an aborted call was kept for more than a second"


def normal_end(pair: Pair, target: str) -> None:
    assert pair.post(payload_for(target, streamed=True), target).status == 200


def engine_500(pair: Pair, target: str) -> None:
    pair.engine.play(reply(500, {"error": {"message": "boom", "type": "server_error", "param": None, "code": 500}}))
    assert pair.post(payload_for(target, streamed=True), target).status == 500


def cut_by_engine(pair: Pair, target: str) -> None:
    pair.engine.play(stream(D("a"), D("b"), D("c"), FIN))
    answer = pair.post(payload_for(target, streamed=True), target)
    if target.endswith("/embeddings"):
        assert answer.status == 502
    else:
        # A chat goes on with the same engine; either way the stream ends, whole or with the error.
        assert answer.clean and answer.done is (answer.stream_error is None)


def header_timeout(pair: Pair, target: str) -> None:
    pair.engine.play(stream(HANG, head_bytes=b""))
    answer = pair.post(payload_for(target, streamed=True, model="hasty"), target)
    assert (answer.status, answer.error["code"]) == (504, "first_byte_timeout")


def client_400(pair: Pair, target: str) -> None:
    assert pair.post(b'{"model":', target).status == 400


def engine_400(pair: Pair, target: str) -> None:
    pair.engine.play(reply(400, {"error": {"message": "no", "type": "BadRequestError", "param": None, "code": 400}}))
    assert pair.post(payload_for(target, streamed=False), target).status == 400


KINDS = (abort_mid_way, normal_end, engine_500, cut_by_engine, header_timeout, client_400, engine_400)


@pytest.mark.parametrize("target", [CHAT, "/v1/completions", "/v1/embeddings"])
@pytest.mark.parametrize("kind", KINDS)
def test_case_018_no_slot_is_kept(narrow: Pair, target: str, kind: Callable[[Pair, str], None]) -> None:
    for _ in range(5):
        narrow.engine.reset()
        kind(narrow, target)
        after = narrow.post(payload_for(target, streamed=False), target)
        assert after.status == 200, after.body
    narrow.gateway.common_ending()


def test_case_018_the_limit_is_real(narrow: Pair) -> None:
    narrow.engine.play(stream(D("a"), D("b"), D("c"), HANG))
    with Client(narrow.gateway.address) as client:
        client.send(request_bytes("POST", CHAT, chat()))
        client.read_until(b"data:")
        refused = narrow.post(chat(stream=False))
        assert (refused.status, refused.error["code"]) == (429, "concurrency_limit")
        assert refused.value("retry-after") is not None
        assert narrow.post(chat(stream=False), key="key-B").status == 200
    narrow.gateway.common_ending()


@pytest.fixture(scope="module")
def shared(module_engine: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RealRedis, Pair, Pair]]:
    """Two gateways on one store that share a limit of two calls at once: one for each while both are idle."""
    folder = tmp_path_factory.mktemp("shared")
    server = RealRedis(folder)
    engine = module_engine()
    pools = {"main": pool(engine, max_attempts=1, breaker={"failures": 100_000, "open_s": 1})}
    models = {"m": {"pool": "main"}, "hasty": {"pool": "main", "timeouts": {"first_byte_s": 0.05}}}
    tenants = [{"name": "a", "keys": ["key-A"], "limits": {"concurrency": 2}}]
    pairs = []
    for name in ("n1", "n2"):
        (folder / name).mkdir()
        settings = document(pools=pools, models=models, tenants=tenants, node=name, store={"url": server.url})
        pairs.append(Pair(engine, Gateway(folder / name, settings, {}, ready=True)))
    yield server, pairs[0], pairs[1]
    for pair in pairs:
        pair.gateway.stop()
    server.stop()
    for pair in pairs:
        assert "Traceback" not in pair.gateway.log


@pytest.mark.parametrize("target", [CHAT, "/v1/completions", "/v1/embeddings"])
@pytest.mark.parametrize("kind", KINDS)
def test_case_018_no_slot_is_kept_in_the_shared_store(
    shared: tuple[RealRedis, Pair, Pair], target: str, kind: Callable[[Pair, str], None]
) -> None:
    server, *pairs = shared

    def one_each() -> bool:
        return all(p.gateway.metric("forebay_limit_portion", tenant="a", limit="concurrency") == 1 for p in pairs)

    assert eventually(one_each, 30), "a part that one of them had is not given back"
    for pair in pairs:
        pair.engine.reset()
        kind(pair, target)
        pair.engine.reset()
        after = pair.post(payload_for(target, streamed=False), target)
        assert after.status == 200, after.body
        assert eventually(pair.gateway.idle, 30)

    def used() -> list[int]:
        with closing(server.client()) as client:
            fields = client.hgetall("forebay:shares")
        records = [json.loads(value) for name, value in fields.items() if not name.startswith(b":")]
        return [record[1]["a"][0][1] for record in records]

    assert eventually(lambda: used() == [0, 0], 30), used()


WORDS = tuple(D("word ") for _ in range(100))


def test_case_053_leaves_after_the_third_chunk(pair: Pair) -> None:
    pair.engine.play(stream(*WORDS, STOP, USAGE(7, 100), DONE, gap_s=0.2))
    with begin(pair, chat(), "pays-a") as client:
        client.read_events(3)
    row = pair.gateway.close_line("pays-a")
    assert row["outcome"] == "client_closed" and row["usage_estimated"] is True
    assert row["input_length"] >= 1 and 3 <= row["output_length"] < 90
    assert row["total_tokens"] == row["input_length"] + row["output_length"]
    pair.gateway.common_ending()


def test_case_053_leaves_before_the_first_chunk(pair: Pair) -> None:
    pair.engine.play(stream(Wait(1.5), *WORDS, STOP, USAGE(7, 100), DONE))
    with begin(pair, chat(), "pays-b"):
        assert eventually(lambda: len(pair.engine.posts) == 1)
        time.sleep(0.1)
    row = pair.gateway.close_line("pays-b")
    assert row["outcome"] == "client_closed" and row["output_length"] == 0
    pair.gateway.common_ending()


def test_case_053_leaves_between_finish_and_usage(pair: Pair) -> None:
    pair.engine.play(stream(*WORDS[:10], STOP, Wait(0.4), USAGE(7, 10), DONE))
    with begin(pair, chat(), "pays-c") as client:
        client.read_until(b'"stop"')
    row = pair.gateway.close_line("pays-c")
    assert row["outcome"] in ("client_closed", "ok")
    assert 9 <= row["output_length"] <= 12 and row["input_length"] >= 1
    pair.gateway.common_ending()
