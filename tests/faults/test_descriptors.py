"""A process that has no descriptor left refuses calls, and holds nothing against its engines."""

import asyncio
import resource
from collections import Counter

import pytest
from cases.rawhttp import chat, request_bytes
from faults.client import Link
from faults.conftest import Field
from faults.load import CHAT, fault_of
from faults.process_view import open_files
from gateway_process import eventually

pytestmark = pytest.mark.integration

TOKENS, SPARE = 20, 40


async def call(address: tuple[str, int]) -> str:
    """Make one streamed call; say how it ended."""
    link = await Link.open(address)
    try:
        answer = (await link.ask(request_bytes("POST", CHAT, chat("paced", max_tokens=TOKENS)))).response
    except ConnectionError:
        return "not accepted"
    finally:
        link.close()
    if answer.status == 503:
        return str(answer.error["code"])
    return fault_of(answer, TOKENS, stream=True) or "ok"


def test_running_out_of_descriptors_takes_no_engine_out(field: Field) -> None:
    gateway = field.start(field.settings)
    pid = gateway.process.pid
    limit = open_files(pid) + SPARE
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (limit, limit))

    async def crowd(count: int) -> Counter[str]:
        return Counter(await asyncio.gather(*(call(gateway.address) for _ in range(count))))

    ends = field.thread.run(crowd(3 * SPARE))
    print(f"\n{3 * SPARE} calls at once with {SPARE} descriptors: {dict(ends)}")
    assert set(ends) <= {"ok", "not accepted", "too_many_connections"}
    assert ends["too_many_connections"] > 0, "the descriptors did not run out between client and engine"
    # Calls that waited in the kernel's queue are still taken and dropped for a moment.
    assert eventually(lambda: gateway.get("/metrics")[0] == 200, 30)
    assert eventually(gateway.idle, 30)
    assert field.thread.run(crowd(3)) == {"ok": 3}, "an engine was blamed"
    assert gateway.metric("forebay_replica_up") == 3
    assert "Traceback" not in gateway.log


def test_the_limit_of_descriptors_is_raised_to_what_is_allowed(field: Field) -> None:
    gateway = field.start(field.settings)
    soft, hard = resource.prlimit(gateway.process.pid, resource.RLIMIT_NOFILE)
    assert soft == hard
