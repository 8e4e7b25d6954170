"""The core in time: its pace, its queue, its freezing, on a clock that the test moves."""

from typing import Any

import pytest
from engines.sim.manual_loop import ManualLoop

from forebay.clock import ManualClock
from forebay.engines.sim.core import MAX_LAG_S, Core
from forebay.engines.sim.model import QueueFull
from forebay.engines.sim.spec import SimSpec

SPEC = SimSpec(iteration_base_ms=10, ms_per_decode_seq=0, ms_per_prefill_token=0)


class Taker:
    """Notes when each token came."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.times_s: list[float] = []
        self.last = False

    def token(self, made: int, last: bool) -> None:
        assert made == len(self.times_s) + 1
        assert not self.last
        self.times_s.append(self.clock.now_s())
        self.last = last


def core_of(spec: SimSpec = SPEC, late_s: float = 0.0) -> tuple[Core, ManualLoop, Taker]:
    clock = ManualClock()
    loop: Any = ManualLoop(clock, late_s)
    return Core(spec, clock, loop), loop, Taker(clock)


def test_tokens_come_at_the_end_of_their_iterations() -> None:
    core, loop, taker = core_of()
    core.submit(10, 3, 0, taker)
    loop.run(1)
    assert taker.times_s == pytest.approx([0.01, 0.02, 0.03])
    assert taker.last
    assert core.active == 0


def test_delays_of_the_loop_do_not_add_up() -> None:
    core, loop, taker = core_of(late_s=0.004)
    core.submit(10, 50, 0, taker)
    loop.run(1)
    assert taker.times_s[-1] == pytest.approx(0.504)


def test_after_a_long_delay_lost_time_is_not_made_up() -> None:
    core, loop, taker = core_of()
    core.submit(10, 3, 0, taker)
    loop.run(0.015)
    loop.clock.advance(MAX_LAG_S + 1)
    loop.run(1)
    first, second, third = taker.times_s
    assert first == pytest.approx(0.01)
    assert second == pytest.approx(0.015 + MAX_LAG_S + 1)
    assert third - second == pytest.approx(0.01)


def test_an_idle_engine_begins_when_work_comes() -> None:
    core, loop, taker = core_of()
    loop.run(0.1)
    core.submit(10, 1, 0, taker)
    loop.run(0.1)
    core.submit(10, 1, 0, second := Taker(loop.clock))
    loop.run(0.1)
    assert taker.times_s == pytest.approx([0.11])
    assert second.times_s == pytest.approx([0.21])


def test_what_arrives_together_shares_the_iteration() -> None:
    core, loop, taker = core_of()
    other = Taker(loop.clock)
    core.submit(10, 1, 0, taker)
    core.submit(10, 1, 0, other)
    loop.run(1)
    assert taker.times_s == other.times_s == pytest.approx([0.01])


def test_an_aborted_sequence_gets_nothing_more() -> None:
    core, loop, taker = core_of()
    seq_id = core.submit(10, 100, 0, taker)
    loop.run(0.055)
    core.abort(seq_id)
    core.abort(seq_id)
    loop.run(1)
    assert len(taker.times_s) == 5
    assert (core.aborted, core.active, core.model.used_blocks) == (1, 0, 0)
    assert core.metrics.finished["length"] == core.metrics.finished["abort"] == 0


def test_a_frozen_core_goes_on_where_it_was() -> None:
    core, loop, taker = core_of()
    core.submit(10, 3, 0, taker)
    loop.run(0.015)
    core.freeze(None)
    core.submit(10, 1, 0, waiting := Taker(loop.clock))
    loop.run(10)
    assert (len(taker.times_s), len(waiting.times_s)) == (1, 0)
    core.thaw()
    loop.run(1)
    assert (len(taker.times_s), len(waiting.times_s)) == (3, 1)


def test_thawing_what_is_not_frozen_changes_nothing() -> None:
    core, loop, taker = core_of()
    core.submit(10, 2, 0, taker)
    loop.run(0.005)
    core.thaw()
    loop.run(1)
    assert taker.times_s == pytest.approx([0.01, 0.02])


def test_a_core_frozen_for_a_while_thaws_by_itself() -> None:
    core, loop, taker = core_of()
    core.freeze(0.5)
    core.submit(10, 1, 0, taker)
    loop.run(1)
    assert taker.times_s == pytest.approx([0.51])


def test_a_refused_sequence_is_counted() -> None:
    core, loop, taker = core_of(SimSpec(max_num_seqs=1, max_num_queued_reqs=1))
    core.submit(10, 1, 0, taker)
    with pytest.raises(QueueFull):
        core.submit(10, 1, 0, taker)
    assert core.metrics.queue_rejections == 1
    loop.run(1)
    assert taker.last


def test_times_go_into_the_metrics() -> None:
    core, loop, taker = core_of(SimSpec(iteration_base_ms=20, max_num_seqs=1))
    core.submit(10, 3, 0, taker)
    core.submit(10, 1, 0, Taker(loop.clock))
    loop.run(1)
    totals = {name: histogram.total for name, histogram in core.metrics.histograms.items()}
    assert totals["time_to_first_token_seconds"] == pytest.approx(0.0205 + 0.0812)
    assert totals["inter_token_latency_seconds"] == pytest.approx(2 * 0.0201)
    assert totals["request_queue_time_seconds"] == pytest.approx(0.0607)
    assert core.metrics.generation_tokens == 4
    assert core.metrics.prompt_tokens == 20


def test_a_closed_core_makes_no_more_tokens() -> None:
    core, loop, taker = core_of()
    core.submit(10, 3, 0, taker)
    core.close()
    loop.run(1)
    assert taker.times_s == []
