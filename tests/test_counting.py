"""Prompts counted by engines: what is asked of each kind, and that nothing that goes wrong is felt."""

import asyncio
import json
import socket
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from engines.sim.caller import QUICK

from forebay import counting
from forebay.clock import ManualClock, SystemClock
from forebay.counting import MAX_AT_ONCE, MAX_BODY_BYTES, Counter
from forebay.domain import FailureKind, Replica, Tenant
from forebay.edge.body import Asked, read
from forebay.engines import embedded
from forebay.engines.sim import serve
from forebay.policy import EngineKind, Model, Policy, Pool
from forebay.routing.pool import Fleet
from forebay.routing.replica import ReplicaState
from forebay.traffic import Call
from forebay.upstream.connections import Connections
from forebay.upstream.fetch import Fetcher
from forebay.wire.endpoints import BY_PATH

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
# Escapes that decoding and encoding would not keep.
RAW = b'[{"role" : "user", "content": "caf\\u00e9 \\/ \\u4f60 1e2"}]'
MESSAGES = [{"role": "user", "content": "Hello 你好 🐙 <|im_end|>\n"}]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}]
COUNT = (200, b'{"tokens":[1,2,3],"max_model_len":9,"count":3}')
Answer = tuple[int, bytes] | Exception


async def asked_of(body: dict[str, Any] | bytes, path: str = CHAT) -> tuple[Call, Asked]:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    asked = await read(raw, BY_PATH[path], 128)
    return Call("c", BY_PATH[path], "m", False, False, Tenant("a"), 1, 1, (), 0.0, 9.0), asked


def policy_of(engine: EngineKind, *replicas: Replica, upstream: str = "") -> Policy:
    return Policy({"main": Pool("main", engine, replicas)}, {"m": Model("m", "main", upstream)}, {})


class Desk:
    """A counter before engines that give the answers of a script."""

    def __init__(self, engine: EngineKind, *answers: Answer, names: str = "r", upstream: str = "") -> None:
        self.policy = policy_of(engine, *(Replica(name, "h", 1) for name in names), upstream=upstream)
        self.fleet = Fleet(ManualClock(100.0))
        self.fleet.apply(self.policy)
        self.counter = Counter(self.fleet, self.post)
        self.script = list(answers)
        self.asked: list[tuple[str, str, bytes]] = []
        self.hold: asyncio.Event | None = None

    async def post(self, replica: Replica, path: str, body: bytes, timeout_s: float) -> tuple[int, bytes]:
        assert timeout_s == counting.TIMEOUT_S
        self.asked.append((replica.name, path, body))
        if self.hold is not None:
            await self.hold.wait()
        answer = self.script.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def count(self, body: dict[str, Any] | bytes, path: str = CHAT) -> int | None:
        return await self.counter.count(*await asked_of(body, path), self.policy)

    def state(self, name: str) -> ReplicaState:
        return next(state for state in self.fleet.states("main") if state.replica.name == name)

    @property
    def tally(self) -> tuple[int, int, int]:
        return self.counter.counted, self.counter.failed, self.counter.skipped


@pytest.mark.parametrize("engine", ["vllm", "sglang", "llamacpp"])
def test_a_text_is_counted_as_it_is(engine: EngineKind) -> None:
    desk = Desk(engine, COUNT, names="ab")
    assert asyncio.run(desk.counter.count_text("main", b'"u"', 'a "🐙"', frozenset("a"))) == 3
    ((name, path, sent),) = desk.asked
    bare = {"add_special": False, "content": 'a "🐙"'}
    if engine != "llamacpp":
        bare = {"add_special_tokens": False, "prompt": 'a "🐙"'}
    assert (name, path, json.loads(sent)) == ("b", "/tokenize", {"model": "u"} | bare)
    assert desk.tally == (0, 0, 0), "these figures are of prompts"


@pytest.mark.parametrize("answer", [(404, b"{}"), (200, b"[]"), (200, b'{"count":0}'), ConnectionResetError()])
def test_a_text_that_nobody_counts(answer: Answer) -> None:
    desk = Desk("vllm", *(answer,) * 3)
    for _ in range(5):
        assert asyncio.run(desk.counter.count_text("main", b'"m"', "a", frozenset())) is None
    assert len(desk.asked) == 3, "an engine that cannot is left alone for a while"
    assert asyncio.run(desk.counter.count_text("main", b'"m"', "a", frozenset("r"))) is None
    assert asyncio.run(Desk("openai").counter.count_text("main", b'"m"', "a", frozenset())) is None


def test_texts_wait_for_each_other_but_not_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scene() -> None:
        desk = Desk("vllm", *(COUNT,) * 20)
        desk.hold = asyncio.Event()
        counts = [asyncio.ensure_future(desk.counter.count_text("main", b'"m"', "a", frozenset())) for _ in range(12)]
        while len(desk.asked) < MAX_AT_ONCE:
            await asyncio.sleep(0)
        desk.hold.set()
        assert await asyncio.gather(*counts) == [3] * 12
        desk.hold.clear()
        monkeypatch.setattr(counting, "TIMEOUT_S", 0.01)
        counts = [asyncio.ensure_future(desk.counter.count_text("main", b'"m"', "a", frozenset())) for _ in range(12)]
        assert await asyncio.gather(*counts) == [None] * 12

    asyncio.run(scene())


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_a_chat_is_sent_as_it_came(engine: EngineKind) -> None:
    desk = Desk(engine, COUNT, upstream='org/"m"')
    kwargs = b'"chat_template_kwargs":{"a" :1}, "tools": null, "temperature":0.5, "stream":true, "prompt":"no"'
    assert asyncio.run(desk.count(b'{"model":"m", "messages":%b, %b}' % (RAW, kwargs))) == 3
    sent = b'{"model":"org/\\"m\\"","messages":%b,"chat_template_kwargs":{"a" :1}}' % RAW
    assert desk.asked == [("r", "/tokenize", sent)]
    assert desk.tally == (1, 0, 0)


def test_tools_are_counted_too() -> None:
    desk = Desk("vllm", COUNT)
    asyncio.run(desk.count({"messages": MESSAGES, "tools": TOOLS, "add_generation_prompt": False}))
    sent = json.loads(desk.asked[0][2])
    assert sent == {"model": "m", "messages": MESSAGES, "tools": TOOLS, "add_generation_prompt": False}


def test_a_completion() -> None:
    desk = Desk("vllm", COUNT)
    assert asyncio.run(desk.count(b'{"prompt":"\\u4f60","messages":[]}', COMPLETIONS)) == 3
    assert desk.asked == [("r", "/tokenize", b'{"model":"m","prompt":"\\u4f60"}')]


def test_llamacpp_renders_first() -> None:
    desk = Desk(
        "llamacpp", (200, b'{"prompt": "<s>\\u4f60", "x": 1}'), (200, b'{"tokens": [5, 6,\n7, 8]}'), upstream="u"
    )
    assert asyncio.run(desk.count(b'{"model":"m","messages":%b,"reasoning_format":"none"}' % RAW)) == 4
    chat = b'{"model":"u","messages":%b,"reasoning_format":"none"}' % RAW
    text = b'{"model":"u","add_special":true,"content":"<s>\\u4f60"}'
    assert desk.asked == [("r", "/apply-template", chat), ("r", "/tokenize", text)]


def test_llamacpp_takes_a_prompt_as_it_is() -> None:
    desk = Desk("llamacpp", (200, b'{"tokens":[5]}'))
    assert asyncio.run(desk.count({"prompt": "x"}, COMPLETIONS)) == 1
    assert desk.asked == [("r", "/tokenize", b'{"model":"m","add_special":true,"content":"x"}')]


@pytest.mark.parametrize(
    ("engine", "answers"),
    [
        ("vllm", [(400, COUNT[1])]),
        ("vllm", [(200, b"")]),
        ("vllm", [(200, b"\xff")]),
        ("vllm", [(200, b'{"tokens":[1]}')]),
        ("vllm", [(200, b'{"count":[1]}')]),
        ("vllm", [(200, b'{"count":0}')]),
        ("vllm", [(200, b'{"count":-4}')]),
        ("vllm", [TimeoutError()]),
        ("vllm", [ConnectionRefusedError()]),
        ("llamacpp", [(404, b"{}")]),
        ("llamacpp", [(200, b"{}")]),
        ("llamacpp", [(200, b'{"prompt":"x"}'), (200, b'{"tokens":[ ]}')]),
        ("llamacpp", [(200, b'{"prompt":"x"}'), (200, b'{"tokens":"1,2"}')]),
        ("llamacpp", [(200, b'{"prompt":"x"}'), OSError("gone")]),
    ],
)
def test_a_failure_is_no_count(engine: EngineKind, answers: list[Answer]) -> None:
    desk = Desk(engine, *answers)
    for _ in range(3):
        desk.script = list(answers)
        assert asyncio.run(desk.count({"messages": MESSAGES})) is None
        assert desk.script == []
    assert desk.tally == (0, 3, 0)
    assert (desk.state("r").breaker.failures, desk.state("r").in_flight) == (0, 0), "a count is no call"


@pytest.mark.parametrize(
    ("engine", "path", "body"),
    [
        ("openai", CHAT, {"messages": MESSAGES}),
        ("vllm", CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]}),
        ("vllm", CHAT, {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]}),
        ("vllm", CHAT, {"messages": MESSAGES, "documents": []}),
        ("vllm", COMPLETIONS, {"prompt": ["a", "b"]}),
        ("llamacpp", COMPLETIONS, {"prompt": [1, 2]}),
        ("vllm", COMPLETIONS, {"": "x"}),
        ("vllm", "/v1/embeddings", {"input": "x"}),
        ("vllm", "/v1/responses", {"input": "x"}),
        ("vllm", "/v1/messages", {"messages": MESSAGES}),
        ("vllm", CHAT, {"messages": [], "padding": "x" * MAX_BODY_BYTES}),
    ],
)
def test_what_cannot_be_counted_is_not_asked_about(engine: EngineKind, path: str, body: dict[str, Any]) -> None:
    desk = Desk(engine)
    assert asyncio.run(desk.count(body, path)) is None
    assert (desk.asked, desk.tally) == ([], (0, 0, 1))


def test_a_model_that_is_gone_is_not_asked_about() -> None:
    desk = Desk("vllm")
    desk.policy = Policy({}, {}, {})
    assert asyncio.run(desk.count({"messages": MESSAGES})) is None
    assert desk.tally == (0, 0, 1)


def test_the_least_busy_replica_that_seems_well_is_asked() -> None:
    desk = Desk("vllm", COUNT, names="abcdef")
    desk.state("a").in_flight = 3
    desk.state("b").up = False
    desk.state("c").loading = True
    desk.state("d").drained = True
    for _ in range(5):
        desk.state("e").breaker.failed(FailureKind.RESET, 100.0)
    desk.state("f").in_flight = 2
    assert asyncio.run(desk.count({"messages": MESSAGES})) == 3
    assert desk.asked[0][0] == "f"


def test_without_a_replica_that_is_well_nothing_is_asked() -> None:
    desk = Desk("vllm")
    desk.state("r").drained = True
    assert asyncio.run(desk.count({"messages": MESSAGES})) is None
    assert desk.tally == (0, 0, 1)


def test_so_many_at_once_and_no_more() -> None:
    async def main() -> None:
        desk = Desk("vllm", *[COUNT] * (MAX_AT_ONCE + 1))
        desk.hold = asyncio.Event()
        running = [asyncio.ensure_future(desk.count({"messages": MESSAGES})) for _ in range(MAX_AT_ONCE)]
        while len(desk.asked) < MAX_AT_ONCE:
            await asyncio.sleep(0)
        assert await desk.count({"messages": MESSAGES}) is None
        running.pop().cancel()
        await asyncio.sleep(0)
        desk.hold.set()
        assert await asyncio.gather(*running) == [3] * (MAX_AT_ONCE - 1)
        assert await desk.count({"messages": MESSAGES}) == 3, "places come back, also of clients that left"
        assert desk.tally == (MAX_AT_ONCE, 0, 1)

    asyncio.run(main())


def test_both_steps_share_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "TIMEOUT_S", 0.02)

    async def main() -> None:
        desk = Desk("llamacpp", (200, b'{"prompt":"x"}'))
        desk.hold = asyncio.Event()
        assert await desk.count({"messages": MESSAGES}) is None
        assert desk.tally == (0, 1, 0)

    asyncio.run(main())


BODIES: list[tuple[str, dict[str, Any]]] = [
    (CHAT, {"messages": MESSAGES}),
    (
        CHAT,
        {"messages": [{"role": "system", "content": "Be brief."}, *MESSAGES, {"role": "assistant", "content": "I"}]},
    ),
    (CHAT, {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]}),
    (CHAT, {"messages": MESSAGES, "tools": TOOLS, "response_format": {"type": "json_object"}}),
    (CHAT, {"messages": [{"role": "user", "content": "Hello there. " * 90}]}),
    (COMPLETIONS, {"prompt": "Hello <|im_start|> you\n"}),
]


async def counted_and_used(kind: EngineKind, port: int, model: str) -> list[tuple[int | None, int]]:
    """Return for each body the count, and what the engine says of a call with it."""
    loop = asyncio.get_running_loop()
    connections = Connections(loop, SystemClock())
    fetch = Fetcher(loop, connections)
    replica = Replica(f"127.0.0.1:{port}", "127.0.0.1", port)
    policy = policy_of(kind, replica, upstream=model)
    fleet = Fleet(SystemClock())
    fleet.apply(policy)
    counter = Counter(fleet, fetch.post)
    pairs = []
    for path, body in BODIES:
        call, asked = await asked_of({"model": "m", "max_tokens": 1} | body, path)
        counted = await counter.count(call, asked, policy)
        sent = json.dumps({"model": model, "max_tokens": 1} | body).encode()
        status, answer = await fetch.post(replica, path, sent, 60.0)
        assert status == 200, answer
        pairs.append((counted, json.loads(answer)["usage"]["prompt_tokens"]))
    connections.close()
    await asyncio.sleep(0.01)
    return pairs


@pytest.mark.integration
def test_a_simulated_engine_uses_what_was_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "TIMEOUT_S", 20.0)

    async def main() -> list[tuple[int | None, int]]:
        server = await serve(QUICK, "127.0.0.1", 0, SystemClock())
        try:
            return await counted_and_used("vllm", server.port, "sim")
        finally:
            await server.close()

    pairs = asyncio.run(main())
    assert [counted for counted, _ in pairs] == [used for _, used in pairs]


@pytest.fixture
def embedded_port() -> Iterator[int]:
    """The port of a running embedded engine."""
    if embedded.available() is not None:
        pytest.skip("needs the demo extra")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(embedded.command(port), stdin=subprocess.PIPE, stdout=quiet, stderr=quiet) as process:
        deadline_s = time.monotonic() + 60
        while not healthy(port):
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.05)
        yield port
        process.kill()


def healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=2) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@pytest.mark.engine
@pytest.mark.integration
def test_the_embedded_engine_uses_what_was_counted(embedded_port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counting, "TIMEOUT_S", 20.0)
    pairs = asyncio.run(counted_and_used("llamacpp", embedded_port, embedded.MODEL_ALIAS))
    assert [counted for counted, _ in pairs] == [used for _, used in pairs]
    assert len({counted for counted, _ in pairs}) > 3
