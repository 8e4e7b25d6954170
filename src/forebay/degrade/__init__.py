"""Wrong with dignity beats down: who is served worse than he asked, why, and for how long.

Enters: how calls ended, by tenant, replica and length. Leaves: where a tenant's next call goes. Invariants:
pure, on the time it is told; every step has an end and returns by itself; what is slow for everybody is
nobody's fault; a call in flight is never moved.
"""
