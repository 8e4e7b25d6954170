"""The client of docs/resume.md, and clients that leave after so many events and come back."""

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import httpx
from faults.mortals import PATHS, PROMPTS, TOKENS
from gateway_process import Document, eventually

from forebay.engines.sim.spec import VocabularyName
from forebay.engines.sim.tokens import VOCABULARIES
from forebay.wire.endpoints import Shape
from tests.docs.pages import REPO, blocks

KEY = "0123456789abcdef0123456789abcdef"


def documented() -> Document:
    """What the client on the page defines."""
    (block,) = blocks(REPO / "docs" / "resume.md", "python")
    defined: Document = {"__name__": "resume_page"}
    exec(compile(block.text, str(block), "exec"), defined)
    return defined


_PAGE = documented()
CHUNKS: Callable[..., Iterator[Document]] = _PAGE["chunks"]
EVENTS: Callable[[httpx.Response], Iterator[tuple[str | None, str]]] = _PAGE["events"]


class Story(NamedTuple):
    """A request, and what its answer must be."""

    shape: Shape = "chat"
    vocabulary: VocabularyName = "ascii"
    tokens: int = TOKENS
    more: Document = {}

    @property
    def body(self) -> Document:
        body: Document = {"model": "m", "max_tokens": self.tokens, "sim_vocabulary": self.vocabulary}
        return body | {"stream_options": {"include_usage": True}} | PROMPTS[self.shape] | self.more

    @property
    def text(self) -> str:
        return VOCABULARIES[self.vocabulary].texts(0, self.tokens)

    def told(self, http: httpx.Client, bases: Sequence[str], begun: "Begun | None" = None) -> "Told":
        """Ask with the documented client, and read all of it."""
        return read(watched(CHUNKS(http, bases, "key-A", self.body, PATHS[self.shape]), begun or Begun()))


class Begun:
    """How many clients have text, and with it what they need to come back.

    Attributes:
        count: of them.
    """

    def __init__(self) -> None:
        self.count = 0
        self._lock = threading.Lock()

    def one_more(self) -> None:
        """Count a client."""
        with self._lock:
            self.count += 1

    def reached(self, count: int) -> bool:
        """Wait for so many."""
        return eventually(lambda: self.count >= count, 60)


def watched(chunks: Iterator[Document], begun: Begun) -> Iterator[Document]:
    """Pass chunks on, and count their client when it has text."""
    fresh = True
    for chunk in chunks:
        if fresh and read(iter([chunk])).text:
            fresh = False
            begun.one_more()
        yield chunk


class Told(NamedTuple):
    """What a client was told."""

    text: str
    finishes: list[str]
    usages: list[Document]
    identities: set[str]


def read(chunks: Iterator[Document]) -> Told:
    """Read chunks as clients do."""
    text, finishes, usages, identities = "", [], [], set()
    for chunk in chunks:
        identities.add(f"{chunk['id']} {chunk['created']} {chunk['model']}")
        usages += [chunk["usage"]] if chunk.get("usage") else []
        for choice in chunk["choices"]:
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
            finishes += [choice["finish_reason"]] if choice.get("finish_reason") else []
    return Told(text, finishes, usages, identities)


class Part(NamedTuple):
    """What a client has that left in the middle.

    Attributes:
        status: of the answer.
        headers: of it.
        token: the latest id; empty without one.
        chunks: all of them.
        error: the code of a refusal, or of an error in the stream.
        done: the sentinel came.
    """

    status: int
    headers: httpx.Headers
    token: str
    chunks: list[Document]
    error: str = ""
    done: bool = False

    @property
    def text(self) -> str:
        return read(iter(self.chunks)).text


def part(
    http: httpx.Client, base: str, story: Story, events: int = 1_000_000, after: Part | None = None, **headers: str
) -> Part:
    """Ask, or come back with what a part has, and leave after so many events with an id."""
    sent = {"Authorization": "Bearer key-A", "X-Forebay-Resume": "1", **headers}
    body = story.body | {"stream": True}
    if after is not None:
        sent["Last-Event-ID"] = after.token
        body["forebay_received"] = after.text
    return send(http, base + PATHS[story.shape], body, sent, events)


def send(
    http: httpx.Client,
    url: str,
    body: Document,
    headers: dict[str, str],
    events: int = 1_000_000,
    begun: Begun | None = None,
) -> Part:
    """Send a request, and leave after so many events with an id; count its client when it has a chunk."""
    token, chunks, error, done = "", [], "", False
    with http.stream("POST", url, json=body, headers=headers) as answer:
        if answer.status_code != 200:
            error = json.loads(answer.read())["error"]["code"]
            return Part(answer.status_code, answer.headers, token, chunks, error)
        for id_, data in EVENTS(answer):
            if data == "[DONE]":
                done = True
                break
            chunk = json.loads(data)
            if "error" in chunk:
                error = chunk["error"]["code"]
                break
            if begun and not chunks:
                begun.one_more()
            chunks.append(chunk)
            token = token if id_ is None else id_
            events -= bool(id_)
            if not events:
                break
    return Part(answer.status_code, answer.headers, token, chunks, error, done)


def joined(*parts: Part) -> Told:
    """What the client of several parts was told; each part begins where the one before ended."""
    return read(chunk for one in parts for chunk in one.chunks)


def http_client(connections: int) -> httpx.Client:
    """A client for so many answers at once; it makes none wait for another."""
    limits = httpx.Limits(max_connections=connections, max_keepalive_connections=connections)
    return httpx.Client(timeout=httpx.Timeout(30, connect=10), limits=limits, trust_env=False)


def whole(story: Story, told: Told) -> None:
    """The answer is the one that would have come without a death."""
    assert told.text == story.text, (story, told)
    assert (told.finishes, len(told.usages), len(told.identities)) == (["length"], 1, 1), (story, told)
    (usage,) = told.usages
    assert usage["completion_tokens"] == story.tokens, (story, told)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], (story, told)
