"""An engine that does exactly what a test scripts, byte by byte, and records all that it sees.

It runs in a thread with an event loop of its own, so tests stay synchronous. Each POST consumes one
answer of the script; the probes (`/health`, `/v1/models`, `/metrics`, `/version`) have answers of
their own, so that background polling never eats the script.
"""

import asyncio
import json
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from notation import DONE, FIN, RST, STOP, USAGE, Answer, D, End, Until, Wait, completion, event, reply, stream


@dataclass(eq=False)
class Seen:
    """One request as it reached the engine."""

    method: str
    target: str
    headers: list[tuple[str, str]]
    body: bytes
    connection: int
    nth: int  # 1 for the first request on its connection
    arrived_s: float
    closed_s: float | None = None  # when the peer was seen to leave while the answer was being given
    answered: bool = False

    def values(self, name: str) -> list[str]:
        """Every value of a header, in order."""
        return [value for key, value in self.headers if key.lower() == name.lower()]

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def head_text(self) -> str:
        """Target and headers, to search for what must not be there."""
        return self.target + "\n" + "\n".join(f"{key}: {value}" for key, value in self.headers)


Script = Answer | Callable[[Seen], Answer]


def well(seen: Seen) -> Answer:
    """Answer as a healthy engine would, on chat, completions and embeddings, streamed or not."""
    body = seen.json()
    model, usage = body["model"], {"prompt_tokens": 2, "total_tokens": 2}
    if seen.target.endswith("/embeddings"):
        data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
        return reply(200, {"object": "list", "model": model, "data": data, "usage": usage})
    text_key = "text" if not seen.target.endswith("/chat/completions") else ""
    if body.get("stream"):
        wants_usage = (body.get("stream_options") or {}).get("include_usage")
        usage_part = (USAGE(2, 1),) if wants_usage else ()
        if text_key:
            pieces = [event({"id": "t1", "model": model, "choices": [_text("ok", None)]})]
            pieces.append(event({"id": "t1", "model": model, "choices": [_text("", "stop")]}))
            return stream(*pieces, *usage_part, DONE, gap_s=0)
        return stream(D("ok"), STOP, *usage_part, DONE, gap_s=0)
    if text_key:
        counted = {**usage, "completion_tokens": 1, "total_tokens": 3}
        return reply(200, {"id": "t1", "model": model, "choices": [_text("ok", "stop")], "usage": counted})
    return reply(200, completion(model))


def _text(text: str, finish_reason: str | None) -> dict[str, Any]:
    return {"index": 0, "text": text, "finish_reason": finish_reason}


ENGINE_METRICS = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 0.0
# TYPE vllm:num_requests_waiting gauge
vllm:num_requests_waiting{engine="0",model_name="m"} 0.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.0
"""


@dataclass
class ScriptedEngine:
    """An engine on a free port of the loopback; a context manager.

    Attributes:
        default: the answer when the script is empty.
        probes: answers to GET by path, without the query.
        idle_timeout_s: when set, idle connections are closed after this long.
        requests: everything seen, probes included.
        accepted: connections accepted so far.
    """

    models: tuple[str, ...] = ("m",)
    idle_timeout_s: float | None = None
    base_path: str = ""
    default: Script = well
    script: deque[Script] = field(default_factory=deque)
    probes: dict[str, Answer] = field(default_factory=dict)
    requests: list[Seen] = field(default_factory=list)
    accepted: int = 0
    port: int = 0

    def __post_init__(self) -> None:
        self._open: set[_Connection] = set()
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop: asyncio.Event | None = None
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self.healthy_probes()

    def healthy_probes(self) -> None:
        """Answer every probe as an engine that is up."""
        models = {"object": "list", "data": [{"id": name, "object": "model"} for name in self.models]}
        self.probes["/health"] = reply(200, b"")
        self.probes["/v1/models"] = reply(200, models)
        self.probes["/metrics"] = reply(200, ENGINE_METRICS)
        self.probes["/version"] = reply(200, {"version": "0.32.0"})

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(5), "the scripted engine did not start"
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Close the port and every connection; may be called twice."""
        if self._loop is not None and self._stop is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join(5)

    @property
    def url(self) -> str:
        """The address to configure."""
        return f"http://127.0.0.1:{self.port}{self.base_path}"

    @property
    def name(self) -> str:
        """The name of this replica in journal and metrics."""
        return f"127.0.0.1:{self.port}{self.base_path}"

    @property
    def posts(self) -> list[Seen]:
        """Every generation request, in order of arrival."""
        return [seen for seen in list(self.requests) if seen.method == "POST"]

    @property
    def open_connections(self) -> int:
        """Connections open at this moment."""
        return len(self._open)

    def play(self, *answers: Script) -> None:
        """Add answers to the script, one per generation request."""
        self.script.extend(answers)

    def reset(self) -> None:
        """Forget script and record, and be healthy again; connections stay."""
        self.script.clear()
        self.requests.clear()
        self.default = well
        self.healthy_probes()

    def answer_to(self, seen: Seen) -> Answer:
        """Choose the answer to a request."""
        self.requests.append(seen)
        if seen.method != "POST":
            path = seen.target.split("?")[0].removeprefix(self.base_path)
            return self.probes.get(path, reply(404, {"detail": "Not Found"}))
        script = self.script.popleft() if self.script else self.default
        return script if isinstance(script, Answer) else script(seen)

    def connected(self, connection: "_Connection") -> int:
        """Count a new connection and return its number."""
        self._open.add(connection)
        self.accepted += 1
        return self.accepted

    def disconnected(self, connection: "_Connection") -> None:
        """Forget a connection."""
        self._open.discard(connection)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = await self._loop.create_server(lambda: _Connection(self), "127.0.0.1", self.port, backlog=1024)
        self.port = server.sockets[0].getsockname()[1]
        self._ready.set()
        await self._stop.wait()
        server.close()
        for connection in list(self._open):
            connection.transport.abort()
        await asyncio.sleep(0)


class _Connection(asyncio.Protocol):
    """One connection to the scripted engine: parse, record, play."""

    transport: asyncio.Transport

    def __init__(self, engine: ScriptedEngine) -> None:
        self._engine = engine
        self._buffer = bytearray()
        self._arrived = asyncio.Event()
        self._now: Seen | None = None
        self._count = 0
        self._idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        self._number = self._engine.connected(self)
        self._task = asyncio.get_running_loop().create_task(self._serve())
        self._arm_idle()

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        self._arrived.set()
        if self._idle is not None:
            self._idle.cancel()

    def eof_received(self) -> bool:
        self._peer_left()
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._peer_left()
        self._engine.disconnected(self)
        self._task.cancel()
        if self._idle is not None:
            self._idle.cancel()

    def _peer_left(self) -> None:
        if self._now is not None and self._now.closed_s is None:
            self._now.closed_s = time.monotonic()

    def _arm_idle(self) -> None:
        if self._engine.idle_timeout_s is not None and not self._buffer:
            self._idle = asyncio.get_running_loop().call_later(self._engine.idle_timeout_s, self.transport.close)

    async def _serve(self) -> None:
        while True:
            self._now = await self._next_request()
            answer = self._engine.answer_to(self._now)
            await self._play(answer)
            self._now.answered = True
            self._now = None
            self._arm_idle()

    async def _next_request(self) -> Seen:
        while (found := parse_request(self._buffer)) is None:
            self._arrived.clear()
            await self._arrived.wait()
        (method, target, headers, body), used = found
        del self._buffer[:used]
        self._count += 1
        return Seen(method, target, headers, body, self._number, self._count, time.monotonic())

    async def _play(self, answer: Answer) -> None:
        for step in answer.steps:
            if isinstance(step, bytes):
                self.transport.write(step)
                if answer.gap_s:
                    await asyncio.sleep(answer.gap_s)
            elif isinstance(step, Wait):
                await asyncio.sleep(step.seconds)
            elif isinstance(step, Until):
                while not step.event.is_set():
                    await asyncio.sleep(0.005)
            else:
                await self._end(step)

    async def _end(self, end: End) -> None:
        if end is RST:
            linger = struct.pack("ii", 1, 0)
            self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            self._now = None  # our own doing, not the peer's
            self.transport.abort()
        elif end is FIN:
            self._now = None
            self.transport.close()
        await asyncio.Event().wait()


Parsed = tuple[str, str, list[tuple[str, str]], bytes]


def parse_request(buffer: bytearray) -> tuple[Parsed, int] | None:
    """Parse one whole request off the start of the buffer: its parts and its length, or None while it is short."""
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    first, *lines = buffer[:end].decode("latin-1").split("\r\n")
    method, target, _ = first.split(" ")
    headers = [(name, value.strip()) for name, _, value in (line.partition(":") for line in lines)]
    fields = {name.lower(): value for name, value in headers}
    if "chunked" in fields.get("transfer-encoding", ""):
        dechunked = parse_chunks(buffer, end + 4)
        return None if dechunked is None else ((method, target, headers, dechunked[0]), dechunked[1])
    stop = end + 4 + int(fields.get("content-length", "0"))
    if len(buffer) < stop:
        return None
    return (method, target, headers, bytes(buffer[end + 4 : stop])), stop


def parse_chunks(buffer: bytes | bytearray, at: int) -> tuple[bytes, int] | None:
    """Join the chunks that start at an offset: the payload and where it ends, or None while it is short."""
    payload = bytearray()
    while (line_end := buffer.find(b"\r\n", at)) >= 0:
        size = int(bytes(buffer[at:line_end]).split(b";")[0], 16)
        at = line_end + 2
        if len(buffer) < at + size + 2:
            return None
        payload += buffer[at : at + size]
        at += size + 2
        if size == 0:
            return bytes(payload), at
    return None
