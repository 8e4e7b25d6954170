"""A caller of a simulated engine that sees every byte and how the end came."""

import asyncio
import json
from collections.abc import Callable
from typing import Any, NamedTuple

from forebay.engines.sim import SimServer, SimSpec

QUICK = SimSpec(iteration_base_ms=1, ms_per_decode_seq=0, ms_per_prefill_token=0, max_model_len=4096, kv_tokens=8192)


class Raw(NamedTuple):
    """What came back: bytes, and how the connection ended (`fin`, `rst` or `open`)."""

    data: bytes
    end: str

    @property
    def status(self) -> int:
        return int(self.data.split(b" ", 2)[1])

    @property
    def head(self) -> str:
        return self.data.partition(b"\r\n\r\n")[0].decode().lower()

    @property
    def body(self) -> bytes:
        return self.data.partition(b"\r\n\r\n")[2]

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[bytes]:
        """The data of each event; chunk framing is taken away line by line."""
        return [line[6:] for line in self.body.split(b"\n") if line.startswith(b"data: ")]

    @property
    def text(self) -> str:
        """All text of a chat stream."""
        chunks = [json.loads(event) for event in self.events if event != b"[DONE]"]
        return "".join(c["delta"].get("content") or "" for chunk in chunks for c in chunk.get("choices", ()))


def chat(**fields: Any) -> dict[str, Any]:
    return {"model": "sim", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, **fields}


Play = Callable[..., None]


class Caller:
    """Sends raw requests to one engine."""

    def __init__(self, server: SimServer) -> None:
        self.server = server

    async def send(self, method: str, path: str, body: Any = None, wait_s: float = 60.0, headers: str = "") -> Raw:
        """Send one request on a connection of its own and read to its end, or for `wait_s`."""
        reader, writer = await asyncio.open_connection(self.server.host, self.server.port)
        data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        head = (
            f"{method} {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(data)}\r\n{headers}\r\n"
        )
        writer.write(head.encode() + data)
        got, end = b"", "fin"
        try:
            async with asyncio.timeout(wait_s):
                while piece := await reader.read(65536):
                    got += piece
        except ConnectionResetError:
            end = "rst"
        except TimeoutError:
            end = "open"
        writer.close()
        return Raw(got, end)

    async def get(self, path: str) -> Raw:
        return await self.send("GET", path)

    async def post(self, path: str, body: Any, **options: Any) -> Raw:
        return await self.send("POST", path, body, **options)

    async def chat(self, wait_s: float = 60.0, **fields: Any) -> Raw:
        return await self.post("/v1/chat/completions", chat(**fields), wait_s=wait_s)

    async def faults(self, *steps: dict[str, Any]) -> None:
        assert (await self.post("/sim/faults", list(steps))).status == 200


async def until(true: Callable[[], bool], wait_s: float = 20.0) -> None:
    """Wait for something that the engine does on its own."""
    async with asyncio.timeout(wait_s):
        while not true():
            await asyncio.sleep(0.002)


def one(play: Play, step: dict[str, Any], check: Callable[[Raw], None], **fields: Any) -> None:
    """Script one step, make one call, check what came, and see that the next call is served well."""

    async def scenario(caller: Caller) -> None:
        await caller.faults(step)
        check(await caller.chat(wait_s=0.5, **fields))
        assert caller.server.log.entries()[-1].fault == step["action"]
        well = await caller.chat(**fields)
        assert (well.status, well.end) == (200, "fin")
        assert (well.text if fields.get("stream") else well.json["choices"][0]["message"]["content"]).startswith(
            "t0 t1"
        )
        assert caller.server.stats()["calls_open"] == caller.server.stats()["sequences_active"] == 0

    play(scenario)
