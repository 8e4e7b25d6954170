"""Jumps over like iterations reach exactly the state that steps reach."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engines.sim.model import EngineModel, Seq
from forebay.engines.sim.spec import SimSpec

SIZES = st.tuples(st.integers(1, 25), st.integers(1, 15), st.integers(-2, 2))
# Sequences come, sequences are dropped, and in between some iterations pass.
ACTS = st.lists(st.one_of(SIZES, st.integers(0, 20), st.integers(1, 30).map(lambda n: ("pass", n))), max_size=40)


class Watched:
    """A model, and all that it gave away: seconds, tokens of each sequence, in order the started and finished ones."""

    def __init__(self, spec: SimSpec) -> None:
        self.model = EngineModel(spec)
        self.seconds = 0.0
        self.jumped = 0
        self.prefill_tokens = 0
        self.decode_seqs = 0
        self.events: list[tuple[str, tuple[int, ...]]] = []

    def step(self) -> bool:
        iteration = self.model.step()
        self.seconds += iteration.duration_s
        self.prefill_tokens += iteration.prefill_tokens
        self.decode_seqs += iteration.decode_seqs
        first = tuple(token.seq_id for token in iteration.emitted if not token.index)
        parts = {
            "start": iteration.started, "first": first, "end": iteration.finished, "preempt": iteration.preempted
        }  # fmt: skip
        self.events += [(kind, seq_ids) for kind, seq_ids in parts.items() if seq_ids]
        return bool(iteration.duration_s)

    def jump(self, limit: int) -> int:
        """Run one stretch, or one iteration when the next is part of none; return how many passed."""
        stretch = self.model.stretch()
        iterations = min(limit, stretch.iterations)
        if not iterations:
            self.step()
            return 1
        self.model.jump(iterations)
        self.jumped += iterations
        self.seconds += iterations * stretch.duration_s
        self.prefill_tokens += iterations * stretch.prefill_tokens
        self.decode_seqs += iterations * stretch.decode_seqs
        return iterations

    def state(self) -> object:
        model = self.model
        runs = {
            seq_id: (run.computed, run.generated, run.blocks, run.has_slot, run.rank)
            for seq_id, run in model._runs.items()
        }
        order = [run.seq.seq_id for run in model._running], [run.seq.seq_id for run in model._waiting]
        return runs, order, model.used_blocks, self.events, self.prefill_tokens, self.decode_seqs


@given(ACTS, st.sampled_from(["fcfs", "priority"]), st.booleans(), st.integers(4, 12))
def test_jumps_and_steps_reach_the_same_state(acts: list[object], scheduling: str, chunked: bool, chunk: int) -> None:
    spec = SimSpec(
        max_num_batched_tokens=chunk,
        max_num_seqs=4,
        kv_tokens=60,
        block_size_tokens=4,
        max_model_len=40,
        scheduling=scheduling,  # type: ignore[arg-type]
        chunked_prefill=chunked,
    )
    jumping, stepping = Watched(spec), Watched(spec)
    for number, act in enumerate(acts):
        if isinstance(act, int):
            assert jumping.model.abort(act) == stepping.model.abort(act)
        elif isinstance(act, tuple) and act[0] == "pass":
            left = act[1]
            while left:
                left -= jumping.jump(left)
            for _ in range(act[1]):
                stepping.step()
        elif isinstance(act, tuple):
            for watched in (jumping, stepping):
                watched.model.submit(Seq(number, *act))
        assert jumping.state() == stepping.state()
        assert jumping.seconds == pytest.approx(stepping.seconds)


def test_a_stretch_ends_before_whatever_changes_the_batch() -> None:
    model = EngineModel(SimSpec(max_num_batched_tokens=100, max_num_seqs=8))
    assert model.stretch().iterations == 0
    model.submit(Seq(1, prompt_tokens=10, max_tokens=50))
    assert model.stretch().iterations == 0  # its first token comes next
    model.step()
    assert model.stretch().iterations == 48  # the 50th token is its last
    model.submit(Seq(2, prompt_tokens=250, max_tokens=1))
    assert model.stretch().iterations == 0  # somebody is let in
    model.step()
    stretch = model.stretch()
    assert (stretch.iterations, stretch.prefill_tokens, stretch.decode_seqs) == (1, 99, 1)
    assert stretch.duration_s == pytest.approx(0.01505)


def test_a_stretch_ends_where_the_kv_room_does() -> None:
    spec = SimSpec(max_num_batched_tokens=32, max_num_seqs=4, kv_tokens=64, block_size_tokens=4, max_model_len=60)
    model = EngineModel(spec)
    for seq_id in (1, 2):
        model.submit(Seq(seq_id, prompt_tokens=16, max_tokens=40))
    model.step()
    model.jump(model.stretch().iterations)
    assert model.used_blocks == 16
    assert model.step().preempted == (2,)


def test_most_iterations_of_long_answers_are_jumped_over() -> None:
    watched = Watched(SimSpec())
    for seq_id in range(20):
        watched.model.submit(Seq(seq_id, prompt_tokens=5000, max_tokens=500))
    while watched.model.running or watched.model.waiting:
        watched.jump(10_000)
    assert watched.jumped > 0.9 * watched.decode_seqs / 20
