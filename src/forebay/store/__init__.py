"""What several nodes share: limits, sums of the month, documents of the control plane, reports.

Enters: hashes of a store that all nodes reach (`contract`), and what this node uses and wants (`shares`).
Leaves: this node's shares, and documents to take over.
Always: nothing here is on the path of a call. Without `store.url` there is no store, nothing of this room runs
and the Redis client is not loaded. A store that is down, hangs or holds nonsense raises `StoreError` within
a bounded time, and what a node does then is decided by `shares` alone.
"""
