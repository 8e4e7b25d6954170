"""The way to the engines: connections, one try, the relay of its answer.

Enters: a `Call`, a replica, the client's `Reply`. Leaves: bytes to both sides, and one `Verdict` a try.
Invariants: a try ends with exactly one verdict; a connection goes back to the pool only after a whole
answer; when the client leaves, the engine's connection is cut at once; nothing of a try reaches the
client before its first content event. It never decides whether another replica is tried.
"""
