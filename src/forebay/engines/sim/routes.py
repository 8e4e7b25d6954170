"""Who answers what at a simulated engine: vLLM's routes, and `/sim/…` to steer it and look inside."""

import asyncio
import uuid
from collections.abc import Callable
from email.utils import formatdate
from urllib.parse import parse_qs

import msgspec

from forebay.clock import Clock
from forebay.engines.sim import calls, faults, pooling
from forebay.engines.sim.calls import Call, Endpoint
from forebay.engines.sim.core import Core
from forebay.engines.sim.dialects import Messages, Responses
from forebay.engines.sim.errors import SimError, error_body, messages_error_body, type_of
from forebay.engines.sim.exchange import Exchange, Stage, Work
from forebay.engines.sim.faults import AnyAction, FaultScript, Garbage, Loading, Telemetry
from forebay.engines.sim.http import Connection, HttpRequest
from forebay.engines.sim.metrics import CONTENT_TYPE
from forebay.engines.sim.pooling import Pooled
from forebay.engines.sim.record import RequestLog, Seen
from forebay.engines.sim.refusals import refusal
from forebay.engines.sim.shapes import Chat, Completions, Dialect
from forebay.engines.sim.spec import SimSpec

_GENERATION: dict[str, tuple[Endpoint, str, Callable[[Call, SimSpec, str, int], Dialect]]] = {
    "/v1/chat/completions": ("chat", "chatcmpl-", Chat),
    "/v1/completions": ("completions", "cmpl-", Completions),
    "/v1/responses": ("responses", "resp_", Responses),
    "/v1/messages": ("messages", "chatcmpl-", Messages),
}
_POOLING: dict[str, tuple[str, Callable[[bytes, SimSpec, str, int], Pooled]]] = {
    "/v1/embeddings": ("embd-", pooling.embeddings),
    "/v1/rerank": ("rerank-", pooling.rerank),
    "/v2/rerank": ("rerank-", pooling.rerank),
    "/rerank": ("rerank-", pooling.rerank),
    "/v1/score": ("score-", pooling.score),
    "/score": ("score-", pooling.score),
}
_TEXT: dict[str, Callable[[bytes, SimSpec], bytes]] = {
    "/tokenize": pooling.tokenize,
    "/detokenize": pooling.detokenize,
}
_HEALTH = frozenset({"/health", "/ping"})
_READ = frozenset({"/version", "/load", "/metrics", "/v1/models", "/openapi.json"})
_WORK = _GENERATION.keys() | _POOLING.keys()
_POST = _WORK | _TEXT.keys()
_PATHS = _POST | _HEALTH | _READ

_TEXT_PLAIN = b"text/plain; charset=utf-8"


class _Prepared:
    """The dialect of an answer that is made already."""

    done = b""

    def __init__(self, body: bytes) -> None:
        self._body = body

    def opening(self) -> list[bytes]:
        return []

    def delta(self, first: int, stop: int, reason: str | None) -> list[bytes]:
        return []

    def closing(self, total: int, reason: str | None) -> list[bytes]:
        return []

    def whole(self, total: int, reason: str | None) -> bytes:
        return self._body

    def error(self, fault: faults.ErrorEvent) -> bytes:
        return b""


class SimApp:
    """The state of one simulated engine behind its connections.

    Args:
        spec: what it is.
        clock: a running one.
        loop: that everything happens on.
    """

    def __init__(self, spec: SimSpec, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self.spec = spec
        self.core = Core(spec, clock, loop)
        self.log = RequestLog()
        self.accepted = 0
        self.on_death: Callable[[], None] = self.close
        self._clock = clock
        self._started_s = clock.now_s()
        self._script = FaultScript((), self._started_s)
        self._connections: set[Connection] = set()
        self._opened = 0
        self._stage = Stage(self.core, loop, self._elapsed_s, self._answered, lambda: self.on_death())

    def set_faults(self, steps: tuple[AnyAction, ...]) -> None:
        """Replace the script; the turn of its first step begins now."""
        self._script = FaultScript(steps, self._clock.now_s())

    def reset(self) -> None:
        """Be well again: no faults, a core that runs, an empty log, counters at 0; running calls go on."""
        self.set_faults(())
        self.core.thaw()
        self.log.clear()
        self.core.aborted = 0
        self.accepted = 0

    def stats(self) -> dict[str, int]:
        """Return the counters and gauges that tests look at."""
        model = self.core.model
        return {
            "connections_accepted": self.accepted,
            "connections_open": len(self._connections),
            "calls_open": sum(connection.listener is not None for connection in self._connections),
            "sequences_active": self.core.active,
            "sequences_running": model.running,
            "sequences_waiting": model.waiting,
            "sequences_aborted": self.core.aborted,
            "kv_blocks_used": model.used_blocks,
            "kv_blocks": self.spec.kv_blocks,
            "faults_left": self._script.left,
        }

    def close(self) -> None:
        """Stop the core and cut all connections."""
        self.core.close()
        for connection in tuple(self._connections):
            connection.close()

    # What connections call.

    def date(self) -> bytes:
        """Return the value of a Date header."""
        return formatdate(self._clock.wall_s(), usegmt=True).encode()

    def opened(self, connection: Connection) -> int:
        """Take note of a connection; return its number."""
        self._connections.add(connection)
        self.accepted += 1
        self._opened += 1
        return self._opened

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        self._connections.discard(connection)

    def handle(self, request: HttpRequest, connection: Connection) -> None:
        """Answer a request, now or later."""
        path, _, query = request.target.partition("?")
        if path.startswith("/sim/"):
            self._control(path, query, request, connection)
            return
        seen = self._noted(request, path)
        try:
            if request.method == "POST" and path in _WORK:
                self._work(path, request, seen, connection)
            else:
                self._plain(path, request, seen, connection)
        except SimError as error:
            body = error_body(error.status, error.message, error.param)
            if path == "/v1/messages":
                body = messages_error_body(type_of(error.status), error.message)
            self._reply(connection, seen, error.status, body)

    def _work(self, path: str, request: HttpRequest, seen: Seen, connection: Connection) -> None:
        """Start an exchange; a request that cannot be read consumes no fault."""
        self.log.count_attempt(seen)
        work = self._read(path, request)
        action = self._script.take(self._clock.now_s(), request.body)
        seen.fault = faults.name_of(action)
        Exchange(self._stage, work, action, seen, connection).start()

    def _read(self, path: str, request: HttpRequest) -> Work:
        name = request.header("x-request-id") or uuid.uuid4().hex
        created_s = int(self._clock.wall_s())
        if path in _POOLING:
            prefix, answer = _POOLING[path]
            pooled = answer(request.body, self.spec, prefix + name, created_s)
            # One sequence for the whole batch: a model of its cost, not of its parts.
            prompt_tokens = min(pooled.prompt_tokens, self.spec.max_model_len - 1)
            return Work(prompt_tokens, 1, 0, False, False, _Prepared(pooled.body))
        endpoint, prefix, dialect = _GENERATION[path]
        call = calls.read(endpoint, request.body, self.spec)
        priority = _priority(request.header("x-vllm-priority"), call.priority)
        return Work(
            prompt_tokens=call.prompt_tokens,
            max_tokens=call.max_tokens,
            priority=priority,
            stream=call.stream,
            has_prefix=call.has_prefix,
            dialect=dialect(call, self.spec, prefix + name, created_s),
        )

    def _plain(self, path: str, request: HttpRequest, seen: Seen, connection: Connection) -> None:
        """Answer what needs no engine."""
        if path not in _PATHS:
            raise SimError(404, "Not Found")
        if request.method not in _methods(path):
            raise SimError(405, "Method Not Allowed")
        action = self._script.current(self._clock.now_s())
        loading = refusal(action, has_prefix=False) if isinstance(action, Loading) else None
        if loading is not None and path not in _READ:
            self._reply(connection, seen, loading.status, loading.body)
        elif path in _HEALTH:
            self._reply(connection, seen, 200, b"")
        elif path in _TEXT:
            self._reply(connection, seen, 200, _TEXT[path](request.body, self.spec))
        elif path == "/metrics" and isinstance(action, Telemetry):
            self._break_page(action, seen, connection)
        elif path == "/metrics":
            self._reply(connection, seen, 200, self.core.metrics.render(self.core.model), CONTENT_TYPE)
        else:
            self._reply(connection, seen, 200, msgspec.json.encode(self._document(path)))

    def _break_page(self, action: Telemetry, seen: Seen, connection: Connection) -> None:
        """Answer a request for telemetry as a fault says; one that hangs waits for the caller to leave."""
        if action.how == "status":
            self._reply(connection, seen, 500, error_body(500, "no telemetry"))
        elif action.how == "garbage":
            connection.raw(Garbage().text.encode())
            connection.cut("fin")

    def _document(self, path: str) -> object:
        match path:
            case "/version":
                return {"version": self.spec.version}
            case "/load":
                return {"server_load": self.core.active}
            case "/v1/models":
                return _model_list(self.spec, int(self._clock.wall_s()))
            case _:
                return _openapi(self.spec)

    def _control(self, path: str, query: str, request: HttpRequest, connection: Connection) -> None:
        """Answer `/sim/…`; these requests are not in the log."""
        body = b"{}"
        match request.method, path:
            case "GET", "/sim/log":
                after = parse_qs(query).get("after", ["0"])[0]
                body = self.log.render(int(after) if after.isdecimal() else 0)
            case "GET", "/sim/stats":
                body = msgspec.json.encode(self.stats())
            case "POST", "/sim/faults":
                try:
                    self.set_faults(faults.read(request.body))
                except ValueError as error:
                    connection.respond(400, error_body(400, str(error)))
                    return
            case "POST", "/sim/reset":
                self.reset()
            case _:
                connection.respond(404, error_body(404, "GET /sim/log, /sim/stats; POST /sim/faults, /sim/reset"))
                return
        connection.respond(200, body)

    def _noted(self, request: HttpRequest, path: str) -> Seen:
        seen = Seen(
            number=self.log.requests + 1,
            arrived_s=self._elapsed_s(),
            method=request.method,
            path=path,
            headers=request.headers,
            body_bytes=len(request.body),
            body=request.body,
            connection=request.connection,
            nth=request.nth,
        )
        self.log.add(seen)
        return seen

    def _reply(
        self, connection: Connection, seen: Seen, status: int, body: bytes, content_type: bytes | None = None
    ) -> None:
        self._answered(seen, status)
        seen.ended_s = self._elapsed_s()
        if content_type is None:
            content_type = b"application/json" if body else _TEXT_PLAIN
        connection.respond(status, body, content_type=content_type)

    def _answered(self, seen: Seen, status: int) -> None:
        seen.status = status
        handler = seen.path if seen.path in _PATHS else "none"
        self.core.metrics.http_answer(handler, seen.method, status)

    def _elapsed_s(self) -> float:
        return self._clock.now_s() - self._started_s


def _methods(path: str) -> tuple[str, ...]:
    if path == "/ping":
        return ("GET", "POST")
    return ("POST",) if path in _POST else ("GET",)


def _priority(header: str, of_body: int) -> int:
    if not header:
        return of_body
    try:
        return int(header)
    except ValueError:
        raise SimError(400, "X-Vllm-Priority must be a whole number", param="priority") from None


def _model_list(spec: SimSpec, created_s: int) -> object:
    cards: list[dict[str, object]] = [
        {
            "id": name,
            "object": "model",
            "created": created_s,
            "owned_by": "vllm",
            "root": spec.models[0],
            "parent": None,
            "max_model_len": spec.max_model_len,
            "permission": [],
        }
        for name in spec.models
    ]
    return {"object": "list", "data": cards}


def _openapi(spec: SimSpec) -> object:
    """Return the part of the schema that tells what the engine can do."""
    fields = {
        "stream_options": {"title": "Stream Options"},
        "return_token_ids": {"title": "Return Token Ids", "anyOf": [{"type": "boolean"}, {"type": "null"}]},
        "priority": {"title": "Priority", "type": "integer", "default": 0},
        "cache_salt": {"title": "Cache Salt", "anyOf": [{"type": "string"}, {"type": "null"}]},
        "kv_transfer_params": {"title": "Kv Transfer Params"},
    }
    chat = fields | {"continue_final_message": {"type": "boolean", "default": False}}
    schemas = {
        "ChatCompletionRequest": {"title": "ChatCompletionRequest", "type": "object", "properties": chat},
        "CompletionRequest": {"title": "CompletionRequest", "type": "object", "properties": fields},
    }
    paths: dict[str, dict[str, dict[str, str]]] = {path: {"post": {}} for path in sorted(_POST)}
    paths |= {path: {"get": {}} for path in sorted(_HEALTH | _READ)}
    info = {"title": "FastAPI", "version": spec.version}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}
