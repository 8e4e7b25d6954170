"""The gate in a process of its own: what crosses between it and the workers.

Enters: calls of workers that want a replica. Leaves: permits and leases, and what the workers must know of the
replicas. Always: what a worker holds or waits for is tied to its connection; when that ends, all of it is free at
once. Messages of one connection are taken in the order in which they were sent. A worker decides nothing about limits
or load by itself.
"""
