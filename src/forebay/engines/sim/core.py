"""The engine core: steps the model on the real clock and hands out its tokens.

One timer for all sequences: no task, no timer per token. An iteration ends when its duration has passed
since the end of the one before, so that the pace does not drift with the loop's delays; after a delay of
more than `MAX_LAG_S` the lost time is not made up.
"""

import asyncio
from typing import Protocol

from forebay.clock import Clock
from forebay.engines.sim.metrics import EngineMetrics, Finished
from forebay.engines.sim.model import EngineModel, Iteration, QueueFull, Seq
from forebay.engines.sim.spec import SimSpec

MAX_LAG_S = 0.25


class Sink(Protocol):
    """Who takes the tokens of one sequence."""

    def token(self, made: int, last: bool) -> None:
        """So many tokens are made; `last` when there are no more."""
        ...


class _Track:
    """One sequence in the engine: where its tokens go, and its times in monotonic seconds."""

    __slots__ = ("arrived_s", "first_s", "last_s", "preemptions", "scheduled_s", "seq", "sink")

    def __init__(self, seq: Seq, sink: Sink, arrived_s: float) -> None:
        self.seq = seq
        self.sink = sink
        self.arrived_s = arrived_s
        self.scheduled_s: float | None = None
        self.first_s = 0.0
        self.last_s = 0.0
        self.preemptions = 0


class Core:
    """Runs sequences; made and used in the loop's thread.

    The clock must run: with one that stands still the pace is wrong.
    """

    def __init__(self, spec: SimSpec, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._clock = clock
        self._loop = loop
        self._tracks: dict[int, _Track] = {}
        self._last_id = 0
        self._iteration: Iteration | None = None
        self._due_s = 0.0
        self._timer: asyncio.Handle | None = None
        self._thaw_timer: asyncio.TimerHandle | None = None
        self._frozen = False
        self.model = EngineModel(spec)
        self.metrics = EngineMetrics(spec, clock.wall_s())
        self.aborted = 0

    @property
    def active(self) -> int:
        """Sequences in the engine, running or waiting."""
        return len(self._tracks)

    def submit(self, prompt_tokens: int, max_tokens: int, priority: int, sink: Sink) -> int:
        """Run a sequence; return its id.

        Raises:
            QueueFull: too many wait.
        """
        self._last_id += 1
        seq = Seq(self._last_id, prompt_tokens, max_tokens, priority)
        try:
            self.model.submit(seq)
        except QueueFull:
            self.metrics.queue_rejections += 1
            raise
        self._tracks[seq.seq_id] = _Track(seq, sink, self._clock.now_s())
        if self._iteration is None and self._timer is None and not self._frozen:
            # Not at once: what arrives in the same turn of the loop shares the iteration.
            self._timer = self._loop.call_soon(self._begin)
        return seq.seq_id

    def abort(self, seq_id: int) -> None:
        """Drop a sequence; it is out of the engine with the next iteration."""
        if self._tracks.pop(seq_id, None) is not None:
            self.model.abort(seq_id)
            self.aborted += 1

    def freeze(self, hold_s: float | None) -> None:
        """Stop in the middle of the iteration.

        Args:
            hold_s: seconds until it goes on; None waits for `thaw`.
        """
        self._frozen = True
        self._cancel_timers()
        if hold_s is not None:
            self._thaw_timer = self._loop.call_later(hold_s, self.thaw)

    def thaw(self) -> None:
        """Go on where it froze."""
        if self._frozen:
            self._cancel_timers()
            self._frozen = False
            self._timer = self._loop.call_soon(self._begin if self._iteration is None else self._end)

    def close(self) -> None:
        """Stop for good."""
        self._frozen = True
        self._cancel_timers()

    def _cancel_timers(self) -> None:
        for timer in (self._timer, self._thaw_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._thaw_timer = None

    def _begin(self, since_s: float | None = None) -> None:
        """Step the model and wait for the iteration to pass.

        Args:
            since_s: when the iteration before it was due to end; None when the engine was idle or frozen.
        """
        self._timer = None
        iteration = self.model.step()
        if not iteration.duration_s:
            return
        now_s = self._clock.now_s()
        start_s = now_s if since_s is None or now_s - since_s > MAX_LAG_S else since_s
        for seq_id in iteration.started:
            track = self._tracks.get(seq_id)
            if track is not None and track.scheduled_s is None:
                track.scheduled_s = now_s
        for seq_id in iteration.preempted:
            if seq_id in self._tracks:
                self._tracks[seq_id].preemptions += 1
        self._iteration = iteration
        self._due_s = start_s + iteration.duration_s
        self._timer = self._loop.call_later(max(0.0, self._due_s - now_s), self._end)

    def _end(self) -> None:
        """Hand out the tokens of the iteration, then begin the next one."""
        self._timer = None
        iteration, self._iteration = self._iteration, None
        if iteration is None:
            return
        self.metrics.iteration(iteration)
        now_s = self._clock.now_s()
        for emitted in iteration.emitted:
            track = self._tracks.get(emitted.seq_id)
            if track is not None:
                self._hand_out(track, emitted.index, now_s)
        if self._timer is None:
            self._begin(self._due_s)

    def _hand_out(self, track: _Track, index: int, now_s: float) -> None:
        if index:
            self.metrics.next_token(now_s - track.last_s)
        else:
            track.first_s = now_s
            self.metrics.first_token(track.seq.prompt_tokens, now_s - track.arrived_s)
        track.last_s = now_s
        last = index + 1 == track.seq.max_tokens
        if last:
            del self._tracks[track.seq.seq_id]
            self.metrics.finish(_finished(track), "length")
        track.sink.token(index + 1, last)


def _finished(track: _Track) -> Finished:
    return Finished(
        arrived_s=track.arrived_s,
        scheduled_s=track.first_s if track.scheduled_s is None else track.scheduled_s,
        first_token_s=track.first_s,
        last_token_s=track.last_s,
        prompt_tokens=track.seq.prompt_tokens,
        generated_tokens=track.seq.max_tokens,
        max_tokens=track.seq.max_tokens,
        preemptions=track.preemptions,
    )
