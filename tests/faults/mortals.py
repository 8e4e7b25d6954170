"""Simulated engines in processes of their own, behind a gateway; what a client must see when one of them dies."""

import asyncio
import http.client
import itertools
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from cases.rawhttp import request_bytes
from faults.client import Link, Timed
from faults.engines import LoopThread
from gateway_process import Document, Gateway, eventually

from forebay.engines.sim.spec import VocabularyName
from forebay.engines.sim.tokens import VOCABULARIES
from forebay.wire.endpoints import Shape

STREAMS = 40
TOKENS = 60
STALL_S = 1
# The marks are 1 s behind a cut and 3 s behind a hang; `bench.deaths` measures them. These are for a busy machine.
CUT_GAP_S = 10.0
HANG_GAP_S = STALL_S + 10.0
TIMEOUTS = {"connect_s": 1, "first_byte_s": 3, "stall_s": STALL_S, "total_s": 30}
PATHS: dict[Shape, str] = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}
SECRET = "a system prompt that nobody may see"
PROMPTS: dict[Shape, Document] = {
    "chat": {"messages": [{"role": "system", "content": SECRET}, {"role": "user", "content": "hi"}]},
    "completions": {"prompt": SECRET},
}
NUMBERS = itertools.count()
# To leave a stop string out, an engine holds text back: its ids run ahead, and the answer goes on from its text.
BY_TEXT: Document = {"stop": ["nobody says this"]}


class Sim:
    """A `forebay sim` in a process of its own, where each token takes so long, and a little more."""

    def __init__(self, token_ms: float = 30.0) -> None:
        command = [sys.executable, "-m", "forebay.cli.main", "sim", "--port", "0", "--model", "m"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen([*command, "--engine", "/dev/stdin"], stdin=pipe, stdout=pipe, text=True)
        assert self._process.stdin is not None
        with self._process.stdin as engine:
            json.dump({"spec": {"iteration_base_ms": token_ms}}, engine)
        self._process.stdin = None  # closed: `communicate` would write to it
        self.url = ""

    def wait(self) -> None:
        """Wait until it listens."""
        assert self._process.stdout is not None
        found = re.search(r"http://\S+", self._process.stdout.readline())
        if not found:
            self.stop()
        assert found, "the simulated engine did not start"
        self.url = found[0]

    def steer(self, path: str, payload: object = None) -> Document:
        """Use one of its `/sim/` endpoints."""
        connection = http.client.HTTPConnection(self.url.removeprefix("http://"), timeout=5)
        try:
            method = "GET" if path in ("stats", "log") else "POST"
            connection.request(method, f"/sim/{path}", None if payload is None else json.dumps(payload))
            answer = connection.getresponse()
            body = answer.read()
            assert answer.status == 200, body
            return dict(json.loads(body or b"{}"))
        finally:
            connection.close()

    def faults(self, *steps: Document) -> None:
        """Replace its script of faults."""
        self.steer("faults", steps)

    def running(self) -> int:
        """How many answers it makes now; none when it is gone."""
        try:
            return int(self.steer("stats")["sequences_running"])
        except OSError:
            return 0

    def signal(self, number: signal.Signals) -> None:
        """Send it a signal."""
        os.kill(self._process.pid, number)

    @property
    def died(self) -> bool:
        """Whether its process has ended."""
        return self._process.poll() is not None

    def stop(self) -> None:
        """End it, however it is."""
        if self._process.poll() is None:
            self._process.kill()
        if self._process.stdout is not None and not self._process.stdout.closed:
            self._process.communicate()


class Asked(NamedTuple):
    """A request and what the answer must be."""

    request_id: str
    shape: Shape = "chat"
    vocabulary: VocabularyName = "ascii"
    tokens: int = TOKENS
    usage: bool = True
    more: Document = {}

    @property
    def text(self) -> str:
        return VOCABULARIES[self.vocabulary].texts(0, self.tokens)

    def bytes(self) -> bytes:
        body: Document = {"model": "m", "stream": True, "max_tokens": self.tokens, "sim_vocabulary": self.vocabulary}
        if self.usage:
            body["stream_options"] = {"include_usage": True}
        body |= PROMPTS[self.shape] | self.more
        return request_bytes("POST", PATHS[self.shape], body, headers=(f"X-Request-Id: {self.request_id}",))


def one(**how: Any) -> Asked:
    """One request."""
    return Asked(f"call-{next(NUMBERS)}", **how)


def variety(count: int, tokens: int = TOKENS) -> list[Asked]:
    """Requests of both endpoints and vocabularies, with and without usage; a quarter goes on from its text."""
    asked = []
    for number in range(count):
        more = BY_TEXT | ({"temperature": 0} if number % 8 == 7 else {}) if number % 4 == 3 else {}
        shape: Shape = "completions" if number // 2 % 2 else "chat"
        vocabulary: VocabularyName = "unicode" if number % 2 else "ascii"
        asked.append(one(shape=shape, vocabulary=vocabulary, tokens=tokens, usage=number % 3 != 0, more=more))
    return asked


class Field:
    """Simulated engines behind a gateway, and clients."""

    def __init__(self, thread: LoopThread, sims: Sequence[Sim], gateway: Gateway) -> None:
        self.thread = thread
        self.sims = sims
        self.gateway = gateway
        self.links: list[Link] = []

    async def link(self) -> Link:
        """A client that `under_way` sees."""
        link = await Link.open(self.gateway.address)
        self.links.append(link)
        return link

    def ask(self, asked: Sequence[Asked], meanwhile: Callable[[], None] = lambda: None) -> list[Timed]:
        """Ask all at once, do something meanwhile, and wait for all answers."""

        async def call(a: Asked) -> Timed:
            link = await self.link()
            try:
                return await link.ask(a.bytes())
            finally:
                link.close()

        async def together() -> list[Timed]:
            return await asyncio.gather(*map(call, asked))

        self.links = []
        running = asyncio.run_coroutine_threadsafe(together(), self.thread.loop)
        meanwhile()
        return running.result(90)

    def under_way(self, count: int, unseen: int = 0, more: int = 1) -> None:
        """Wait until so many answers are being made.

        And until all clients, but for those that are not ours, have so many chunks more than now; one in any case.
        """
        had, seen = {link: link.pieces for link in self.links} if more > 1 else {}, count - unseen

        def on_the_way() -> int:
            return sum(link.pieces >= had.get(link, 0) + more for link in self.links)

        assert eventually(lambda: on_the_way() >= seen, 30), f"{on_the_way()} of {seen} clients have so much"
        assert eventually(lambda: sum(sim.running() for sim in self.sims) >= count, 30), f"fewer than {count} run"

    def rows(self, asked: Sequence[Asked]) -> list[Document]:
        """The rows of the calls in their order."""
        by_id = {row["request_id"]: row for row in self.gateway.rows([a.request_id for a in asked], 30)}
        return [by_id[a.request_id] for a in asked]

    def idle(self) -> None:
        """Nothing is in flight anywhere, and nothing was logged that should not be."""
        assert eventually(self.gateway.idle, 30), "something is still in flight or holds a permit"
        log = self.gateway.log
        assert "Traceback" not in log, log[-3000:]
        assert SECRET not in log


def ready(field: Field) -> Field:
    """Wait until the engines are known to send token ids: the probe comes a moment after the start."""

    def probed() -> bool:
        field.ask([one(tokens=1)])
        entries = [entry for sim in field.sims for entry in sim.steer("log")["requests"]]
        return any("return_token_ids" in (entry["json"] or {}) for entry in entries)

    assert eventually(probed, 30), "no engine was asked for token ids"
    for sim in field.sims:
        sim.steer("reset")
    return field


def settings_for(sims: Sequence[Sim], **pool: Any) -> Document:
    """A configuration with one pool of them."""
    replicas = [{"url": sim.url} for sim in sims]
    return {
        "pools": {"main": {"engine": "vllm", "replicas": replicas, **pool}},
        "models": {"m": {"pool": "main"}},
        "tenants": [{"name": "a", "keys": ["key-A"]}],
        "timeouts": TIMEOUTS,
    }


class Seen(NamedTuple):
    """What a client made of an answer."""

    text: str
    finishes: list[str]
    usages: list[Document]
    ids: set[str]
    dones: int
    error: Document | None


def read(timed: Timed) -> Seen:
    """Read an answer as clients do."""
    text, finishes, usages, ids, error = "", [], [], set(), None
    events = timed.response.events
    for event in events:
        if event.data == "[DONE]":
            continue
        chunk = event.json()
        if "error" in chunk:
            error = chunk["error"]
            continue
        ids.add(f"{chunk['id']} {chunk['created']} {chunk['model']}")
        if chunk.get("usage"):
            usages.append(chunk["usage"])
        for choice in chunk["choices"]:
            text += choice.get("text") or choice.get("delta", {}).get("content") or ""
            finishes += [choice["finish_reason"]] if choice.get("finish_reason") else []
    return Seen(text, finishes, usages, ids, sum(event.data == "[DONE]" for event in events), error)


def whole(asked: Asked, timed: Timed, row: Document, gap_s: float) -> None:
    """The answer is the one that would have come without a death."""
    answer, seen = timed.response, read(timed)
    told = f"{asked}: {seen} {row}"
    assert answer.status == 200 and answer.clean, told
    assert seen.text == asked.text, told
    assert (seen.finishes, seen.dones, len(seen.ids), seen.error) == (["length"], 1, 1, None), told
    assert b'token_ids":[' not in answer.body and SECRET not in answer.body.decode(), told
    assert len(seen.usages) == asked.usage, told
    # A reset throws away what the kernel had not given us yet: with it the first token, and the call is tried anew.
    assert row["outcome"] == "ok" and row["continued"] <= len(row["attempts"]) - 1, told
    if row["usage_estimated"]:
        # Where no ids came and no engine counted in time, events are counted: fewer, where a token brings no text.
        assert BY_TEXT.keys() <= asked.more.keys() and row["output_length"] <= asked.tokens, told
    else:
        assert row["output_length"] == asked.tokens, told
    for usage in seen.usages:
        assert (usage["prompt_tokens"], usage["completion_tokens"]) == (row["input_length"], row["output_length"]), told
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"], told
    assert timed.longest_gap_s < gap_s, f"a gap of {timed.longest_gap_s:.2f} s: {told}"


def all_whole(field: Field, asked: Sequence[Asked], answers: Sequence[Timed], gap_s: float) -> int:
    """Check all answers; return how many went on elsewhere."""
    rows = field.rows(asked)
    for a, timed, row in zip(asked, answers, rows, strict=True):
        whole(a, timed, row, gap_s)
    prompts = {(a.shape, row["input_length"]) for a, row in zip(asked, rows, strict=True)}
    assert len(prompts) == len({shape for shape, _ in prompts}), "the prompt's tokens are not those of the first leg"
    field.idle()
    return sum(row["continued"] > 0 for row in rows)
