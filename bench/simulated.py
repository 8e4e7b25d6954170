"""A simulated engine of a given speed as a process: `python -m bench.simulated --port 9001 --spec '{}'`."""

import argparse
import sys
from collections.abc import Sequence

import msgspec
import uvloop

from bench.peers import HOST
from forebay.clock import SystemClock
from forebay.engines.sim import SimSpec, serve, serve_until_signal


def main(argv: Sequence[str] | None = None) -> int:
    """Serve until SIGTERM. Exit 0: stopped as asked; 2: there is no such engine."""
    parser = argparse.ArgumentParser(prog="bench.simulated", description="A simulated engine of a given speed.")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--spec", default="{}", help="fields of SimSpec, as JSON")
    args = parser.parse_args(argv)
    try:
        spec = msgspec.json.decode(args.spec, type=SimSpec)
    except msgspec.ValidationError as error:
        print(f"bench.simulated: {error}", file=sys.stderr)
        return 2

    async def run() -> None:
        server = await serve(spec, HOST, args.port, SystemClock())
        await serve_until_signal(server, ready=lambda: None)

    uvloop.run(run())
    return 0


if __name__ == "__main__":
    sys.exit(main())
