"""After a storm of calls that end badly nothing is left: no permit, no place, no memory, no descriptor, no sequence."""

import time
from collections import Counter
from collections.abc import Callable

import pytest
from faults.engines import Engines, LoopThread
from faults.process_view import open_files, resident_bytes
from faults.storm import Storm, settings, start_engines
from gateway_process import Gateway, eventually

pytestmark = pytest.mark.integration

WARM_UP = 300
GAUGES = ("requests_in_flight", "permits_held", "queue_depth", "replica_in_flight")


class Storming:
    """A gateway before engines that fail, and what it held after the warm-up."""

    def __init__(self, thread: LoopThread, engines: Engines, node: Callable[..., Gateway]) -> None:
        start_engines(engines)
        self.engines = engines
        self.gateway = node(settings(engines))
        self.storm = Storm(thread, self.gateway.address)
        self.storm.run(WARM_UP)
        self.files = self._calm_files()
        self.memory_bytes = resident_bytes(self.gateway.process.pid)

    def _calm_files(self) -> int:
        """Descriptors once everything has ended, idle connections to engines included."""
        assert eventually(self._all_over, 30), f"{self.gauges()}, engines {self.figures()}"
        return open_files(self.gateway.process.pid)

    def _all_over(self) -> bool:
        time.sleep(0.05)
        return not any(self.gauges().values()) and not any(self.figures().values())

    def gauges(self) -> dict[str, float]:
        return {name: self.gateway.metric(f"forebay_{name}") for name in GAUGES}

    def figures(self) -> dict[str, int]:
        return {name: self.engines.total(name) for name in ("sequences_active", "calls_open", "connections_open")}

    def assert_nothing_is_left(self) -> None:
        files = self._calm_files()
        grown_bytes = resident_bytes(self.gateway.process.pid) - self.memory_bytes
        print(
            f"descriptors {self.files} -> {files}; memory {self.memory_bytes / 2**20:.1f} MiB "
            f"{grown_bytes / 2**20:+.2f} MiB; gauges {self.gauges()}; engines {self.figures()}"
        )
        assert files <= self.files + 5
        assert grown_bytes < 0.05 * self.memory_bytes
        assert "Traceback" not in self.gateway.log

    def assert_recorded_once(self) -> None:
        """Every call that was dispatched, or that an engine has seen, has one open and one close line."""
        closes = [line for line in self.gateway.journal() if line["kind"] == "close"]
        undispatched = sum(line["outcome"] == "client_closed" and not line["attempts"] for line in closes)
        print(
            f"journal: {dict(Counter(line['outcome'] for line in closes))}, of these {undispatched} left in the queue"
        )
        assert undispatched > 0, "nobody left while waiting for a place"
        assert eventually(lambda: not self._miscounted(), 30), dict(list(self._miscounted().items())[:5])

    def _miscounted(self) -> dict[str, list[str]]:
        """Calls that were dispatched, or seen by an engine, without exactly one open and one close line."""
        kinds: dict[str, list[str]] = {call_id: [] for _, call_id in self.engines.arrivals()}
        for line in self.gateway.journal():
            if line["kind"] == "open" or line["attempts"] or line["call_id"] in kinds:
                kinds.setdefault(line["call_id"], []).append(line["kind"])
        return {call_id: found for call_id, found in kinds.items() if sorted(found) != ["close", "open"]}


@pytest.fixture
def storming(thread: LoopThread, engines: Engines, node: Callable[..., Gateway]) -> Storming:
    return Storming(thread, engines, node)


def check(storming: Storming, count: int) -> None:
    took_s = storming.storm.run(count)
    print(f"\n{count} calls in {took_s:.1f} s")
    for end, times in sorted(storming.storm.seen.items()):
        print(f"{times:6} {end}")
    assert not storming.storm.faults, storming.storm.faults[:5]
    storming.assert_nothing_is_left()
    storming.assert_recorded_once()
    assert len(storming.storm.seen) >= 12, "the storm was not as mixed as it should be"


def test_a_storm_of_aborts(storming: Storming) -> None:
    check(storming, 1500)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_ten_thousand_aborts(storming: Storming) -> None:
    check(storming, 10_000)
