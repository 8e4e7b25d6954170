"""A modest constant load on a gateway: small calls at a fixed rate beside streams, every answer checked."""

import asyncio
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, NamedTuple, Self

from cases.rawhttp import Address, Response, chat, request_bytes
from faults.client import Link, Timed
from faults.engines import LoopThread

CHAT = "/v1/chat/completions"
SMALL_TOKENS = 2
STREAM_TOKENS = 40
RATE_PER_S = 100
STREAMS = 10


class Sample(NamedTuple):
    """One call that was answered as it should be."""

    request_id: str
    stream: bool
    began_s: float
    took_s: float
    longest_gap_s: float

    @property
    def ended_s(self) -> float:
        """Monotonic seconds."""
        return self.began_s + self.took_s


def text_of(tokens: int) -> str:
    """What a simulated engine says."""
    return " ".join(f"t{number}" for number in range(tokens))


def fault_of(answer: Response, tokens: int, *, stream: bool) -> str:
    """What is wrong with an answer; empty when nothing is."""
    if answer.status != 200:
        return f"status {answer.status}: {answer.body[:200]!r}"
    if not answer.clean:
        return f"broken off after {len(answer.body)} bytes"
    if not stream:
        said = answer.json()["choices"][0]["message"]["content"]
        return "" if said == text_of(tokens) else f"said {said!r}"
    if answer.text != text_of(tokens) or not answer.done or answer.finish != "length":
        return f"said {answer.text!r}, finish_reason {answer.finish}, [DONE] {answer.done}"
    return ""


class Load:
    """Calls the models `small` and `paced` until it is left; a context manager.

    Attributes:
        samples: calls that went well.
        failures: one line for each that did not.
        asked: ids of all calls that were sent.
    """

    def __init__(
        self, thread: LoopThread, address: Address, *, rate_per_s: float = RATE_PER_S, streams: int = STREAMS
    ) -> None:
        self.samples: list[Sample] = []
        self.failures: list[str] = []
        self.asked: list[str] = []
        self._thread = thread
        self._address = address
        self._rate_per_s = rate_per_s
        self._streams = streams
        self._idle: list[Link] = []
        self._over = asyncio.Event()
        self._marks: list[tuple[str, float, float]] = []

    def __enter__(self) -> Self:
        self._began_s = time.monotonic()
        self._running = asyncio.run_coroutine_threadsafe(self._run(), self._thread.loop)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def stop(self) -> None:
        """Send no new call, and wait for those under way; may be called twice."""
        self._thread.loop.call_soon_threadsafe(self._over.set)
        self._running.result(60)

    @contextmanager
    def fault(self, name: str) -> Iterator[None]:
        """Mark the time of a fault, for the report."""
        began_s = time.monotonic()
        yield
        self._marks.append((name, began_s, time.monotonic()))

    def assert_unharmed(self, slowest_s: float = 2.5) -> None:
        """No call failed, and none was held up for long; print what the fault added to the 99th percentile."""
        assert not self.failures, f"{len(self.failures)} of {len(self.asked)} failed: {self.failures[:5]}"
        elapsed_s = time.monotonic() - self._began_s
        small = [sample for sample in self.samples if not sample.stream]
        assert len(small) > 0.2 * self._rate_per_s * elapsed_s, "the load was not what it should have been"
        assert len(self.samples) - len(small) >= self._streams, "too few streams"
        self.report()
        worst = max(small, key=lambda sample: sample.took_s)
        assert worst.took_s < slowest_s, f"{worst} of {len(small)}"
        worst = max(self.samples, key=lambda sample: sample.longest_gap_s)
        assert worst.longest_gap_s < slowest_s, f"{worst} of {len(self.samples)}"

    def report(self) -> None:
        """Print the time of small calls before and during each fault: information, no measurement."""
        for name, began_s, ended_s in self._marks:
            before = [s for s in self.samples if s.began_s < began_s]
            during = [s for s in self.samples if s.ended_s > began_s and s.began_s < ended_s]
            calm, hit = percentiles_ms(before), percentiles_ms(during)
            gap_ms = 1000 * max((s.longest_gap_s for s in during if s.stream), default=0.0)
            print(
                f"\n{name}: {len(self.samples)} calls, {len(self.failures)} failed; small p50/p99/max "
                f"{calm} ms before, {hit} ms during; added p99 {hit[1] - calm[1]:.1f} ms; "
                f"longest gap of a stream {gap_ms:.1f} ms"
            )

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number in range(self._streams):
                group.create_task(self._stream(number))
            await self._pace(group)
        for link in self._idle:
            link.close()

    async def _pace(self, group: asyncio.TaskGroup) -> None:
        loop = asyncio.get_running_loop()
        due_s, number = loop.time(), 0
        while not self._over.is_set():
            group.create_task(self._call(f"small-{number}", "small", SMALL_TOKENS, stream=False))
            number += 1
            due_s += 1 / self._rate_per_s
            await asyncio.sleep(max(0.0, due_s - loop.time()))

    async def _stream(self, number: int) -> None:
        await asyncio.sleep(number * 0.05)
        turn = 0
        while not self._over.is_set():
            await self._call(f"stream-{number}-{turn}", "paced", STREAM_TOKENS, stream=True)
            turn += 1

    async def _call(self, request_id: str, model: str, tokens: int, *, stream: bool) -> None:
        self.asked.append(request_id)
        body = chat(model, stream=stream, max_tokens=tokens)
        try:
            timed = await self._ask(request_bytes("POST", CHAT, body, headers=(f"X-Request-Id: {request_id}",)))
        except OSError as error:
            self.failures.append(f"{request_id}: {type(error).__name__}: {error}")
            await asyncio.sleep(0.02)
            return
        fault = fault_of(timed.response, tokens, stream=stream)
        if fault:
            self.failures.append(f"{request_id}: {fault}")
        else:
            self.samples.append(
                Sample(request_id, stream, timed.began_s, timed.response.elapsed_s, timed.longest_gap_s)
            )

    async def _ask(self, request: bytes) -> Timed:
        # A client that pools connections leaves those alone that the other side has closed.
        while self._idle and self._idle[-1].reader.at_eof():
            self._idle.pop().close()
        link = self._idle.pop() if self._idle else await Link.open(self._address)
        try:
            timed = await link.ask(request)
        except BaseException:
            link.reset()
            raise
        if timed.response.clean and timed.response.value("connection") != "close":
            self._idle.append(link)
        else:
            link.reset()
        return timed


def percentiles_ms(samples: list[Sample]) -> tuple[float, float, float]:
    """Median, 99th percentile and maximum of the small calls."""
    times: list[Any] = sorted(1000 * sample.took_s for sample in samples if not sample.stream)
    if not times:
        return 0.0, 0.0, 0.0
    return round(times[len(times) // 2], 1), round(times[int(0.99 * (len(times) - 1))], 1), round(times[-1], 1)
