"""Each fault on the wire, byte for byte, and that the engine is well afterwards."""

import asyncio
import json
from typing import Any

import pytest
from engines.sim.caller import QUICK, Caller, Play, Raw, one, until
from msgspec.structs import replace

from forebay.engines.sim.calls import read as read_call
from forebay.engines.sim.exchange import Exchange, Stage, Work
from forebay.engines.sim.faults import WELL, AnyAction, Stall
from forebay.engines.sim.record import Seen
from forebay.engines.sim.shapes import Completions

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(("how", "end"), [("rst", "rst"), ("fin", "fin")])
@pytest.mark.parametrize("plain_loop", [False, True], ids=["uvloop", "asyncio"])
def test_reset_before_any_byte(play: Play, how: str, end: str, plain_loop: bool) -> None:
    async def scenario(caller: Caller) -> None:
        await caller.faults({"action": "reset", "how": how})
        assert await caller.chat(stream=True) == Raw(b"", end)

    play(scenario, plain_loop=plain_loop)


@pytest.mark.parametrize(("how", "end"), [("rst", "rst"), ("fin", "fin")])
@pytest.mark.parametrize("plain_loop", [False, True], ids=["uvloop", "asyncio"])
def test_cut_after_tokens(play: Play, how: str, end: str, plain_loop: bool) -> None:
    async def scenario(caller: Caller) -> None:
        await caller.faults({"action": "cut", "after_tokens": 3, "how": how})
        raw = await caller.chat(stream=True)
        assert (raw.text, raw.end) == ("t0 t1 t2", end)
        assert b"0\r\n\r\n" not in raw.data
        (seen,) = caller.server.log.entries()
        assert (seen.tokens, seen.disconnected_s) == (3, None)
        assert seen.ended_s is not None
        assert caller.server.stats()["sequences_aborted"] == 1

    play(scenario, plain_loop=plain_loop)


def test_cut_of_an_answer_without_stream(play: Play) -> None:
    def check(raw: Raw) -> None:
        assert raw == Raw(b"", "rst")

    one(play, {"action": "cut", "after_tokens": 2}, check)


def test_cut_beyond_the_end_never_happens(play: Play) -> None:
    def check(raw: Raw) -> None:
        assert raw.events[-1] == b"[DONE]"

    one(play, {"action": "cut", "after_tokens": 6}, check, stream=True)


def test_hang_sends_nothing_until_the_caller_leaves(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        await caller.faults({"action": "hang"})
        assert await caller.chat(wait_s=0.1) == Raw(b"", "open")
        await until(lambda: caller.server.log.entries()[0].disconnected_s is not None)
        await caller.faults({"action": "hang", "hold_s": 0.05})
        assert await caller.chat() == Raw(b"", "fin")

    play(scenario)


def test_stall_in_the_middle_then_close(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        await caller.faults(
            {"action": "stall", "after_tokens": 2}, {"action": "stall", "after_tokens": 2, "hold_s": 0.05}
        )
        silent = await caller.chat(stream=True, wait_s=0.15)
        assert (silent.text, silent.end) == ("t0 t1", "open")
        closed = await caller.chat(stream=True)
        assert (closed.text, closed.end) == ("t0 t1", "fin")
        assert b'finish_reason":"length' not in closed.data

    play(scenario)


def test_slow_start_sends_headers_at_once(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        slow = {"action": "slow_start", "delay_s": 0.2}
        await caller.faults(slow, slow, slow)
        early = await caller.chat(stream=True, wait_s=0.1)
        assert (early.status, early.body, early.end) == (200, b"", "open")
        assert await caller.chat(wait_s=0.1) == Raw(b"", "open")
        assert (await caller.chat(stream=True)).text == "t0 t1 t2 t3 t4"

    play(scenario)


@pytest.mark.parametrize(
    ("shape", "start"),
    [
        ("data", b'data: {"error":{"message":"boom"'),
        ("event", b'event: error\ndata: {"error":{"message":"boom"'),
        ("flat", b'data: {"object":"error","message":"boom"'),
    ],
)
def test_error_event_in_the_middle(play: Play, shape: str, start: bytes) -> None:
    def check(raw: Raw) -> None:
        assert start in raw.body
        assert raw.events[-1] == b"[DONE]"
        assert b'"content":" t1"' in raw.body
        assert b'"content":" t2"' not in raw.body
        assert b'"finish_reason":"length"' not in raw.body

    step = {"action": "error_event", "after_tokens": 2, "message": "boom", "shape": shape}
    one(play, step, check, stream=True)


def test_error_as_the_first_event_of_a_200(play: Play) -> None:
    def check(raw: Raw) -> None:
        assert raw.status == 200
        (event,) = raw.events
        assert json.loads(event)["error"]["code"] == 500

    one(play, {"action": "error_event", "after_tokens": 0, "done": False}, check, stream=True)


def test_error_event_without_stream_is_a_status(play: Play) -> None:
    def check(raw: Raw) -> None:
        assert (raw.status, raw.json["error"]["message"]) == (503, "boom")

    one(play, {"action": "error_event", "after_tokens": 2, "message": "boom", "code": 503}, check)


def test_one_event_is_not_json(play: Play) -> None:
    def check(raw: Raw) -> None:
        broken = []
        for number, event in enumerate(raw.events[:-1], start=1):
            try:
                json.loads(event)
            except ValueError:
                broken.append(number)
        assert broken == [4]
        assert raw.events[-1] == b"[DONE]"
        assert len(raw.events) == 8

    one(play, {"action": "bad_event", "event": 4}, check, stream=True)


def test_no_done(play: Play) -> None:
    def check(raw: Raw) -> None:
        assert json.loads(raw.events[-1])["choices"][0]["finish_reason"] == "length"
        assert raw.end == "fin"
        assert raw.data.endswith(b"0\r\n\r\n")

    one(play, {"action": "no_done"}, check, stream=True)


def test_no_done_and_held_open(play: Play) -> None:
    def check(raw: Raw) -> None:
        assert json.loads(raw.events[-1])["choices"][0]["finish_reason"] == "length"
        assert raw.end == "open"

    async def scenario(caller: Caller) -> None:
        await caller.faults({"action": "no_done", "hold": True}, {"action": "no_done", "hold": True, "hold_s": 0.05})
        check(await caller.chat(stream=True, wait_s=0.15))
        assert (await caller.chat(stream=True)).end == "fin"

    play(scenario)


@pytest.mark.parametrize("done", [True, False])
def test_no_finish_reason(play: Play, done: bool) -> None:
    def check(raw: Raw) -> None:
        assert raw.text == "t0 t1 t2 t3 t4"
        assert b'"finish_reason":"' not in raw.body
        assert (raw.events[-1] == b"[DONE]") is done

    one(play, {"action": "no_finish", "done": done}, check, stream=True)


@pytest.mark.parametrize("merged", [False, True])
def test_finish_reason_abort(play: Play, merged: bool) -> None:
    async def scenario(caller: Caller) -> None:
        await caller.faults(*[{"action": "abort_finish", "after_tokens": 2}] * 2)
        raw = await caller.chat(stream=True)
        assert raw.text == "t0 t1"
        assert json.loads(raw.events[-2])["choices"][0]["finish_reason"] == "abort"
        assert raw.events[-1] == b"[DONE]"
        choice = (await caller.chat()).json["choices"][0]
        assert (choice["finish_reason"], choice["message"]["content"]) == ("abort", "t0 t1")

    play(scenario, spec=replace(QUICK, finish_with_last_token=merged))


def test_garbage_instead_of_http(play: Play) -> None:
    def check(raw: Raw) -> None:
        assert not raw.data.startswith(b"HTTP/")
        assert raw.data
        assert raw.end == "fin"

    one(play, {"action": "garbage"}, check)


def test_chunks_that_are_none(play: Play) -> None:
    def check(raw: Raw) -> None:
        assert raw.text == "t0 t1"
        assert raw.data.endswith(b"zz\r\nthis is no chunk\r\n")

    one(play, {"action": "bad_chunk", "after_tokens": 2}, check, stream=True)


def test_a_body_shorter_than_promised(play: Play) -> None:
    def check(raw: Raw) -> None:
        promised = int(raw.head.split("content-length: ")[1].split("\r\n")[0])
        assert len(raw.body) == promised // 2
        assert raw.end == "fin"

    one(play, {"action": "short_body"}, check)


def test_a_frozen_core_behind_a_healthy_face(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        running = asyncio.ensure_future(caller.chat(stream=True, max_tokens=400))
        await until(lambda: caller.server.stats()["sequences_running"] == 1)
        await caller.faults({"action": "freeze"})
        frozen = asyncio.ensure_future(caller.chat(stream=True))
        await until(lambda: caller.server.log.attempts == 2)
        before = [seen.tokens for seen in caller.server.log.entries()]
        await asyncio.sleep(0.05)
        assert [seen.tokens for seen in caller.server.log.entries()] == before
        assert (await caller.get("/health")).status == 200
        assert not running.done()
        caller.server.reset()
        assert (await running).text.endswith(" t399")
        assert (await frozen).text == "t0 t1 t2 t3 t4"

    play(scenario)


def test_a_core_frozen_for_a_while_goes_on_by_itself(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        await caller.faults({"action": "freeze", "hold_s": 0.1})
        assert (await caller.chat(stream=True)).text == "t0 t1 t2 t3 t4"

    play(scenario)


class Narrow:
    """A connection whose caller reads when the test says so."""

    def __init__(self) -> None:
        self.paused = False
        self.listener: Exchange | None = None
        self.sent: list[bytes] = []

    def begin(self) -> None: ...

    def send(self, data: bytes, last: bool = False) -> None:
        self.sent.append(data)


class HandCore:
    """A core whose tokens the test makes."""

    def submit(self, prompt_tokens: int, max_tokens: int, priority: int, sink: Exchange) -> int:
        return 1

    def abort(self, seq_id: int) -> None: ...


def by_hand(action: AnyAction) -> tuple[Exchange, Any, Seen]:
    """A stream of six tokens that the test makes itself."""
    call = read_call("completions", b'{"prompt": "a", "max_tokens": 6, "stream": true}', QUICK)
    work = Work(1, 6, 0, True, False, Completions(call, QUICK, "cmpl-1", 0))
    core: Any = HandCore()
    loop: Any = None
    seen = Seen(
        number=1,
        arrived_s=0,
        method="POST",
        path="/",
        headers=[],
        body_bytes=0,
        body=b"",
        connection=1,
        nth=1,
    )
    connection: Any = Narrow()
    stage = Stage(core, loop, lambda: 0.0, lambda seen, status: None, lambda: None)
    return Exchange(stage, work, action, seen, connection), connection, seen


def test_a_slow_reader_gets_tokens_together_and_all_of_them() -> None:
    exchange, connection, seen = by_hand(WELL)
    exchange.start()
    exchange.token(1, last=False)
    connection.paused = True
    for made in range(2, 7):
        exchange.token(made, last=made == 6)
    assert len(connection.sent) == 1
    connection.paused = False
    exchange.client_ready()
    exchange.client_ready()
    first, rest = connection.sent
    assert b'"text":"t0"' in first
    assert b'"text":" t1 t2 t3 t4 t5"' in rest
    assert rest.endswith(b"data: [DONE]\n\n")
    assert (seen.tokens, seen.ended_s) == (6, 0.0)


def test_a_stalled_stream_stays_silent_when_its_reader_catches_up() -> None:
    exchange, connection, seen = by_hand(Stall(after_tokens=2))
    exchange.start()
    connection.paused = True
    exchange.token(3, last=False)
    connection.paused = False
    exchange.client_ready()
    exchange.client_ready()
    assert len(connection.sent) == 1
    assert b'"text":"t0 t1"' in connection.sent[0]
    assert seen.tokens == 2


@pytest.mark.parametrize(
    ("path", "body", "last"),
    [
        ("/v1/responses", {"input": "a", "stream": True}, b"event: error"),
        (
            "/v1/messages",
            {"messages": [{"role": "user", "content": "a"}], "max_tokens": 9, "stream": True},
            b"event: error",
        ),
    ],
)
def test_the_newer_endpoints_fail_in_their_own_shape(play: Play, path: str, body: dict[str, Any], last: bytes) -> None:
    async def scenario(caller: Caller) -> None:
        await caller.faults({"action": "error_event", "after_tokens": 2, "shape": "event", "done": False})
        raw = await caller.post(path, body)
        assert last in raw.body
        assert json.loads(raw.events[-1])["type"] == "error"
        assert b" t2" not in raw.body

    play(scenario)


def test_any_work_takes_a_step_and_a_bad_request_none(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        await caller.faults({"action": "status", "status": 500})
        assert (await caller.chat(model="x")).status == 404
        assert (await caller.post("/tokenize", {"prompt": "a"})).status == 200
        assert caller.server.stats()["faults_left"] == 1
        assert (await caller.post("/v1/embeddings", {"input": "a"})).status == 500
        assert (await caller.post("/v1/embeddings", {"input": "a"})).status == 200

    play(scenario)


def test_a_bad_script_is_refused_and_the_old_one_stays(play: Play) -> None:
    async def scenario(caller: Caller) -> None:
        await caller.faults({"action": "reset"})
        raw = await caller.post("/sim/faults", [{"action": "explode"}])
        assert (raw.status, "explode" in raw.json["error"]["message"]) == (400, True)
        assert caller.server.stats()["faults_left"] == 1

    play(scenario)
