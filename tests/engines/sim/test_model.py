"""The iteration model: nothing is lost, nothing exceeds its bound, whatever comes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from forebay.engines.sim.model import EngineModel, Iteration, QueueFull, Seq
from forebay.engines.sim.spec import SimSpec

SMALL = SimSpec(max_num_batched_tokens=32, max_num_seqs=4, kv_tokens=64, block_size_tokens=4, max_model_len=40)


def drain(model: EngineModel, limit: int = 10_000) -> list[Iteration]:
    """Step until there is nothing to do."""
    done = []
    for _ in range(limit):
        iteration = model.step()
        if not iteration.duration_s:
            return done
        done.append(iteration)
    raise AssertionError("the model does not come to an end")


def test_one_sequence_takes_a_prefill_and_then_one_iteration_per_token() -> None:
    spec = SimSpec(iteration_base_ms=10, ms_per_prefill_token=0.05, ms_per_decode_seq=0.1)
    model = EngineModel(spec)
    model.submit(Seq(1, prompt_tokens=100, max_tokens=3))
    steps = drain(model)
    assert [step.duration_s for step in steps] == pytest.approx([0.015, 0.0101, 0.0101])
    assert [[token.index for token in step.emitted] for step in steps] == [[0], [1], [2]]
    assert steps[0].started == (1,)
    assert steps[-1].finished == (1,)
    assert model.used_blocks == model.running == model.waiting == 0


def test_prefill_rate_sets_the_cost_of_a_prompt_token() -> None:
    model = EngineModel(SimSpec(iteration_base_ms=0, prefill_tokens_per_s=1000))
    model.submit(Seq(1, prompt_tokens=500, max_tokens=1))
    assert model.step().duration_s == pytest.approx(0.5)


def test_a_long_prompt_is_spread_over_chunks_and_decodes_go_first() -> None:
    model = EngineModel(SimSpec(max_num_batched_tokens=100, max_num_seqs=8))
    model.submit(Seq(1, prompt_tokens=10, max_tokens=5))
    model.step()
    model.submit(Seq(2, prompt_tokens=250, max_tokens=1))
    steps = [model.step() for _ in range(3)]
    assert [step.decode_seqs for step in steps] == [1, 1, 1]
    assert [step.prefill_tokens for step in steps] == [99, 99, 52]
    assert [token.seq_id for token in steps[-1].emitted] == [1, 2]


def test_without_chunks_a_prompt_waits_until_all_of_it_fits() -> None:
    spec = SimSpec(max_num_batched_tokens=100, max_num_seqs=8, max_model_len=200, kv_tokens=4000, chunked_prefill=False)
    model = EngineModel(spec)
    model.submit(Seq(1, prompt_tokens=150, max_tokens=2))
    model.submit(Seq(2, prompt_tokens=100, max_tokens=1))
    assert [(step.prefill_tokens, step.decode_seqs) for step in drain(model)] == [(150, 0), (100, 1)]


def test_slots_are_given_in_order_of_arrival_or_of_priority() -> None:
    for scheduling, first in (("fcfs", [1, 2, 3]), ("priority", [3, 2, 1])):
        model = EngineModel(SimSpec(max_num_seqs=1, scheduling=scheduling))
        for seq_id in (1, 2, 3):
            model.submit(Seq(seq_id, prompt_tokens=4, max_tokens=1, priority=-seq_id))
        assert [step.started[0] for step in drain(model)] == first


def test_the_last_one_loses_its_blocks_and_computes_all_of_it_again() -> None:
    model = EngineModel(SMALL)
    model.submit(Seq(1, prompt_tokens=16, max_tokens=24))
    model.submit(Seq(2, prompt_tokens=16, max_tokens=24))
    steps = drain(model)
    preempted = [seq_id for step in steps for seq_id in step.preempted]
    assert preempted == [2]
    assert [seq_id for step in steps for seq_id in step.started] == [1, 2, 2]
    again = next(step for step in steps if step.started == (2,) and step is not steps[0])
    assert again.prefill_tokens > 16  # the prompt and what it had generated


def test_nobody_is_let_in_where_somebody_had_to_leave() -> None:
    model = EngineModel(replace(SMALL, scheduling="priority"))
    model.submit(Seq(1, prompt_tokens=16, max_tokens=24))
    model.submit(Seq(2, prompt_tokens=16, max_tokens=24, priority=5))
    preempting = None
    while preempting is None:
        model.submit(Seq(3, prompt_tokens=4, max_tokens=1))
        step = model.step()
        model.abort(3)
        preempting = step if step.preempted else None
    assert preempting.preempted == (2,)
    assert preempting.started == ()


def test_under_priority_the_least_important_loses_its_blocks() -> None:
    model = EngineModel(replace(SMALL, scheduling="priority"))
    model.submit(Seq(1, prompt_tokens=16, max_tokens=24, priority=5))
    model.submit(Seq(2, prompt_tokens=16, max_tokens=24, priority=0))
    assert {seq_id for step in drain(model) for seq_id in step.preempted} == {1}


def test_a_full_queue_refuses() -> None:
    model = EngineModel(SimSpec(max_num_seqs=1, max_num_queued_reqs=1))
    model.submit(Seq(1, prompt_tokens=4, max_tokens=2))
    with pytest.raises(QueueFull):
        model.submit(Seq(2, prompt_tokens=4, max_tokens=2))
    model.step()
    model.submit(Seq(2, prompt_tokens=4, max_tokens=2))
    assert (model.running, model.waiting) == (1, 1)


def test_a_cached_prefix_costs_room_but_no_time() -> None:
    model = EngineModel(SMALL)
    model.submit(Seq(1, prompt_tokens=20, max_tokens=2, cached_prefix_tokens=16))
    assert model.step().prefill_tokens == 4
    assert model.used_blocks == 5


@pytest.mark.parametrize(
    "seq", [Seq(1, 0, 1), Seq(1, 1, 0), Seq(1, 39, 2), Seq(1, 4, 1, cached_prefix_tokens=4)], ids=str
)
def test_what_can_never_run_is_refused(seq: Seq) -> None:
    with pytest.raises(ValueError, match="token|max_model_len"):
        EngineModel(SMALL).submit(seq)


def test_an_id_in_use_is_refused_and_an_unknown_one_cannot_be_aborted() -> None:
    model = EngineModel(SMALL)
    model.submit(Seq(1, 4, 1))
    with pytest.raises(ValueError, match="already"):
        model.submit(Seq(1, 4, 1))
    assert not model.abort(2)


@pytest.mark.parametrize(
    ("fields", "name"),
    [
        ({"max_num_seqs": 0}, "max_num_seqs"),
        ({"iteration_base_ms": -1}, "iteration_base_ms"),
        ({"max_num_queued_reqs": -1}, "max_num_queued_reqs"),
        ({"max_num_batched_tokens": 4}, "max_num_batched_tokens"),
        ({"kv_tokens": 100}, "kv_tokens"),
        ({"models": ()}, "models"),
    ],
)
def test_a_spec_that_cannot_be_names_its_fault(fields: dict[str, object], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        SimSpec(**fields)  # type: ignore[arg-type]


SIZES = st.tuples(st.integers(1, 20), st.integers(1, 20), st.integers(-2, 2))
ACTS = st.lists(st.one_of(SIZES, st.just("step"), st.integers(0, 30)), max_size=60)


@given(ACTS, st.sampled_from(["fcfs", "priority"]), st.booleans())
def test_whatever_comes_tokens_are_conserved_and_bounds_hold(
    acts: list[object], scheduling: str, chunked: bool
) -> None:
    spec = SimSpec(
        max_num_batched_tokens=12,
        max_num_seqs=3,
        kv_tokens=50,
        block_size_tokens=4,
        max_model_len=40,
        scheduling=scheduling,  # type: ignore[arg-type]
        chunked_prefill=chunked,
    )
    model = EngineModel(spec)
    wanted: dict[int, int] = {}
    got: dict[int, int] = {}
    finished: set[int] = set()

    def check(iteration: Iteration) -> None:
        assert model.running <= spec.max_num_seqs
        assert 0 <= model.used_blocks <= spec.kv_blocks
        assert not (iteration.preempted and iteration.started)
        assert iteration.prefill_tokens + iteration.decode_seqs <= spec.chunk_tokens
        assert len({token.seq_id for token in iteration.emitted}) == len(iteration.emitted)
        for token in iteration.emitted:
            assert token.index == got[token.seq_id]  # in order, none twice, none left out
            got[token.seq_id] += 1
        for seq_id in iteration.finished:
            assert got[seq_id] == wanted[seq_id]
            finished.add(seq_id)

    for act in acts:
        if isinstance(act, tuple):
            seq_id = len(got)
            prompt_tokens, max_tokens, priority = act
            model.submit(Seq(seq_id, prompt_tokens, max_tokens, priority))
            wanted[seq_id], got[seq_id] = max_tokens, 0
        elif act == "step":
            check(model.step())
        elif isinstance(act, int) and model.abort(act):
            assert act not in finished
            del wanted[act]
    for iteration in drain(model):
        check(iteration)
    assert finished == set(wanted)
    assert model.used_blocks == model.running == model.waiting == 0


@given(st.lists(SIZES, min_size=1, max_size=10), st.integers(0, 8))
def test_an_abort_frees_at_once_what_the_sequence_held(sizes: list[tuple[int, int, int]], steps: int) -> None:
    model = EngineModel(SMALL)
    for seq_id, (prompt_tokens, max_tokens, priority) in enumerate(sizes):
        model.submit(Seq(seq_id, prompt_tokens, max_tokens, priority))
    for _ in range(steps):
        model.step()
    for seq_id in range(len(sizes)):
        model.abort(seq_id)
    assert model.used_blocks == model.running == model.waiting == 0
    assert model.step() == Iteration(0.0)


@given(st.lists(SIZES, max_size=12))
def test_the_same_calls_give_the_same_iterations(sizes: list[tuple[int, int, int]]) -> None:
    def run() -> list[Iteration]:
        model = EngineModel(SMALL)
        for seq_id, (prompt_tokens, max_tokens, priority) in enumerate(sizes):
            model.submit(Seq(seq_id, prompt_tokens, max_tokens, priority))
            model.step()
        return drain(model)

    assert run() == run()
