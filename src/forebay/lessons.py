"""What the end of each try teaches: deadlines, and whose traffic goes bad."""

from forebay.degrading import Degrading
from forebay.ports import Lease
from forebay.timing import Timing
from forebay.traffic import Call
from forebay.upstream.deadlines import Sending
from forebay.upstream.trial import Trial


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

    def ended(self, trial: Trial) -> None:
        """Learn from a try that has ended."""
        self.timing.ended(trial)
        self.degrading.ended(trial)
