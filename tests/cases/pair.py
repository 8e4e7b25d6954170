"""A gateway with one engine behind it, as most cases use it."""

from typing import Any, NamedTuple

from cases import rawhttp
from cases.rawhttp import Response
from gateway_process import Document, Gateway
from scripted import ScriptedEngine

CHAT = "/v1/chat/completions"


class Pair(NamedTuple):
    """A gateway and the only engine behind it."""

    engine: ScriptedEngine
    gateway: Gateway

    def post(self, payload: object, target: str = CHAT, **more: Any) -> Response:
        """POST on a new connection."""
        return rawhttp.ask(self.gateway.address, "POST", target, payload, **more)

    def row(self, answer: Response) -> Document:
        """The close line of an answer."""
        request_id = answer.value("x-request-id")
        assert request_id
        return self.gateway.close_line(request_id)
