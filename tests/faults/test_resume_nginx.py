"""Two nodes behind nginx, one of which is killed: what clients see that come back, and what those see that do not."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
from faults.comeback import Begun, Part, http_client, part, send, whole
from faults.mortals import PATHS, Sim
from faults.test_resume import STREAMS, TOKEN_MS, resumed, resumed_rows, settings, stories
from gateway_process import Gateway, eventually
from nginx import needs_nginx, nginx_before

pytestmark = [pytest.mark.integration, needs_nginx]


class Behind(NamedTuple):
    """Two nodes, and where nginx listens in front of them."""

    sims: list[Sim]
    nodes: list[Gateway]
    base: str

    def kill_one(self) -> None:
        """Kill the first node at once."""
        self.nodes[0].process.send_signal(signal.SIGKILL)

    def calls(self) -> list[float]:
        """Calls in flight on each node."""
        return [node.metric("forebay_requests_in_flight") for node in self.nodes]


@pytest.fixture
def behind(tmp_path: Path, gateway: Any) -> Iterator[Behind]:
    sims = [Sim(TOKEN_MS), Sim(TOKEN_MS)]
    for sim in sims:
        sim.wait()
    nodes = [gateway(settings(sims)) for _ in sims]
    addresses = [node.address for node in nodes]
    try:
        with nginx_before(addresses, tmp_path, "proxy_connect_timeout 2s", "keepalive 64;") as port:
            yield Behind(sims, nodes, f"http://127.0.0.1:{port}")
    finally:
        for sim in sims:
            sim.stop()


def test_streams_that_come_back_are_whole(behind: Behind) -> None:
    asked = stories(STREAMS)
    with http_client(STREAMS) as http, ThreadPoolExecutor(STREAMS) as pool:
        begun = Begun()
        running = [pool.submit(story.told, http, [behind.base], begun) for story in asked]
        assert begun.reached(STREAMS), f"{begun.count} clients have text"
        cut, others = behind.calls()
        assert cut + others == STREAMS and min(cut, others) > 0
        behind.kill_one()
        answers = [future.result(120) for future in running]
    for story, told in zip(asked, answers, strict=True):
        whole(story, told)
    assert resumed(behind.nodes[1]) == cut
    assert {row["outcome"] for row in resumed_rows(behind.nodes[1], int(cut))} == {"ok"}
    assert eventually(behind.nodes[1].idle, 30)


def test_calls_before_a_byte_are_tried_again_by_nginx(behind: Behind) -> None:
    """Plain callers that stream nothing: their node dies before a byte of the answer, and nginx asks the other one."""
    story = stories(1, tokens=120)[0]
    body = {key: value for key, value in story.body.items() if key != "stream_options"}

    def call(http: httpx.Client) -> httpx.Response:
        headers = {"Authorization": "Bearer key-A"}
        return http.post(behind.base + PATHS["chat"], json=body, headers=headers, timeout=100)

    with http_client(10) as http, ThreadPoolExecutor(10) as pool:
        running = [pool.submit(call, http) for _ in range(10)]
        assert eventually(lambda: sum(behind.calls()) == 10 and min(behind.calls()) > 0, 60)
        behind.kill_one()
        answers = [future.result(120) for future in running]
    assert [answer.status_code for answer in answers] == [200] * 10, [answer.text for answer in answers]
    texts = [answer.json()["choices"][0]["message"]["content"] for answer in answers]
    assert texts == [story.text] * 10
    assert eventually(behind.nodes[1].idle, 30)


def test_plain_streams_are_cut_and_cannot_be_mistaken_for_whole_ones(behind: Behind) -> None:
    """Plain callers in the middle of a stream: nginx cannot ask again, and the client's library says that it broke."""
    story = stories(1)[0]
    begun = Begun()
    headers = {"Authorization": "Bearer key-A"}

    def call(http: httpx.Client) -> Part | None:
        try:
            return send(http, behind.base + PATHS["chat"], story.body | {"stream": True}, headers, begun=begun)
        except httpx.TransportError:
            return None

    with http_client(10) as http, ThreadPoolExecutor(10) as pool:
        running = [pool.submit(call, http) for _ in range(10)]
        assert begun.reached(10), f"{begun.count} clients have a chunk"
        cut, others = behind.calls()
        assert cut + others == 10 and min(cut, others) > 0
        behind.kill_one()
        answers = [future.result(120) for future in running]
        assert answers.count(None) == cut
        assert {answer.text for answer in answers if answer is not None} <= {story.text}
        assert part(http, behind.base, stories(1, tokens=5)[0]).done, "the other node serves"
