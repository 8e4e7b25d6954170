"""A client that sends exact bytes and shows exactly what came back, framing faults included."""

import json
import socket
import struct
import time
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NamedTuple, Self

Address = tuple[str, int]
MESSAGES = [{"role": "user", "content": "hi"}]


class Event(NamedTuple):
    """One SSE event as WHATWG reads it."""

    name: str
    data: str

    def json(self) -> Any:
        """The data as JSON."""
        return json.loads(self.data)


class Response(NamedTuple):
    """A whole answer.

    Attributes:
        clean: the body ended as its framing promised.
        elapsed_s: from the last byte of the request to the end of the answer.
    """

    status: int
    headers: list[tuple[str, str]]
    body: bytes
    clean: bool
    elapsed_s: float

    def values(self, name: str) -> list[str]:
        """Every value of a header, in order."""
        return [value for key, value in self.headers if key == name.lower()]

    def value(self, name: str) -> str | None:
        """The only value of a header, or None."""
        values = self.values(name)
        assert len(values) <= 1, f"{name} stands {len(values)} times in the answer"
        return values[0] if values else None

    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error object, checked for the OpenAI shape."""
        body = self.json()
        assert set(body["error"]) >= {"message", "type", "param", "code"}, body
        return dict(body["error"])

    @property
    def events(self) -> list[Event]:
        """The SSE events of the body, comments left out."""
        return list(sse(self.body))

    @property
    def text(self) -> str:
        """All content of a chat stream, joined."""
        return "".join(content(event) for event in self.events)

    @property
    def stream_error(self) -> dict[str, Any] | None:
        """The typed error inside the stream, or None."""
        for event in self.events:
            if event.data.startswith("{") and "error" in event.json():
                return dict(event.json()["error"])
        return None

    @property
    def finish(self) -> str | None:
        """The finish_reason that the stream gave, or None."""
        found = None
        for event in self.events:
            if event.data.startswith("{"):
                for choice in event.json().get("choices", []):
                    found = choice.get("finish_reason") or found
        return found

    @property
    def done(self) -> bool:
        """Whether the stream ended with its sentinel."""
        events = self.events
        return bool(events) and events[-1].data == "[DONE]"


def sse(body: bytes) -> Iterator[Event]:
    """Read a whole event stream by the WHATWG rules; an unfinished last block is no event."""
    name = ""
    data: list[str] = []
    for line in body.decode().replace("\r\n", "\n").replace("\r", "\n").split("\n")[:-1]:
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if not line and data:
            yield Event(name or "message", "\n".join(data))
        if not line:
            name, data = "", []
        elif field == "data":
            data.append(value)
        elif field == "event":
            name = value


def content(event: Event) -> str:
    """The content of the first choice of a chat chunk, or nothing."""
    if not event.data.startswith("{"):
        return ""
    choices = event.json().get("choices") or [{}]
    return (choices[0].get("delta") or {}).get("content") or ""


def encode(payload: object) -> bytes:
    """JSON as clients send it: ASCII with escapes."""
    return payload if isinstance(payload, bytes) else json.dumps(payload).encode()


def chat(model: str = "m", *, stream: bool = True, **members: Any) -> dict[str, Any]:
    """The default request of the cases."""
    return {"model": model, "stream": stream, "messages": MESSAGES, **members}


def request_bytes(
    method: str, target: str, payload: object = None, *, key: str | None = "key-A", headers: tuple[str, ...] = ()
) -> bytes:
    """One request with a Content-Length, and the key unless it is None."""
    body = b"" if payload is None else encode(payload)
    lines = [f"{method} {target} HTTP/1.1", "Host: forebay.test"]
    if key is not None:
        lines.append(f"Authorization: Bearer {key}")
    if payload is not None:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body)}"]
    return "\r\n".join((*lines, *headers, "", "")).encode() + body


class Client:
    """One connection to the gateway; a context manager."""

    def __init__(self, address: Address, timeout_s: float = 10.0) -> None:
        self._socket = socket.create_connection(address, timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._buffer = bytearray()
        self._sent_s = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Leave politely (FIN)."""
        self._socket.close()

    def reset(self) -> None:
        """Leave with a reset."""
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._socket.close()

    def send(self, data: bytes) -> None:
        """Send exact bytes; a peer that has already answered and left is no error."""
        try:
            self._socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            pass
        self._sent_s = time.monotonic()

    def ask(self, method: str, target: str, payload: object = None, **more: Any) -> Response:
        """Send one request and read the whole answer."""
        self.send(request_bytes(method, target, payload, **more))
        return self.response(head_only=method == "HEAD")

    def read_events(self, count: int) -> bytes:
        """Read until so many SSE data events have arrived: everything received, head included."""
        while self._buffer.count(b"data:") < count or not self._buffer.rstrip(b"\r\n").endswith(b"}"):
            if not self._more():
                break
        return bytes(self._buffer)

    def read_until(self, marker: bytes) -> bytes:
        """Read until the marker has arrived or the peer has left: everything received."""
        while marker not in self._buffer and self._more():
            pass
        return bytes(self._buffer)

    def response(self, *, head_only: bool = False) -> Response:
        """Read one whole answer, informational ones skipped.

        Raises:
            ConnectionError: the connection ended before an answer.
        """
        status, headers = self._head()
        while status == 100:
            status, headers = self._head()
        fields = dict(headers)
        if head_only or status in (204, 304):
            body, clean = b"", True
        elif "chunked" in fields.get("transfer-encoding", ""):
            body, clean = self._chunked()
        elif "content-length" in fields:
            body, clean = self._exactly(int(fields["content-length"]))
        else:
            body, clean = self._to_the_end(), True
        return Response(status, headers, body, clean, time.monotonic() - self._sent_s)

    def at_end(self, within_s: float = 1.0) -> bool:
        """Whether the gateway closes the connection within so long, with nothing more sent."""
        self._socket.settimeout(within_s)
        try:
            return not self._buffer and not self._more()
        except TimeoutError:
            return False

    def _more(self) -> bool:
        try:
            data = self._socket.recv(262_144)
        except ConnectionResetError:
            data = b""
        self._buffer += data
        return bool(data)

    def _take(self, count: int) -> bytes:
        taken = bytes(self._buffer[:count])
        del self._buffer[:count]
        return taken

    def _head(self) -> tuple[int, list[tuple[str, str]]]:
        self.read_until(b"\r\n\r\n")
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            raise ConnectionError(f"no answer, only {bytes(self._buffer)!r}")
        first, *lines = self._take(end + 4)[:-4].decode("latin-1").split("\r\n")
        headers = [(name.lower(), value.strip()) for name, _, value in (line.partition(":") for line in lines)]
        return int(first.split(" ")[1]), headers

    def _exactly(self, count: int) -> tuple[bytes, bool]:
        while len(self._buffer) < count and self._more():
            pass
        taken = self._take(count)
        return taken, len(taken) == count

    def _to_the_end(self) -> bytes:
        while self._more():
            pass
        return self._take(len(self._buffer))

    def _chunked(self) -> tuple[bytes, bool]:
        body = bytearray()
        while True:
            while b"\r\n" not in self._buffer:
                if not self._more():
                    return bytes(body), False
            size = int(self._take(self._buffer.index(b"\r\n") + 2).split(b";")[0], 16)
            data, whole = self._exactly(size + 2)
            body += data[:size]
            if not whole:
                return bytes(body), False
            if size == 0:
                return bytes(body), True


def ask(address: Address, method: str, target: str, payload: object = None, **more: Any) -> Response:
    """Send one request on a new connection and read the whole answer."""
    with Client(address) as client:
        return client.ask(method, target, payload, **more)
