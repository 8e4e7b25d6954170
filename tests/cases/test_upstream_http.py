"""Cases 023, 025, 028 and 075: connections to engines, their statuses, their silence."""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from cases.pair import CHAT, Pair
from cases.rawhttp import Client, Response, chat, request_bytes
from gateway_process import Document, document, eventually, pool
from notation import DONE, FIN, HANG, RST, STOP, Answer, D, Wait, completion, reply, stream
from scripted import ScriptedEngine, Seen, well

pytestmark = pytest.mark.integration


@pytest.mark.timeout(60)
def test_case_023_idle_connections_close_as_they_are_reused(engine: Any, gateway: Any) -> None:
    """Twenty pauses of 3.8 to 5.2 s in one: as many connections are made idle at once as are then asked of."""
    upstream = engine(idle_timeout_s=5.0)
    pair = Pair(upstream, gateway(document(upstream)))
    upstream.default = lambda _: Answer((Wait(0.6), *reply(200, completion()).steps))
    with ThreadPoolExecutor(20) as threads:
        assert {a.status for a in threads.map(lambda _: pair.post(chat(stream=False)), range(20))} == {200}
        assert upstream.accepted >= 20

        def after(pause_s: float) -> Response:
            time.sleep(pause_s)
            return pair.post(chat(stream=False))

        pauses = [3.2 + 0.07 * i for i in range(20)]  # counted from 0.6 s before the connections fell idle
        answers = list(threads.map(after, pauses))
    assert [answer.status for answer in answers] == [200] * 20
    pair.gateway.common_ending()


@pytest.mark.parametrize("end", [FIN, RST])
@pytest.mark.parametrize("streamed", [True, False])
def test_case_023_closed_without_a_byte_on_a_reused_connection(
    engine: Any, gateway: Any, end: Any, streamed: bool
) -> None:
    upstream = engine()
    settings = document(
        upstream,
        pools={"main": pool(upstream, breaker={"failures": 2, "open_s": 60})},
        tenants=[{"name": "a", "keys": ["key-A"], "limits": {"requests_per_minute": 100}}],
    )
    pair = Pair(upstream, gateway(settings))
    upstream.default = lambda seen: well(seen) if seen.nth == 1 else Answer((end,))
    ids = []
    for _ in range(80):
        answer = pair.post(chat(stream=streamed))
        assert answer.status == 200 and answer.clean, answer.body
        ids.append(answer.value("x-request-id"))
    rows = pair.gateway.rows(ids)
    assert {row["outcome"] for row in rows} == {"ok"}
    assert len(upstream.posts) > 100, "connections were not reused, so this proves nothing"
    assert pair.gateway.metric("forebay_replica_up") == 1
    pair.gateway.common_ending()


def test_case_023_no_blind_retry_once_a_byte_came(pair: Pair) -> None:
    pair.post(chat(stream=False))
    pair.engine.play(Answer((b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\n{", FIN)))
    before = len(pair.engine.posts)
    answer = pair.post(chat(stream=False))
    assert answer.status in (200, 502)
    if answer.status == 502:
        assert answer.error["code"] in ("engine_truncated", "engine_bad_answer", "engine_failed")
    assert len(pair.engine.posts) - before <= 3
    pair.gateway.common_ending()


@pytest.fixture
def two(engine: Any, gateway: Any) -> Iterator[tuple[list[ScriptedEngine], Pair]]:
    engines = [engine(), engine()]
    # One try on each: with a third, the gateway would wait as long as the engine asks for.
    pools = {"main": pool(*engines, max_attempts=2, breaker={"failures": 100_000, "open_s": 1})}
    yield engines, Pair(engines[0], gateway(document(*engines, pools=pools)))


TOO_LONG = "prompt has 9000 tokens, limit is 8192"
FINAL: dict[str, tuple[int, Document]] = {
    "openai form": (400, {"error": {"message": TOO_LONG, "type": "BadRequestError", "param": None, "code": 400}}),
    "flat form": (400, {"object": "error", "message": TOO_LONG, "type": "BadRequestError", "code": 400}),
    "unknown model": (
        404,
        {"error": {"message": "The model `m` does not exist.", "type": "NotFoundError", "param": None, "code": 404}},
    ),
    "detail form": (400, {"detail": TOO_LONG}),
}


@pytest.mark.parametrize("form", FINAL)
def test_case_025_the_engines_own_refusal(two: tuple[list[ScriptedEngine], Pair], form: str) -> None:
    engines, pair = two
    status, body = FINAL[form]
    for streamed in (True, False):
        for upstream in engines:
            upstream.reset()
            upstream.default = reply(status, body)
        answer = pair.post(chat(stream=streamed))
        assert answer.status == status
        assert answer.error["message"] == (body.get("error") or body).get("message", TOO_LONG)
        assert set(answer.json()) == {"error"}
        assert sum(len(upstream.posts) for upstream in engines) == 1
    for upstream in engines:
        upstream.reset()
    pair.gateway.common_ending()


@pytest.mark.parametrize("status", [429, 503])
def test_case_025_retry_after_is_the_smallest(two: tuple[list[ScriptedEngine], Pair], status: int) -> None:
    engines, pair = two
    error = {"error": {"message": "slow down", "type": "RateLimitError", "param": None, "code": status}}
    for streamed in (True, False):
        for upstream, wait_s in zip(engines, (7, 5), strict=True):
            upstream.default = reply(status, error, f"Retry-After: {wait_s}")
        answer = pair.post(chat(stream=streamed))
        assert answer.status == status
        assert answer.error["message"] == "slow down"
        assert answer.value("retry-after") == "5"
        assert answer.elapsed_s < 5
    for upstream in engines:
        upstream.reset()
    pair.gateway.common_ending()


def test_case_025_retry_after_of_a_single_engine(pair: Pair) -> None:
    error = {"error": {"message": "slow down", "type": "RateLimitError", "param": None, "code": 429}}
    pair.engine.default = reply(429, error, "Retry-After: 7")
    answer = pair.post(chat())
    assert (answer.status, answer.value("retry-after")) == (429, "7")
    pair.engine.reset()
    pair.gateway.common_ending()


@pytest.mark.timeout(60)
def test_case_028_an_engine_that_never_answers(engine: Any, gateway: Any) -> None:
    silent, healthy = engine(), engine()
    settings = document(
        silent,
        pools={"main": pool(silent, healthy, breaker={"failures": 3, "open_s": 60})},
        timeouts={"connect_s": 1, "first_byte_s": 1, "stall_s": 1, "total_s": 30},
    )
    pair = Pair(silent, gateway(settings))
    silent.default = Answer((HANG,))
    with ThreadPoolExecutor(20) as threads:
        answers = list(threads.map(lambda _: pair.post(chat(stream=False)), range(20)))
    assert [answer.status for answer in answers] == [200] * 20
    assert max(answer.elapsed_s for answer in answers) < 20
    # Calls that hang count as load, so most of the twenty never went there.
    assert 1 <= len(silent.posts) <= 12
    at_once = [answer for answer in answers if len(pair.row(answer)["attempts"]) == 1]
    assert len(at_once) >= 20 - len(silent.posts)
    for _ in range(6):
        if len(silent.posts) < 3:
            pair.post(chat(stream=False))
    sent_before = len(silent.posts)
    later = [pair.post(chat(stream=False)) for _ in range(10)]
    assert [answer.status for answer in later] == [200] * 10
    assert len(silent.posts) == sent_before, "the silent engine is still in rotation"
    assert pair.gateway.metric("forebay_replica_up", replica=silent.name) == 0
    assert pair.gateway.metric("forebay_replica_up", replica=healthy.name) == 1
    assert "first_byte" in pair.gateway.get("/metrics")[1].decode(), "the reason is not visible in the metrics"
    pair.gateway.common_ending()


def test_case_028_alone_it_is_a_504(pair: Pair) -> None:
    pair.engine.default = Answer((HANG,))
    for streamed in (True, False):
        answer = pair.post(chat(stream=streamed))
        assert (answer.status, answer.error["code"]) == (504, "first_byte_timeout")
        assert 1.5 < answer.elapsed_s < 20
        assert pair.row(answer)["outcome"] == "timeout"
    pair.engine.reset()
    pair.gateway.common_ending()


@pytest.mark.parametrize("streamed", [True, False])
def test_a_slow_reader_does_not_stall_the_next_call(pair: Pair, streamed: bool) -> None:
    """Reading from an engine is paused for a slow client; the connection must not be handed on like that."""
    text = "x" * 7_000_000
    whole = reply(200, completion(text=text))
    pair.engine.play(stream(D(text), STOP, DONE, gap_s=0) if streamed else whole)
    with Client(pair.gateway.address) as slow:
        slow.send(request_bytes("POST", CHAT, chat(stream=streamed)))
        assert eventually(lambda: bool(pair.engine.posts) and pair.engine.posts[0].answered, 30)
        time.sleep(0.3)
        for _ in range(3):
            answer = pair.post(chat(stream=False))
            assert answer.status == 200 and len(pair.row(answer)["attempts"]) == 1
        answer = slow.response()
    assert answer.clean
    assert (answer.text if streamed else answer.json()["choices"][0]["message"]["content"]) == text
    pair.gateway.common_ending()


def time_wait(port: int) -> int:
    """Count connections to a port that stand in TIME_WAIT on the side that opened them."""
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table.readlines()[1:]]
    return sum(1 for row in rows if row[3] == "06" and int(row[2].split(":")[1], 16) == port)


def connections_of_calls(engine: ScriptedEngine) -> int:
    """Count the connections that carried calls; how many polls and probes have had one of their own, is chance."""
    return len({seen.connection for seen in engine.posts if seen.target == CHAT})


def storm(pair: Pair, count: int, concurrency: int) -> list[int]:
    """Send so many requests over kept connections and return every status."""
    left = iter(range(count))
    lock = threading.Lock()
    statuses: list[int] = []

    def work() -> None:
        with Client(pair.gateway.address) as client:
            while True:
                with lock:
                    if next(left, None) is None:
                        return
                statuses.append(client.ask("POST", CHAT, chat(stream=False)).status)

    workers = [threading.Thread(target=work) for _ in range(concurrency)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return statuses


def test_case_075_connections_are_reused(engine: Any, gateway: Any) -> None:
    upstream = engine()
    pair = Pair(upstream, gateway(document(upstream)))
    assert storm(pair, 1000, 64) == [200] * 1000
    assert connections_of_calls(upstream) <= 64 + 8
    assert time_wait(upstream.port) < 200
    names = {name for name, _ in pair.gateway.metrics()}
    assert [name for name in names if "upstream" in name and "connection" in name], "no metric shows new connections"
    pair.gateway.common_ending()


def test_case_075_calls_never_ride_on_the_connection_of_a_poll(engine: Any, gateway: Any) -> None:
    """An engine that keeps connections open though a poll asked for a close; thirty polls of it at a time."""
    upstream = engine()
    pools = {f"p{i}": pool(upstream) for i in range(30)}
    pair = Pair(upstream, gateway(document(upstream, pools=pools, models={"m": {"pool": "p0"}})))

    def polls() -> set[int]:
        assert storm(pair, 64, 8) == [200] * 64
        return {seen.connection for seen in upstream.requests if seen.method == "GET"}

    assert eventually(lambda: len(polls()) > 60, 60), "there were no polls, so this proves nothing"
    assert not polls() & {seen.connection for seen in upstream.posts}
    pair.gateway.common_ending()


def test_case_075_an_engine_that_closes_every_tenth_time(engine: Any, gateway: Any) -> None:
    upstream = engine()
    pair = Pair(upstream, gateway(document(upstream)))
    counted = iter(range(1, 1_000_000))

    def closing(seen: Seen) -> Answer:
        return reply(200, completion(), close=True) if next(counted) % 10 == 0 else well(seen)

    upstream.default = closing
    assert storm(pair, 1000, 64) == [200] * 1000
    assert 100 <= connections_of_calls(upstream) <= 64 + 100 + 16
    pair.gateway.common_ending()
