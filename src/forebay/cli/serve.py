"""`forebay serve`: run the data plane, with its control plane beside it."""

import asyncio
import logging
import os
import resource
import signal
import sys
from contextlib import suppress
from pathlib import Path

import uvloop

from forebay.app import DataPlane
from forebay.clock import SystemClock
from forebay.config.load import Address, Settings, environment, load
from forebay.console.token import admin_token
from forebay.errors import ConfigError
from forebay.handover import HandOverError, Taken, take_over
from forebay.policy import Policy
from forebay.processes import Child
from forebay.single import CONTROL_PLANE, Single
from forebay.startup import Plan, control_command, plan_without_file

LISTEN = Address("127.0.0.1", 7080)
ADMIN = Address("127.0.0.1", 7081)
log = logging.getLogger("forebay")


def run_serve(
    config: Path | None, listen: Address | None, admin: Address | None, data_dir: Path, *, replaces: bool = False
) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code.

    Args:
        config: the file, if there is one.
        listen: of the data plane; goes before the file's.
        admin: of the control plane; goes before the file's.
        data_dir: the data folder.
        replaces: take over from the process that runs on the data folder.
    """
    clock = SystemClock()
    settings: Settings | None = None
    if config is not None:
        try:
            settings = load(config, environment(), clock.wall_s(), listen=listen, admin=admin)
        except ConfigError as error:
            print("\n".join(error.faults), file=sys.stderr)
            return 2
    _log_to_stderr(settings.log_level if settings is not None else "info")
    _raise_descriptor_limit()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(clock, settings, config, (listen or LISTEN, admin or ADMIN), data_dir, replaces))


async def _serve(
    clock: SystemClock,
    settings: Settings | None,
    config: Path | None,
    addresses: tuple[Address, Address],
    data_dir: Path,
    replaces: bool,
) -> int:
    loop = asyncio.get_running_loop()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    try:
        plan = Plan(settings, [], []) if settings else await plan_without_file(loop, clock, *addresses)
    except ConfigError as error:
        print("\n".join(error.faults), file=sys.stderr)
        return 2
    plane = DataPlane(loop, clock, plan.settings, data_dir, config)
    single = Single(plane, stop)
    _say("".join(f"{note}\n" for note in plan.notes))
    try:
        taken = _taken(data_dir) if replaces else None
        port = await _begin(single, plane, plan, clock, taken, stop)
    except (OSError, HandOverError) as error:
        print(error if isinstance(error, HandOverError) else _cannot_listen(plan, error), file=sys.stderr)
        return 3
    await _start_control_plane(single, plan, config, data_dir, clock)
    if plan.embedded_command and taken is None:
        await plane.until_serving(next(iter(plan.settings.policy.models)), stop)
    _say(_greeting(plan, Address(plan.settings.listen.host, port), data_dir))
    await stop.wait()
    log.info("draining: running calls are finished, new ones are refused")
    await single.stop()
    return 0


def _taken(data_dir: Path) -> Taken | None:
    """Take the sockets of the running process, if there is one."""
    taken = take_over(data_dir)
    if taken is None:
        log.warning("no process runs on %s that could be taken over; this is a plain start", data_dir)
    return taken


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


def _cannot_listen(plan: Plan, error: OSError) -> str:
    return f"cannot listen on {plan.settings.listen}: {error.strerror}; choose another with --listen"


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


def _greeting(plan: Plan, address: Address, data_dir: Path) -> str:
    policy = plan.settings.policy
    lines = [f"Forebay answers on http://{address}/v1 for: {', '.join(policy.models) or 'no model yet'}"]
    if policy.models and not policy.tenants:
        lines.append(_example(address, policy))
    try:
        lines.append(f"Control plane: http://{plan.settings.admin}/#token={admin_token(data_dir)}")
    except OSError as error:
        reason = f"{data_dir} cannot be written ({error.strerror}); choose another with --data-dir"
        lines.append(f"No control plane: {reason}")
    return "".join(f"{line}\n" for line in lines)


def _say(text: str) -> None:
    """Print, unless nobody takes it: a full disk, or a reader that has left, is no reason not to serve."""
    if sys.stdout is not None:
        with suppress(OSError):
            # Not with print: it would try again at the end, and fail the exit.
            os.write(sys.stdout.fileno(), text.encode())


def _example(address: Address, policy: Policy) -> str:
    model = next(iter(policy.models))
    body = f'{{"model":"{model}","max_tokens":60,"messages":[{{"role":"user","content":"Hello!"}}]}}'
    return f"Try:  curl http://{address}/v1/chat/completions -d '{body}'"


def _raise_descriptor_limit() -> None:
    """Use all descriptors that the system allows: the usual default is 1024, for old programs that call select(2)."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with suppress(OSError, ValueError):  # some systems call it unlimited and allow less
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def _log_to_stderr(level: str) -> None:
    logging.basicConfig(
        stream=sys.stderr, level=level.upper(), format="%(asctime)s %(levelname)s %(name)s %(message)s", force=True
    )
