"""A gateway of several processes: which there are, and streams that are asked for all at once."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from typing import NamedTuple

from cases.rawhttp import chat, request_bytes
from faults.client import Link, Timed
from faults.conftest import Field
from faults.console_client import status
from faults.load import CHAT, fault_of
from faults.process_view import is_alive
from gateway_process import Document, Gateway, eventually

STREAMS = 40
TOKENS = 200  # some four seconds on the paced engine


class Ended(NamedTuple):
    """One stream: what came, or what went wrong."""

    request_id: str
    timed: Timed | None
    fault: str


def shown(gateway: Gateway) -> Document:
    """The status of the data plane."""
    return dict((status(gateway).get("data_plane") or {}).get("status") or {})


def pid_of(gateway: Gateway, name: str) -> int:
    """The process id of a child by its name."""
    found: list[int] = []

    def there() -> bool:
        children = shown(gateway).get("children") or []
        found[:] = [child["pid"] for child in children if child["name"] == name and child["pid"]]
        return bool(found)

    assert eventually(there, 30), f"no {name} in the status"
    return found[0]


def kill(pid: int) -> None:
    """Kill a process, and wait until it is gone."""
    os.kill(pid, signal.SIGKILL)
    assert eventually(lambda: not is_alive(pid), 30)


def start(field: Field, workers: int = 2, **sections: object) -> Gateway:
    """A gateway of so many workers, whose control plane answers."""
    gateway = field.start({**field.settings, "workers": workers, **sections})
    assert eventually(lambda: "Control plane: http" in gateway.log, 30), "not all processes serve"
    assert eventually(lambda: len(shown(gateway).get("workers") or ()) == workers, 30), "not all workers are there"
    return gateway


def streams(
    field: Field, gateway: Gateway, meanwhile: Callable[[], None], count: int = STREAMS, prefix: str = "s"
) -> list[Ended]:
    """Ask for streams, each on a connection of its own; once all run, do something; wait for all ends."""

    async def one(number: int) -> Ended:
        name = f"{prefix}-{number}"
        body = chat("paced", stream=True, max_tokens=TOKENS)
        try:
            link = await Link.open(gateway.address)
        except OSError as error:
            return Ended(name, None, f"no connection: {error}")
        try:
            timed = await link.ask(request_bytes("POST", CHAT, body, headers=(f"X-Request-Id: {name}",)))
        except (OSError, asyncio.IncompleteReadError) as error:
            return Ended(name, None, f"{type(error).__name__}: {error}")
        finally:
            link.reset()
        return Ended(name, timed, fault_of(timed.response, TOKENS, stream=True))

    async def together() -> list[Ended]:
        return await asyncio.gather(*map(one, range(count)))

    running = asyncio.run_coroutine_threadsafe(together(), field.thread.loop)
    assert eventually(lambda: gateway.metric("forebay_requests_in_flight") >= count, 30), "not all run"
    meanwhile()
    return running.result(60)


def of_process(gateway: Gateway, pid: int) -> set[str]:
    """The ids of the requests that a process took, by its journal."""
    found: set[str] = set()
    for path in gateway.data_dir.glob(f"journal/*-{pid}.jsonl"):
        for line in path.read_bytes().split(b"\n")[:-1]:
            found.add(str(json.loads(line)["request_id"]))
    return found
