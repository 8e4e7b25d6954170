"""An engine without a network that has one answer, cut into byte tokens, and can die anywhere in it.

Tokens are pieces of 1 to 4 bytes, so that characters are split as byte-level BPEs split them; text comes out when
its characters are whole. It speaks vLLM's form with ids or llama.cpp's without, goes on from ids or from text,
and, as vLLM does, says its whole prompt when the ids that it is given end inside a character.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from forebay.domain import Usage
from forebay.policy import EngineKind
from forebay.upstream.continuation.chunks import read_piece
from forebay.upstream.continuation.edits import closing
from forebay.upstream.continuation.resume import resume_request
from forebay.upstream.continuation.seam import Seam
from forebay.upstream.continuation.shapes import Plan, shape_of
from forebay.upstream.continuation.token_ids import without_ids
from forebay.upstream.continuation.told import Finish, Leg, Mode, Told
from forebay.upstream.continuation.transcript import Transcript
from forebay.wire.endpoints import Shape
from forebay.wire.facts import read_event
from forebay.wire.members import read_members
from forebay.wire.sse import Event

PROMPT_IDS = [11, 12, 13]
FIRST_ID = 1000
SYSTEM = "You are the keeper of a very secret prompt."


class Decoder:
    """Gives text out as vLLM's detokenizer does: not before all of the bytes make whole characters."""

    def __init__(self, half: bytes) -> None:
        self.waiting = half

    def step(self, token: bytes) -> str:
        self.waiting += token
        try:
            text = self.waiting.decode()
        except UnicodeDecodeError:
            return ""
        self.waiting = b""
        return text


class Engine(NamedTuple):
    """What it says, and how.

    Attributes:
        answer: the whole of it.
        sizes: bytes of its tokens, over and over.
        groups: tokens in a chunk, over and over.
        kind: of engine.
        shape: of the endpoint.
        ids: it sends token ids to who asks for them.
        strips: its template strips the text that it goes on from.
    """

    answer: str
    sizes: tuple[int, ...] = (2,)
    groups: tuple[int, ...] = (1,)
    kind: EngineKind = "vllm"
    shape: Shape = "chat"
    ids: bool = True
    strips: bool = False

    def tokens(self, start_byte: int = 0) -> list[bytes]:
        data = self.answer.encode()
        tokens, at, number = [], start_byte, 0
        while at < len(data):
            size = self.sizes[number % len(self.sizes)]
            tokens.append(data[at : at + size])
            at += size
            number += 1
        return tokens

    def request(self, **fields: Any) -> bytes:
        asked: dict[str, Any] = {"model": "m", "stream": True, "stream_options": {"include_usage": True}}
        if self.shape == "chat":
            asked["messages"] = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": "Hé"}]
        else:
            asked["prompt"] = SYSTEM
        return json.dumps(asked | {"max_tokens": 10_000} | fields).encode()

    def stream(self, body: bytes, leg: int) -> Iterator[Event]:
        """Answer a request; the last event is the usage."""
        asked = json.loads(body)
        given, tokens, first, half = self._beginning(asked)
        limit = asked.get("max_tokens", 10_000)
        reason = "stop" if len(tokens) <= limit else "length"
        tokens = tokens[:limit]
        wants_ids = self.ids and bool(asked.get("return_token_ids"))
        if self.shape == "chat":
            delta = {"role": "assistant", "content": "" if self.kind == "vllm" else None}
            yield self._event(leg, {"delta": delta}, {"prompt_token_ids": given} if wants_ids else {})
        decode = Decoder(half).step
        at = number = 0
        while at < len(tokens):
            size = self.groups[number % len(self.groups)]
            chunk = tokens[at : at + size]
            text = "".join(map(decode, chunk))
            at += size
            number += 1
            if half and text:
                shown = b"".join(self.tokens()[: first - FIRST_ID]).decode(errors="ignore")
                text, half = f"{self._said()}{shown}{text}", b""
            if text or wants_ids:
                ids = {"token_ids": list(range(first + at - size, first + at - size + len(chunk)))} if wants_ids else {}
                yield self._event(
                    leg, {"delta": {"content": text}} if self.shape == "chat" else {"text": text} | ids, ids
                )
        yield self._event(leg, {"delta": {}} if self.shape == "chat" else {"text": ""}, {}, reason)
        usage = {
            "prompt_tokens": len(given),
            "completion_tokens": len(tokens),
            "total_tokens": len(given) + len(tokens),
        }
        head = {"id": f"leg-{leg}", "created": 100 + leg, "model": "m"}
        yield Event(json.dumps(head | {"choices": [], "usage": usage}, ensure_ascii=False).encode())

    def _beginning(self, asked: dict[str, Any]) -> tuple[list[int], list[bytes], int, bytes]:
        """Return the prompt's ids, the tokens to say, the id of the first, and the half character that it ends with."""
        prompt = asked.get("prompt", SYSTEM)
        ids = asked.get("kv_transfer_params", {}).get("prompt_token_ids") or (
            prompt if isinstance(prompt, list) else None
        )
        tokens = self.tokens()
        if ids is not None:
            made = len(ids) - len(PROMPT_IDS)
            assert ids == PROMPT_IDS + list(range(FIRST_ID, FIRST_ID + made))
            whole = Decoder(b"")
            for token in tokens[:made]:
                whole.step(token)
            return ids, tokens[made:], FIRST_ID + made, whole.waiting
        said = prompt.removeprefix(SYSTEM)
        if self.shape == "chat":
            last = asked["messages"][-1]
            goes_on = last["role"] == "assistant"
            assert goes_on == bool(asked.get("continue_final_message", goes_on))
            said = last["content"] if goes_on else ""
        said = said.strip() if self.strips else said
        assert self.answer.startswith(said)
        start = len(said.encode())
        given = PROMPT_IDS + [7] * len(tokens[: len(tokens) - len(self.tokens(start))])
        return given, self.tokens(start), FIRST_ID if not said else 5000, b""

    def _said(self) -> str:
        return f"system\n{SYSTEM}\nuser\nHé\nassistant\n" if self.shape == "chat" else SYSTEM

    def _event(self, leg: int, choice: dict[str, Any], more: dict[str, Any], reason: str | None = None) -> Event:
        ids = {"token_ids": more["token_ids"]} if "token_ids" in more else {}
        top = {"prompt_token_ids": more["prompt_token_ids"]} if "prompt_token_ids" in more else {}
        kind = "chat.completion.chunk" if self.shape == "chat" else "text_completion"
        head = {"id": f"leg-{leg}", "object": kind, "created": 100 + leg, "model": "m"}
        if self.shape == "completions" and "token_ids" in more and more["token_ids"][:1] == [FIRST_ID]:
            ids["prompt_token_ids"] = PROMPT_IDS  # type: ignore[assignment]
        choices = [{"index": 0, **choice, "finish_reason": reason, **ids}]
        text = json.dumps(head | {"choices": choices} | top, ensure_ascii=False, separators=(",", ":"))
        return Event(text.encode())


class Client:
    """What a client has got."""

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        self.text = ""
        self.finished: list[str] = []
        self.usage: Usage | None = None
        self.heads: set[tuple[Any, ...]] = set()
        self.events: list[dict[str, Any]] = []

    def take(self, events: list[Event]) -> None:
        for event in events:
            data = without_ids(event.data)
            piece = read_piece(data)
            assert piece.ids is None
            assert piece.prompt_ids is None
            seen = read_event(Event(data), self.shape, opening=True)
            self.usage = seen.usage or self.usage
            self.text += piece.text
            self.finished += [piece.finished] if piece.finished else []
            whole = json.loads(data)
            self.heads.add((whole["id"], whole["created"], whole["model"]))
            self.events.append(whole)


class Run:
    """One call, driven by hand: legs that die after so many events."""

    def __init__(self, engine: Engine, **fields: Any) -> None:
        self.engine = engine
        body = engine.request(**fields)
        members = read_members(body)
        plan = shape_of(members, engine.shape, True, engine.kind, engine.ids)
        assert isinstance(plan, Plan)
        self.plan = plan
        self.body = json.dumps(
            json.loads(body) | {key: json.loads(text) for key, text in plan.edits.items() if text}
        ).encode()
        self.transcript = Transcript()
        self.client = Client(engine.shape)
        self.legs = 0
        self.modes: list[Mode] = []

    def first(self, events: int | None = None) -> None:
        for number, event in enumerate(self.engine.stream(self.body, 0)):
            if number == events:
                return
            self.transcript.add(event.data)
            self.client.take([event])

    def told(self) -> Told:
        return self.transcript.told()

    def next(self, events: int | None = None, barred: frozenset[Mode] = frozenset()) -> Leg | Finish:
        """Run the next leg until it dies or is through; raises Impossible."""
        told = self.told()
        leg = resume_request(self.body, told, self.plan, barred)
        if isinstance(leg, Finish):
            self.client.take(closing(leg, told.head, self.engine.shape))
            return leg
        self.legs += 1
        self.modes.append(leg.mode)
        seam = Seam(leg, told, self.transcript, self.engine.shape)
        for number, event in enumerate(self.engine.stream(leg.body, self.legs)):
            if number == events:
                break
            self.client.take(seam.join(event))
            if seam.finish is not None:
                break
        return leg
