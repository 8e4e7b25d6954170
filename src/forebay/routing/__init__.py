"""Which replica: the state of every replica, the choice, and what may be tried after a failure.

Enters: a pool's name, the tokens of a call, the verdicts of its tries. Leaves: a replica, a pause, or the
end. Invariants: load is counted from the moment of the choice to the end of the try; a failure that the
caller caused never counts against a replica; a stale or absent signal never stops dispatch.
"""
