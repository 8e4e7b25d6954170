"""Continuation: an answer whose engine died in the middle is finished by another one, unseen by the client.

Enters: the request as it was sent, the events of the answer that went to the client, how the engine failed.
Leaves: the request of the next leg, and its events, edited so that they go on where the client stands; or one
reason of a closed list (`reasons`) why that cannot be done. Pure: no I/O, no clock.

Always: a leg begins at a boundary of whole characters; no event of it is passed on before its first text was
held against the prompt and against what the client has; what cannot be joined ends with a reason, never with
text that is lost or doubled; one id, one `created`, one usage.
"""
