"""Sixteen ways an engine misbehaves, and what a caller must see (the list of failoverbench, methodology v0.1).

The times are scaled down: where an engine is silent for 120 s there, the first-byte limit is 1.5 s here.
"""

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple

import pytest
from cases.pair import CHAT
from cases.rawhttp import Response, ask, chat
from gateway_process import Document, Gateway, document, eventually, pool
from notation import DONE, FIN, HANG, RST, STOP, USAGE, Answer, D, Wait, completion, reply, stream
from scripted import ScriptedEngine, Seen

pytestmark = pytest.mark.integration

TIMES = {"connect_s": 1, "first_byte_s": 1.5, "stall_s": 1, "total_s": 30}


class Bench(NamedTuple):
    """Model `m` on the first engine falls back to `m2` on the second; `single` has no fallback."""

    first: ScriptedEngine
    second: ScriptedEngine
    gateway: Gateway

    def call(self, model: str = "m", *, streamed: bool = True, **members: Any) -> Response:
        return ask(self.gateway.address, "POST", CHAT, chat(model, stream=streamed, **members))

    def row(self, answer: Response) -> Document:
        request_id = answer.value("x-request-id")
        assert request_id
        return self.gateway.close_line(request_id)


def start(engine: Any, gateway: Any, **breaker: float) -> Bench:
    first, second = engine(), engine(models=("m2",))
    settings = document(
        first,
        pools={"main": pool(first, breaker=breaker), "other": pool(second, breaker=breaker)},
        models={"m": {"pool": "main", "fallback": ["m2"]}, "m2": {"pool": "other"}, "single": {"pool": "main"}},
        timeouts=TIMES,
    )
    return Bench(first, second, gateway(settings))


@pytest.fixture(scope="module")
def shared(module_engine: Any, module_gateway: Any) -> Bench:
    return start(module_engine, module_gateway, failures=100_000, open_s=1)


@pytest.fixture
def bench(shared: Bench) -> Iterator[Bench]:
    shared.first.reset()
    shared.second.reset()
    yield shared
    # Whatever happened, one healthy call afterwards succeeds.
    shared.first.reset()
    shared.second.reset()
    shared.gateway.common_ending()


def error(status: int, message: str = "no", code: object = None) -> Document:
    return {"error": {"message": message, "type": "engine", "param": None, "code": code or status}}


def gaps_s(tries: list[Seen]) -> list[float]:
    return [later.arrived_s - earlier.arrived_s for earlier, later in pairwise(tries)]


def served_by_fallback(bench: Bench, answer: Response, streamed: bool) -> None:
    assert answer.status == 200 and answer.clean
    parts = [e.json() for e in answer.events if e.data.startswith("{")] if streamed else [answer.json()]
    assert {part["model"] for part in parts} == {"m2"}, "the client is not told who answered"
    assert answer.value("x-forebay-degraded") == "fallback"
    row = bench.row(answer)
    assert (row["outcome"], row["pool"], row["replica"]) == ("fallback", "other", bench.second.name)


def well_answered(answer: Response, streamed: bool) -> None:
    assert answer.status == 200 and answer.clean
    if streamed:
        assert answer.text == "ok" and answer.finish == "stop" and answer.done and answer.stream_error is None
    else:
        assert answer.json()["choices"][0]["message"]["content"] == "ok"


both = pytest.mark.parametrize("streamed", [True, False], ids=["stream", "whole"])


@both
def test_failure_01_429_with_retry_after_once(bench: Bench, streamed: bool) -> None:
    bench.first.play(reply(429, error(429), "Retry-After: 2"))
    answer = bench.call(streamed=streamed)
    well_answered(answer, streamed)
    assert answer.elapsed_s < 30
    assert all(gap >= 1.5 for gap in gaps_s(bench.first.posts))


@both
def test_failure_01_without_a_fallback(bench: Bench, streamed: bool) -> None:
    bench.first.play(reply(429, error(429), "Retry-After: 2"))
    answer = bench.call("single", streamed=streamed)
    well_answered(answer, streamed)
    assert all(gap >= 1.9 for gap in gaps_s(bench.first.posts))


@both
def test_failure_02_429_always(bench: Bench, streamed: bool) -> None:
    bench.first.default = reply(429, error(429))
    answer = bench.call(streamed=streamed)
    served_by_fallback(bench, answer, streamed)
    tries = bench.first.posts
    assert len(tries) + len(bench.second.posts) <= 6
    assert len([seen for seen in tries if seen.arrived_s - tries[0].arrived_s < 3]) <= 4
    assert all(gap >= 0.2 for gap in gaps_s(tries)), "no pause before the same engine was asked again"


@both
def test_failure_03_500_once(bench: Bench, streamed: bool) -> None:
    bench.first.play(reply(500, error(500)))
    answer = bench.call(streamed=streamed)
    well_answered(answer, streamed)
    assert len(bench.first.posts) + len(bench.second.posts) == 2


@both
def test_failure_04_503_always(bench: Bench, streamed: bool) -> None:
    bench.first.default = reply(503, error(503))
    served_by_fallback(bench, bench.call(streamed=streamed), streamed)
    assert len(bench.first.posts) <= 3


@both
def test_failure_04_without_a_fallback(bench: Bench, streamed: bool) -> None:
    bench.first.default = reply(503, error(503, "the original words"))
    answer = bench.call("single", streamed=streamed)
    assert (answer.status, answer.error["message"]) == (503, "the original words")
    assert bench.row(answer)["outcome"] == "engine_error"
    assert len(bench.first.posts) <= 3


@both
def test_failure_05_reset_before_any_byte(bench: Bench, streamed: bool) -> None:
    bench.first.play(Answer((RST,)))
    well_answered(bench.call(streamed=streamed), streamed)


@both
def test_failure_06_accepts_and_says_nothing(bench: Bench, streamed: bool) -> None:
    bench.first.default = Answer((HANG,))
    answer = bench.call(streamed=streamed)
    served_by_fallback(bench, answer, streamed)
    assert len(bench.first.posts) == 1, "the silent route was tried again"
    assert answer.elapsed_s < 20


def test_failure_07_headers_at_once_and_a_late_first_token(bench: Bench) -> None:
    bench.first.play(stream(Wait(6), D("ok"), STOP, USAGE(2, 1), DONE))
    answer = bench.call()
    well_answered(answer, True)
    assert answer.elapsed_s < 5.5, "a first-token limit would have moved on"


NUMBERED = [D(f"{i} ") for i in range(60)]
WHOLE = "".join(f"{i} " for i in range(60))


def goes_on(seen: Seen) -> Answer:
    """Go on from an answer that has begun, as engines do."""
    last = seen.json()["messages"][-1]
    said = last["content"] if last["role"] == "assistant" else ""
    assert WHOLE.startswith(said)
    left = WHOLE[len(said) :].split()
    return stream(*(D(f"{word} ") for word in left), STOP, USAGE(2 + 60 - len(left), len(left)), DONE)


def begins_anew(_: Seen) -> Answer:
    """Overlook what was said, as an engine does that knows nothing of begun answers."""
    return stream(*NUMBERED, STOP, USAGE(2, 60), DONE)


def no_prefix(seen: Seen) -> Answer:
    if seen.json()["messages"][-1]["role"] == "assistant":
        return reply(400, error(400, "the last message must be of the user"))
    return begins_anew(seen)


def whole(bench: Bench, answer: Response) -> None:
    """The caller has seen nothing: one text, one end, one id, one row."""
    assert answer.status == 200 and answer.clean and answer.stream_error is None
    assert answer.text == WHOLE and answer.finish == "stop" and answer.done
    parts = [event.json() for event in answer.events if event.data.startswith("{")]
    assert len({(part["id"], part["model"]) for part in parts}) == 1
    row = bench.row(answer)
    assert (row["outcome"], row["output_length"]) == ("ok", 60)
    assert row["continued"] >= 1 and len(row["attempts"]) >= 2


later = pytest.mark.parametrize("later", [goes_on, begins_anew, no_prefix], ids=lambda f: f.__name__)


@later
@pytest.mark.parametrize("end", [FIN, RST], ids=["fin", "rst"])
def test_failure_08_cut_after_forty_tokens(bench: Bench, end: Any, later: Any) -> None:
    bench.first.play(stream(*NUMBERED[:40], end))
    bench.first.default = later
    whole(bench, bench.call())


@later
def test_failure_08_ended_properly_but_short(bench: Bench, later: Any) -> None:
    bench.first.play(stream(*NUMBERED[:40]))
    bench.first.default = later
    whole(bench, bench.call())


@later
def test_failure_08_ended_with_done_but_without_finish(bench: Bench, later: Any) -> None:
    bench.first.play(stream(*NUMBERED[:40], DONE))
    bench.first.default = later
    whole(bench, bench.call())


def test_failure_08_it_cannot_go_on(bench: Bench) -> None:
    bench.first.default = stream(*NUMBERED[:40], FIN)
    answer = bench.call(n=1, logprobs=True)
    assert answer.status == 200 and answer.clean and not answer.done and answer.finish is None
    assert set(answer.stream_error or {}) >= {"message", "type", "param", "code"}
    assert WHOLE.startswith(answer.text) and len(answer.text.split()) >= 39
    assert bench.row(answer)["outcome"] in ("truncated", "engine_error")
    assert len(bench.first.posts) == 1


def test_failure_08_a_whole_answer_that_is_cut(bench: Bench) -> None:
    text = reply(200, completion(text="x" * 1000)).steps[0]
    assert isinstance(text, bytes)
    bench.first.default = Answer((text[:500], FIN))
    answer = bench.call("single", streamed=False)
    assert answer.status == 502 and answer.error["code"] in ("engine_truncated", "engine_bad_answer")


@later
def test_failure_09_silent_after_twenty_tokens(bench: Bench, later: Any) -> None:
    bench.first.play(stream(*NUMBERED[:20], Wait(8), FIN))
    bench.first.default = later
    answer = bench.call()
    whole(bench, answer)
    assert answer.elapsed_s < 7.5


@later
def test_failure_10_the_tenth_event_is_not_json(bench: Bench, later: Any) -> None:
    broken = b'data: {"id":"c1","choices":[{"index":0,"delta":{"content":"9 \n\n'
    bench.first.play(stream(*NUMBERED[:9], broken, *NUMBERED[10:], STOP, USAGE(2, 60), DONE))
    bench.first.default = later
    whole(bench, bench.call())


def test_failure_11_complete_without_done(bench: Bench) -> None:
    bench.first.play(stream(*NUMBERED, STOP, USAGE(2, 60)))
    answer = bench.call()
    assert answer.text == WHOLE and answer.finish == "stop" and answer.done and answer.clean
    assert answer.elapsed_s < 10
    row = bench.row(answer)
    assert (row["outcome"], row["input_length"], row["output_length"]) == ("ok", 2, 60)


def test_failure_11_complete_without_done_and_the_connection_closed(bench: Bench) -> None:
    bench.first.play(stream(*NUMBERED, STOP, USAGE(2, 60), FIN))
    answer = bench.call()
    assert answer.text == WHOLE and answer.finish == "stop" and answer.done and answer.clean
    assert bench.row(answer)["outcome"] == "ok"


TOO_LONG = "This model's maximum context length is 8192 tokens."


@both
def test_failure_12_context_length_exceeded(bench: Bench, streamed: bool) -> None:
    bench.first.default = reply(400, error(400, TOO_LONG, "context_length_exceeded"))
    served_by_fallback(bench, bench.call(streamed=streamed), streamed)
    assert len(bench.first.posts) == 1
    answer = bench.call("single", streamed=streamed)
    assert (answer.status, answer.error["message"]) == (400, TOO_LONG)
    assert answer.error["code"] == "context_length_exceeded"
    assert len(bench.first.posts) == 2


@both
def test_failure_13_content_policy_violation(bench: Bench, streamed: bool) -> None:
    bench.first.default = reply(400, error(400, "That is not allowed here.", "content_policy_violation"))
    answer = bench.call(streamed=streamed)
    assert (answer.status, answer.error["message"]) == (400, "That is not allowed here.")
    assert answer.error["code"] == "content_policy_violation"
    assert len(bench.first.posts) == 1 and bench.second.posts == []


def test_failure_14_cut_and_the_fallback_refuses_a_prefix(bench: Bench) -> None:
    bench.first.play(stream(*NUMBERED[:40], FIN))
    bench.first.default = bench.second.default = no_prefix
    answer = bench.call()
    whole(bench, answer)
    assert "the last message" not in answer.body.decode()


@pytest.mark.timeout(60)
def test_failure_15_down_for_a_while(engine: Any, gateway: Any) -> None:
    bench = start(engine, gateway, failures=3, open_s=1)
    bench.first.default = reply(503, error(503))
    started = time.monotonic()
    for _ in range(12):
        answer = bench.call()
        assert answer.status == 200
        time.sleep(0.4)
    down_s = time.monotonic() - started
    assert len(bench.first.posts) <= 3 + down_s / 1 + 3, "the breaker did not open"
    bench.first.reset()

    def back() -> bool:
        answer = bench.call()
        assert answer.status == 200
        return answer.value("x-forebay-degraded") is None

    assert eventually(back, 30), "the engine is well again, but not used"
    assert bench.gateway.metric("forebay_requests_degraded_total", step="fallback") >= 10
    bench.gateway.common_ending()


@both
def test_failure_16_the_fallback_is_named_and_alone_is_billed(bench: Bench, streamed: bool) -> None:
    bench.first.default = reply(503, error(503))
    bench.second.default = lambda seen: (
        stream(D("ok"), STOP, USAGE(11, 7), DONE)
        if seen.json().get("stream")
        else reply(200, completion(model="m2", prompt=11, tokens=7))
    )
    options: Document = {"stream_options": {"include_usage": True}} if streamed else {}
    answer = bench.call(streamed=streamed, **options)
    served_by_fallback(bench, answer, streamed)
    row = bench.row(answer)
    assert (row["input_length"], row["output_length"], row["total_tokens"]) == (11, 7, 18)
    assert len(row["attempts"]) == len(bench.first.posts) + 1
    parts = [e.json() for e in answer.events if '"usage":{' in e.data] if streamed else [answer.json()]
    usage = [part["usage"] for part in parts]
    assert usage[-1]["prompt_tokens"] == 11 and usage[-1]["completion_tokens"] == 7


def test_the_scripted_bench_is_well(bench: Bench) -> None:
    for model in ("m", "m2", "single"):
        well_answered(bench.call(model), True)
        well_answered(bench.call(model, streamed=False), False)
