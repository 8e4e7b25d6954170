"""Who may go in: the work of a call, the limits of its tenant, room on the engines.

Enters: a `Call`. Leaves: a `Permit`, or a refusal with a reason and a true `Retry-After`. Invariants:
a permit is held to the last byte and given back exactly once; a waiting call that is cancelled leaves
the queue at once; no engine gets more calls than it is allowed.
"""
