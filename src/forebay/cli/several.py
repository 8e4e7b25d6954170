"""`forebay serve` with several workers: a supervisor, a gate, the workers, the control plane."""

import asyncio
import logging
import sys

from forebay.claim import ClaimedError
from forebay.cli.greeting import cannot_listen, greeting, say
from forebay.clock import SystemClock
from forebay.config.load import Settings
from forebay.handover import HandOverError, Taken, running
from forebay.processes import Child
from forebay.single import CONTROL_PLANE
from forebay.startup import control_command
from forebay.supervising import Order, StartError, Supervisor

log = logging.getLogger("forebay")


async def serve_several(
    clock: SystemClock, settings: Settings, order: Order, stop: asyncio.Event, *, replaces: bool
) -> int:
    """Serve until told to stop; return the exit code.

    Args:
        clock: monotonic and wall time.
        settings: of the file.
        order: what is to be started.
        stop: set when it is to end.
        replaces: take over from the process that runs on the data folder.
    """
    supervisor = Supervisor(asyncio.get_running_loop(), clock, settings, order, stop)
    try:
        taken: Taken | None = running(order.data_dir) if replaces else None
        port = await supervisor.start(taken)
    except (HandOverError, StartError, ClaimedError) as error:
        print(error, file=sys.stderr)
        return 3
    except OSError as error:
        print(cannot_listen(settings, error), file=sys.stderr)
        return 3
    command = control_command(settings.admin, str(order.data_dir), supervisor.desk, str(order.config))
    child_log = logging.getLogger("forebay.control_plane")
    await supervisor.start_control_plane(Child(CONTROL_PLANE, command, clock, nice=10, on_line=child_log.info))
    say(greeting(settings, port, order.data_dir))
    await stop.wait()
    log.info("draining: running calls are finished, new ones are refused")
    await supervisor.stop()
    return 0
