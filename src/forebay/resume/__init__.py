"""Resume: a client comes back for the rest of an answer whose gateway has died, to any node (docs/resume.md).

Enters: a request with its tenant, and where an answer stands behind each event. Leaves: sealed tokens for the `id:`
lines of events; and what a client has of an answer, from the token and the text that it brings back.

Always: no node keeps anything of an answer for a client that may come back; a token opens only for the API key and
the request that it was made for, with exactly the text that was shown, before it expires, once on each node; it shows
nothing and cannot be changed. Needs the extra `forebay[resume]`; only `extra` may be imported without it.
"""
