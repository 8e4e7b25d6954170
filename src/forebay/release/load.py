"""The load maker: one streamed chat per connection, in an open loop (by schedule) or a closed one (by workers).

It shares the machine with what it measures, so it does little: one protocol object per call, no copies, events read
by the structs of `wire`. The time to the first token counts from the moment the request is written, on a connection
that is open already, so that neither way pays for the opening.
"""

import asyncio
import ssl
from collections.abc import Iterator, Sequence
from itertools import cycle
from typing import Literal, cast

import httptools
from msgspec import Struct

from forebay.clock import Clock
from forebay.domain import Replica
from forebay.release.mix import Ask, Kind, Lengths, Prompts, chat_body, kinds_of
from forebay.wire.answers import read_error
from forebay.wire.facts import read_event
from forebay.wire.sse import Event, FrameError, Framer

End = Literal["ok", "failed", "lost"]

_ERROR_BYTES = 65_536
_REASON_CHARS = 200


class Sample(Struct):
    """One call; times in seconds, None where it did not come so far.

    Attributes:
        at_s: when it was sent, by the clock of the load maker.
        late_s: how much later than planned.
        end: `failed`: an error was answered, or no connection. `lost`: no answer, or one without an end.
        status: HTTP status; 0 without one.
        reason: of a failure or a loss, in words.
        gaps_s: between one piece of the answer and the next.
        output_tokens: as the engine counted, else pieces.
        cached_tokens: of the prompt, as the engine reports.
    """

    kind: Kind
    number: int = 0
    at_s: float = 0.0
    late_s: float = 0.0
    end: End = "lost"
    status: int = 0
    reason: str = ""
    ttft_s: float | None = None
    total_s: float = 0.0
    gaps_s: list[float] = []
    prompt_tokens: int = 0
    output_tokens: int = 0
    cached_tokens: int = 0


class Target(Struct, frozen=True):
    """Where calls go.

    Attributes:
        replica: address and credential.
        model: as it is called there.
        ignore_eos: whether answers of an exact length can be asked for.
    """

    replica: Replica
    model: str
    ignore_eos: bool = False


class Client:
    """Makes calls to one target.

    Args:
        target: whom to call.
        clock: a running one.
    """

    def __init__(self, target: Target, clock: Clock) -> None:
        self._target = target
        self._clock = clock
        self._ssl = ssl.create_default_context() if target.replica.tls else None
        self._head = _head(target.replica)

    async def call(self, kind: Kind, prompt: str, max_tokens: int, limit_s: float) -> Sample:
        """Make one call; whatever happens to it stands in the sample.

        Args:
            kind: for the sample.
            prompt: the user's message.
            max_tokens: of the answer.
            limit_s: a call that has not ended by then is given up as lost.
        """
        target = self._target
        body = chat_body(target.model, prompt, max_tokens, ignore_eos=target.ignore_eos)
        request = b"%bContent-Length: %d\r\n\r\n%b" % (self._head, len(body), body)
        loop = asyncio.get_running_loop()
        sample = Sample(kind, at_s=self._clock.now_s())
        exchange: _Exchange | None = None
        try:
            async with asyncio.timeout(limit_s):
                _, protocol = await loop.create_connection(
                    lambda: _Exchange(loop.create_future(), sample, self._clock),
                    target.replica.host,
                    target.replica.port,
                    ssl=self._ssl,
                )
                exchange = protocol
                exchange.send(request)
                await exchange.done
        except TimeoutError:
            sample.end, sample.reason = "lost", f"no end within {limit_s:.0f} s"
        except OSError as error:
            sample.end, sample.reason = "failed", f"no connection: {error.strerror or type(error).__name__}"
        finally:
            sample.total_s = self._clock.now_s() - sample.at_s
            if exchange is not None:
                exchange.abort()
        return sample


class _Exchange(asyncio.Protocol):
    """Writes one request and reads its answer into a sample."""

    def __init__(self, done: "asyncio.Future[None]", sample: Sample, clock: Clock) -> None:
        self.done = done
        self._sample = sample
        self._clock = clock
        self._transport: asyncio.Transport | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._framer = Framer()
        self._error = bytearray()
        self._read_s = 0.0
        self._piece_s = 0.0
        self._pieces = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def send(self, request: bytes) -> None:
        """Write the request; the call's clock starts here."""
        self._sample.at_s = self._clock.now_s()
        if self._transport is not None:
            self._transport.write(request)

    def abort(self) -> None:
        """Close the connection at once."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._read_s = self._clock.now_s()
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, FrameError) as error:
            self._end("failed", f"not an HTTP event stream: {type(error).__name__}")

    def connection_lost(self, exc: Exception | None) -> None:
        self._conclude()

    # The names of the parser's callbacks.

    def on_headers_complete(self) -> None:
        self._sample.status = self._parser.get_status_code()

    def on_body(self, data: bytes) -> None:
        if self._sample.status != 200:
            self._error += data[: max(0, _ERROR_BYTES - len(self._error))]
            return
        for event in self._framer.feed(data):
            self._take(event)

    def on_message_complete(self) -> None:
        self._conclude()

    def _take(self, event: Event) -> None:
        sample = self._sample
        facts = read_event(event, "chat", opening=not self._pieces)
        if facts.error is not None:
            self._end("failed", f"error within the answer: {read_error(facts.error, 'of an unknown kind').message}")
        if facts.usage is not None:
            sample.prompt_tokens = facts.usage.prompt_tokens
            sample.output_tokens = facts.usage.completion_tokens
            sample.cached_tokens = facts.usage.cached_tokens or 0
        if facts.carries and not facts.usage_only and (facts.finished is None or not self._pieces):
            if self._pieces:
                sample.gaps_s.append(self._read_s - self._piece_s)
            else:
                sample.ttft_s = self._read_s - sample.at_s
            self._piece_s = self._read_s
            self._pieces += 1
        if facts.finished is not None and not self.done.done():
            sample.end = "ok"

    def _conclude(self) -> None:
        """Decide how the call ended once nothing more comes; the first ending stays."""
        sample = self._sample
        if sample.status not in (0, 200):
            message = read_error(bytes(self._error), "without an explanation").message
            self._end("failed", f"HTTP {sample.status}: {message}")
        elif sample.end == "ok":
            self._end("ok", "")
        else:
            self._end("lost", "the connection closed before the answer ended" if sample.status else "no answer")

    def _end(self, end: End, reason: str) -> None:
        if not self.done.done():
            self._sample.end = end
            self._sample.reason = "".join(c if c.isprintable() else " " for c in reason[:_REASON_CHARS])
            self._sample.output_tokens = self._sample.output_tokens or self._pieces
            self.done.set_result(None)


async def open_loop(
    client: Client, asks: Sequence[Ask], lengths: Lengths, prompts: Prompts, limit_s: float, clock: Clock
) -> list[Sample]:
    """Send each call when it is due, whether or not earlier ones have been answered; return when all have ended.

    Args:
        client: where to.
        asks: in the order of their times.
        lengths: of prompts and answers.
        prompts: of this arm alone.
        limit_s: calls that have not ended so long after the last was due are lost.
        clock: a running one.
    """
    start_s = clock.now_s()
    end_s = start_s + (asks[-1].at_s if asks else 0.0) + limit_s

    async def one(ask: Ask) -> Sample:
        prompt = prompts.text(lengths.words(ask.kind))
        sample = await client.call(ask.kind, prompt, lengths.output_tokens, max(0.1, end_s - clock.now_s()))
        sample.number = ask.number
        sample.late_s = max(0.0, sample.at_s - start_s - ask.at_s)
        return sample

    async with asyncio.TaskGroup() as group:
        tasks = []
        for ask in asks:
            await asyncio.sleep(max(0.0, start_s + ask.at_s - clock.now_s()))
            tasks.append(group.create_task(one(ask)))
    return [task.result() for task in tasks]


async def closed_loop(
    client: Client, workers: int, seconds: float, lengths: Lengths, prompts: Prompts, clock: Clock
) -> list[Sample]:
    """Keep so many calls open at once; no new one begins after the time, and those that run are waited for.

    Args:
        client: where to.
        workers: calls open at once.
        seconds: as long as new calls begin.
        lengths: of prompts and answers.
        prompts: of this loop alone.
        clock: a running one.
    """
    end_s = clock.now_s() + seconds
    samples: list[Sample] = []
    kinds: Iterator[Kind] = cycle(kinds_of(20))

    async def work() -> None:
        while clock.now_s() < end_s:
            kind = next(kinds)
            prompt = prompts.text(lengths.words(kind))
            sample = await client.call(kind, prompt, lengths.output_tokens, seconds + 60.0)
            samples.append(sample)
            if sample.end != "ok":
                return  # what fails at once would be tried for ever at full speed

    async with asyncio.TaskGroup() as group:
        for _ in range(workers):
            group.create_task(work())
    return samples


def _head(replica: Replica) -> bytes:
    query = f"?{replica.query}" if replica.query else ""
    host = f"[{replica.host}]" if ":" in replica.host else replica.host
    lines = [
        f"POST {replica.base_path}/v1/chat/completions{query} HTTP/1.1",
        f"Host: {host}:{replica.port}",
        "Content-Type: application/json",
        "Accept: text/event-stream",
        "Connection: close",
    ]
    if replica.authorization:
        lines.append(f"Authorization: {replica.authorization}")
    return ("\r\n".join(lines) + "\r\n").encode("latin-1")
