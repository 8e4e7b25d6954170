"""The planner: admission and routing on a virtual clock, against modelled engines and recorded traffic.

Enters: arrivals of a public trace or of a seeded generator, the `SimSpec` of the engines, the names of policies.
Leaves: for each policy and realisation what became of every request, and its summary; the `SimSpec` of a real
engine, fitted by timed requests.

Invariants: the gate and the fleet are the product's own, not copies; each arrival ends exactly once, as served or
refused; equal arguments give equal results; nothing waits on a real clock but the calibration, which alone does I/O.
"""
