"""`forebay sim`: run a simulated engine until it is told to stop."""

from pathlib import Path

import uvloop

from forebay.clock import SystemClock
from forebay.engines.sim import SimSpec, read_faults, serve, serve_until_signal


def run_sim(host: str, port: int, spec: SimSpec, faults_file: Path | None) -> None:
    """Serve a simulated engine until SIGTERM or SIGINT; print its address once it listens.

    Args:
        host: address to bind to; keep it on the loopback, because `/sim/log` shows prompts and credentials.
        port: TCP port, 0 for any free one.
        spec: what it is.
        faults_file: script of faults to begin with.

    Raises:
        OSError: the file cannot be read, or the address cannot be bound.
        ValueError: the file is no script of faults.
    """
    faults = read_faults(faults_file)

    async def run() -> None:
        server = await serve(spec, host, port, SystemClock())
        server.set_faults(*faults)
        greeting = f"simulated engine on {server.base_url} serves {', '.join(spec.models)}"
        await serve_until_signal(server, ready=lambda: print(greeting, flush=True))

    uvloop.run(run())
