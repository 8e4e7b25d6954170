"""Requests that are not run twice, through a real gateway: single flight and `Idempotency-Key`."""

import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import openai
import pytest
from cases.pair import CHAT, Pair
from cases.rawhttp import MESSAGES, Client, Response, chat, request_bytes
from gateway_process import PATIENCE, document, eventually, pool
from notation import DONE, FIN, STOP, USAGE, Answer, D, Until, Wait, completion, reply, stream

pytestmark = pytest.mark.integration


class Held:
    """An answer of two halves; the second one comes when it is let go."""

    def __init__(self) -> None:
        self.words = [f"word{i} " for i in range(6)]
        self.text = "".join(self.words)
        self.go = threading.Event()

    @property
    def answer(self) -> Answer:
        """As an engine sends it."""
        return self.between([D(word) for word in self.words[:3]], [D(word) for word in self.words[3:]], USAGE(7, 6))

    def between(self, before: list[bytes], after: list[bytes], *more: bytes) -> Answer:
        """A stream that is held between two parts."""
        return stream(*before, Until(self.go), *after, STOP, *more, DONE, gap_s=0)

    def whole(self, status: int, payload: object) -> Answer:
        """An answer that comes when it is let go."""
        return Answer((Until(self.go), *reply(status, payload).steps))


@pytest.fixture(scope="module")
def module_joined(module_engine: Any, module_gateway: Any) -> Pair:
    engine = module_engine()
    settings = document(
        engine,
        pools={"main": pool(engine, breaker={"failures": 100_000, "open_s": 1}, max_attempts=1)},
        models={
            "m": {"pool": "main", "single_flight": "on"},
            "watched": {"pool": "main", "single_flight": "warn"},
            "plain": {"pool": "main"},
        },
        tenants=[
            {"name": "a", "keys": ["key-A"], "limits": {"tokens": 1_000_000}},
            {"name": "b", "keys": ["key-B"]},
        ],
        timeouts={"connect_s": 1, "first_byte_s": 40, "stall_s": 40, "total_s": 60},
        rules=[{"name": "short", "when": {"template": "short"}, "then": {"cap_tokens": 5}}],
    )
    return Pair(engine, module_gateway(settings))


@pytest.fixture
def joined(module_joined: Pair) -> Iterator[Pair]:
    module_joined.engine.reset()
    yield module_joined
    module_joined.engine.reset()


def begin(pair: Pair, payload: object, *headers: str, key: str = "key-A") -> Client:
    client = Client(pair.gateway.address)
    client.send(request_bytes("POST", CHAT, payload, key=key, headers=headers))
    return client


def at_once(pair: Pair, held: Held, requests: list[dict[str, Any]]) -> list[Response]:
    """Send requests side by side, let their answer go when all are there, and read it."""
    with ThreadPoolExecutor(len(requests)) as threads:
        answers = [threads.submit(pair.post, **request) for request in requests]
        assert eventually(lambda: pair.gateway.metric("forebay_requests_in_flight") == len(requests), 10)
        held.go.set()
        return [answer.result() for answer in answers]


def spent(pair: Pair) -> float:
    """Tokens counted so far, when nothing runs."""
    assert eventually(pair.gateway.idle)
    return sum(pair.gateway.metric("forebay_tokens_total", kind=kind) for kind in ("prompt", "completion"))


def clients(pair: Pair) -> int:
    """How many clients have the answers that are shared now; -1 while the control plane does not answer."""
    status, body = pair.gateway.admin_get("/api/status")
    seen = json.loads(body)["data_plane"]["status"] if status == 200 else None
    return -1 if seen is None else int(seen["joining"]["clients"])


def test_twenty_equal_streams_are_one_for_the_engine(joined: Pair) -> None:
    held = Held()
    joined.engine.play(held.answer)
    before = spent(joined)
    answers = at_once(joined, held, [{"payload": chat(), "headers": (f"X-Request-Id: twenty-{i}",)} for i in range(20)])
    assert len(joined.engine.posts) == 1
    assert {(a.status, a.text, a.finish, a.done, a.clean) for a in answers} == {(200, held.text, "stop", True, True)}
    assert len({a.value("x-forebay-call-id") for a in answers}) == 20
    assert {a.value("x-request-id") for a in answers} == {f"twenty-{i}" for i in range(20)}
    assert {a.value("x-forebay-pool") for a in answers} == {"main"}
    rows = joined.gateway.rows([f"twenty-{i}" for i in range(20)])
    (leader,) = [row for row in rows if row["joined"] is None]
    followers = [row for row in rows if row["joined"] is not None]
    assert leader["total_tokens"] == 13 and len(leader["attempts"]) == 1
    assert {(r["joined"], r["joined_how"], r["outcome"], r["status"]) for r in followers} == {
        (leader["call_id"], "on", "ok", 200)
    }
    assert {(r["total_tokens"], r["queue_ms"], r["prefill_time_ms"], len(r["attempts"])) for r in followers} == {
        (None, None, None, 0)
    }
    assert all(row["ttft_ms"] is not None and row["ttft_ms"] <= row["total_ms"] for row in followers)
    assert {a.value("x-forebay-joined") for a in answers} == {None, leader["call_id"]}
    assert spent(joined) - before == 13
    joined.gateway.common_ending()


def test_who_comes_late_gets_what_was_said_and_then_the_rest(joined: Pair) -> None:
    held = Held()
    joined.engine.play(held.answer)
    with begin(joined, chat()) as first:
        first.read_events(2)
        with begin(joined, chat()) as second:
            assert b"word0" in second.read_events(2) and b"word5" not in second.read_events(2)
            held.go.set()
            assert {first.response().text, second.response().text} == {held.text}
    assert len(joined.engine.posts) == 1


def test_whole_answers_are_shared_too(joined: Pair) -> None:
    held = Held()
    joined.engine.play(held.whole(200, completion(text="all of it")))
    answers = at_once(joined, held, [{"payload": chat(stream=False)} for _ in range(5)])
    assert len(joined.engine.posts) == 1 and len({a.body for a in answers}) == 1
    assert answers[0].json()["choices"][0]["message"]["content"] == "all of it"


@pytest.mark.parametrize(
    "requests",
    [
        [{"key": "key-A"}, {"key": "key-B"}],
        [{"headers": ("X-User-Id: ann",)}, {"headers": ("X-User-Id: bob",)}],
        [{}, {"payload": chat(temperature=0.5)}],
        [{"headers": ("X-Deadline-Ms: 9000",)}, {}],
        [{"headers": ("X-Prompt-Template-Id: short",)}, {}],
        [{"headers": ("Idempotency-Key: one",)}, {"headers": ("Idempotency-Key: two",)}],
        [{"payload": chat("plain")}, {"payload": chat("plain")}],
        [{"payload": chat("watched")}, {"payload": chat("watched")}],
    ],
    ids=["tenants", "users", "bodies", "deadlines", "rules", "keys", "off", "warn"],
)
def test_what_is_not_the_same_is_run_twice(joined: Pair, requests: list[dict[str, Any]]) -> None:
    held = Held()
    joined.engine.default = held.answer
    answers = at_once(joined, held, [{"payload": chat(), **request} for request in requests])
    assert [a.status for a in answers] == [200, 200] and len(joined.engine.posts) == 2
    assert {a.value("x-forebay-joined") for a in answers} == {None}


def test_one_after_the_other_is_run_twice(joined: Pair) -> None:
    assert [joined.post(chat()).status for _ in range(2)] == [200, 200]
    assert len(joined.engine.posts) == 2


def test_warn_counts_and_marks_and_changes_nothing(joined: Pair) -> None:
    held = Held()
    joined.engine.default = held.answer
    before = joined.gateway.metric("forebay_requests_joined_total", mode="warn")
    answers = at_once(joined, held, [{"payload": chat("watched")} for _ in range(3)])
    rows = [joined.row(answer) for answer in answers]
    assert len(joined.engine.posts) == 3 and all(row["total_tokens"] == 13 for row in rows)
    (first,) = [row for row in rows if row["joined"] is None]
    assert [(r["joined"], r["joined_how"]) for r in rows if r["joined"]] == [(first["call_id"], "warn")] * 2
    assert joined.gateway.metric("forebay_requests_joined_total", mode="warn") - before == 2


def test_the_work_goes_on_for_the_others_when_its_client_leaves(joined: Pair) -> None:
    held = Held()
    joined.engine.play(held.answer)
    first = begin(joined, chat(), "X-Request-Id: goes")
    first.read_events(2)
    with begin(joined, chat(), "X-Request-Id: stays") as second:
        second.read_events(2)
        assert eventually(lambda: clients(joined) == 2, 20)
        first.reset()
        assert eventually(lambda: clients(joined) == 1)
        held.go.set()
        answer = second.response()
    assert answer.text == held.text and answer.done
    assert joined.engine.posts[0].closed_s is None
    row = joined.gateway.close_line("stays")
    assert (row["outcome"], row["joined_how"]) == ("ok", "on")
    assert joined.gateway.close_line("goes")["total_tokens"] == 13
    joined.gateway.common_ending()


@pytest.mark.parametrize("waits", [False, True], ids=["streaming", "waiting"])
def test_the_engine_is_free_when_the_last_one_has_gone(joined: Pair, waits: bool) -> None:
    joined.engine.play(stream(*(() if waits else (D("a "), D("b "), D("c "))), Wait(30), STOP, DONE))
    clients = [begin(joined, chat(), f"X-Request-Id: left-{waits}-{i}") for i in range(3)]
    assert eventually(lambda: len(joined.engine.posts) == 1)
    if not waits:
        for client in clients:
            client.read_events(3)
    assert eventually(lambda: joined.gateway.metric("forebay_requests_in_flight", model="m") == 3)
    for client in clients[:2]:
        client.close()
    ids = [f"left-{waits}-{i}" for i in range(3)]
    assert eventually(lambda: joined.gateway.metric("forebay_requests_in_flight", model="m") <= 2)
    assert joined.engine.posts[0].closed_s is None
    clients[2].close()
    left_s = time.monotonic()
    assert eventually(lambda: joined.engine.posts[0].closed_s is not None)
    assert (joined.engine.posts[0].closed_s or 0.0) - left_s < 3 * PATIENCE, "it was let go with its answer"
    rows = joined.gateway.rows(ids)
    assert {(row["outcome"], row["status"]) for row in rows} == {("client_closed", 499)}
    joined.gateway.common_ending()


def test_a_slow_client_holds_nobody_up(joined: Pair) -> None:
    """More than the buffers of both systems hold beside ours: it does not read, and the others go on."""
    piece, pieces = "x" * 8000, 2000
    held = Held()
    joined.engine.play(held.between([D("begin ")], [D(piece) for _ in range(pieces)]))
    with begin(joined, chat(), "X-Request-Id: slow") as slow:
        slow.read_events(1)
        with begin(joined, chat(), "X-Request-Id: quick") as quick:
            quick.read_events(1)
            held.go.set()
            answer = quick.response()
        assert answer.done and len(answer.text) == 6 + len(piece) * pieces
        late = slow.response()
    assert late.stream_error is not None and late.stream_error["code"] == "client_too_slow"
    assert late.clean and not late.done and answer.text.startswith(late.text)
    assert joined.gateway.close_line("quick")["outcome"] == "ok"
    joined.gateway.common_ending()


def test_an_error_is_shared(joined: Pair) -> None:
    broken = {"error": {"message": "no", "type": "x", "param": None, "code": 500}}
    held = Held()
    joined.engine.play(held.whole(500, broken))
    answers = at_once(joined, held, [{"payload": chat(), "headers": (f"X-Request-Id: bad-{i}",)} for i in range(4)])
    assert len(joined.engine.posts) == 1 and {(a.status, a.error["message"]) for a in answers} == {(500, "no")}
    rows = joined.gateway.rows([f"bad-{i}" for i in range(4)])
    assert {(row["outcome"], row["status"]) for row in rows} == {("engine_error", 500)}
    joined.gateway.common_ending()


def test_an_error_within_a_stream_is_shared(joined: Pair) -> None:
    held = Held()
    joined.engine.play(stream(D("a "), Until(held.go), FIN))
    # With logprobs, so that it cannot go on elsewhere.
    answers = at_once(joined, held, [{"payload": chat(logprobs=True)} for _ in range(3)])
    assert len(joined.engine.posts) == 1
    assert {(a.text, (a.stream_error or {})["code"], a.done, a.clean) for a in answers} == {
        ("a ", "engine_truncated", False, True)
    }


# Idempotency-Key


def keyed(name: str) -> tuple[str, ...]:
    return (f"Idempotency-Key: {name}",)


@pytest.mark.parametrize("streamed", [True, False], ids=["stream", "whole"])
def test_a_known_key_gets_its_answer_again(joined: Pair, streamed: bool) -> None:
    payload = chat("plain", stream=streamed)
    key = keyed(f"again-{streamed}")
    before = joined.gateway.metric("forebay_idempotency_replays_total")
    first, second = joined.post(payload, headers=key), joined.post(payload, headers=key)
    assert len(joined.engine.posts) == 1
    assert (second.status, second.body, second.clean) == (200, first.body, True)
    assert second.value("content-type") == first.value("content-type")
    assert second.value("x-forebay-pool") == first.value("x-forebay-pool") == "main"
    assert (first.value("x-forebay-replayed"), second.value("x-forebay-replayed")) == (None, "true")
    assert second.value("x-forebay-joined") == first.value("x-forebay-call-id")
    assert second.value("x-forebay-call-id") != first.value("x-forebay-call-id")
    row = joined.row(second)
    assert (row["joined_how"], row["joined"], row["total_tokens"], row["attempts"]) == (
        *("replay", first.value("x-forebay-call-id"), None, []),
    )
    assert joined.gateway.metric("forebay_idempotency_replays_total") - before == 1
    # A key belongs to its tenant.
    assert joined.post(payload, headers=key, key="key-B").value("x-forebay-replayed") is None
    joined.gateway.common_ending()


def test_a_key_that_runs_is_joined(joined: Pair) -> None:
    held = Held()
    joined.engine.play(held.answer)
    answers = at_once(joined, held, [{"payload": chat("plain"), "headers": keyed("runs")} for _ in range(4)])
    assert len(joined.engine.posts) == 1 and {a.text for a in answers} == {held.text}
    assert sorted(str(joined.row(a)["joined_how"]) for a in answers) == ["None", "key", "key", "key"]


def test_a_key_with_another_request_is_refused(joined: Pair) -> None:
    assert joined.post(chat("plain"), headers=keyed("taken")).status == 200
    other = joined.post(chat("plain", temperature=1), headers=keyed("taken"))
    assert (other.status, other.error["code"], other.value("x-should-retry")) == (
        *(422, "idempotency_key_reused", "false"),
    )
    assert len(joined.engine.posts) == 1
    held = Held()
    joined.engine.play(held.answer)
    with begin(joined, chat("plain"), *keyed("taken-2")) as running:
        running.read_events(1)
        assert joined.post(chat("plain", temperature=1), headers=keyed("taken-2")).status == 422
        held.go.set()
        assert running.response().done


@pytest.mark.parametrize("header", ["Idempotency-Key: ", "Idempotency-Key: a b", f"Idempotency-Key: {'k' * 256}"])
def test_a_key_that_is_none_is_refused(joined: Pair, header: str) -> None:
    answer = joined.post(chat("plain"), headers=(header,))
    assert (answer.status, answer.error["param"]) == (400, "Idempotency-Key")
    assert joined.post(chat("plain"), headers=("Idempotency-Key: a", "Idempotency-Key: b")).status == 400
    assert joined.engine.posts == []


def test_what_failed_is_run_again(joined: Pair) -> None:
    joined.engine.play(reply(500, {"error": {"message": "no"}}), stream(D("a "), FIN))
    payload = chat("plain", logprobs=True)
    answers = [joined.post(payload, headers=keyed("fails")) for _ in range(4)]
    assert [a.status for a in answers] == [500, 200, 200, 200]
    assert [a.done for a in answers[1:]] == [False, True, True]
    assert len(joined.engine.posts) == 3 and answers[3].value("x-forebay-replayed") == "true"


def test_an_answer_too_large_to_keep_is_not_run_again(joined: Pair) -> None:
    joined.engine.play(reply(200, completion(text="x" * 1_100_000)))
    key = keyed("large")
    first, second = [joined.post(chat("plain", stream=False), headers=key) for _ in range(2)]
    assert (first.status, second.status, second.error["code"]) == (200, 409, "idempotency_answer_lost")
    assert second.value("x-should-retry") == "false" and len(joined.engine.posts) == 1


def test_a_client_that_left_may_come_again(joined: Pair) -> None:
    """Its retry finds the work going on, for less than the second in which an engine must be free."""
    joined.engine.play(stream(D("a "), D("b "), Wait(0.3), D("c"), STOP, USAGE(7, 6), DONE))
    before = spent(joined)
    first = begin(joined, chat("plain"), *keyed("comes-again"))
    first.read_events(2)
    first.reset()
    answer = joined.post(chat("plain"), headers=keyed("comes-again"))
    assert answer.text == "a b c" and len(joined.engine.posts) == 1
    assert joined.row(answer)["joined_how"] in ("key", "replay")
    assert spent(joined) - before == 13


def test_a_key_whose_clients_have_all_gone_frees_the_engine(joined: Pair) -> None:
    joined.engine.play(stream(D("a "), Wait(30), STOP, DONE))
    client = begin(joined, chat("plain"), *keyed("gone"))
    client.read_events(1)
    client.close()
    left_s = time.monotonic()
    assert eventually(lambda: joined.engine.posts[0].closed_s is not None)
    assert (joined.engine.posts[0].closed_s or 0.0) - left_s < 3 * PATIENCE, "it was let go with its answer"
    assert eventually(joined.gateway.idle)
    assert joined.post(chat("plain"), headers=keyed("gone")).done
    joined.gateway.common_ending()


def test_answers_are_erased_at_their_end(module_engine: Any, gateway: Any) -> None:
    engine = module_engine()
    pair = Pair(engine, gateway(document(engine, idempotency={"ttl_s": 1})))
    assert [pair.post(chat(), headers=keyed("short")).status for _ in range(2)] == [200, 200]
    assert eventually(lambda: pair.post(chat(), headers=keyed("short")).value("x-forebay-replayed") is None)
    assert len(engine.posts) == 2


def test_the_openai_client_is_charged_once_for_its_own_retries(joined: Pair) -> None:
    """It gives up on a slow answer and sends the same request again, key and all."""
    joined.engine.play(Answer((Wait(1.0), *reply(200, completion("plain", prompt=3, tokens=4)).steps)))
    before = spent(joined)
    client = openai.OpenAI(api_key="key-A", base_url=f"{joined.gateway.base_url}/v1", timeout=0.9, max_retries=10)
    made = client.chat.completions.create(model="plain", messages=MESSAGES, extra_headers={"Idempotency-Key": "sdk"})  # type: ignore[call-overload]
    assert made.choices[0].message.content == "ok"
    assert len(joined.engine.posts) == 1 and spent(joined) - before == 7
    again = client.chat.completions.with_raw_response.create(
        model="plain", messages=MESSAGES, extra_headers={"Idempotency-Key": "sdk"}
    )  # type: ignore[call-overload]
    assert again.headers["x-forebay-replayed"] == "true"
