"""What a call may expect of a pool: when its first token comes, behind those that wait before it."""

from forebay.ports import Outlook
from forebay.routing.replica import ReplicaState

UNKNOWN = Outlook()


def foresee(
    states: list[ReplicaState], now_s: float, prompt_tokens: int, ahead_tokens: float, ahead_calls: int
) -> Outlook:
    """Foresee the first token of a call that would come behind others in the queue (scheduling by prefill work).

    Args:
        states: the replicas that may be used.
        now_s: monotonic seconds.
        prompt_tokens: of the call, uncached.
        ahead_tokens: prompt tokens of those that wait before it.
        ahead_calls: their number.
    """
    if not states or not all(s.speed.known for s in states):
        return UNKNOWN
    queue_s = ahead_tokens / sum(s.speed.tokens_per_s for s in states)
    backlog_s = min(s.backlog_tokens(now_s) / s.speed.tokens_per_s for s in states)
    alone_s = min(s.speed.predict_s(prompt_tokens) for s in states)
    wait_s = max(queue_s + backlog_s, _slot_wait_s(states, ahead_calls))
    return Outlook(wait_s + alone_s, alone_s, wait_s)


def _slot_wait_s(states: list[ReplicaState], ahead_calls: int) -> float:
    """Return the seconds until a slot is free behind so many calls; 0 where slots have no number."""
    free, rate = 0, 0.0
    for state in states:
        limit = state.limit()
        if limit is None:
            return 0.0
        free += max(0, limit - state.in_flight)
        if state.occupied_s:
            rate += limit / state.occupied_s
    short = ahead_calls + 1 - free
    return short / rate if short > 0 and rate else 0.0
