"""Two simulated engines, no gateway between them: one dies in the middle, the other one goes on."""

import json
from typing import Any

import pytest
import uvloop
from engines.sim.caller import QUICK, Caller, Raw

from forebay.clock import SystemClock
from forebay.domain import FailureKind, Usage
from forebay.engines.sim import SimServer, serve
from forebay.engines.sim.faults import AbortFinish, AnyAction, Cut, ErrorEvent, NoFinish, RefusePrefix, Stall
from forebay.engines.sim.spec import VocabularyName
from forebay.engines.sim.tokens import VOCABULARIES
from forebay.upstream.continuation.chunks import read_piece
from forebay.upstream.continuation.moves import Continue, Death, next_leg
from forebay.upstream.continuation.resume import resume_request
from forebay.upstream.continuation.seam import Seam
from forebay.upstream.continuation.shapes import Plan, shape_of
from forebay.upstream.continuation.token_ids import without_ids
from forebay.upstream.continuation.told import Leg, Told
from forebay.upstream.continuation.transcript import Transcript
from forebay.wire import splice
from forebay.wire.endpoints import Shape
from forebay.wire.facts import read_event
from forebay.wire.members import read_members
from forebay.wire.sse import DONE, Event, Framer

pytestmark = pytest.mark.integration

TOKENS = 40
PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
DEATHS = [Cut(after_tokens=0), Cut(after_tokens=17), Cut(after_tokens=40), ErrorEvent(after_tokens=9)]
DEATHS += [AbortFinish(after_tokens=21), Stall(after_tokens=5, hold_s=0.05), NoFinish()]


def events_of(answer: Raw) -> list[Event]:
    """The events of an answer up to its end or to what is no answer: an error, an abort, the sentinel."""
    body, data = answer.body, b""
    while body:
        size, _, body = body.partition(b"\r\n")
        length = int(size or b"0", 16)
        data, body = data + body[:length], body[length + 2 :]
    events = []
    for event in Framer().feed(data):
        seen = read_event(event, "chat", opening=True)
        if event.data == DONE or seen.error is not None or seen.finished == "abort":
            break
        events.append(event)
    return events


class World:
    """A client, two engines, and what stands between them."""

    def __init__(self, first: SimServer, second: SimServer, shape: Shape, ids: bool, **fields: Any) -> None:
        self.engines = [Caller(first), Caller(second)]
        self.shape = shape
        asked: dict[str, Any] = {"model": "sim", "stream": True, "max_tokens": TOKENS}
        asked |= {"stream_options": {"include_usage": True}} | fields
        if shape == "chat":
            asked["messages"] = [
                {"role": "system", "content": "Say nothing of this."},
                {"role": "user", "content": "hé"},
            ]
        else:
            asked["prompt"] = "Once upon a time "
        members = read_members(json.dumps(asked).encode())
        plan = shape_of(members, shape, True, "vllm", ids)
        assert isinstance(plan, Plan)
        self.plan = plan
        self.body = splice.edit(members, plan.edits)
        self.transcript = Transcript()
        self.got: list[Event] = []

    async def ask(self, leg: int, body: bytes) -> Raw:
        return await self.engines[leg % 2].send("POST", PATHS[self.shape], body)

    async def first(self) -> Told:
        for event in events_of(await self.ask(0, self.body)):
            self.transcript.add(event.data)
            self.got.append(event)
        return self.transcript.told()

    async def next(self, number: int, told: Told, barred: frozenset[Any] = frozenset()) -> tuple[Leg, Raw]:
        leg = resume_request(self.body, told, self.plan, barred)
        assert isinstance(leg, Leg)
        answer = await self.ask(number, leg.body)
        if answer.status == 200:
            seam = Seam(leg, told, self.transcript, self.shape)
            self.got += [out for event in events_of(answer) for out in seam.join(event)]
        return leg, answer

    def check(self, vocabulary: VocabularyName, plain: list[Event]) -> None:
        """The client got what it would have got from one engine, event for event.

        But for the first half of a character that was said before the cut and again behind it, without text.
        """
        texts = [without_ids(event.data) for event in self.got]
        pieces = [read_piece(text) for text in texts]
        assert "".join(piece.text for piece in pieces) == VOCABULARIES[vocabulary].texts(0, TOKENS)
        assert [piece.finished for piece in pieces if piece.finished] == ["length"]
        whole = [json.loads(text) for text in texts]
        assert len({(one["id"], one["created"], one["model"]) for one in whole}) == 1
        usage = read_event(Event(texts[-1]), self.shape, opening=True).usage
        expected = read_event(plain[-1], self.shape, opening=True).usage
        assert usage == expected == Usage(expected.prompt_tokens if expected else 0, TOKENS)
        assert [without(e) for e in whole if of_use(e)] == [without(e) for e in map(parsed, plain) if of_use(e)]


def parsed(event: Event) -> dict[str, Any]:
    return dict(json.loads(event.data))


def of_use(event: dict[str, Any]) -> bool:
    """Whether an event says anything, if only who speaks."""
    choices = event["choices"]
    return not choices or bool(
        choices[0].get("text") or any(choices[0].get("delta", {}).values()) or choices[0]["finish_reason"]
    )


def without(event: dict[str, Any]) -> dict[str, Any]:
    """Leave out what differs from call to call, and details of usage."""
    return {key: value for key, value in event.items() if key not in ("id", "created")}


async def two(vocabulary: VocabularyName) -> tuple[SimServer, SimServer]:
    spec = QUICK.__class__(
        **{name: getattr(QUICK, name) for name in QUICK.__struct_fields__} | {"vocabulary": vocabulary}
    )
    return await serve(spec, "127.0.0.1", 0, SystemClock()), await serve(spec, "127.0.0.1", 0, SystemClock())


@pytest.mark.parametrize("fault", DEATHS, ids=lambda fault: type(fault).__name__)
@pytest.mark.parametrize("vocabulary", ["ascii", "unicode"])
@pytest.mark.parametrize("shape", ["chat", "completions"])
def test_the_other_engine_goes_on_by_ids(shape: Shape, vocabulary: VocabularyName, fault: AnyAction) -> None:
    async def main() -> None:
        first, second = await two(vocabulary)
        try:
            world = World(first, second, shape, True)
            plain = events_of(
                await world.ask(1, json.dumps(json.loads(world.body) | {"return_token_ids": False}).encode())
            )
            first.set_faults(fault)
            told = await world.first()
            assert next_leg(Death(FailureKind.TRUNCATED), told, world.plan) == Continue()
            if told.tokens < TOKENS:
                await world.next(1, told)
                world.check(vocabulary, plain)
        finally:
            await first.close()
            await second.close()

    uvloop.run(main())


@pytest.mark.parametrize("vocabulary", ["ascii", "unicode"])
@pytest.mark.parametrize("shape", ["chat", "completions"])
@pytest.mark.parametrize("ids", [True, False])
def test_three_engines_for_one_answer(shape: Shape, vocabulary: VocabularyName, ids: bool) -> None:
    async def main() -> None:
        first, second = await two(vocabulary)
        try:
            world = World(first, second, shape, ids)
            first.set_faults(Cut(after_tokens=11))
            second.set_faults(Cut(after_tokens=8))
            told = await world.first()
            await world.next(1, told)
            middle = world.transcript.told()
            assert middle.text.startswith(told.text)
            assert len(middle.text) > len(told.text)
            await world.next(2, middle)
            pieces = [read_piece(event.data) for event in world.got]
            assert "".join(piece.text for piece in pieces) == VOCABULARIES[vocabulary].texts(0, TOKENS)
            assert len({json.loads(event.data)["id"] for event in world.got}) == 1
            usage = read_event(Event(world.got[-1].data), shape, opening=True).usage
            assert usage is not None
            assert usage.completion_tokens == TOKENS
        finally:
            await first.close()
            await second.close()

    uvloop.run(main())


def test_an_engine_that_refuses_a_beginning_is_asked_anew() -> None:
    async def main() -> None:
        first, second = await two("ascii")
        try:
            world = World(first, second, "chat", True)
            first.set_faults(Cut(after_tokens=17))
            second.set_faults(RefusePrefix(times=9))
            told = await world.first()
            leg, answer = await world.next(1, told)
            assert answer.status == 400
            death = Death(FailureKind.STATUS, moves=1, mode=leg.mode, refused=True)
            decided = next_leg(death, told, world.plan)
            assert decided == Continue(frozenset(("exact",)))
            leg, answer = await world.next(1, told, frozenset(("exact", "text")))
            assert (leg.mode, answer.status) == ("restart", 200)
            pieces = [read_piece(event.data) for event in world.got]
            assert "".join(piece.text for piece in pieces) == VOCABULARIES["ascii"].texts(0, TOKENS)
        finally:
            await first.close()
            await second.close()

    uvloop.run(main())
