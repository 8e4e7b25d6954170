"""Follows the policy documents while the data plane runs, and says what became of each change."""

import asyncio
import logging

from forebay.clock import Clock
from forebay.config.reload import DocumentWatch, WatchStatus
from forebay.policy import PolicyHolder
from forebay.recording.metrics import Metrics

log = logging.getLogger(__name__)


class DocumentFollower:
    """Polls the documents in a thread and publishes what is good; what is not stays visible.

    Args:
        watch: reads the files.
        holder: gets new policies.
        clock: monotonic and wall time.
        loop: the data plane's.
    """

    def __init__(
        self, watch: DocumentWatch, holder: PolicyHolder, clock: Clock, loop: asyncio.AbstractEventLoop
    ) -> None:
        self.watch = watch
        self._holder = holder
        self._clock = clock
        self._loop = loop
        self._failures = 0

    def gauges(self, metrics: Metrics) -> None:
        """Show whether the documents are in force."""
        metrics.watch("forebay_config_reload_failures_total", lambda: [((), self._failures)])
        metrics.watch("forebay_config_last_reload_ok", lambda: [((), float(not _faults(self.watch.status)))])

    async def run(self) -> None:
        """Follow until cancelled."""
        while True:
            await asyncio.sleep(self.watch.period_s)
            before = self.watch.status
            # Files may lie on a disk or network that hangs; the loop must not hang with them.
            policy = await self._loop.run_in_executor(None, self.watch.poll, self._clock.now_s(), self._clock.wall_s())
            self._tell(before, self.watch.status)
            if policy is not None:
                self._holder.publish(policy)
                logging.getLogger().setLevel(self.watch.settings.log_level.upper())
                log.info("policy %s is in force", policy.hash)

    def _tell(self, before: WatchStatus, after: WatchStatus) -> None:
        faults, old_faults = _faults(after), _faults(before)
        if faults and faults != old_faults:
            self._failures += 1
            for fault in faults:
                log.error("not applied: %s", fault)
        elif old_faults and not faults:
            log.info("the documents are good again")
        for warning in after.warnings:
            if warning not in before.warnings:
                log.warning("%s", warning)


def _faults(status: WatchStatus) -> tuple[str, ...]:
    documents = (("state", status.state.reason), ("override", status.override.reason))
    return (*status.last_error, *(f"{name} document: {reason}" for name, reason in documents if reason))
