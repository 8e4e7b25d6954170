"""Wire formats, pure: bytes in, values out, and back.

Enters: bytes of requests and answers. Leaves: events, members, facts, bytes. Nothing here does I/O,
knows a clock or keeps state beyond one stream. It stands on the ground floor because three rooms speak
these formats: edge (towards clients), upstream (towards engines) and the simulated engine.
"""
