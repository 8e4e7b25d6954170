"""What stands before every route: who may speak to the admin port, and how its answers are sealed.

A browser on the operator's machine is the way in that matters: any site may send requests to the
loopback. Hence the checks of Host (DNS rebinding) and Origin (forged requests) besides the token.
"""

import asyncio
import hashlib
import hmac
import ipaddress
import logging
import secrets

from msgspec import Struct
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from forebay.console.answers import error_response
from forebay.errors import ForebayError, Refused

log = logging.getLogger(__name__)

BODY_BYTES = 65_536
BODY_S = 10.0
OPEN_PATHS = frozenset({"/", "/health", "/docs", "/openapi.json"})  # hold no data; all others ask for the token
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


class Listen(Struct, frozen=True):
    """The address of the admin port; the host of an IPv6 address without brackets."""

    host: str
    port: int


def host_allowed(hosts: list[str], listen: Listen, local_host: str | None) -> bool:
    """Say whether a request's Host headers name this port and nothing else.

    Args:
        hosts: values of all Host headers.
        listen: as configured.
        local_host: the address that the connection was made to; it counts when listening on all addresses. An
            address is no name that somebody else could point here.
    """
    if len(hosts) != 1:
        return False
    name = _host_name(hosts[0])
    return name in LOOPBACK_NAMES or name == listen.host.lower() or (_is_wildcard(listen.host) and name == local_host)


def origin_allowed(origins: list[str], host: str) -> bool:
    """Say whether a state-changing request comes from no page or from our own.

    Args:
        origins: values of all Origin headers.
        host: the Host header, already allowed.
    """
    return all(origin.lower() == f"http://{host.lower()}" for origin in origins)


def token_matches(authorizations: list[str], token: str) -> bool:
    """Say whether the one Authorization header bears the token, in a time that does not depend on it."""
    if len(authorizations) != 1:
        return False
    scheme, _, given = authorizations[0].partition(" ")
    same = hmac.compare_digest(_digest(given.strip()), _digest(token))
    return scheme.lower() == "bearer" and same


class Guard:
    """ASGI middleware: refuses what must not reach a route, bounds the body, adds the security headers.

    Args:
        app: what it stands before.
        listen: as configured.
        token: of the admin port.
    """

    def __init__(self, app: ASGIApp, listen: Listen, token: str) -> None:
        self._app = app
        self._listen = listen
        self._token = token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, or hand it on."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        sealed = _Sealed(send, secrets.token_urlsafe(16))
        scope.setdefault("state", {})["nonce"] = sealed.nonce
        try:
            self._check(scope)
            body = await _read_body(receive)
            await self._app(scope, _Replay(body, receive), sealed)
        except ForebayError as error:
            await error_response(error)(scope, receive, sealed)
        except Exception:
            log.exception("a route has failed")
            if not sealed.started:
                fault = Refused("internal_error", "The control plane has failed; its log says why.")
                await error_response(fault)(scope, receive, sealed)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        server = scope.get("server") or (None,)
        if not host_allowed(headers.getlist("host"), self._listen, server[0]):
            raise Refused(
                "host_not_allowed",
                "This Host is not served. Use localhost, 127.0.0.1 or the configured admin address.",
                param="Host",
            )
        if scope["method"] not in SAFE_METHODS and not origin_allowed(headers.getlist("origin"), headers["host"]):
            raise Refused("host_not_allowed", "Pages of another origin may change nothing here.", param="Origin")
        if scope["path"] not in OPEN_PATHS:
            self._check_token(headers.getlist("authorization"))

    def _check_token(self, authorizations: list[str]) -> None:
        advice = "Send `Authorization: Bearer TOKEN`; the token is in the file admin-token of the data folder."
        if not authorizations:
            raise Refused("missing_api_key", advice)
        if not token_matches(authorizations, self._token):
            raise Refused("invalid_api_key", f"This is not the admin token. {advice}")


class _Replay:
    """A body that has been read, handed to the application as one message."""

    def __init__(self, body: bytes, receive: Receive) -> None:
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> Message:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


class _Sealed:
    """Adds the security headers to an answer."""

    def __init__(self, send: Send, nonce: str) -> None:
        self._send = send
        self.nonce = nonce
        self.started = False

    async def __call__(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.started = True
            headers = MutableHeaders(scope=message)
            headers["content-security-policy"] = (
                f"default-src 'self'; script-src 'nonce-{self.nonce}'; style-src 'nonce-{self.nonce}'; "
                "img-src 'none'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
            )
            headers["x-frame-options"] = "DENY"
            headers["x-content-type-options"] = "nosniff"
            headers["referrer-policy"] = "no-referrer"
            headers["cross-origin-resource-policy"] = "same-origin"
            headers["cache-control"] = "no-store"
        await self._send(message)


async def _read_body(receive: Receive) -> bytes:
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Refused("bad_request", "The client has gone before the end of its body.")
                body += message.get("body", b"")
                if len(body) > BODY_BYTES:
                    raise Refused("body_too_large", f"The body may have at most {BODY_BYTES} bytes.")
                if not message.get("more_body", False):
                    return bytes(body)
    except TimeoutError as error:
        raise Refused("request_timeout", f"The body did not come within {BODY_S:g} s.") from error


def _host_name(host: str) -> str:
    """Return the lower-case name or address of a Host header, without port and brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0].lower()
    return host.rpartition(":")[0].lower() if ":" in host else host.lower()


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _digest(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()
