"""Two control planes that keep their documents in step through a store."""

import asyncio
import json
from pathlib import Path

import pytest
from console.conftest import StillDataPlane
from store.virtual_store import VirtualStore

from forebay.clock import ManualClock
from forebay.config.documents import StateDocument, read_document, write_document
from forebay.console.guard import Listen
from forebay.console.overrides import Change
from forebay.console.state import ConsoleState


class Control:
    """A control plane without its port."""

    def __init__(self, folder: Path, hashes: dict[str, dict[str, bytes]], clock: ManualClock) -> None:
        self.folder = folder
        self.store = VirtualStore(hashes, clock)
        self.state = ConsoleState(clock, folder, StillDataPlane(), listen=Listen("127.0.0.1", 1), token="t" * 43)
        self.state.meet(self.store)

    async def override(self, target: str, ttl_s: int = 600) -> str:
        made = await self.state.override(Change("drain", target), ttl_s, reason="r", by="ann")
        return made.id

    async def round(self) -> bool:
        assert self.state._instep is not None
        return await self.state._instep.round()

    @property
    def targets(self) -> list[str]:
        """Of the overrides on disk, as the data plane reads them."""
        document = read_document(self.folder / "policy", "override")
        return [] if document is None else [entry.target for entry in document.entries]


@pytest.fixture
def hashes() -> dict[str, dict[str, bytes]]:
    return {}


@pytest.fixture
def two(tmp_path: Path, clock: ManualClock, hashes: dict[str, dict[str, bytes]]) -> tuple[Control, Control]:
    return Control(tmp_path / "a", hashes, clock), Control(tmp_path / "b", hashes, clock)


def test_an_override_reaches_the_other_node_and_its_timeline(two: tuple[Control, Control]) -> None:
    a, b = two

    async def run() -> None:
        id = await a.override("h:1")
        assert await a.round() and await b.round()
        assert a.targets == b.targets == ["h:1"]
        assert b.state.overrides.active() == a.state.overrides.active()
        last = b.state.timeline.latest(1)[0]
        assert (last.kind, last.by) == ("override.created", "ann, on another node")
        assert await b.state.end(id, by="bob")
        assert await b.round() and await a.round()
        assert a.targets == b.targets == []

    asyncio.run(run())


def test_changes_of_both_while_the_store_was_away_are_put_together(two: tuple[Control, Control]) -> None:
    a, b = two

    async def run() -> None:
        await a.override("h:0")
        assert await a.round() and await b.round()
        a.store.away = b.store.away = True
        await a.override("h:1")
        await b.override("h:2")
        assert not await a.round() and not await b.round()
        assert "does not answer" in a.state.faults()[0]
        assert a.targets == ["h:0", "h:1"], "each goes on with its own"
        a.store.away = b.store.away = False
        for _ in range(2):
            assert await a.round() and await b.round()
        assert sorted(a.targets) == sorted(b.targets) == ["h:0", "h:1", "h:2"]
        assert not a.state.faults()

    asyncio.run(run())


def test_a_store_that_has_lost_everything_is_filled_again(
    two: tuple[Control, Control], hashes: dict[str, dict[str, bytes]]
) -> None:
    a, b = two

    async def run() -> None:
        await a.override("h:1")
        assert await a.round() and await b.round()
        hashes.clear()
        assert await b.round() and await a.round()
        assert a.targets == b.targets == ["h:1"]
        assert b"h:1" in hashes["forebay:documents"]["override"]

    asyncio.run(run())


def test_the_end_of_an_override_is_agreed_on(two: tuple[Control, Control], clock: ManualClock) -> None:
    a, b = two

    async def run() -> None:
        await a.override("h:1", ttl_s=5)
        assert await a.round() and await b.round()
        clock.advance(6)
        await a.state.expire()
        await b.state.expire()
        for _ in range(2):
            assert await a.round() and await b.round()
        assert a.targets == b.targets == []
        assert a.state.overrides.document == b.state.overrides.document

    asyncio.run(run())


@pytest.mark.parametrize(
    "text",
    [
        b"garbage",
        b'{"epoch":1,"seq":1,"schema":2}',
        b'{"epoch":9007199254740992,"seq":1,"schema":1}',
        b'{"epoch":1800000000,"seq":1,"schema":1,"entries":[{"id":"x","kind":"drain","target":"h:1","expires_at":9e15,'
        b'"by":"eve","reason":"r","created_at":0}]}',
        b"[" * 2_000_000,
    ],
)
def test_what_is_no_good_document_is_not_taken_and_not_overwritten(
    two: tuple[Control, Control], hashes: dict[str, dict[str, bytes]], text: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    a, _ = two
    hashes["forebay:documents"] = {"override": text}

    async def run() -> None:
        await a.override("h:1")
        for _ in range(3):
            assert not await a.round()
        assert a.targets == ["h:1"]
        assert hashes["forebay:documents"]["override"] == text
        assert len([r for r in caplog.records if "not exchanged" in r.message]) == 1

    asyncio.run(run())


def test_the_state_document_goes_to_the_other_node_and_an_older_one_does_not(
    two: tuple[Control, Control], hashes: dict[str, dict[str, bytes]]
) -> None:
    a, b = two
    for node in two:
        (node.folder / "policy").mkdir(parents=True)
    write_document(a.folder / "policy", "state", StateDocument(epoch=7, seq=2, schema=1, drained=("h:1",)))
    write_document(b.folder / "policy", "state", StateDocument(epoch=7, seq=1, schema=1, drained=("h:9",)))

    async def run() -> None:
        assert await a.round() and await b.round()
        document = read_document(b.folder / "policy", "state")
        assert document is not None and (document.seq, document.drained) == (2, ("h:1",))
        assert json.loads(hashes["forebay:documents"]["state"])["seq"] == 2

    asyncio.run(run())
