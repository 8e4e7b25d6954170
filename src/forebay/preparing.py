"""What is sent to the engines of one model for a call: the client's body with a few members replaced."""

import msgspec

from forebay.edge.body import Asked, limit_key
from forebay.edge.prompt import choices
from forebay.engines.registry import ENGINES
from forebay.policy import Model, Policy
from forebay.traffic import Call
from forebay.upstream.continuation.shapes import Plan, shape_of
from forebay.upstream.deadlines import Sending
from forebay.wire import splice
from forebay.wire.rewrite import Rewriter

_OPENAI_STREAMS = ("chat", "completions")


def prepare(call: Call, asked: Asked, model: Model, policy: Policy, token_ids: bool) -> tuple[Sending, bytes]:
    """Make what is sent for one model, and the header lines that say so to the client.

    These edits are the whole list of what Forebay changes in a request. `token_ids` is whether the pool's engines can
    send the ids of tokens.
    """
    pool = policy.pools[model.pool]
    edits: dict[str, bytes | None] = {}
    explained = f"x-forebay-pool: {pool.name}\r\n"
    denied = ENGINES[pool.engine].denied_fields
    if not denied.isdisjoint(asked.members.values):
        edits = dict.fromkeys(sorted(denied.intersection(asked.members.values)))
        explained += f"x-forebay-stripped: {', '.join(edits)}\r\n"
    if model.name != call.model:
        explained += "x-forebay-degraded: fallback\r\n"
    name = model.upstream_model or model.name
    if name != asked.model and asked.model:
        edits["model"] = msgspec.json.encode(name)
    if call.max_tokens is not None and call.max_tokens != asked.max_tokens:
        edits[limit_key(asked, call.endpoint.shape)] = b"%d" % call.max_tokens
    openai_stream = call.stream and call.endpoint.shape in _OPENAI_STREAMS
    # llama.cpp's last chunk carries the counts anyway, in `timings`.
    asks_usage = openai_stream and not call.wants_usage and pool.engine != "llamacpp"
    if asks_usage:
        edits["stream_options"] = splice.with_member(asked.members.text_of("stream_options"), "include_usage", b"true")
    plan = shape_of(asked.members, call.endpoint.shape, call.stream, pool.engine, token_ids) if openai_stream else None
    if isinstance(plan, Plan):
        edits |= plan.edits
    sending = Sending(
        pool.name,
        splice.edit(asked.members, edits),
        model.timeouts,
        policy.stream,
        policy.limits.response_bytes,
        Rewriter(model.name, asks_usage, call.notice),
        openai_stream,
        choices(asked) if openai_stream else 1,
        pool.max_attempts,
        plan if isinstance(plan, Plan) else None,
        members=asked.members,
    )
    return sending, explained.encode()
