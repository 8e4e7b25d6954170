"""The circuit breaker of one replica: a pure automaton on the time it is told.

closed -> open after N consecutive failures -> one probe at a time once the time is up -> closed again
on success, or open for twice as long. What the caller caused never comes here: neither a client that
left (`cancelled`) nor an engine's 4xx is evidence for or against a replica.
"""

from typing import Literal

from forebay.domain import FailureKind
from forebay.policy import BreakerPolicy

State = Literal["closed", "open", "half_open"]

# Open times double up to this; a longer `open_s` of the policy stands as it is. A probe that is still
# running after this long (an endless stream) no longer keeps the next one out.
MAX_OPEN_S = 30.0
LOADING_RETRY_S = 1.0
CREDENTIAL_OPEN_S = 30.0


class Breaker:
    """Says whether one replica may get a call.

    Results carry no identity. So while a probe runs, every result counts as the probe's; while the
    breaker is open without a probe, results are of calls that began before it opened, and are ignored
    (a refused credential excepted).

    Args:
        policy: consecutive failures that open it, and the first open time in seconds.

    Attributes:
        state: `half_open` means that a probe is running.
        reason: the failure that opened it, or the last one counted; None after a success.
        failures: consecutive failures counted.
        until_s: monotonic seconds from which a probe may start, when open.
    """

    __slots__ = ("_open_s", "_policy", "_probe_since_s", "failures", "reason", "state", "until_s")

    def __init__(self, policy: BreakerPolicy) -> None:
        self._policy = policy
        self.state: State = "closed"
        self.reason: FailureKind | None = None
        self.failures = 0
        self.until_s = 0.0
        self._open_s = policy.open_s
        self._probe_since_s = 0.0

    def allows(self, now_s: float) -> bool:
        """Say whether a call may start now; changes nothing."""
        if self.state == "closed":
            return True
        if self.state == "open":
            return now_s >= self.until_s
        return now_s >= self._probe_since_s + MAX_OPEN_S

    def begin(self, now_s: float) -> None:
        """Start a call: on a breaker that is not closed it is the probe, unless it goes past `allows` (panic)."""
        if self.state != "closed" and self.allows(now_s):
            self.state = "half_open"
            self._probe_since_s = now_s

    def succeeded(self, now_s: float) -> None:
        """A call was answered as it should be."""
        if self.state == "open":
            return
        self.state = "closed"
        self.reason = None
        self.failures = 0
        self._open_s = self._policy.open_s

    def failed(self, kind: FailureKind, now_s: float) -> None:
        """A call failed by the engine's fault.

        A model that is still loading opens the breaker for a second and is counted as no failure; a
        refused credential opens it at once, for half a minute.

        Args:
            kind: how it failed.
            now_s: monotonic seconds.
        """
        if kind is FailureKind.CREDENTIAL:
            self._open(kind, now_s + CREDENTIAL_OPEN_S)
        elif self.state == "open":
            if kind is FailureKind.CONNECT:
                # Nobody listens there: what is sure is worth knowing at any time.
                self.reason = kind
        elif kind is FailureKind.LOADING:
            self._open(kind, now_s + LOADING_RETRY_S)
        else:
            self._count(kind, now_s)

    def cancelled(self) -> None:
        """A call ended without a verdict on the replica, such as a client that left."""
        if self.state == "half_open":
            # Its time is up already, so the next call may be the probe.
            self.state = "open"

    def _count(self, kind: FailureKind, now_s: float) -> None:
        self.failures += 1
        if self.state == "half_open":
            self._open_s = min(self._open_s * 2, max(MAX_OPEN_S, self._policy.open_s))
            self._open(kind, now_s + self._open_s)
        elif self.failures >= self._policy.failures:
            self._open(kind, now_s + self._open_s)
        else:
            self.reason = kind

    def _open(self, kind: FailureKind, until_s: float) -> None:
        self.state = "open"
        self.reason = kind
        self.until_s = until_s

    def __str__(self) -> str:
        """Show state and reason, such as `open (connect)` or `closed (1 of 5: stall)`."""
        if self.reason is None:
            return self.state
        if self.state == "closed":
            return f"closed ({self.failures} of {self._policy.failures}: {self.reason})"
        return f"{self.state} ({self.reason})"

    def __repr__(self) -> str:
        """Show everything that the next decision depends on."""
        return (
            f"Breaker({self.state}, reason={self.reason}, failures={self.failures}, "
            f"until_s={self.until_s:.3f}, open_s={self._open_s:g})"
        )
