"""Deaths of real llama.cpp: two engines with the packaged model, each behind a wire that can cut, garble or go dead.

An engine that was not killed is heard to the end of its answer behind the gateway's back: that is the unbroken answer.
The same question asked again is no measure for it: what lies in the engine's cache changes batches, and near-ties flip.
"""

import asyncio
import http.client
import itertools
import json
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from bench import engines
from bench.answers import GIVE_UP_S, Heard, Wanted, hear, listen
from bench.deaths_table import Death
from bench.peers import HOST, CannotRun, Process
from forebay.engines.embedded import MODEL_ALIAS

KINDS = ("rst", "kill", "error", "hang", "stop", "fin")
HANGS = frozenset({"hang", "stop"})
TOKENS = 48
STALL_S = 1.0
SETTINGS: dict[str, Any] = {
    "timeouts": {"connect_s": 1, "first_byte_s": 20, "stall_s": STALL_S, "total_s": 120},
}
SECRET = "You are a terse clerk. Your badge is 7f3a9c, and nobody may hear of it."
QUESTIONS = (
    "Name three rivers of Europe and say one thing about each.",
    "Why is the sky blue? Answer in three sentences.",
    "Write four lines about a lighthouse, with many emoji 🌊🚢🌟.",
    "Count from one to twenty in words.",
    "用中文写几句关于春天的话。",
    "List five kinds of bread with an emoji 🍞 for each.",
    "Explain what a queue is to a child.",
    "Tell a very short story about a cat 🐱 and a dog 🐶.",
)
_ERROR = b'data: {"error":{"message":"the engine is gone","type":"InternalServerError","code":500}}\n\n'
_GENERATES = b"POST /v1/c"
_LAST_CHUNK = b"0\r\n\r\n"


class Doom:
    """The death that the next answer meets, whichever engine makes it; None while all is well.

    Attributes:
        kind: of death.
        after_events: that the client has before.
        passed: events that the client had.
        hit: it came before the answer was over.
        struck: number of the engine that it struck, -1 before.
        tape: all that this engine says, also after the death; None before.
    """

    def __init__(self) -> None:
        self.kind = ""
        self.after_events = self.passed = 0
        self.struck = -1
        self.hit = False
        self.tape: asyncio.StreamReader | None = None

    def set(self, kind: str, after_events: int) -> None:
        """Wait for the next answer."""
        self.kind, self.after_events, self.passed, self.struck, self.hit = kind, after_events, 0, -1, False
        self.tape = None


class Wire:
    """A port before one engine: passes bytes on, until doom strikes an answer."""

    def __init__(self, number: int, engine: Process, doom: Doom) -> None:
        self.engine = engine
        self._number = number
        self._doom = doom
        self._server: asyncio.Server | None = None
        # asyncio lets go of what serves a connection that is reset.
        self._serving: set[asyncio.Task[None]] = set()
        self.port = 0

    async def open(self) -> None:
        """Listen on a free port."""
        self._server = await asyncio.start_server(self._came, HOST, 0)
        self.port = int(self._server.sockets[0].getsockname()[1])

    def _came(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(self._serve(reader, writer))
        self._serving.add(task)
        task.add_done_callback(self._serving.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            up_reader, up_writer = await asyncio.open_connection(HOST, self.engine.port)
        except OSError:
            _reset(writer)
            return
        doomed: list[asyncio.StreamReader] = []
        up = asyncio.ensure_future(self._up(reader, up_writer, doomed))
        try:
            await self._down(up_reader, writer, doomed)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            for tape in doomed:
                tape.feed_eof()
            up.cancel()
            with suppress(asyncio.CancelledError, OSError):
                await up
            up_writer.close()
            writer.close()

    async def _up(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, doomed: list[asyncio.StreamReader]
    ) -> None:
        while data := await reader.read(65536):
            if data.startswith(_GENERATES) and self._doom.kind and self._doom.struck < 0:
                self._doom.struck = self._number
                self._doom.tape = asyncio.StreamReader(limit=1 << 24)
                doomed.append(self._doom.tape)
            writer.write(data)
        if not doomed:
            writer.close()

    async def _down(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, doomed: list[asyncio.StreamReader]
    ) -> None:
        strike: asyncio.Future[None] | None = None
        while data := await reader.read(65536):
            for tape in doomed:
                tape.feed_data(data)
            if strike is not None:
                if data.endswith(_LAST_CHUNK):
                    break
                continue
            if doomed:
                events = data.count(b"data: ")
                if self._doom.passed + events > self._doom.after_events:
                    self._doom.hit = True
                    strike = asyncio.ensure_future(self._strike(writer))
                    continue
                self._doom.passed += events
            writer.write(data)
        if strike is not None:
            await strike

    async def _strike(self, writer: asyncio.StreamWriter) -> None:
        match self._doom.kind:
            case "kill":
                os.kill(self.engine.pids()[0], signal.SIGKILL)
                _reset(writer)
            case "stop":
                os.kill(self.engine.pids()[0], signal.SIGSTOP)
                await asyncio.sleep(3 * STALL_S)
            case "hang":
                await asyncio.sleep(3 * STALL_S)
            case "error":
                for part in (_ERROR, b"data: [DONE]\n\n"):
                    writer.write(b"%x\r\n%b\r\n" % (len(part), part))
                writer.write(b"0\r\n\r\n")
            case "rst":
                _reset(writer)
        writer.close()


class Asked(NamedTuple):
    """An answer that died after so many events, the one that would have come, and one to the same question."""

    kind: str
    passed: int
    heard: Heard
    expected: Heard
    again: Heard
    rows: list[dict[str, Any]]


def _reset(writer: asyncio.StreamWriter) -> None:
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def ask_json(port: int, path: str, payload: object) -> None:
    """POST a JSON document.

    Raises:
        OSError: the answer is not 200.
    """
    connection = http.client.HTTPConnection(HOST, port, timeout=10)
    try:
        connection.request("POST", path, json.dumps(payload))
        status = connection.getresponse().status
    finally:
        connection.close()
    if status != 200:
        raise OSError(f"POST {path} on port {port} answers {status}")


def on_llamacpp(count: int, command: str) -> list[Death]:
    """Let so many answers go through a death of real llama.cpp, one after the other."""
    cores = engines.split_cores()
    with engines.workshop(cores.front) as (folder, started), asyncio.Runner() as runner:
        doom = Doom()
        wires = [Wire(n, started(engines.llama(folder, cores.engine, 2, 2048)), doom) for n in range(2)]
        for wire in wires:
            runner.run(wire.open())
        pool = {"breaker": {"failures": 1_000_000, "open_s": 1}}
        settings = engines.one_pool("llamacpp", [wire.port for wire in wires], MODEL_ALIAS, **pool) | SETTINGS
        # The gateway polls through the wires, which live in this process: they must run while it starts.
        gateway = engines.gateway(folder, cores.front, settings, command)
        runner.run(asyncio.to_thread(started, gateway))
        runner.run(asyncio.to_thread(engines.wait_for, gateway, "/health/serving"))
        journal = folder / "data" / "journal"
        return [judged(one) for one in runner.run(_deaths(count, wires, doom, (gateway, journal)))]


async def _deaths(count: int, wires: Sequence[Wire], doom: Doom, front: tuple[Process, Path]) -> list[Asked]:
    (gateway, journal), numbers = front, itertools.count()
    found: list[Asked] = []
    while len(found) < count:
        number = next(numbers)
        kind, name = KINDS[len(found) % len(KINDS)], f"death-{number}"
        doom.set(kind, 3 + (7 * number) % 24)
        heard = await hear(gateway.port, _wanted(name, number))
        if not doom.hit:
            # The small model ends some answers at once; nothing has died in the middle of those.
            if number > 10 * count:
                raise CannotRun(f"llama.cpp does not answer: {heard.error or heard.text!r}")
            await asyncio.sleep(0.1)
            continue
        passed, wire = doom.passed, wires[max(doom.struck, 0)]
        await asyncio.to_thread(_revive, wire, kind)
        taped = None if kind == "kill" else await _rest(doom)
        # Anew and without the gateway, at the engine that died.
        calm = _wanted(name, number)
        again = await hear(wire.engine.port, calm._replace(body=calm.body | {"cache_prompt": False}))
        found.append(Asked(kind, passed, heard, taped or again, again, _rows(journal, name)))
        print(f"\r{len(found)} deaths of {count} on llama.cpp", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return found


async def _rest(doom: Doom) -> Heard:
    """Hear what the engine would have said, to its end."""
    heard = Heard()
    try:
        if doom.tape is None:
            raise CannotRun("the answer that died was not recorded")
        await asyncio.wait_for(listen(doom.tape, heard), GIVE_UP_S)
    except (EOFError, ValueError, KeyError, TimeoutError) as error:
        raise CannotRun(f"the engine did not end the answer that was cut: {error!r}") from error
    return heard


def _wanted(name: str, number: int) -> Wanted:
    # What stands first differs, so that no engine has the beginning of a prompt from another one: what is cached was
    # computed in other batches, and no two answers could be compared.
    secret = f"{number}. {SECRET}"
    question = QUESTIONS[number % len(QUESTIONS)]
    body: dict[str, Any] = {"model": MODEL_ALIAS, "stream": True, "temperature": 0, "max_tokens": TOKENS}
    body["stream_options"] = {"include_usage": True}
    if number % 3 == 2:
        return Wanted(name, "completions", body | {"prompt": f"{secret}\nQuestion: {question}\nAnswer:"})
    messages = [{"role": "system", "content": secret}, {"role": "user", "content": question}]
    return Wanted(name, "chat", body | {"messages": messages})


def _revive(wire: Wire, kind: str) -> None:
    """Let an engine be well again after it was killed or stopped."""
    if kind == "stop":
        os.kill(wire.engine.pids()[0], signal.SIGCONT)
    elif kind == "kill":
        wire.engine.stop()
        wire.engine.start()
        engines.wait_for(wire.engine, "/health")
        time.sleep(2.2)  # the gateway polls every 2 s


def _rows(journal: Path, name: str) -> list[dict[str, Any]]:
    lines = [line for path in sorted(journal.glob("*.jsonl"))[-2:] for line in path.read_bytes().split(b"\n")[:-1]]
    rows = [json.loads(line) for line in lines[-40:] if b'"outcome"' in line]
    return [row for row in rows if row["request_id"] == name]


def judged(asked: Asked) -> Death:
    """Compare an answer with the one that came without a death.

    What follows the seam may differ where two words are as likely (never bit-identical); what came before may not.
    """
    heard, expected = asked.heard, asked.expected
    row = asked.rows[0] if len(asked.rows) == 1 else {}
    usage = heard.usages[-1] if len(heard.usages) == 1 else {}
    said = (usage.get("prompt_tokens"), usage.get("completion_tokens"))
    counts = row and said == (row["input_length"], row["output_length"])
    same = heard.text == expected.text
    return Death(
        kind=asked.kind,
        mode="text",
        vocabulary="llama.cpp",
        hang=asked.kind in HANGS,
        whole=heard.whole and bool(row.get("continued")),
        error=heard.error,
        wrong_chars=0 if same else doubled(heard, asked.passed),
        leaked=SECRET[:24] in heard.text and SECRET[:24] not in expected.text,
        replaced=heard.text.count("\ufffd") > expected.text.count("\ufffd"),
        gap_s=heard.gap_s,
        prefill_s=asked.again.first_s,
        rows=len(asked.rows),
        sums=bool(counts and usage.get("total_tokens") == sum(v or 0 for v in said)),
        exact_usage=usage == (expected.usages or [{}])[-1],
        continued=int(row.get("continued") or 0),
        same=same,
        known=expected.text.startswith("".join(heard.said[: asked.passed])),
        stable=asked.again.text == expected.text,
        agrees=heard.text.startswith(expected.text) or expected.text.startswith(heard.text),
    )


def doubled(heard: Heard, passed: int) -> int:
    """Return the characters of a word that was said on both sides of the seam; it may be anywhere in two events."""
    for at in (passed - 1, passed):
        before, behind = "".join(heard.said[:at]).split(), "".join(heard.said[at:]).split()
        if before and behind and len(before[-1]) > 3 and before[-1] == behind[0] and before[-1] not in before[:-1]:
            return len(before[-1])
    return 0
