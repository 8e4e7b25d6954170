"""What the end of each try teaches: deadlines, and whose traffic goes bad."""

from forebay.degrading import Degrading
from forebay.domain import FailureKind
from forebay.ports import Lease
from forebay.timing import Timing
from forebay.traffic import Call, Verdict
from forebay.upstream.deadlines import Sending


class Lessons:
    """Hears of every try.

    Attributes:
        timing: learns deadlines.
        degrading: moves tenants.
    """

    def __init__(self, timing: Timing, degrading: Degrading) -> None:
        self.timing = timing
        self.degrading = degrading

    def terms(self, call: Call, sending: Sending, lease: Lease) -> Sending:
        """Return how the first try of a call on a pool is sent."""
        return self.timing.terms(call, sending, lease)

    def ended(self, call: Call, sending: Sending, lease: Lease, verdict: Verdict, failure: FailureKind | None) -> None:
        """Learn from a try that has ended.

        Args:
            call: whose try it was.
            sending: as it was sent.
            lease: of the try.
            verdict: how it ended.
            failure: the engine's; None without one.
        """
        self.timing.ended(call, sending, lease, verdict, failure)
        self.degrading.ended(call, sending, lease, verdict, failure)
