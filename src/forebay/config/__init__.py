"""Everything that people and the control plane may say to the data plane, made into one `Policy`.

Enters: the configuration file (YAML) and the documents `state.json` and `override.json`. Leaves:
`load.Settings` and, while the process runs, new policies from `reload.DocumentWatch`.

Invariants: a document is taken whole or not at all, and the last good one stays. Every fault is one line
with file and line number, and all faults are shown at once. No fault, name or log line holds a secret. A
tenant's key is kept as its digest only. Only `load.environment` reads the environment.
"""
