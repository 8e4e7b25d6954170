"""What calls usually take, and what follows for the first try of a call: it may move to another replica sooner.

A learned deadline moves a call and is not meant to end it. It binds the first try on a pool where another replica can
take a second one; the second one has the deadlines of the configuration. So a call that is merely long costs one try
more, and what it really takes is learned from its second.
"""

from forebay.clock import Clock
from forebay.domain import FailureKind, Outcome
from forebay.ports import Lease
from forebay.routing.pool import Fleet
from forebay.traffic import Call, changed
from forebay.upstream.deadlines import Sending
from forebay.upstream.learned import End, LearnedTimeouts
from forebay.upstream.trial import Trial

_NEAR = 0.999


class Timing:
    """Learns deadlines from how tries end, and sets those of first tries.

    Attributes:
        learned: the deadlines.
    """

    def __init__(self, fleet: Fleet, clock: Clock) -> None:
        self._fleet = fleet
        self._clock = clock
        self.learned = LearnedTimeouts(clock.now_s())

    def terms(self, call: Call, sending: Sending, lease: Lease) -> Sending:
        """Return how a call's first try on a pool is sent: with the learned deadline where it is in force."""
        if not _is_learned(call, sending) or sending.max_attempts < 2:
            return sending
        configured_s = _configured_s(call, sending)
        model = sending.rewriter.model
        limit_s = self.learned.limit_s(model, call.stream, lease.uncached_tokens, configured_s)
        if limit_s >= configured_s:
            return sending
        rotation = self._fleet.rotations.get(sending.pool)
        if rotation is None or rotation.takers < 2:
            return sending
        return changed(sending, learned_s=limit_s)

    def ended(self, trial: Trial) -> None:
        """Learn from a try that has ended."""
        call, sending, lease, failure = trial.call, trial.sending, trial.lease, trial.failure
        if not _is_learned(call, sending) or (sending.thread is not None and sending.thread.goes_on):
            return
        taken_s = self._clock.now_s() - lease.started_s
        end: End
        if call.stream and lease.first_token_s is not None:
            taken_s, end = lease.first_token_s - lease.started_s, "done"
        elif failure is None:
            if trial.verdict.outcome is Outcome.OK and not call.stream:
                end = "done"
            elif trial.verdict.outcome is Outcome.CLIENT_CLOSED:
                end = "left"
            else:
                # The engine's answer to a bad request says nothing about others.
                return
        else:
            end = "timeout" if failure is FailureKind.FIRST_BYTE or ran_out(call, sending, failure) else "left"
        model = sending.rewriter.model
        self.learned.note(model, call.stream, lease.uncached_tokens, _configured_s(call, sending), taken_s, end)

    def tick(self) -> None:
        """Review what was learned; called ten times a second."""
        self.learned.tick(self._clock.now_s())


def ran_out(call: Call, sending: Sending, failure: FailureKind) -> bool:
    """Say whether a call met the deadline of the configuration for the whole of it, and not one of its own."""
    return failure is FailureKind.TOTAL and call.deadline_s - call.received_s >= _NEAR * sending.timeouts.total_s


def _is_learned(call: Call, sending: Sending) -> bool:
    """Say whether it is a generation that may be learned from: counting tokens is quick, and of another kind."""
    return sending.timeouts.learned and call.endpoint.streams


def _configured_s(call: Call, sending: Sending) -> float:
    """Return the deadline that the learned one stands for; an answer that is not streamed comes with its last token."""
    timeouts = sending.timeouts
    if call.stream:
        return timeouts.first_byte_s
    return min(timeouts.first_byte_s, timeouts.total_s) if timeouts.first_byte_for_whole else timeouts.total_s
