"""One try that has ended, as whoever learns from tries is told of it."""

from typing import Final

from forebay.domain import FailureKind
from forebay.ports import Lease
from forebay.traffic import Call, Verdict
from forebay.upstream.deadlines import Sending


class Trial:
    """One try that has ended.

    Attributes:
        call: whose try it was.
        sending: as it was sent.
        lease: of the try.
        verdict: how it ended.
        failure: the engine's; None without one.
    """

    __slots__ = ("call", "failure", "lease", "sending", "verdict")

    def __init__(
        self, call: Call, sending: Sending, lease: Lease, verdict: Verdict, failure: FailureKind | None
    ) -> None:
        self.call: Final = call
        self.sending: Final = sending
        self.lease: Final = lease
        self.verdict: Final = verdict
        self.failure: Final = failure
