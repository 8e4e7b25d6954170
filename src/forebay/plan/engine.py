"""One modelled engine on a virtual clock: it says when it has news, and is told when that time has come.

Iterations that are all alike are run as one jump. What arrives in the middle of a jump cuts it short at the
end of the iteration that is then in work, as a real engine would see it.
"""

from math import floor

from msgspec import Struct

from forebay.engines.sim.model import EngineModel, Seq, Stretch
from forebay.engines.sim.spec import SimSpec

# A jump that is cut at the very end of an iteration must not lose it to rounding.
_ROUNDING = 1e-9


class News(Struct, frozen=True, gc=False):
    """What has happened in an engine: the ids of the sequences with a first token, and of those with their last."""

    first: tuple[int, ...] = ()
    ended: tuple[int, ...] = ()


_NONE = News()


class VirtualEngine:
    """An engine whose time is given to it.

    `due_s` is when something next ends in it, None when it is idle. Whoever runs it calls `pass_to(due_s)` then;
    a `submit` may make it sooner. `preemptions` counts those since it was made.
    """

    def __init__(self, spec: SimSpec) -> None:
        self._model = EngineModel(spec)
        self._stretch: Stretch | None = None  # in work, or
        self._news: News | None = None  # of the iteration in work
        self._began_s = 0.0
        self.due_s: float | None = None
        self.preemptions = 0

    @property
    def waiting(self) -> int:
        """How many wait in its own queue."""
        return self._model.waiting

    @property
    def kv_usage_ratio(self) -> float:
        """Part of its KV blocks that sequences hold, 0..1."""
        return self._model.kv_usage_ratio

    @property
    def sequences(self) -> int:
        """How many run or wait."""
        return self._model.running + self._model.waiting

    def submit(self, now_s: float, seq: Seq) -> None:
        """Give it a sequence.

        An idle engine begins when it is next told the time, so that what comes at the same moment shares the
        iteration.

        Raises:
            QueueFull: its queue is at its bound.
            ValueError: it can never run the sequence.
        """
        self._cut(now_s)
        self._model.submit(seq)
        if self.due_s is None:
            self.due_s = now_s

    def abort(self, now_s: float, seq_id: int) -> bool:
        """Drop a sequence whose client has left; return whether it was there.

        What the iteration in work makes of it is still news.
        """
        self._cut(now_s)
        return self._model.abort(seq_id)

    def pass_to(self, now_s: float) -> News:
        """End what is due, begin what comes next, and return what has happened.

        Args:
            now_s: `due_s`.
        """
        news = self._news or _NONE
        if self._stretch is not None:
            self._model.jump(self._stretch.iterations)
        self._stretch = self._news = self.due_s = None
        self._began_s = now_s
        stretch = self._model.stretch()
        if stretch.iterations > 1:
            self._stretch, self.due_s = stretch, now_s + stretch.iterations * stretch.duration_s
            return news
        iteration = self._model.step()
        self.preemptions += len(iteration.preempted)
        if iteration.duration_s:
            first = tuple([emitted.seq_id for emitted in iteration.emitted if not emitted.index])
            self._news = News(first, iteration.finished)
            self.due_s = now_s + iteration.duration_s
        return news

    def _cut(self, now_s: float) -> None:
        """End a jump with the iteration in work: the model moves at once to its end, as it does when it is stepped."""
        stretch = self._stretch
        if stretch is not None:
            done = floor((now_s - self._began_s) / stretch.duration_s - _ROUNDING) + 1
            done = max(1, min(stretch.iterations, done))
            self._model.jump(done)
            self._stretch, self.due_s = None, self._began_s + done * stretch.duration_s
