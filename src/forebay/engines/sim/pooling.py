"""Answers of the endpoints that generate nothing: embeddings, rerank, score, tokenize, detokenize.

Vectors come from a hash of the text, so equal texts have equal vectors and a score is their cosine.
"""

import base64
import hashlib
import math
import struct
from typing import Any, Literal

from msgspec import Struct

from forebay.engines.sim import tokens
from forebay.engines.sim.calls import Message, decoded, rendered, served, text_of
from forebay.engines.sim.errors import SimError
from forebay.engines.sim.shapes import encode, usage_fields
from forebay.engines.sim.spec import SimSpec

MAX_DIMENSIONS = 16_384
MAX_INPUTS = 2048


class Pooled(Struct, frozen=True):
    """An answer that is made of the prompt alone.

    Attributes:
        body: JSON.
        prompt_tokens: that the engine has to compute, at least 1.
    """

    body: bytes
    prompt_tokens: int


class _Embeddings(Struct):
    input: Any
    model: str | None = None
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: int | None = None


class _Rerank(Struct):
    query: str
    documents: list[str]
    model: str | None = None
    top_n: int = 0


class _Score(Struct):
    text_1: str | list[str] | None = None
    text_2: str | list[str] | None = None
    queries: str | list[str] | None = None
    documents: str | list[str] | None = None
    model: str | None = None


class _Tokenize(Struct):
    model: str | None = None
    prompt: str | None = None
    messages: list[Message] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    return_token_strs: bool | None = False


class _Detokenize(Struct):
    tokens: list[int]
    model: str | None = None


def embeddings(body: bytes, spec: SimSpec, reply_id: str, created_s: int) -> Pooled:
    """Answer `/v1/embeddings`.

    Raises:
        SimError: 400 or 404.
    """
    fields = decoded(body, _Embeddings)
    model = served(fields.model, spec)
    dimensions = fields.dimensions or spec.embedding_dimensions
    if not 0 < dimensions <= MAX_DIMENSIONS:
        raise SimError(400, f"dimensions must be 1..{MAX_DIMENSIONS}", param="dimensions")
    texts = _inputs(fields.input)
    longest = max(map(tokens.count, texts))
    if longest >= spec.max_model_len:
        raise SimError(400, f"{longest} tokens, the model takes less than {spec.max_model_len}", param="input")
    data = []
    for index, text in enumerate(texts):
        vector: list[float] | str = _vector(text, dimensions)
        if fields.encoding_format == "base64":
            vector = base64.b64encode(struct.pack(f"<{dimensions}f", *vector)).decode()
        data.append({"index": index, "object": "embedding", "embedding": vector})
    prompt_tokens = sum(map(tokens.count, texts))
    answer = {"id": reply_id, "object": "list", "created": created_s, "model": model, "data": data}
    return Pooled(encode(answer | {"usage": usage_fields(prompt_tokens, 0)}), prompt_tokens)


def rerank(body: bytes, spec: SimSpec, reply_id: str, created_s: int) -> Pooled:
    """Answer `/v1/rerank`: documents by cosine with the query, best first.

    Raises:
        SimError: 400 or 404.
    """
    fields = decoded(body, _Rerank)
    model = served(fields.model, spec)
    _bounded(fields.documents, "documents")
    scored = [
        {"index": index, "document": {"text": text}, "relevance_score": _similarity(fields.query, text)}
        for index, text in enumerate(fields.documents)
    ]
    scored.sort(key=_relevance, reverse=True)
    prompt_tokens = sum(tokens.count(fields.query + text) for text in fields.documents)
    usage = {"prompt_tokens": prompt_tokens, "total_tokens": prompt_tokens}
    results = scored[: fields.top_n or len(scored)]
    return Pooled(encode({"id": reply_id, "model": model, "usage": usage, "results": results}), prompt_tokens)


def score(body: bytes, spec: SimSpec, reply_id: str, created_s: int) -> Pooled:
    """Answer `/v1/score`: one text against many, or pairs.

    Raises:
        SimError: 400 or 404.
    """
    fields = decoded(body, _Score)
    model = served(fields.model, spec)
    left = _texts(fields.text_1 if fields.text_1 is not None else fields.queries, "text_1")
    right = _texts(fields.text_2 if fields.text_2 is not None else fields.documents, "text_2")
    if len(left) == 1:
        left = left * len(right)
    if len(left) != len(right):
        raise SimError(400, f"text_1 has {len(left)} entries and text_2 has {len(right)}", param="text_1")
    pairs = list(zip(left, right, strict=True))
    data = [{"index": i, "object": "score", "score": _similarity(a, b)} for i, (a, b) in enumerate(pairs)]
    prompt_tokens = sum(tokens.count(a + b) for a, b in pairs)
    answer = {"id": reply_id, "object": "list", "created": created_s, "model": model, "data": data}
    return Pooled(encode(answer | {"usage": usage_fields(prompt_tokens, 0)}), prompt_tokens)


def tokenize(body: bytes, spec: SimSpec) -> bytes:
    """Answer `/tokenize`.

    Raises:
        SimError: 400 or 404.
    """
    fields = decoded(body, _Tokenize)
    served(fields.model, spec)
    if fields.messages:
        messages = [(message.role, text_of(message.content)) for message in fields.messages]
        ids = tokens.encode(rendered(messages, fields.continue_final_message, fields.add_generation_prompt))
    elif fields.prompt is not None:
        ids = tokens.encode_said(fields.prompt)
    else:
        raise SimError(400, "prompt or messages must be given", param="prompt")
    strings = [tokens.decode([token]) for token in ids] if fields.return_token_strs else None
    return encode({"count": len(ids), "max_model_len": spec.max_model_len, "tokens": ids, "token_strs": strings})


def detokenize(body: bytes, spec: SimSpec) -> bytes:
    """Answer `/detokenize`.

    Raises:
        SimError: 400 or 404.
    """
    fields = decoded(body, _Detokenize)
    served(fields.model, spec)
    try:
        return encode({"prompt": tokens.decode(fields.tokens)})
    except ValueError as error:
        raise SimError(400, str(error), param="tokens") from None


def _inputs(value: Any) -> list[str]:
    """Return the texts of an embeddings input: a text, texts, token ids or lists of them."""
    if isinstance(value, list) and value and all(type(token) is int for token in value):
        value = [value]
    try:
        texts = [_input(entry) for entry in value] if isinstance(value, list) else [_input(value)]
    except ValueError as error:
        raise SimError(400, str(error), param="input") from None
    return _bounded(texts, "input")


def _input(entry: Any) -> str:
    if isinstance(entry, str):
        return entry
    if isinstance(entry, list) and entry and all(type(token) is int for token in entry):
        return tokens.decode(entry)
    raise ValueError("input must be a text, a list of texts, or token ids")


def _texts(value: str | list[str] | None, name: str) -> list[str]:
    if value is None:
        raise SimError(400, f"{name} must be given", param=name)
    return _bounded([value] if isinstance(value, str) else value, name)


def _bounded(texts: list[str], name: str) -> list[str]:
    if not 0 < len(texts) <= MAX_INPUTS:
        raise SimError(400, f"{name} must have 1..{MAX_INPUTS} entries, got {len(texts)}", param=name)
    return texts


def _vector(text: str, dimensions: int) -> list[float]:
    raw = hashlib.shake_128(text.encode()).digest(dimensions * 2)
    values = [value / 32768 for value in struct.unpack(f"<{dimensions}h", raw)]
    length = math.sqrt(math.fsum(value * value for value in values)) or 1.0
    return [value / length for value in values]


def _similarity(left: str, right: str) -> float:
    """Return the cosine of two texts as a share of 0..1."""
    cosine = math.fsum(a * b for a, b in zip(_vector(left, 64), _vector(right, 64), strict=True))
    return (min(1.0, max(-1.0, cosine)) + 1) / 2


def _relevance(result: dict[str, Any]) -> float:
    return float(result["relevance_score"])
