"""A continuous-batching engine as a pure automaton: no clock, no I/O, always the same answer.

Each `step` is one iteration. Sequences that already generate get one token each, then prompts in work
share what is left of the chunk, then waiting ones are let in. KV blocks are taken as tokens are
computed; when none is left, the sequence that came last (or, by priority, matters least) loses all of its
blocks, waits, and computes prompt and output anew. The caller owns time: it waits `duration_s` and then
acts on the iteration.

Most iterations are like the one before: the same sequences decode, and the same prompt fills the rest of
the chunk. `stretch` says how many such iterations come next, and `jump` runs them at once, to the same state
that as many steps would reach.

Source: the scheduling order of vLLM's V1 engine (v1/core/sched/scheduler.py, 0.32); the cost of an
iteration is linear in prompt tokens and decoding sequences.
"""

from bisect import bisect_left, bisect_right, insort

from msgspec import Struct

from forebay.engines.sim.spec import SimSpec


class QueueFull(Exception):
    """As many sequences wait as `max_num_queued_reqs` allows."""


class Seq(Struct, frozen=True):
    """One sequence to run.

    Attributes:
        seq_id: unique among those in the engine.
        prompt_tokens: at least 1.
        max_tokens: tokens to generate, at least 1; the sequence ends with the last of them.
        priority: the lower, the sooner; read only under priority scheduling.
        cached_prefix_tokens: prompt tokens that need no computing; nothing fills it yet.
    """

    seq_id: int
    prompt_tokens: int
    max_tokens: int
    priority: int = 0
    cached_prefix_tokens: int = 0


class Emitted(Struct, frozen=True, gc=False):
    """One generated token: whose, and the how-manieth of that sequence, from 0."""

    seq_id: int
    index: int


class Iteration(Struct, frozen=True):
    """What one iteration did; everything in it holds from its end on.

    Attributes:
        duration_s: how long it takes; 0 when there was nothing to do.
        emitted: at most one token of each sequence.
        finished: sequences whose last token is among `emitted`.
        started: sequences that left the queue, those that come back from preemption included.
        preempted: sequences that lost their KV blocks.
        prefill_tokens: prompt tokens computed, recomputed ones included.
        decode_seqs: sequences that computed one token.
    """

    duration_s: float
    emitted: tuple[Emitted, ...] = ()
    finished: tuple[int, ...] = ()
    started: tuple[int, ...] = ()
    preempted: tuple[int, ...] = ()
    prefill_tokens: int = 0
    decode_seqs: int = 0


class Stretch(Struct, frozen=True):
    """Iterations to come that are all alike: nobody starts, finishes, is preempted or makes its first token.

    Attributes:
        iterations: how many; 0 when the next one is none of them.
        duration_s: how long each takes.
        prefill_tokens: prompt tokens that each computes.
        decode_seqs: sequences that each makes one token of.
    """

    iterations: int
    duration_s: float = 0.0
    prefill_tokens: int = 0
    decode_seqs: int = 0


_NO_STRETCH = Stretch(0)


class _Run:
    """A sequence inside the engine: while it has a slot, `computed` tokens of it are in KV."""

    __slots__ = ("blocks", "computed", "generated", "has_slot", "rank", "seq")

    def __init__(self, seq: Seq, rank: tuple[int, int]) -> None:
        self.seq = seq
        self.rank = rank
        self.computed = 0
        self.generated = 0
        self.blocks = 0
        self.has_slot = False

    @property
    def missing(self) -> int:
        """Tokens to compute before the next one can be generated."""
        return self.seq.prompt_tokens + self.generated - self.computed


def _rank(run: _Run) -> tuple[int, int]:
    return run.rank


class EngineModel:
    """The state of one engine; `submit`, `abort`, `step` and `jump` are all that changes it.

    The queue is bounded by `max_num_queued_reqs`; with 0 the caller bounds it.
    """

    def __init__(self, spec: SimSpec) -> None:
        self._spec = spec
        self._block = spec.block_size_tokens
        self._free = spec.kv_blocks
        self._arrivals = 0
        self._runs: dict[int, _Run] = {}
        self._running: list[_Run] = []
        self._waiting: list[_Run] = []  # sorted by rank
        # Of the iteration in work:
        self._budget = 0
        self._scheduled: dict[_Run, int] = {}
        self._preempted: list[int] = []

    @property
    def running(self) -> int:
        """Sequences that hold a slot."""
        return len(self._running)

    @property
    def waiting(self) -> int:
        """Sequences in the queue."""
        return len(self._waiting)

    @property
    def used_blocks(self) -> int:
        """KV blocks that sequences hold."""
        return self._spec.kv_blocks - self._free

    @property
    def kv_usage_ratio(self) -> float:
        """Share of the KV blocks that sequences hold, 0..1."""
        return self.used_blocks / self._spec.kv_blocks

    def submit(self, seq: Seq) -> None:
        """Put a sequence into the queue.

        Raises:
            QueueFull: the queue is at its bound.
            ValueError: the sequence can never run here, or its id is in use.
        """
        if seq.seq_id in self._runs:
            raise ValueError(f"sequence {seq.seq_id} is already in the engine")
        if seq.max_tokens < 1 or not 0 <= seq.cached_prefix_tokens < seq.prompt_tokens:
            raise ValueError("a sequence needs a prompt token to compute and a token to generate")
        if seq.prompt_tokens + seq.max_tokens > self._spec.max_model_len:
            raise ValueError(f"prompt and output exceed max_model_len {self._spec.max_model_len}")
        if self._spec.max_num_queued_reqs and len(self._waiting) >= self._spec.max_num_queued_reqs:
            raise QueueFull(f"{len(self._waiting)} requests wait already")
        self._arrivals += 1
        run = _Run(seq, (seq.priority if self._spec.scheduling == "priority" else 0, self._arrivals))
        self._runs[seq.seq_id] = run
        insort(self._waiting, run, key=_rank)

    def abort(self, seq_id: int) -> bool:
        """Drop a sequence and free what it holds; return whether it was there."""
        run = self._runs.pop(seq_id, None)
        if run is None:
            return False
        if run.has_slot:
            self._leave(run)
        else:
            del self._waiting[bisect_left(self._waiting, run.rank, key=_rank)]
        return True

    def step(self) -> Iteration:
        """Run one iteration: schedule, then count what was computed and generated."""
        self._budget = self._spec.chunk_tokens
        self._scheduled = {}
        self._preempted = []
        decodes, prefills = self._halves()
        for run in decodes:
            self._schedule(run)
        for run in prefills:
            self._schedule(run)
        # A sequence let in now would take the very blocks that were just won back.
        started = () if self._preempted else self._let_in()
        return self._compute(started)

    def stretch(self) -> Stretch:
        """Return the like iterations to come, without running them."""
        decodes, prefills = self._halves()
        budget = self._spec.chunk_tokens - len(decodes)
        # The first prompt takes all that is left of the chunk, so that those behind it stand still.
        first = prefills[0] if prefills and budget else None
        if first is None and (not decodes or (budget and self._can_let_in(budget))):
            return _NO_STRETCH
        limit = (first.missing - 1) // budget if first is not None else self._spec.max_model_len
        for run in decodes:
            limit = min(limit, run.seq.max_tokens - run.generated - 1)
        limit = self._that_fit(limit, decodes, first, budget)
        if limit <= 0:
            return _NO_STRETCH
        prefill_tokens = budget if first is not None else 0
        return Stretch(limit, self._duration_s(prefill_tokens, len(decodes)), prefill_tokens, len(decodes))

    def jump(self, iterations: int) -> None:
        """Run iterations of the stretch to come, all at once.

        Args:
            iterations: at most `stretch().iterations`; the caller has asked for it since the last change.
        """
        decodes, prefills = self._halves()
        budget = self._spec.chunk_tokens - len(decodes)
        for run in decodes:
            run.generated += iterations
            self._grow(run, iterations)
        if prefills and budget:
            self._grow(prefills[0], iterations * budget)

    def _halves(self) -> tuple[list[_Run], list[_Run]]:
        """Return the running sequences that generate, and those whose prompts are in work."""
        decodes, prefills = [], []
        for run in self._running:
            if run.generated and run.seq.prompt_tokens + run.generated - run.computed == 1:
                decodes.append(run)
            else:
                prefills.append(run)
        return decodes, prefills

    def _grow(self, run: _Run, tokens: int) -> None:
        """Compute tokens of a sequence in blocks that are known to be free."""
        run.computed += tokens
        need = -(-run.computed // self._block) - run.blocks
        if need > 0:
            self._free -= need
            run.blocks += need

    def _that_fit(self, limit: int, decodes: list[_Run], first: _Run | None, budget: int) -> int:
        """Return for how many iterations, at most `limit`, the free KV blocks are enough."""

        def need(iterations: int) -> int:
            blocks = sum(max(0, -(-(run.computed + iterations) // self._block) - run.blocks) for run in decodes)
            if first is not None:
                blocks += max(0, -(-(first.computed + iterations * budget) // self._block) - first.blocks)
            return blocks

        if limit <= 0 or need(limit) <= self._free:
            return limit
        return bisect_right(range(1, limit + 1), self._free, key=need)

    def _schedule(self, run: _Run) -> None:
        """Give a running sequence its share of the chunk, unless it lost its slot or nothing is left."""
        tokens = min(run.missing, self._budget)
        if tokens and run.has_slot and self._take_blocks(run, tokens):
            self._scheduled[run] = tokens
            self._budget -= tokens

    def _take_blocks(self, run: _Run, tokens: int) -> bool:
        """Get the KV blocks for more tokens of a sequence, from others if need be; False when it lost its own."""
        need = -(-(run.computed + tokens) // self._block) - run.blocks
        if need <= 0:
            return True
        while need > self._free:
            victim = max(self._running, key=_rank)
            self._preempt(victim)
            if victim is run:
                return False
        self._free -= need
        run.blocks += need
        return True

    def _preempt(self, run: _Run) -> None:
        self._budget += self._scheduled.pop(run, 0)
        self._leave(run)
        run.blocks = 0
        self._preempted.append(run.seq.seq_id)
        insort(self._waiting, run, key=_rank)

    def _leave(self, run: _Run) -> None:
        self._running.remove(run)
        self._free += run.blocks
        run.has_slot = False

    def _let_in(self) -> tuple[int, ...]:
        """Start waiting sequences, in order, while there are a slot, a part of the chunk and room for the whole."""
        started = []
        while self._budget and self._can_let_in(self._budget):
            run = self._waiting.pop(0)
            run.has_slot = True
            run.computed = run.seq.cached_prefix_tokens
            self._running.append(run)
            self._schedule(run)
            started.append(run.seq.seq_id)
        return tuple(started)

    def _can_let_in(self, budget: int) -> bool:
        """Say whether the head of the queue can start with so much left of the chunk."""
        if not self._waiting or len(self._running) >= self._spec.max_num_seqs:
            return False
        run = self._waiting[0]
        whole = run.seq.prompt_tokens + run.generated
        if -(-whole // self._block) > self._free:
            return False
        return self._spec.chunked_prefill or whole - run.seq.cached_prefix_tokens <= budget

    def _duration_s(self, prefill_tokens: int, decode_seqs: int) -> float:
        cost_ms = prefill_tokens * self._spec.prefill_ms + decode_seqs * self._spec.ms_per_decode_seq
        return (self._spec.iteration_base_ms + cost_ms) / 1000

    def _compute(self, started: tuple[int, ...]) -> Iteration:
        emitted, finished = [], []
        decode_seqs = prefill_tokens = 0
        for run, tokens in self._scheduled.items():
            if tokens == 1 and run.generated and run.missing == 1:
                decode_seqs += 1
            else:
                prefill_tokens += tokens
            run.computed += tokens
            if not run.missing:
                emitted.append(Emitted(run.seq.seq_id, run.generated))
                run.generated += 1
                if run.generated == run.seq.max_tokens:
                    finished.append(run.seq.seq_id)
                    self._leave(run)
                    del self._runs[run.seq.seq_id]
        return Iteration(
            duration_s=self._duration_s(prefill_tokens, decode_seqs) if self._scheduled else 0.0,
            emitted=tuple(emitted),
            finished=tuple(finished),
            started=started,
            preempted=tuple(self._preempted),
            prefill_tokens=prefill_tokens,
            decode_seqs=decode_seqs,
        )
