"""The HTTP edge: bytes from clients become `Request`s, answers become bytes.

Enters: TCP. Leaves: a `Request` with its `Reply` to the handler. Invariants: HTTP is read strictly (one
framing, one Host, CRLF, bounded heads and bodies, bounded time); one exchange at a time on a connection,
pipelined ones wait in order; an answer that cannot be finished honestly cuts the connection; the edge
alone turns errors into HTTP.
"""
