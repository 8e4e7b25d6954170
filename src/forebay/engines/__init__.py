"""Engines: what Forebay knows about each kind of LLM server.

Enters: bytes that an engine answered on its telemetry page or on a probe path, fetched by the caller.
Leaves: `Telemetry` (signals), `Capabilities` (what the engine can do, which flags it lacks), the closed
lists of endpoints and denied body fields per kind, and the command line of the embedded engine.

Invariants: adapters are pure translators and open no socket; what an engine does not report is absent,
never zero; nothing is scraped whose reading disturbs the engine; every probe step is bounded in time and
its failure only means that something stays unknown.
"""
