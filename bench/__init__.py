"""The data plane measured against nginx, on the same mock engine, in one interleaved run.

Enters: the C mock engine and load maker of the tools folder, nginx, and a `forebay` command.
Leaves: one table with a verdict beside each bound, and the raw runs as JSON.
Invariants: each scenario alternates between the peers; nothing is run again because it failed; whatever
was started is stopped.
"""
