"""What the ladder does to a call: a shorter answer or history, another model, an honest no; nothing to a structure."""

import asyncio
import json
from typing import Any

import pytest
from inquests import inquest_of
from routing.before_pool import replicas
from test_status import NoJournal
from upstream.engine_side import FakeReply

from forebay.actions import Actions
from forebay.admission.gate import LocalGate, LocalPermit
from forebay.clock import ManualClock
from forebay.degrade.steps import CHINESE, ENGLISH
from forebay.degrading import Degrading
from forebay.domain import Tenant
from forebay.edge import body
from forebay.edge.body import Asked
from forebay.errors import Refused
from forebay.joining import Joining
from forebay.laddering import Laddering
from forebay.placing import Placing
from forebay.policy import Capacity, Ladder, LevelOverride, Model, Policy, Pool
from forebay.ports import PoolView
from forebay.preparing import prepare
from forebay.recording.metrics import Metrics
from forebay.recording.record import CallRecord, Recorder
from forebay.resuming import Resuming
from forebay.routing.headroom import FULL_RATIO
from forebay.routing.pool import Fleet
from forebay.sparing import Sparing
from forebay.traffic import Call, Work, changed
from forebay.wire.endpoints import BY_PATH

ROOM = 10_000
CHAT, COMPLETIONS, EMBEDDINGS = "/v1/chat/completions", "/v1/completions", "/v1/embeddings"
HISTORY = [{"role": "user" if n % 2 == 0 else "assistant", "content": "word " * 400} for n in range(12)]
LONG = [{"role": "system", "content": "Be kind."}, *HISTORY, {"role": "user", "content": "And now?"}]


class World:
    """A model with a ladder and one without, before a pool each, and a smaller one."""

    def __init__(self, **spare: Any) -> None:
        self.clock = ManualClock(1000.0)
        self.fleet = Fleet(self.clock)
        self.gate = LocalGate(self.clock, self.fleet)
        actions = Actions(self.fleet, self.clock)
        self.laddering = Laddering(self.fleet, self.gate.basin, actions, self.clock)
        self.sparing = Sparing(self.laddering, self.fleet, self.gate.basin, self.clock)
        degrading = Degrading(self.fleet, actions, self.clock)
        inquest = inquest_of(self.fleet, actions, self.clock)
        self.placing = Placing(self.gate, degrading, Joining(self.clock), self.sparing, Resuming(None), inquest)
        self.metrics = Metrics(self.clock)
        self.recorder = Recorder(self.clock, NoJournal(), self.metrics)
        capacity = {"capacity": Capacity(kv_tokens=ROOM)}
        self.pools = (
            Pool("main", "vllm", replicas("a"), **capacity),  # type: ignore[arg-type]
            Pool("spare", "vllm", replicas("s"), **{**capacity, **spare}),  # type: ignore[arg-type]
        )
        self.follow()

    def follow(self, level: int | None = None, scope: str = "node", name: str = "") -> None:
        """Let a person set a level, or none."""
        models = {
            "m": Model("m", "main", ladder=Ladder("small", 300, 1000)),
            "stiff": Model("stiff", "main", fallback=("small",)),
            "small": Model("small", "spare", fallback=("stiff",), ladder=Ladder("m", 300, 1000)),
        }
        levels = () if level is None else (LevelOverride(scope, name, level),)  # type: ignore[arg-type]
        self.policy = Policy({pool.name: pool for pool in self.pools}, models, {}, levels=levels)
        for listener in (self.fleet, self.gate, self.metrics, self.laddering):
            listener.apply(self.policy)

    def automatic(self, level: int) -> None:
        """Put the pool on a level of its own."""
        self.follow()
        watch = self.laddering._watches["main"]
        watch.ladder.level = level
        self.laddering._engage()

    def call(self, path: str, model: str, prompt: int, output: int, cap: int | None, *, stream: bool = True) -> Call:
        work = Work(prompt, output, output, model, (1.0,), (("k",),), (7,))
        now_s = self.clock.now_s()
        return Call(
            "c", BY_PATH[path], model, stream, False, Tenant("t"), prompt, output, (), now_s, now_s + 60.0, work=work,
            max_tokens=cap, bound_tokens=output,
        )  # fmt: skip

    def ask(
        self, path: str = CHAT, model: str = "m", prompt: int = 100, output: int = 1000, **members: Any
    ) -> tuple[Call, Asked, FakeReply, CallRecord]:
        """Serve a request as far as its permit."""
        what = {"messages": [{"role": "user", "content": "hi"}]} if path == CHAT else {"prompt": "hi"}
        text = json.dumps({"model": model, "stream": True, **what, **members}).encode()
        asked = asyncio.run(body.read(text, BY_PATH[path], 64))
        reply, record = FakeReply(), self.recorder.open("c", "r", "chat", "")
        call = self.call(path, model, prompt, output, asked.max_tokens)
        record.understood(call)
        call, asked = self.placing.placed(call, asked, self.policy, reply, record)
        return call, asked, reply, record

    def fill(self, pool: str, tokens: int) -> LocalPermit:
        """Let a call into a pool that stays there."""
        inside: list[LocalPermit] = []
        self.gate.offer(self.call(CHAT, "m", tokens, 0, None), pool, inside.append, lambda refusal: None)
        return inside[0]

    def sent(self, call: Call, asked: Asked) -> dict[str, Any]:
        """What an engine would get."""
        sending, _ = prepare(call, asked, self.policy.models[call.model], self.policy, False)
        found: dict[str, Any] = json.loads(sending.body)
        return found


@pytest.fixture
def world() -> World:
    return World()


def test_without_a_level_nothing_is_looked_at(world: World) -> None:
    call, asked, reply, record = world.ask(messages=LONG, n=3)
    assert (call.max_tokens, call.notice, call.moved, reply.extra, record.row.degraded) == (None, "", False, b"", ())
    assert world.sent(call, asked)["messages"] == LONG


@pytest.mark.parametrize(("asked_for", "gets", "told"), [(None, 300, True), (1000, 300, True), (200, 200, False)])
def test_the_first_level_shortens_answers(world: World, asked_for: int | None, gets: int, told: bool) -> None:
    world.automatic(1)
    call, asked, reply, record = world.ask(**({} if asked_for is None else {"max_tokens": asked_for}))
    assert world.sent(call, asked)["max_tokens"] == gets
    assert reply.extra == (b"x-forebay-degraded: output\r\n" if told else b"")
    assert record.row.degraded == (("output",) if told else ())
    if told:
        assert record.row.max_tokens == 300
        assert (call.output_tokens, call.bound_tokens, call.work.output_tokens, call.work.kin) == (300, 300, 300, ())
        assert world.metrics.degradations.child(("output",)).value == 1


@pytest.mark.parametrize("members", [{"n": 2}, {"logprobs": True, "top_logprobs": 3}])
def test_several_choices_and_log_probabilities_are_refused_with_advice(world: World, members: dict[str, Any]) -> None:
    world.automatic(1)
    with pytest.raises(Refused) as refused:
        world.ask(**members)
    assert (refused.value.code, refused.value.status, refused.value.param) == ("degraded", 503, next(iter(members)))
    assert "ask for one answer without it" in refused.value.message and refused.value.retry_after_s


SPECIAL = [
    {"tools": [{"type": "function", "function": {"name": "f"}}]},
    {"response_format": {"type": "json_object"}},
    {"messages": [*LONG, {"role": "tool", "tool_call_id": "1", "content": "42"}]},
    {"messages": [*LONG[:-1], {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "u"}}]}]},
    {"messages": [*LONG[:-1], {"role": "user", "content": "Answer as JSON please"}]},
]


@pytest.mark.parametrize("members", SPECIAL)
@pytest.mark.parametrize("level", [1, 2, 3])
def test_what_has_a_structure_is_never_altered(world: World, level: int, members: dict[str, Any]) -> None:
    world.automatic(level)
    members = {"messages": LONG, "max_tokens": 2000, **members}
    call, asked, reply, record = world.ask(**members)
    sent = world.sent(call, asked)
    assert {key: sent[key] for key in members} == members
    assert (call.notice, reply.extra, record.row.degraded) == ("", b"", ())


def test_the_third_level_keeps_system_and_the_latest_and_says_so(world: World) -> None:
    world.automatic(3)
    call, asked, reply, record = world.ask(messages=LONG, prompt=4900)
    sent = world.sent(call, asked)["messages"]
    assert sent == [LONG[0], *LONG[-3:]]
    assert call.notice == ENGLISH and record.row.degraded == ("output", "history")
    assert reply.extra == b"x-forebay-degraded: output, history\r\n"
    assert 700 < call.prompt_tokens < 1100 and (call.work.features, call.work.blocks) == ((), ())
    sending, _ = prepare(call, asked, world.policy.models["m"], world.policy, False)
    assert sending.rewriter.notice == ENGLISH
    chinese = [*LONG[:-1], {"role": "user", "content": "现在怎么办？"}]
    assert world.ask(messages=chinese, prompt=4900)[0].notice == CHINESE


def test_a_short_chat_and_a_completion_lose_no_text(world: World) -> None:
    world.automatic(3)
    assert world.ask()[3].row.degraded == ("output",)
    call, asked, _, record = world.ask(COMPLETIONS, prompt=4900)
    assert record.row.degraded == ("output",) and world.sent(call, asked)["prompt"] == "hi"


def test_embeddings_are_no_business_of_the_ladder(world: World) -> None:
    world.automatic(3)
    call, _, reply, _ = world.ask(EMBEDDINGS, input="x")
    assert call.model == "m" and reply.extra == b""


def test_at_the_second_level_what_cannot_start_goes_to_the_smaller_model(world: World) -> None:
    world.automatic(2)
    assert world.ask()[0].model == "m", "its own pool can start it"
    full = world.fill("main", ROOM)
    call, asked, reply, record = world.ask()
    assert (call.model, call.moved, record.model) == ("small", True, "small")
    assert reply.extra == b"x-forebay-degraded: output, model\r\n" and record.row.degraded == ("output", "model")
    assert world.sent(call, asked)["model"] == "small"
    assert world.placing.at_once(call, world.policy) is not None
    full.release(None)


def test_tools_go_there_too_and_stay_whole(world: World) -> None:
    world.automatic(2)
    world.fill("main", ROOM)
    call, asked, _, record = world.ask(max_tokens=2000, **SPECIAL[0])
    assert (call.model, record.row.degraded) == ("small", ("model",))
    assert world.sent(call, asked)["max_tokens"] == 2000


def test_the_other_pool_is_never_filled_beyond_nine_tenths(world: World) -> None:
    world.automatic(2)
    world.fill("main", ROOM)
    moved = 0
    for _ in range(60):
        call, _, _, _ = world.ask(prompt=200, max_tokens=100, output=100)
        if call.model != "small":
            break
        assert world.placing.at_once(call, world.policy) is not None
        moved += 1
        (state,) = world.fleet.states("spare")
        assert state.in_flight_tokens <= FULL_RATIO * ROOM
    assert moved == 30


@pytest.mark.parametrize(
    "spare", [{"capacity": Capacity()}, {"capacity": Capacity(streams=1)}, {"drained": frozenset({"s"})}], ids=str
)
def test_a_pool_whose_room_is_unknown_or_too_small_takes_nobody(spare: dict[str, Any]) -> None:
    world = World(**spare)
    world.automatic(2)
    world.fill("main", ROOM)
    assert world.ask()[0].model == "m"


def test_places_count_where_kv_room_is_unknown() -> None:
    world = World(capacity=Capacity(streams=4))
    world.automatic(2)
    world.fill("main", ROOM)
    for model in ("small", "small", "small", "m"):
        call, _, _, _ = world.ask(output=100)
        assert call.model == model
        if model == "small":
            assert world.placing.at_once(call, world.policy) is not None


def test_a_worker_goes_by_what_the_gate_has_told(world: World) -> None:
    main, spare = PoolView(2, queued=9), PoolView(kv_ratio=0.5)
    world.laddering.told({"main": main, "spare": spare}, ())
    assert world.ask(max_tokens=200)[0].model == "small", "calls wait for its own pool"
    world.laddering.told({"main": PoolView(2, queues_inside=True), "spare": spare}, ())
    assert world.ask(max_tokens=200)[0].model == "small", "calls wait in its engines"
    world.laddering.told({"main": main, "spare": PoolView(kv_ratio=0.89)}, ())
    assert world.ask(max_tokens=200)[0].model == "m", "the other pool has no room"
    (state,) = world.fleet.states("main")
    state.in_flight, state.occupied_s = 1, 10.0
    with pytest.raises(Refused):
        world.ask(max_tokens=200)


def test_one_hop_and_no_further(world: World) -> None:
    world.follow(2)
    call, _, _, record = world.ask(model="stiff")
    assert (call.model, record.row.degraded) == ("stiff", ("output",)), "it names no smaller one"
    call, _, _, _ = world.ask()
    assert (call.model, call.moved) == ("small", True), "a person said so, though its own pool could"
    other = changed(call, moved=False)
    record = world.recorder.open("d", "r", "chat", "")
    record.degraded("tenant")
    asked = asyncio.run(body.read(b'{"messages":[]}', BY_PATH[CHAT], 64))
    again, _ = world.placing.placed(other, asked, world.policy, FakeReply(), record)
    assert again.model == "small"


def test_a_call_that_was_moved_goes_no_further_when_its_place_is_gone(world: World) -> None:
    world.automatic(2)
    world.fill("main", ROOM)
    call, _, _, _ = world.ask(output=100)
    assert call.moved
    world.pools = (world.pools[0], Pool("spare", "vllm", replicas("s"), queue_size=0, capacity=Capacity(streams=1)))
    world.automatic(2)
    world.fill("spare", 1)
    with pytest.raises(Refused) as refused:
        asyncio.run(world.placing.let_in(call, world.policy))
    assert refused.value.code == "queue_full"


def test_a_pool_that_suffers_itself_takes_nobody(world: World) -> None:
    world.automatic(2)
    world.fill("main", ROOM)
    world.laddering._watches["spare"].ladder.level = 1
    assert world.ask()[0].model == "m"


def test_a_level_set_by_hand_counts_for_models_without_a_ladder_and_zero_forbids(world: World) -> None:
    world.automatic(3)
    assert world.ask(model="stiff", messages=LONG, prompt=4900)[3].row.degraded == ()
    world.follow(1, "tenant", "t")
    assert world.ask(model="stiff")[0].max_tokens == 512
    world.follow(1, "tenant", "somebody")
    assert world.ask(model="stiff")[0].max_tokens is None
    world.follow(0)
    world.laddering._watches["main"].ladder.level = 3
    assert world.ask(messages=LONG, prompt=4900)[3].row.degraded == ()


def test_who_would_wait_too_long_is_told_at_once(world: World) -> None:
    world.automatic(2)
    inside = world.fill("main", ROOM)
    (state,) = world.fleet.states("main")
    state.occupied_s = 20.0
    world.fill("spare", ROOM)
    assert world.ask()[0].model == "m", "in 20 s it is its turn"
    state.occupied_s = 50.0
    with pytest.raises(Refused) as refused:
        world.ask()
    assert (refused.value.code, refused.value.retry_after_s) == ("overloaded", 50)
    inside.release(None)
    assert world.ask()[0].model == "m"
