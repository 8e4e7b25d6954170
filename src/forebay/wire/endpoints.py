"""The endpoints that Forebay serves: one row each, and nothing else is reachable."""

from typing import Literal

from msgspec import Struct

Shape = Literal["chat", "completions", "responses", "messages", "whole"]


class Endpoint(Struct, frozen=True):
    """One route of the data plane.

    Attributes:
        name: label in metrics and records, and the name that engine adapters use.
        path: where engines serve it.
        paths: where clients may ask for it.
        shape: how its events and usage are read.
        streams: whether `stream: true` means anything here.
    """

    name: str
    path: str
    paths: tuple[str, ...]
    shape: Shape = "whole"
    streams: bool = False


ENDPOINTS: tuple[Endpoint, ...] = (
    Endpoint("chat", "/v1/chat/completions", ("/v1/chat/completions",), "chat", streams=True),
    Endpoint("completions", "/v1/completions", ("/v1/completions",), "completions", streams=True),
    Endpoint("responses", "/v1/responses", ("/v1/responses",), "responses", streams=True),
    Endpoint("messages", "/v1/messages", ("/v1/messages",), "messages", streams=True),
    Endpoint("embeddings", "/v1/embeddings", ("/v1/embeddings",)),
    Endpoint("rerank", "/v1/rerank", ("/v1/rerank", "/rerank", "/v2/rerank")),
    Endpoint("score", "/v1/score", ("/score", "/v1/score")),
    Endpoint("tokenize", "/tokenize", ("/tokenize", "/v1/tokenize")),
    Endpoint("detokenize", "/detokenize", ("/detokenize", "/v1/detokenize")),
)

BY_PATH: dict[str, Endpoint] = {path: endpoint for endpoint in ENDPOINTS for path in endpoint.paths}
