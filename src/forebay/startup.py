"""What is served when nobody wrote a configuration: engines that run here, else the embedded one."""

import asyncio
import socket
import sys

from msgspec import Struct

from forebay.clock import Clock
from forebay.config.load import Address, Settings, default_settings
from forebay.domain import Replica
from forebay.engines import embedded
from forebay.engines.discovery import Found, describe, discover
from forebay.policy import Model, Pool
from forebay.upstream.connections import Connections
from forebay.upstream.fetch import Fetcher

_NOTHING_FOUND = "No engine found on 127.0.0.1 (ports 8000, 30000, 8080, 11434)."


class Plan(Struct, frozen=True):
    """What to serve, and how to say it.

    Attributes:
        embedded_command: child process to start, or empty.
        notes: lines for people.
    """

    settings: Settings
    embedded_command: list[str]
    notes: list[str]


async def plan_without_file(loop: asyncio.AbstractEventLoop, clock: Clock, listen: Address, admin: Address) -> Plan:
    """Look around, and decide what to serve.

    Args:
        loop: the running loop.
        clock: for the connections of the probes, and the model list.
        listen: of the data plane.
        admin: of the control plane.

    Raises:
        ConfigError: the addresses cannot be served without a configuration.
    """
    connections = Connections(loop, clock)
    own = {listen.port, admin.port}
    found = [engine for engine in await discover(Fetcher(loop, connections)) if engine.replica.port not in own]
    connections.close()
    wall_s = clock.wall_s()
    usable = [engine for engine in found if engine.models]
    notes = [line for engine in found for line in describe(engine)]
    if usable:
        pools, models = _pools_of(usable)
        return Plan(default_settings(listen, admin, pools, models, wall_s), [], notes)
    missing = embedded.available()
    if missing is not None:
        notes += [_NOTHING_FOUND, f"To try Forebay with a small embedded engine: {missing}"]
        return Plan(default_settings(listen, admin, {}, {}, wall_s), [], notes)
    port = _free_port()
    name = f"127.0.0.1:{port}"
    pool = Pool("embedded", "llamacpp", (Replica(name, "127.0.0.1", port),), max_in_flight=embedded.SLOTS)
    model = Model(embedded.MODEL_ALIAS, "embedded")
    notes += [_NOTHING_FOUND, f"Serving the embedded llama.cpp as model '{embedded.MODEL_ALIAS}'."]
    settings = default_settings(listen, admin, {pool.name: pool}, {model.name: model}, wall_s)
    return Plan(settings, embedded.command(port), notes)


def _pools_of(found: list[Found]) -> tuple[dict[str, Pool], dict[str, Model]]:
    """Make one pool per set of models, so that equal engines share their load."""
    pools: dict[str, Pool] = {}
    models: dict[str, Model] = {}
    for engine in found:
        pool_name = f"{engine.capabilities.kind}-{engine.replica.port}"
        pools[pool_name] = Pool(
            pool_name, engine.capabilities.kind, (engine.replica,), max_in_flight=engine.capabilities.slots
        )
        for model in engine.models:
            models.setdefault(model, Model(model, pool_name))
    return pools, models


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def control_command(listen: Address, data_dir: str, socket_path: str, config: str | None) -> list[str]:
    """Return the command line of the control plane."""
    line = [sys.executable, "-m", "forebay.console", "--listen", str(listen), "--data-dir", data_dir]
    line += ["--data-socket", socket_path]
    return line if config is None else [*line, "--config", config]
