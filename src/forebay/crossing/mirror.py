"""What a worker knows of the replicas: a copy of the gate's, for what needs no permit.

The copy is a few tenths of a second old. It decides about no call's place; it tells whether an answer can go on by
token ids, who may be asked to count a prompt, and what `/health/serving` says.
"""

import msgspec

from forebay.crossing.messages import Standing
from forebay.engines.contract import Telemetry
from forebay.routing.replica import ReplicaState

_encode = msgspec.msgpack.Encoder().encode
_telemetry = msgspec.msgpack.Decoder(Telemetry | None).decode


def standing_of(state: ReplicaState) -> Standing:
    """Describe a replica of the gate."""
    breaker, speed = state.breaker, state.speed
    return Standing(
        state.up,
        state.loading,
        state.token_ids,
        breaker.state,
        breaker.reason,
        breaker.failures,
        breaker.until_s,
        state.in_flight,
        state.in_flight_tokens,
        state.unprefilled_tokens,
        state.long_prefills,
        state.long_in_flight,
        speed.tokens_per_s,
        speed.base_s,
        speed.samples,
        speed.error_ratio,
        state.depth.hold_s,
        state.slots,
        state.kv_tokens,
        state.occupied_s,
        state.polled_at_s,
        msgspec.Raw(_encode(state.telemetry)),
    )


def follow(state: ReplicaState, seen: Standing) -> None:
    """Make the copy of a replica what the gate said."""
    breaker, speed = state.breaker, state.speed
    state.up, state.loading, state.token_ids = seen.up, seen.loading, seen.token_ids
    breaker.state = seen.breaker
    breaker.reason, breaker.failures, breaker.until_s = seen.reason, seen.failures, seen.until_s
    state.in_flight, state.in_flight_tokens = seen.in_flight, seen.in_flight_tokens
    state.unprefilled_tokens = seen.unprefilled_tokens
    state.long_prefills, state.long_in_flight = seen.long_prefills, seen.long_in_flight
    speed.tokens_per_s, speed.base_s = seen.tokens_per_s, seen.base_s
    speed.samples, speed.error_ratio = seen.samples, seen.error_ratio
    state.depth.hold_s = seen.hold_s
    state.slots, state.kv_tokens, state.occupied_s = seen.slots, seen.kv_tokens, seen.occupied_s
    state.polled_at_s = seen.polled_at_s
    state.telemetry = _telemetry(seen.telemetry)
