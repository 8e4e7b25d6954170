"""What the head of an answer says about its body, and errors that stand in for one."""

from forebay.ports import Reply
from forebay.traffic import Answer, Header
from forebay.wire.answers import EngineError, read_error


def is_event_stream(headers: list[Header]) -> bool:
    """Say whether a head announces server-sent events."""
    return any(name == b"content-type" and value.lower().startswith(b"text/event-stream") for name, value in headers)


def is_json(headers: list[Header]) -> bool:
    """Say whether a head announces JSON."""
    return any(name == b"content-type" and b"json" in value.lower() for name, value in headers)


def retry_after_s(headers: list[Header]) -> float | None:
    """Return the engine's own pause in seconds; dates are not read."""
    for name, value in headers:
        if name == b"retry-after" and value.isdigit():
            return float(value)
    return None


def error_in_band(error: bytes) -> tuple[str, Answer]:
    """Turn an error event into its message, and the answer that it stands for as long as nothing was sent."""
    read = read_error(b'{"error":%b}' % error, "the engine reported an error")
    return read.message, Answer(_status_in(read), (), read.text())


def _status_in(error: EngineError) -> int:
    """The HTTP status that an error event means: vLLM refuses streams with 200 and a code inside."""
    return int(error.code) if error.code.isdigit() and 400 <= int(error.code) < 600 else 502


def send_whole(reply: Reply, status: int, headers: tuple[Header, ...], body: bytes) -> None:
    """Give the client an answer that came whole."""
    if reply.started:
        # A ping has opened an event stream, but the engine answered whole: its body is the one event.
        reply.write(b"data: %b\n\n" % body.replace(b"\n", b" "))
    else:
        reply.head(status, headers, len(body))
        reply.write(body)
