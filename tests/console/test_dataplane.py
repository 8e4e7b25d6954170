import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from forebay.clock import ManualClock
from forebay.console import dataplane
from forebay.console.dataplane import DataPlane, DataPlaneView

GOOD = b'HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"up": 1}'
CHUNKED = b'HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n4\r\n{"up\r\n5\r\n": 2}\r\n0\r\n\r\n'


class Scripted:
    """Answers every connection with the same bytes; `None` means that it says nothing at all."""

    def __init__(self, answer: bytes | None) -> None:
        self.answer = answer
        self.requests: list[bytes] = []
        self._release = asyncio.Event()

    @asynccontextmanager
    async def listening(self, path: Path) -> AsyncIterator["Scripted"]:
        server = await asyncio.start_unix_server(self._serve, str(path))
        try:
            yield self
        finally:
            self._release.set()
            server.close()
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.requests.append(await reader.readuntil(b"\r\n\r\n"))
        if self.answer is None:
            await self._release.wait()
        else:
            writer.write(self.answer)
        writer.close()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "s"


@pytest.mark.integration
@pytest.mark.parametrize(("answer", "up"), [(GOOD, 1), (CHUNKED, 2)])
def test_status_is_read(path: Path, clock: ManualClock, answer: bytes, up: int) -> None:
    async def scenario() -> None:
        async with Scripted(answer).listening(path) as server:
            view = await DataPlane(path, clock).view()
            assert view == DataPlaneView(reachable=True, age_s=0.0, status={"up": up}, fault=None)
            assert server.requests == [
                b"GET /internal/status HTTP/1.1\r\nHost: dataplane\r\nConnection: close\r\n\r\n"
            ]  # fmt: skip

    asyncio.run(scenario())


@pytest.mark.integration
def test_last_good_status_stays_with_its_age(path: Path, clock: ManualClock) -> None:
    async def scenario() -> None:
        plane = DataPlane(path, clock)
        before = await plane.view()
        assert (before.reachable, before.status, before.age_s) == (False, None, None)
        assert before.fault == "no connection: No such file or directory"
        clock.advance(1)
        async with Scripted(GOOD).listening(path):
            assert (await plane.view()).reachable
        path.unlink(missing_ok=True)
        clock.advance(7)
        after = await plane.view()
        assert (after.reachable, after.status, after.age_s) == (False, {"up": 1}, 7.0)

    asyncio.run(scenario())


@pytest.mark.integration
def test_many_who_ask_at_once_cost_one_request(path: Path, clock: ManualClock) -> None:
    async def scenario() -> None:
        async with Scripted(GOOD).listening(path) as server:
            plane = DataPlane(path, clock)
            await asyncio.gather(*(plane.view() for _ in range(20)))
            assert len(server.requests) == 1
            clock.advance(0.5)
            await plane.view()
            assert len(server.requests) == 2

    asyncio.run(scenario())


@pytest.mark.integration
@pytest.mark.parametrize(
    ("answer", "fault"),
    [
        (None, "no answer within 0.05 s"),
        (b"", "bad answer: it ends too early"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", "bad answer: it ends too early"),
        (b"HTTP/1.1 503 x\r\nContent-Length: 2\r\n\r\n{}", "bad answer: HTTP status 503"),
        (b"SSH-2.0-x\r\n", "bad answer: "),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]", "bad answer: Expected `object`"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n{", "bad answer: "),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 2000\r\n\r\n" + b" " * 2000, "bad answer: more than 1000 bytes"),
    ],
)
def test_a_bad_answer_is_named_and_bounded(
    path: Path, clock: ManualClock, monkeypatch: pytest.MonkeyPatch, answer: bytes | None, fault: str
) -> None:
    monkeypatch.setattr(dataplane, "TIMEOUT_S", 0.05 if answer is None else 5.0)
    monkeypatch.setattr(dataplane, "MAX_BYTES", 1000)

    async def scenario() -> None:
        async with Scripted(answer).listening(path):
            view = await DataPlane(path, clock).view()
            assert not view.reachable
            assert (view.fault or "").startswith(fault)

    asyncio.run(scenario())


def seen(status: dict[str, object] | None) -> DataPlaneView:
    return DataPlaneView(reachable=True, age_s=0.0, status=status, fault=None)


@pytest.mark.parametrize(
    "status", [None, {}, {"replicas": 1, "documents": 1}, {"replicas": None, "documents": {"override": None}}]
)
def test_what_the_status_does_not_say_is_not_invented(status: dict[str, object] | None) -> None:
    assert seen(status).replicas() is None
    assert seen(status).held("override") == (0, 0)


def test_replicas_and_held_version_are_found() -> None:
    view = seen(
        {
            "replicas": [{"replica": "h:1"}, {"replica": "h:2/a/b"}, {"x": 1}, 3],
            "documents": {"override": {"epoch": 4, "seq": 2}},
        }
    )
    assert view.replicas() == frozenset({"h:1", "h:2/a/b", "h:2"})
    assert view.held("override") == (4, 2)
