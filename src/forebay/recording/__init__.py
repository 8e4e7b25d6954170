"""What happened: one record per call, the data plane's own metrics, and the journal on disk.

Enters: the facts of a call as they come (open, dispatched, first token, close). Leaves: metrics at scrape
time, an `open` and a `close` line per dispatched call in `DATA_DIR/journal`. Invariants: a record is closed
exactly once; nothing here blocks or raises on the request path, whatever the disk does; labels come only
from configuration and closed lists; no prompt and no key is ever written; absent is null, never zero.
"""
