"""A cheap streaming client: open and closed loops over raw sockets, one connection for each call.

It shares two cores with what it measures, so it looks for little: the first content, the last usage, the end.
"""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import uvloop

from bench.peers import HOST, KEY

T = TypeVar("T")

PATH = "/v1/chat/completions"
GIVE_UP_S = 900.0


class Call(NamedTuple):
    """One call to make.

    Attributes:
        due_s: when, in seconds from the start of the run; ignored in a closed loop.
        group: under which its figures are counted.
        body: JSON.
        key: API key.
        number: of the caller's choice; the answer has it too.
        value: what it claims to be worth, for `X-Request-Value`; empty claims nothing.
        request_id: for `X-Request-Id`, under which the journal has it; empty sends none.
    """

    due_s: float
    group: str
    body: bytes
    key: str = KEY
    number: int = 0
    value: str = ""
    request_id: str = ""


class Answer(NamedTuple):
    """What became of a call; times in seconds from the start of the run.

    Attributes:
        due_s: when it was due: latency counts from here, so that a late client is not excused.
        first_s: first content; nan when there was none.
        fault: why it does not count as served; empty when it does. `code` of an error of ours comes first.
    """

    group: str
    due_s: float
    first_s: float = math.nan
    end_s: float = math.nan
    status: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    fault: str = ""
    number: int = 0

    @property
    def ttft_s(self) -> float:
        """Return the seconds from the due time to the first content."""
        return self.first_s - self.due_s

    @property
    def tokens(self) -> int:
        """Return the prompt's and the answer's tokens."""
        return self.prompt_tokens + self.output_tokens


class _Reading:
    """An answer while it is being read."""

    def __init__(self) -> None:
        self.first_s = math.nan
        self.usage: dict[str, int] = {}
        self.finish = ""
        self.error = ""
        self.done = False

    def event(self, event: bytes, now_s: float) -> None:
        """Take in one event; most hold one token, and only the first of these is looked at."""
        if not event.startswith(b"data: "):
            return
        if event == b"data: [DONE]":
            self.done = True
        elif math.isnan(self.first_s) or b'"usage":{' in event or b'"finish_reason":"' in event or b'"error"' in event:
            self._look(json.loads(event[6:]), now_s)

    def _look(self, chunk: dict[str, object], now_s: float) -> None:
        if "error" in chunk:
            self.error = json.dumps(chunk["error"])[:200]
        usage = chunk.get("usage")
        if isinstance(usage, dict):
            self.usage = usage
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if math.isnan(self.first_s) and choice.get("delta", {}).get("content"):
                self.first_s = now_s
            self.finish = choice.get("finish_reason") or self.finish

    @property
    def fault(self) -> str:
        """Say why the stream is not a whole answer; empty when it is."""
        if self.error:
            return self.error
        if not self.done or not self.finish:
            return "cut: no finish_reason or no [DONE]"
        return "" if self.usage and not math.isnan(self.first_s) else "no content or no usage"


def chat_body(model: str, text: str, output_tokens: int) -> bytes:
    """Return a streamed chat that ends after so many tokens and reports its usage."""
    return json.dumps(
        {
            "model": model,
            "messages": [{"role": "user", "content": text}],
            "max_tokens": output_tokens,
            "ignore_eos": True,  # llama.cpp and vLLM: so that both arms make the same number of tokens
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
    ).encode()


def request_bytes(call: Call) -> bytes:
    """Return the call as it goes over the wire."""
    lines = (
        f"POST {PATH} HTTP/1.1",
        f"Host: {HOST}",
        f"Authorization: Bearer {call.key}",
        "Content-Type: application/json",
        f"Content-Length: {len(call.body)}",
        "Connection: close",
        *([f"X-Request-Value: {call.value}"] if call.value else []),
        *([f"X-Request-Id: {call.request_id}"] if call.request_id else []),
    )
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + call.body


async def ask(port: int, call: Call, due_s: float, began_s: float) -> Answer:
    """Make one call and read its answer to the end.

    Args:
        due_s: when it was due, in seconds from the start of the run.
        began_s: the start of the run, in monotonic seconds.
    """
    reading, status, fault = _Reading(), 0, ""
    writer = None
    try:
        async with asyncio.timeout(GIVE_UP_S):
            reader, writer = await asyncio.open_connection(HOST, port)
            writer.write(request_bytes(call))
            status, headers = await _head(reader)
            if status != 200:
                fault = await _refusal(reader, headers, status)
            else:
                async for event in _events(reader):
                    reading.event(event, time.monotonic() - began_s)
    except (OSError, EOFError, TimeoutError, ValueError) as error:
        fault = f"{type(error).__name__}: {error}"
    finally:
        if writer is not None:
            writer.close()
    return Answer(
        group=call.group,
        due_s=due_s,
        first_s=reading.first_s,
        end_s=time.monotonic() - began_s,
        status=status,
        prompt_tokens=reading.usage.get("prompt_tokens", 0),
        output_tokens=reading.usage.get("completion_tokens", 0),
        fault=fault or reading.fault,
        number=call.number,
    )


async def leave_early(port: int, call: Call) -> None:
    """Make one call when it is due, from now, and leave as soon as the answer begins."""
    await asyncio.sleep(call.due_s)
    with suppress(OSError, EOFError):
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(request_bytes(call))
        await reader.read(1)
        writer.close()


async def _head(reader: asyncio.StreamReader) -> tuple[int, dict[bytes, bytes]]:
    lines = (await reader.readuntil(b"\r\n\r\n")).split(b"\r\n")
    headers = {}
    for line in lines[1:]:
        name, _, value = line.partition(b":")
        headers[name.lower()] = value.strip()
    return int(lines[0].split()[1]), headers


async def _refusal(reader: asyncio.StreamReader, headers: dict[bytes, bytes], status: int) -> str:
    """Return the code of an error answer, or the start of what came instead."""
    body = await reader.readexactly(int(headers.get(b"content-length", b"0")))
    with suppress(ValueError, KeyError, TypeError):
        return str(json.loads(body)["error"]["code"])
    return f"status {status}: {body[:100]!r}"


async def _events(reader: asyncio.StreamReader) -> AsyncIterator[bytes]:
    """Yield the events of a chunked answer, without the empty line that ends each."""
    rest = b""
    while size := int(await reader.readuntil(b"\r\n"), 16):
        rest += (await reader.readexactly(size + 2))[:-2]
        *whole, rest = rest.split(b"\n\n")
        for event in whole:
            yield event


async def open_loop(port: int, calls: Sequence[Call]) -> list[Answer]:
    """Make each call when it is due, however many are out; wait for all answers."""
    began_s = time.monotonic()
    async with asyncio.TaskGroup() as group:
        tasks = []
        for call in sorted(calls):
            await asyncio.sleep(call.due_s - (time.monotonic() - began_s))
            tasks.append(group.create_task(ask(port, call, call.due_s, began_s)))
    return [task.result() for task in tasks]


async def closed_loop(port: int, calls: Iterator[Call], at_once: int, until_s: float = math.inf) -> list[Answer]:
    """Keep so many calls out until there are no more, or the time is over; wait for those that are out."""
    began_s = time.monotonic()
    answers = []

    async def worker() -> None:
        for call in calls:
            now_s = time.monotonic() - began_s
            if now_s >= until_s:
                return
            answers.append(await ask(port, call, now_s, began_s))

    async with asyncio.TaskGroup() as group:
        for _ in range(at_once):
            group.create_task(worker())
    return answers


def run_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run a loop of calls on uvloop, since the client must be cheap."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)
