"""One tenant of twenty, or of a hundred, sends what times out; then the engines are slow for all: who is moved?"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self

import pytest
from cases.rawhttp import Address, chat, request_bytes
from faults.client import Link
from faults.engines import Engines, LoopThread
from faults.load import CHAT
from gateway_process import Document, Gateway, document, eventually

from forebay.engines.sim import SimSpec
from forebay.engines.sim.faults import SlowStart

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(240)]

STEADY = SimSpec(
    iteration_base_ms=5, ms_per_prefill_token=0, ms_per_decode_seq=0, models=("m",), max_num_seqs=128, keep_alive_s=60
)
CROWDS = (20, 100)
CALLS_PER_S = 20.0
BAD = "t7"
BAD_EVERY_S = 0.25
TOTAL_S = 2.0
TTL_S = 15
FEW_TOKENS, FAR_TOO_MANY_TOKENS = 4, 2000
ERROR_LIMIT = 0.01


def settings(engines: Engines, crowd: int) -> Document:
    models = engines.models()
    models["main"]["degrade"] = {"model": "spare", "ttl_s": TTL_S}
    tenants = [{"name": f"t{n}", "keys": [f"key-of-t{n}"]} for n in range(crowd)]
    timeouts = {"connect_s": 1, "first_byte_s": 10, "stall_s": 5, "total_s": TOTAL_S}
    pools = engines.pools(main={"max_attempts": 2})
    return document(pools=pools, models=models, tenants=tenants, timeouts=timeouts)


class Traffic:
    """Tenants that call the model `main` at a steady pace; a context manager.

    Args:
        crowd: how many they are; together they call as often, whatever their number.

    Attributes:
        tokens: that each tenant asks for.
        seen: ends of calls, by tenant, and `failed` or the model that answered.
    """

    def __init__(self, thread: LoopThread, address: Address, crowd: int) -> None:
        self.tokens = {f"t{n}": FEW_TOKENS for n in range(crowd)}
        self._every_s = crowd / CALLS_PER_S
        self.seen: Counter[tuple[str, str]] = Counter()
        self._thread = thread
        self._address = address
        self._over = asyncio.Event()
        self._running: Any = None

    def __enter__(self) -> Self:
        self._running = asyncio.run_coroutine_threadsafe(self._run(), self._thread.loop)
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, tb: TracebackType | None) -> None:
        self._thread.loop.call_soon_threadsafe(self._over.set)
        self._running.result(30)

    def count(self, end: str, *, bad: bool) -> int:
        """How many calls of the bad tenant, or of all others, had this end."""
        return sum(count for (tenant, how), count in list(self.seen.items()) if how == end and (tenant == BAD) is bad)

    def error_ratio(self) -> float:
        """The part of the others' calls that failed."""
        failed, well = self.count("failed", bad=False), self.count("main", bad=False)
        return failed / max(1, failed + well)

    async def _run(self) -> None:
        async with asyncio.TaskGroup() as group:
            for number, tenant in enumerate(self.tokens):
                group.create_task(self._pace(group, tenant, number / CALLS_PER_S))

    async def _pace(self, group: asyncio.TaskGroup, tenant: str, offset_s: float) -> None:
        await asyncio.sleep(offset_s)
        while not self._over.is_set():
            group.create_task(self._call(tenant))
            await asyncio.sleep(BAD_EVERY_S if tenant == BAD else self._every_s)

    async def _call(self, tenant: str) -> None:
        body = chat("main", stream=False, max_tokens=self.tokens[tenant])
        link = await Link.open(self._address)
        try:
            answer = (await link.ask(request_bytes("POST", CHAT, body, key=f"key-of-{tenant}"))).response
        except OSError:
            self.seen[(tenant, "failed")] += 1
            return
        finally:
            link.close()
        if answer.status != 200:
            self.seen[(tenant, "failed")] += 1
            return
        model = answer.json()["model"]
        assert (answer.value("x-forebay-degraded") == "tenant") is (model == "spare")
        self.seen[(tenant, model)] += 1


@pytest.fixture
def start(thread: LoopThread, engines: Engines, node: Callable[..., Gateway]) -> Callable[..., Gateway]:
    def started(*faults: Any, crowd: int = CROWDS[0]) -> Gateway:
        for _ in range(2):
            engines.start("main", *faults, spec=STEADY)
        engines.start("spare", spec=STEADY)
        return node(settings(engines, crowd))

    return started


def status_of(gateway: Gateway) -> Document:
    code, body = gateway.admin_get("/api/status")
    assert code == 200
    status: Document = json.loads(body)["data_plane"]["status"]
    return status


def moved(gateway: Gateway) -> list[str]:
    return [row["tenant"] for row in status_of(gateway)["tenants_degraded"]]


@pytest.mark.parametrize("crowd", CROWDS)
def test_one_tenant_whose_calls_time_out(thread: LoopThread, start: Callable[..., Gateway], crowd: int) -> None:
    gateway = start(crowd=crowd)
    assert eventually(lambda: gateway.admin_get("/api/status")[0] == 200, 30), "the control plane does not answer"
    with Traffic(thread, gateway.address, crowd) as traffic:
        traffic.tokens[BAD] = FAR_TOO_MANY_TOKENS
        began_s = time.monotonic()
        assert eventually(lambda: moved(gateway) == [BAD], 45), status_of(gateway)["actions"]
        moved_s = time.monotonic()
        assert gateway.metric("forebay_tenant_degraded", tenant=BAD) == 1
        assert gateway.metric("forebay_tenant_degraded") == 1
        traffic.tokens[BAD] = FEW_TOKENS
        assert eventually(lambda: traffic.count("spare", bad=True) >= 20, 30), "he is not served by the other pool"
        assert eventually(lambda: moved(gateway) == [], 60), status_of(gateway)["tenants_degraded"]
        home_s = time.monotonic()
        at_home = traffic.count("main", bad=True)
        assert eventually(lambda: traffic.count("main", bad=True) >= at_home + 20, 30), "he is not served at home"
        ratio = traffic.error_ratio()
    lines = [line for line in status_of(gateway)["actions"] if line["kind"] == "tenant"]
    print(
        f"\nmoved after {moved_s - began_s:.0f} s, home {home_s - moved_s:.0f} s later; of the others' "
        f"{traffic.count('main', bad=False)} calls {ratio:.2%} failed; {json.dumps(lines)}"
    )
    assert ratio <= ERROR_LIMIT
    assert traffic.count("spare", bad=False) == 0
    assert [(line["what"], line["target"]) for line in reversed(lines)] == [
        ("moved", f"{BAD} (main)"), ("returned", f"{BAD} (main)")
    ]  # fmt: skip
    assert gateway.metric("forebay_requests_degraded_total", step="tenant") >= 20
    assert {row["target"] for row in timeline(gateway) if row["kind"] == "tenant.moved"} == {f"{BAD} (main)"}


def timeline(gateway: Gateway) -> list[Document]:
    code, body = gateway.admin_get("/api/timeline")
    assert code == 200
    rows: list[Document] = json.loads(body)["actions"]
    return rows


def test_engines_that_are_slow_for_all_move_nobody(thread: LoopThread, start: Callable[..., Gateway]) -> None:
    gateway = start(SlowStart(delay_s=30, always=True))
    assert eventually(lambda: gateway.admin_get("/api/status")[0] == 200, 30), "the control plane does not answer"
    with Traffic(thread, gateway.address, CROWDS[0]) as traffic:
        time.sleep(32)
        failed = traffic.count("failed", bad=False)
    assert failed >= 200, "too few calls timed out to accuse anybody"
    assert moved(gateway) == []
    assert [line for line in status_of(gateway)["actions"] if line["kind"] == "tenant"] == []
    assert gateway.metric("forebay_tenant_degraded") == 0
