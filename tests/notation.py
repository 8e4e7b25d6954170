"""The notation of the recorded cases: what an upstream sends, write by write.

A script is a sequence of steps: bytes (one write each), a `Wait`, an `Until`, or an `End` that is no proper end.
"""

import enum
import json
import threading
from http import HTTPStatus
from typing import Any, NamedTuple


class Wait(NamedTuple):
    """A pause in a script."""

    seconds: float


class Until(NamedTuple):
    """A pause in a script that a test ends."""

    event: threading.Event


class End(enum.Enum):
    """What an engine does instead of a proper end."""

    HANG = "the socket stays open, no more bytes"
    RST = "the connection is reset"
    FIN = "the connection is closed"


HANG, RST, FIN = End.HANG, End.RST, End.FIN
Step = bytes | Wait | Until | End
LAST_CHUNK = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


class Answer(NamedTuple):
    """Separate writes and acts, with a pause of `gap_s` after each write."""

    steps: tuple[Step, ...]
    gap_s: float = 0.0


def event(payload: object) -> bytes:
    """One SSE event that carries JSON."""
    return b"data: " + json.dumps(payload, separators=(",", ":"), ensure_ascii=False).encode() + b"\n\n"


def part(delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
    """One chat chunk with this delta."""
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return event({"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})


def D(text: str) -> bytes:
    """One chat chunk with this content."""
    return part({"content": text})


STOP = part({}, "stop")


def USAGE(prompt: int, completion: int) -> bytes:
    """The usage chunk, with its empty choices."""
    usage = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return event(
        {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [], "usage": usage}
    )


def ERROR(message: str = "engine ran out of cache", code: int = 500) -> bytes:
    """An engine's error event inside a 200 stream."""
    return event({"error": {"message": message, "type": "server_error", "param": None, "code": code}})


def chunk(payload: bytes) -> bytes:
    """One HTTP/1.1 chunk."""
    return b"%x\r\n%b\r\n" % (len(payload), payload)


def head(status: int, *headers: str) -> bytes:
    """A status line and header lines."""
    return "\r\n".join((f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", *headers, "", "")).encode()


STREAM_HEAD = head(200, "Content-Type: text/event-stream", "Transfer-Encoding: chunked")


def raw(*steps: Step, gap_s: float = 0.002) -> Answer:
    """Exactly these bytes, each in its own write."""
    return Answer(steps, gap_s)


def stream(*items: Step, gap_s: float = 0.002, head_bytes: bytes = STREAM_HEAD) -> Answer:
    """A chunked event stream: each bytes item is one chunk in one write, then the last chunk unless it is cut."""
    steps: list[Step] = [head_bytes]
    steps += [chunk(item) if isinstance(item, bytes) else item for item in items]
    if not any(isinstance(item, End) for item in items):
        steps.append(LAST_CHUNK)
    return Answer(tuple(steps), gap_s)


def reply(status: int, payload: object, *headers: str, close: bool = False) -> Answer:
    """A JSON answer (or these bytes) with a Content-Length."""
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    lines = ("Content-Type: application/json", f"Content-Length: {len(body)}", *headers)
    if close:
        return Answer((head(status, *lines, "Connection: close") + body, FIN))
    return Answer((head(status, *lines) + body,))


def completion(model: str = "m", text: str = "ok", prompt: int = 2, tokens: int = 1) -> dict[str, Any]:
    """A whole chat answer."""
    return {
        "id": "c1",
        "object": "chat.completion",
        "created": 1,
        "model": model,
        "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": prompt, "completion_tokens": tokens, "total_tokens": prompt + tokens},
    }
