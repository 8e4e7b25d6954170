"""The control plane's process: admin API, status page, and the writer of the `state` and `override` documents.

Enters: people's requests on the admin port, the data plane's status over its Unix socket, files of the data folder.
Leaves: documents in `DATA_DIR/policy`, lines in `DATA_DIR/timeline.jsonl`, answers to people.
Always holds: the data plane serves without this process and never waits for it; whoever reads or changes
anything has shown the token; no answer holds a secret; a change is on disk before it is confirmed.
Must not: stand on the path of a request, write the `config` document, load anything from another site.
"""
