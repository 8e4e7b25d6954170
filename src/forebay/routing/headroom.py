"""Whether a pool can take calls that are not its own: what it can start now, with a tenth of its room left over."""

from collections.abc import Iterable

from forebay.routing.replica import ReplicaState
from forebay.traffic import Call

FULL_RATIO = 0.9
"""So much of a pool's room may be taken when calls of others come in; the rest is its own calls' (T17)."""


def starts(states: Iterable[ReplicaState], call: Call, long_tokens: int, now_s: float) -> bool:
    """Say whether one of these replicas can start a call now.

    Args:
        states: of one pool.
        call: to be sent.
        long_tokens: of a prompt, from which on it takes the pool's long lane.
        now_s: monotonic seconds.
    """
    tokens, prompt_tokens = call.prompt_tokens + call.output_tokens, call.prompt_tokens
    long = prompt_tokens >= long_tokens
    return any(s.may_take(now_s) and s.has_room(tokens, prompt_tokens, long, now_s) for s in states)


def leaves_room(states: Iterable[ReplicaState], kv_ratio: float | None, call: Call, now_s: float) -> bool | None:
    """Say whether a pool with one more call keeps a tenth of its KV room and of its places free.

    What already runs there counts, whoever sent it: its own calls, those of tenants that were moved, answers that go
    on there.

    Args:
        states: of one pool.
        kv_ratio: used of its KV room by the engines' word, 0..1; None while that is not known.
        call: to be sent.
        now_s: monotonic seconds.

    Returns:
        None when neither its KV room nor its number of places is known.
    """
    room = held = places = taken = 0
    for state in states:
        if not state.usable(now_s):
            continue
        limit = state.limit()
        if limit is not None:
            places += limit
            taken += state.in_flight
        if state.kv_tokens is not None:
            room += state.kv_tokens
            held += state.in_flight_tokens
    if not room and not places:
        return None
    if places and taken + 1 > FULL_RATIO * places:
        return False
    if not room:
        return True
    used_tokens = max(float(held), (kv_ratio or 0.0) * room)
    return used_tokens + call.prompt_tokens + call.output_tokens <= FULL_RATIO * room
