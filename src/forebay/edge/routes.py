"""Which path means what: a closed table, so that nothing else of an engine can be reached."""

from typing import Literal
from urllib.parse import unquote

from msgspec import Struct

from forebay.errors import Refused
from forebay.wire.endpoints import BY_PATH, Endpoint

Local = Literal["models", "model", "live", "ready", "serving", "metrics", "status", "preflight"]

_LOCAL: dict[bytes, Local] = {
    b"/v1/models": "models",
    b"/health/live": "live",
    b"/health/ready": "ready",
    b"/health/serving": "serving",
    b"/metrics": "metrics",
}
_MODEL_PREFIX = b"/v1/models/"
_INTERNAL = b"/internal/status"
_ENDPOINTS: dict[bytes, Endpoint] = {path.encode(): endpoint for path, endpoint in BY_PATH.items()}
_NO_ROUTE = "there is no such route here; Forebay serves the inference routes of its engines only"


class Route(Struct, frozen=True):
    """What a request asks for: an endpoint of the engines, or something Forebay answers itself."""

    endpoint: Endpoint | None = None
    local: Local | None = None
    argument: str = ""


_ENDPOINT_ROUTES = {path: Route(endpoint=endpoint) for path, endpoint in _ENDPOINTS.items()}
_PREFLIGHT = Route(local="preflight")


def find(method: bytes, path: bytes, *, internal: bool) -> Route:
    """Find the route of a request.

    Args:
        method: as sent.
        path: as sent, still percent-encoded.
        internal: the request came over the Unix socket of the control plane.

    Raises:
        Refused: `route_not_found`, `method_not_allowed`.
    """
    if method == b"POST":
        route = _ENDPOINT_ROUTES.get(path)
        if route is not None:
            return route
    local = _LOCAL.get(path)
    if local is None and path.startswith(_MODEL_PREFIX) and len(path) > len(_MODEL_PREFIX):
        local = "model"
    if local is None and internal and path == _INTERNAL:
        local = "status"
    if method == b"OPTIONS" and (local is not None or path in _ENDPOINTS):
        return _PREFLIGHT
    if local is not None and method in (b"GET", b"HEAD"):
        argument = unquote(path[len(_MODEL_PREFIX) :].decode("latin-1")) if local == "model" else ""
        return Route(local=local, argument=argument)
    if local is not None or path in _ENDPOINTS:
        raise Refused("method_not_allowed", "this route does not take this method")
    raise Refused("route_not_found", _NO_ROUTE)
