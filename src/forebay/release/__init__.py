"""Proof before release: the same load on two ways to one engine, compared.

Enters: two targets (the engine itself, and Forebay in front of it), a time to spend, a seed. Leaves: a report of
figures per way, their ratio, its spread and what cannot be told apart. Invariants: both ways get the same arrivals
and prompts of the same length; no two prompts begin alike; every call is accounted for as answered, failed or lost;
all is bounded by the time asked for; no prompt leaves but to the targets.
"""
