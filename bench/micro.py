"""What the hot functions cost in memory, without sockets: `python -m bench.micro`.

For comparing two states of the code on one machine, not for claims: most of a request is the kernel's.
"""

import json
import sys
import timeit
from collections.abc import Callable

from bench.scenarios import big_body_file
from forebay.edge import body
from forebay.wire import facts, sse
from forebay.wire.endpoints import BY_PATH

CHAT = BY_PATH["/v1/chat/completions"]
DEPTH = 128
REPEATS = 5
TARGET_S = 0.1

CHUNK = {
    "id": "chatcmpl-0123456789abcdef0123456789abcdef",
    "object": "chat.completion.chunk",
    "created": 1730000000,
    "model": "mock-model",
    "choices": [{"index": 0, "delta": {"content": " token"}, "logprobs": None, "finish_reason": None}],
}


def chat_body(prompt_bytes: int) -> bytes:
    """Return a chat request with a prompt of this size."""
    messages = [{"role": "user", "content": "word " * (prompt_bytes // 5)}]
    asked = {"model": "mock-model", "messages": messages, "max_tokens": 200, "stream": True, "temperature": 0.7}
    return json.dumps(asked).encode()


def cases() -> dict[str, Callable[[], object]]:
    """Return what is timed, by name."""
    small, large, huge = chat_body(400), chat_body(34_000), big_body_file().read_bytes()
    event_text = b"data: " + json.dumps(CHUNK).encode() + b"\n\n"
    event = sse.Framer().feed(event_text)[0]
    framer, cut = sse.Framer(), sse.Framer()
    halves = event_text[:100], event_text[100:]
    return {
        "read a body of 0.4 KB": lambda: body.read(small, CHAT, DEPTH),
        "read a body of 34 KB": lambda: body.read(large, CHAT, DEPTH),
        "read a body of 30 MB": lambda: body.read(huge, CHAT, DEPTH),
        "frame one event, whole": lambda: framer.feed(event_text),
        "frame one event, cut": lambda: (cut.feed(halves[0]), cut.feed(halves[1])),
        "facts of a first event": lambda: facts.read_event(event, "chat", opening=True),
        "facts of a later event": lambda: facts.read_event(event, "chat", opening=False),
    }


def cost_us(function: Callable[[], object]) -> float:
    """Return the microseconds of one call: the best of five repeats, each of about 0.1 s."""
    timer = timeit.Timer(function)
    once_s = timer.timeit(1)
    count = max(1, int(TARGET_S / max(once_s, 1e-7)))
    return 1e6 * min(timer.repeat(REPEATS, count)) / count


def main() -> int:
    """Print one line for each case."""
    for name, function in cases().items():
        print(f"{name:26} {cost_us(function):12.2f} us")
    return 0


if __name__ == "__main__":
    sys.exit(main())
