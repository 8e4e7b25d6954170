"""What Forebay answers itself: health, metrics, models, preflights, and its status to the control plane."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Literal

import msgspec
from msgspec import Struct

from forebay.domain import Tenant
from forebay.edge.ending import end_with_error
from forebay.edge.render import JSON
from forebay.edge.reply import Reply
from forebay.edge.routes import Route
from forebay.errors import Refused
from forebay.policy import Policy
from forebay.traffic import Header, Request

Gathered = Callable[[Literal["metrics", "status"]], Awaitable[bytes | None]]
"""Returns the body of `/metrics`, or of the status, over all processes; None when they cannot be asked."""

_encode = msgspec.json.Encoder().encode
# As Prometheus' text format is called; `recording.exposition` has it from its library.
TEXT = b"text/plain; version=0.0.4; charset=utf-8"
_ALLOWED_METHODS = b"GET, POST, OPTIONS"


class Insight(Struct, frozen=True):
    """Where the local answers come from: functions of the rooms that know.

    Attributes:
        live: body of `/health/live`.
        ready: whether this gateway takes work (false as soon as it drains).
        serving: for each model, whether an engine can serve it now.
        metrics: content type and body of `/metrics`.
        status: the whole state, for the control plane.
    """

    live: Callable[[], dict[str, Any]]
    ready: Callable[[], bool]
    serving: Callable[[], dict[str, bool]]
    metrics: Callable[[], tuple[bytes, bytes]]
    status: Callable[[], dict[str, Any]]


class _ModelCard(Struct):
    id: str
    created: int
    object: str = "model"
    owned_by: str = "forebay"


class LocalAnswers:
    """Answers routes that no engine has a part in.

    Attributes:
        gathered: where several processes are one gateway, what all of them say.
    """

    def __init__(self, insight: Insight, identify: Callable[[Request, Policy], Tenant]) -> None:
        self._insight = insight
        self._identify = identify
        self.gathered: Gathered | None = None

    def answer(self, route: Route, request: Request, reply: Reply, policy: Policy) -> Coroutine[Any, Any, None] | None:
        """Answer one request, at once or by the work that is returned."""
        if self.gathered is not None and (route.local == "metrics" or route.local == "status"):
            return self._all(self.gathered, route.local, reply)
        try:
            status, headers, body = self._answer(route, request, policy)
        except Refused as refusal:
            end_with_error(reply, refusal, "whole")
            return None
        reply.whole(status, headers, body)
        return None

    async def _all(self, gathered: "Gathered", kind: Literal["metrics", "status"], reply: Reply) -> None:
        """Answer for all processes; for this one alone when the others cannot be asked."""
        body = await gathered(kind)
        if kind == "status":
            reply.whole(200, (JSON,), _encode(self._insight.status()) if body is None else body)
            return
        content_type, own = (TEXT, body) if body is not None else self._insight.metrics()
        reply.whole(200, ((b"content-type", content_type),), own)

    def _answer(self, route: Route, request: Request, policy: Policy) -> tuple[int, tuple[Header, ...], bytes]:
        match route.local:
            case "live":
                return 200, (JSON,), _encode(self._insight.live())
            case "ready":
                ready = self._insight.ready()
                return 200 if ready else 503, (JSON,), _encode({"ready": ready})
            case "serving":
                serving = self._insight.serving()
                return 200 if any(serving.values()) else 503, (JSON,), _encode({"models": serving})
            case "metrics":
                content_type, text = self._insight.metrics()
                return 200, ((b"content-type", content_type),), text
            case "status":
                return 200, (JSON,), _encode(self._insight.status())
            case "preflight":
                return 204, _preflight(request), b""
            case "model":
                return 200, (JSON,), _encode(_model_card(route.argument, self._identify(request, policy), policy))
        cards = [_ModelCard(name, policy.created) for name in _visible(self._identify(request, policy), policy)]
        return 200, (JSON,), _encode({"object": "list", "data": cards})


def cors_lines(request: Request, policy: Policy) -> bytes:
    """Return the header lines that let a browser read the answer, when the configuration allows its origin."""
    origin = request.headers.get(b"origin")
    if origin is None or not policy.cors_origins:
        return b""
    if origin.decode("latin-1") not in policy.cors_origins and "*" not in policy.cors_origins:
        return b"vary: Origin\r\n"
    return b"access-control-allow-origin: %b\r\nvary: Origin\r\n" % origin


def _preflight(request: Request) -> tuple[Header, ...]:
    asked = request.headers.get(b"access-control-request-headers", b"authorization, content-type")
    return (
        (b"access-control-allow-methods", _ALLOWED_METHODS),
        (b"access-control-allow-headers", asked),
        (b"access-control-max-age", b"600"),
    )


def _visible(tenant: Tenant, policy: Policy) -> list[str]:
    return [name for name in policy.models if tenant.models is None or name in tenant.models]


def _model_card(name: str, tenant: Tenant, policy: Policy) -> _ModelCard:
    if name not in _visible(tenant, policy):
        raise Refused("model_not_found", f"there is no model {name[:128]!r} for this key", param="model")
    return _ModelCard(name, policy.created)
