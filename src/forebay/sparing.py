"""What the ladder does to one call: a shorter answer, a shorter history, another model, or an honest no (D1).

Enters: a call that is understood, and the level of its pool. Leaves: the call as it is served. A call of a model
without `ladder` is touched only where a person has set a level. Nothing here waits; all of it is over before the call
asks for its permit.
"""

import math

from forebay.admission.basin import Basin
from forebay.clock import Clock
from forebay.degrade import steps
from forebay.edge.body import Asked
from forebay.engines.registry import ENGINES
from forebay.errors import Refused
from forebay.laddering import Laddering
from forebay.policy import Ladder, Model, Policy
from forebay.ports import Reply
from forebay.recording.record import CallRecord
from forebay.routing.headroom import leaves_room, starts
from forebay.routing.pool import Fleet
from forebay.traffic import Call, changed
from forebay.wire.members import read_members
from forebay.wire.splice import edit

OUTPUT, MODEL, HISTORY = STEPS = ("output", "model", "history")
"""The steps, as `X-Forebay-Degraded`, the records and `forebay_requests_degraded_total` name them."""

DEFAULT = Ladder()
"""What calls of a model without a ladder of its own give up where a person says so."""
# Who would wait for longer than this part of the time that is left to it is told so at once.
_HOPELESS_RATIO = 0.8
# A level stands for this long at least, so to come back sooner makes no sense.
_RETRY_AFTER_S = 30
_GENERATES = ("chat", "completions")


class Sparing:
    """Serves calls as the level of their pool says.

    Args:
        laddering: knows the levels.
        fleet: the replicas.
        basin: the queues.
        clock: monotonic time.

    Attributes:
        laddering: see above.
    """

    def __init__(self, laddering: Laddering, fleet: Fleet, basin: Basin, clock: Clock) -> None:
        self.laddering = laddering
        self._fleet = fleet
        self._basin = basin
        self._clock = clock

    def served(self, call: Call, asked: Asked, policy: Policy, reply: Reply, record: CallRecord) -> tuple[Call, Asked]:
        """Return a call, and what it asks for, as they are served; an answer that is degraded says so.

        Raises:
            Refused: `degraded`: it asks for what costs too much now; `overloaded`: its wait would not end in time.
        """
        model = policy.models[call.model]
        level, set_level = self.laddering.levels(model.pool, call.tenant.name)
        terms = model.ladder
        if terms is None:
            level, terms = set_level, DEFAULT
        if not level or not call.endpoint.streams:
            return call, asked
        done: list[str] = []
        if call.endpoint.shape in _GENERATES:
            call, asked = _spared(call, asked, terms, level, done)
        # One hop: a call of a tenant that was moved stays where that has brought it.
        if level >= 2 and not record.row.degraded:
            call = self._placed(call, asked, policy, terms, set_level >= 2)
            if call.moved:
                done.append(MODEL)
                record.answered_by(call.model)
        if done:
            done.sort(key=STEPS.index)
            reply.extra += f"x-forebay-degraded: {', '.join(done)}\r\n".encode()
            record.row.max_tokens = call.max_tokens
            for step in done:
                record.degraded(step)
        return call, asked

    def _placed(self, call: Call, asked: Asked, policy: Policy, terms: Ladder, told: bool) -> Call:
        """Return the call with the other model where its own pool cannot start it and the other's can.

        Where a person has set the level it moves also from a pool that could.

        Raises:
            Refused: `overloaded`.
        """
        model = policy.models[call.model]
        at_home = self._starts(call, model.pool)
        if at_home and not told and not self.laddering.view(model.pool).queues_inside:
            return call
        other = policy.models.get(terms.fallback)
        if other is not None and self._may_move(call, asked, other, policy):
            work = changed(call.work, features=(), kin=())
            return changed(call, model=other.name, moved=True, work=work)
        if not at_home:
            self._turn_away_late(call, model)
        return call

    def _may_move(self, call: Call, asked: Asked, other: Model, policy: Policy) -> bool:
        """Say whether another model can take the call and its pool stays below 90 % of its room."""
        if call.endpoint.name not in ENGINES[policy.pools[other.pool].engine].endpoints:
            return False
        if call.endpoint.shape == "responses" and asked.members.text_of("previous_response_id") is not None:
            # What it goes on from is known to its own engines alone.
            return False
        if self.laddering.own_level(other.pool) or not self._starts(call, other.pool):
            return False
        return self.has_headroom(call, other.pool) is True

    def has_headroom(self, call: Call, pool: str) -> bool | None:
        """Say whether a pool can take a call of others and keep a tenth of its room; None when its room is unknown."""
        kv_ratio = self.laddering.view(pool).kv_ratio
        return leaves_room(self._fleet.states(pool), kv_ratio, call, self._clock.now_s())

    def _starts(self, call: Call, pool: str) -> bool:
        """Say whether a call could start on a pool now."""
        if self.laddering.view(pool).queued:
            return False
        return starts(self._fleet.states(pool), call, self._fleet.long_tokens(pool), self._clock.now_s())

    def _turn_away_late(self, call: Call, model: Model) -> None:
        """Refuse a call at once whose wait would outlast the time that is left to it.

        Calls leave a pool as fast as it has of them, over the time that each stays (Little's law).

        Raises:
            Refused: `overloaded`.
        """
        states = [s for s in self._fleet.states(model.pool) if s.occupied_s > 0.0]
        leaving_per_s = sum(s.in_flight / s.occupied_s for s in states)
        if leaving_per_s <= 0.0:
            return
        wait_s = (self._ahead(call, model.pool) + 1) / leaving_per_s
        left_s = call.deadline_s - self._clock.now_s()
        if call.stream:
            left_s = min(left_s, model.timeouts.first_byte_s)
        if wait_s <= _HOPELESS_RATIO * left_s:
            return
        text = f"the engines are overloaded: this call would wait about {wait_s:.0f} s; try again later"
        raise Refused("overloaded", text, retry_after_s=max(1, math.ceil(wait_s)))

    def _ahead(self, call: Call, pool: str) -> int:
        """Return how many calls one would wait behind; where the queue is in another process, all that wait."""
        queue = self._basin.queue(pool)
        if queue is None or not queue.size:
            return self.laddering.view(pool).queued
        return queue.ahead(call.value, self._fleet.is_long(pool, call), call)[1]


def _spared(call: Call, asked: Asked, terms: Ladder, level: int, done: list[str]) -> tuple[Call, Asked]:
    """Return a call that takes less KV room, and note which steps made it so.

    Raises:
        Refused: `degraded`.
    """
    costly = steps.costly(asked.members)
    if costly:
        text = f"the engines are short of memory, so {costly!r} is not served now: ask for one answer without it"
        raise Refused("degraded", f"{text}, or try again later", param=costly, retry_after_s=_RETRY_AFTER_S)
    if steps.is_structured(asked.members, call.endpoint.shape):
        return call, asked
    if level >= 3 and call.endpoint.shape == "chat":
        cut = steps.shortened(asked.members, terms.history_tokens, call.prompt_tokens)
        if cut is not None:
            done.append(HISTORY)
            call, asked = _cut(call, asked, cut)
    cap = terms.output_tokens
    if call.max_tokens is None or call.max_tokens > cap:
        done.append(OUTPUT)
        call = _capped(call, cap)
    return call, asked


def _cut(call: Call, asked: Asked, cut: steps.Cut) -> tuple[Call, Asked]:
    members = read_members(edit(asked.members, {"messages": cut.messages}))
    prompt_tokens = max(1, math.ceil(call.prompt_tokens * cut.kept_ratio))
    # What it takes teaches nothing about prompts as clients send them.
    work = changed(call.work, prompt_tokens=prompt_tokens, features=(), kin=(), blocks=())
    return changed(call, prompt_tokens=prompt_tokens, work=work, notice=cut.notice), changed(asked, members=members)


def _capped(call: Call, cap_tokens: int) -> Call:
    """Bound the answer; one that was cut short teaches nothing about how long answers are."""
    output_tokens = min(call.output_tokens, cap_tokens)
    likely_tokens = min(call.work.likely_output_tokens, cap_tokens)
    work = changed(call.work, output_tokens=output_tokens, likely_output_tokens=likely_tokens, kin=())
    bound_tokens = min(call.bound_tokens, cap_tokens)
    return changed(call, max_tokens=cap_tokens, output_tokens=output_tokens, bound_tokens=bound_tokens, work=work)
