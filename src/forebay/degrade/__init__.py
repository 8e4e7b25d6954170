"""Wrong with dignity beats down: who is served worse than he asked, why, and for how long.

Enters: how calls ended, by tenant, replica and length; how full KV room is, and whether calls wait for it. Leaves:
where a tenant's next call goes; a pool's level on the ladder, and what a request loses by it. Invariants: pure, on the
time it is told; every step has an end and returns by itself; what is slow for everybody is nobody's fault; a call in
flight is never changed or moved; a request with a structure is never altered.
"""
