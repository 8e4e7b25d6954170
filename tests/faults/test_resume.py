"""Gateways that die in the middle of answers whose clients come back, to another node or to the same one."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from faults.comeback import KEY, Begun, Story, http_client, whole
from faults.crew import kill, pid_of, shown
from faults.mortals import Sim, settings_for
from gateway_process import Document, Gateway, eventually

pytestmark = pytest.mark.integration

STREAMS = 40
# 200 tokens of 60 ms are 12 s at least: all clients have text long before any has all of it.
TOKEN_MS = 60.0
LONG_TOKENS = 200


@pytest.fixture(scope="module")
def sims() -> Iterator[list[Sim]]:
    started = [Sim(TOKEN_MS), Sim(TOKEN_MS)]
    try:
        for sim in started:
            sim.wait()
        yield started
    finally:
        for sim in started:
            sim.stop()


def settings(sims: list[Sim], **sections: Any) -> Document:
    """No answer goes on elsewhere but for a death: a busy machine is silent for longer than the other tests allow."""
    timeouts = {"connect_s": 10, "first_byte_s": 30, "stall_s": 30, "total_s": 120}
    return settings_for(sims) | {"resume": {"keys": [KEY]}, "timeouts": timeouts} | sections


def stories(count: int, tokens: int = LONG_TOKENS) -> list[Story]:
    """Both endpoints and vocabularies; a quarter is greedy."""
    return [
        Story(
            shape="completions" if number // 2 % 2 else "chat",
            vocabulary="unicode" if number % 2 else "ascii",
            tokens=tokens,
            more={"temperature": 0} if number % 4 == 3 else {},
        )
        for number in range(count)
    ]


def resumed(gateway: Gateway, left: str = "text") -> float:
    return gateway.metric("forebay_resumes_total", left=left)


def resumed_rows(gateway: Gateway, count: int) -> list[Document]:
    """The close lines of so many calls that went on with another one, awaited."""
    found: list[Document] = []

    def there() -> bool:
        found[:] = [row for row in gateway.closes() if row["resumed_from"]]
        return len(found) >= count

    assert eventually(there, 30) and len(found) == count, f"{len(found)} rows of {count}"
    return found


def test_a_node_is_killed_under_forty_streams(sims: list[Sim], gateway: Any) -> None:
    first, second = gateway(settings(sims)), gateway(settings(sims))
    asked = stories(STREAMS)
    bases = [first.base_url, second.base_url]
    with http_client(STREAMS) as http, ThreadPoolExecutor(STREAMS) as pool:
        begun = Begun()
        running = [pool.submit(story.told, http, bases, begun) for story in asked]
        assert begun.reached(STREAMS), f"{begun.count} clients have text"
        first.process.send_signal(signal.SIGKILL)
        answers = [future.result(120) for future in running]
    for story, told in zip(asked, answers, strict=True):
        whole(story, told)
    assert resumed(second) == STREAMS
    for row in resumed_rows(second, STREAMS):
        assert (row["outcome"], row["input_length"]) == ("ok", 0)
        assert row["output_length"] + row["resumed_tokens"] > LONG_TOKENS
    second.common_ending()


def test_a_worker_is_killed_under_forty_streams(sims: list[Sim], gateway: Any) -> None:
    """Its node lives: the other worker of it has the same key, even where nobody has configured one."""
    node = gateway(settings(sims, workers=2) | {"resume": {}})
    assert eventually(lambda: "Control plane: http" in node.log, 30)
    assert eventually(lambda: len(shown(node).get("workers") or ()) == 2, 30), "not all workers are there"
    pid = pid_of(node, "worker 1")
    asked = stories(STREAMS)
    with http_client(STREAMS) as http, ThreadPoolExecutor(STREAMS) as pool:
        begun = Begun()
        running = [pool.submit(story.told, http, [node.base_url], begun) for story in asked]
        assert begun.reached(STREAMS), f"{begun.count} clients have text"
        kill(pid)
        answers = [future.result(120) for future in running]
    for story, told in zip(asked, answers, strict=True):
        whole(story, told)
    assert any(row["resumed_from"] for row in node.closes())
    assert eventually(node.idle, 30)
