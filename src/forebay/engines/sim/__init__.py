"""The programmable engine: speaks vLLM's HTTP, generates numbered tokens, fails on demand.

Enters: a `SimSpec`, HTTP requests, and scripts of faults (`POST /sim/faults`).
Leaves: answers in the shapes of vLLM 0.32, metrics under its names, and at `/sim/log` all that was received.

The layers: `model` is a pure automaton of continuous batching, which a planner may run on a clock of its own;
`tokens`, `calls`, `shapes`, `dialects`, `pooling`, `faults` and `refusals` are pure; `core` steps the model in
real time; `http`, `exchange`, `routes` and `server` do the I/O.

Invariants: equal requests get equal texts; each generated token has one number, one id and one text; a call
takes at most one step of the script; a caller that leaves frees its sequence within one iteration; the log,
the script, bodies, headers and pipelined requests are bounded; nothing is written to disk.
"""

from forebay.engines.sim.server import SimServer, read_faults, serve, serve_until_signal
from forebay.engines.sim.spec import SimSpec

__all__ = ["SimServer", "SimSpec", "read_faults", "serve", "serve_until_signal"]
