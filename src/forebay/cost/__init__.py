"""What the work costs: figures for people, made from the journal's facts.

Enters: use by day. Leaves: a forecast with its uncertainty. Invariants: everything is pure; nothing here decides
about a call; money is a view of recorded tokens at a price, never the record itself.
"""
