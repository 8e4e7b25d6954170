"""Calls that end badly in every way, mixed: clients that leave, engines that fail, limits that refuse."""

import asyncio
import itertools
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator

from cases.rawhttp import Address, Response, chat, request_bytes
from faults.client import Link
from faults.engines import Engines, LoopThread
from faults.load import CHAT, text_of
from gateway_process import Document, document

from forebay.engines.sim import SimSpec
from forebay.engines.sim.faults import Cut, Hang, SlowStart, Status

PACED = SimSpec(
    iteration_base_ms=10, ms_per_prefill_token=0, ms_per_decode_seq=0, max_num_seqs=512, models=("m",), keep_alive_s=1
)
TOKENS_BEFORE_CUT = 3
FIRST_BYTE_S = 0.5
CONCURRENCY = 64


def start_engines(engines: Engines) -> None:
    """One engine for each way to fail, all of them for ever."""
    engines.start("paced", spec=PACED)
    engines.start("slow", SlowStart(delay_s=30, always=True), spec=PACED)
    engines.start("cuts", Cut(after_tokens=TOKENS_BEFORE_CUT, how="rst", always=True), spec=PACED)
    engines.start("errors", Status(status=500, always=True), spec=PACED)
    engines.start("hangs", Hang(always=True), spec=PACED)


def settings(engines: Engines) -> Document:
    """Breakers that never open, so that every call meets its fault; a short queue before the slow engine."""
    steady = {"breaker": {"failures": 1_000_000, "open_s": 1}, "max_attempts": 1}
    pools = {name: dict(steady) for name in ("paced", "slow", "cuts", "errors", "hangs")}
    pools["slow"]["max_in_flight"] = 1
    pools["errors"]["max_attempts"] = 2
    tenants = [
        {"name": "a", "keys": ["key-A"]},
        {"name": "one_a_minute", "keys": ["key-B"], "limits": {"requests_per_minute": 1}},
        {"name": "one_at_once", "keys": ["key-C"], "limits": {"concurrency": 1}},
    ]
    timeouts = {"connect_s": 1, "first_byte_s": FIRST_BYTE_S, "stall_s": 5, "total_s": 30}
    return document(pools=engines.pools(**pools), models=engines.models(), tenants=tenants, timeouts=timeouts)


class Storm:
    """Makes such calls on a gateway, or on any of several; the same seed makes the same mixture.

    Attributes:
        seen: how many calls had which end.
        faults: one line for each end that was not what it had to be.
    """

    def __init__(self, thread: LoopThread, *addresses: Address, seed: int = 1) -> None:
        self.seen: Counter[str] = Counter()
        self.faults: list[str] = []
        self._thread = thread
        self._addresses = addresses
        self._random = random.Random(seed)
        self._kinds: tuple[Callable[[], Awaitable[str]], ...] = (
            self._leave_before_the_body_is_complete,
            self._leave_right_after_the_request,
            self._leave_before_the_first_token,
            self._leave_in_the_middle,
            self._engine_resets,
            self._engine_answers_500,
            self._engine_hangs,
            self._over_the_limit,
        )

    def run(self, count: int) -> float:
        """Make so many calls, `CONCURRENCY` at once; return the seconds that they took."""
        kinds = [kind for kind, _ in zip(itertools.cycle(self._kinds), range(count), strict=False)]
        self._random.shuffle(kinds)
        began_s = time.monotonic()
        self._thread.run(self._work_off(iter(kinds)), within_s=max(600, count / 20))
        return time.monotonic() - began_s

    async def _work_off(self, kinds: Iterator[Callable[[], Awaitable[str]]]) -> None:
        async def worker() -> None:
            for kind in kinds:
                name = kind.__name__.strip("_")
                try:
                    async with asyncio.timeout(10):
                        end = await kind()
                except (OSError, TimeoutError) as error:
                    end = f"unexpected {type(error).__name__}: {error}"
                self.seen[f"{name}: {end}"] += 1
                if end.startswith("unexpected"):
                    self.faults.append(f"{name}: {end}")

        async with asyncio.TaskGroup() as group:
            for _ in range(CONCURRENCY):
                group.create_task(worker())

    def _request(self, model: str, key: str = "key-A", *, stream: bool = True, tokens: int = 30) -> bytes:
        return request_bytes("POST", CHAT, chat(model, stream=stream, max_tokens=tokens), key=key)

    async def _link(self) -> Link:
        return await Link.open(self._random.choice(self._addresses))

    def _leave(self, link: Link) -> str:
        if self._random.random() < 0.5:
            link.close()
            return "left"
        link.reset()
        return "left with a reset"

    async def _leave_before_the_body_is_complete(self) -> str:
        request = self._request("paced")
        link = await self._link()
        link.writer.write(request[: self._random.randrange(1, len(request))])
        await asyncio.sleep(self._random.choice((0, 0.005)))
        return self._leave(link)

    async def _leave_right_after_the_request(self) -> str:
        link = await self._link()
        link.writer.write(self._request("paced"))
        # With a pause of nothing the end arrives in the same turn of the gateway's loop, or in the next.
        await asyncio.sleep(self._random.choice((0, 0, 0.001, 0.003)))
        return self._leave(link)

    async def _leave_before_the_first_token(self) -> str:
        link = await self._link()
        link.writer.write(self._request("slow"))
        await asyncio.sleep(self._random.uniform(0.005, 0.06))
        return self._leave(link)

    async def _leave_in_the_middle(self) -> str:
        link = await self._link()
        link.writer.write(self._request("paced"))
        for _ in range(self._random.randrange(1, 12)):
            await link.reader.readuntil(b"\n\n")
        return self._leave(link)

    async def _engine_resets(self) -> str:
        answer = await self._ask(self._request("cuts"))
        error = (answer.stream_error or {}).get("code")
        # It is cut again wherever it goes on, until it may not move any more.
        shown, longest = text_of(TOKENS_BEFORE_CUT), text_of(10 * TOKENS_BEFORE_CUT)
        right = answer.text.startswith(shown) and longest.startswith(answer.text)
        if not right or answer.done or not answer.clean or not error:
            return f"unexpected answer {answer.body!r}"
        return f"error event {error}"

    async def _engine_answers_500(self) -> str:
        answer = await self._ask(self._request("errors", stream=self._random.random() < 0.5))
        return f"status {answer.status}" if answer.status == 500 else f"unexpected status {answer.status}"

    async def _engine_hangs(self) -> str:
        answer = await self._ask(self._request("hangs", stream=self._random.random() < 0.5))
        if (answer.status, answer.error["code"]) != (504, "first_byte_timeout"):
            return f"unexpected status {answer.status}: {answer.body!r}"
        return "status 504"

    async def _over_the_limit(self) -> str:
        key = self._random.choice(("key-B", "key-C"))
        answer = await self._ask(self._request("paced", key, tokens=3))
        if answer.status == 200:
            return "status 200" if answer.done else f"unexpected stream {answer.body!r}"
        expected = "requests_limit" if key == "key-B" else "concurrency_limit"
        if (answer.status, answer.error["code"]) != (429, expected):
            return f"unexpected status {answer.status}: {answer.body!r}"
        return f"status 429 {expected}"

    async def _ask(self, request: bytes) -> Response:
        link = await self._link()
        try:
            return (await link.ask(request)).response
        finally:
            link.close()
