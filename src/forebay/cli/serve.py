"""`forebay serve`: run the data plane, with its control plane beside it."""

import asyncio
import logging
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

import uvloop
from msgspec import Struct

from forebay.app import DataPlane
from forebay.claim import ClaimedError
from forebay.cli.greeting import cannot_listen, greeting, say
from forebay.cli.several import serve_several
from forebay.clock import SystemClock
from forebay.config.load import Address, Settings, environment, load
from forebay.errors import ConfigError
from forebay.handover import HandOverError, Taken, running
from forebay.processes import Child
from forebay.single import CONTROL_PLANE, Single
from forebay.startup import Plan, control_command, plan_without_file
from forebay.supervising import Order

LISTEN = Address("127.0.0.1", 7080)
ADMIN = Address("127.0.0.1", 7081)
log = logging.getLogger("forebay")


class Wish(Struct, frozen=True):
    """The options of the command.

    Attributes:
        config: the file, if there is one.
        listen: of the data plane; goes before the file's.
        admin: of the control plane; goes before the file's.
        data_dir: the data folder.
        workers: processes that serve clients; goes before the file's.
        replaces: take over from the process that runs on the data folder.
    """

    config: Path | None
    listen: Address | None
    admin: Address | None
    data_dir: Path
    workers: int | None = None
    replaces: bool = False


def run_serve(wish: Wish) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    clock = SystemClock()
    settings: Settings | None = None
    if wish.config is not None:
        try:
            settings = load(wish.config, environment(), clock.wall_s(), listen=wish.listen, admin=wish.admin)
        except ConfigError as error:
            print("\n".join(error.faults), file=sys.stderr)
            return 2
    elif (wish.workers or 1) > 1:
        print("--workers: several processes need a configuration file; use -c", file=sys.stderr)
        return 2
    _log_to_stderr(settings.log_level if settings is not None else "info")
    _raise_descriptor_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(clock, settings, wish))


async def _serve(clock: SystemClock, settings: Settings | None, wish: Wish) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    config, data_dir = wish.config, wish.data_dir
    if settings is not None and config is not None:
        workers = wish.workers or settings.workers
        if workers > 1:
            order = Order(config, data_dir, wish.listen, wish.admin, workers)
            return await serve_several(clock, settings, order, stop, replaces=wish.replaces)
        plan = Plan(settings, [], [])
    else:
        try:
            plan = await plan_without_file(loop, clock, wish.listen or LISTEN, wish.admin or ADMIN)
        except ConfigError as error:
            print("\n".join(error.faults), file=sys.stderr)
            return 2
    plane = DataPlane(loop, clock, plan.settings, data_dir, config)
    single = Single(plane, stop)
    say("".join(f"{note}\n" for note in plan.notes))
    try:
        taken = running(data_dir) if wish.replaces else None
        port = await _begin(single, plane, plan, clock, taken, stop)
    except (OSError, HandOverError, ClaimedError) as error:
        print(cannot_listen(plan.settings, error) if isinstance(error, OSError) else error, file=sys.stderr)
        return 3
    await _start_control_plane(single, plan, config, data_dir, clock)
    if plan.embedded_command and taken is None:
        await plane.until_serving(next(iter(plan.settings.policy.models)), stop)
    say(greeting(plan.settings, port, data_dir))
    await stop.wait()
    log.info("draining: running calls are finished, new ones are refused")
    await single.stop()
    return 0


async def _begin(
    single: Single, plane: DataPlane, plan: Plan, clock: SystemClock, taken: Taken | None, stop: asyncio.Event
) -> int:
    """Begin to serve: who takes over waits for its embedded engine first, others show that they are there."""
    single.begin()
    port = 0 if taken is not None else await single.listen()
    if plan.embedded_command:
        await single.start_child(_child("embedded engine", plan.embedded_command, clock))
        if taken is not None:
            await plane.until_serving(next(iter(plan.settings.policy.models)), stop)
    return port if taken is None else await single.listen(taken)


async def _start_control_plane(
    single: Single, plan: Plan, config: Path | None, data_dir: Path, clock: SystemClock
) -> None:
    command = control_command(
        plan.settings.admin, str(data_dir), str(single.socket_path), None if config is None else str(config)
    )
    await single.start_child(_child(CONTROL_PLANE, command, clock, nice=10))


def _child(name: str, command: list[str], clock: SystemClock, nice: int = 0) -> Child:
    child_log = logging.getLogger(f"forebay.{name.replace(' ', '_')}")
    return Child(name, command, clock, nice=nice, on_line=child_log.info)


def _raise_descriptor_limit() -> None:
    """Use all descriptors that the system allows: the usual default is 1024, for old programs that call select(2)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # some systems call it unlimited and allow less
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        stream=sys.stderr, level=level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s", force=True
    )
