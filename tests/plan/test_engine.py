"""The virtual engine has its news at the times at which an engine stepped token by token has them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.engines.sim.model import EngineModel, Seq
from forebay.engines.sim.spec import SimSpec
from forebay.plan.engine import VirtualEngine

SPEC = SimSpec(max_num_batched_tokens=20, max_num_seqs=4, kv_tokens=96, block_size_tokens=4, max_model_len=80)
# In steps of 50 us, of which every iteration of SPEC lasts whole ones.
ARRIVALS = st.lists(st.tuples(st.integers(0, 12_000), st.integers(1, 50), st.integers(1, 30)), min_size=1, max_size=14)
Times = dict[int, tuple[float, float]]


def stepped(arrivals: list[tuple[float, Seq]]) -> Times:
    """The first and the last token's time of each sequence, one iteration at a time."""
    model, now_s, todo = EngineModel(SPEC), 0.0, list(arrivals)
    first: dict[int, float] = {}
    times: Times = {}
    while todo or model.running or model.waiting:
        if not (model.running or model.waiting):
            now_s = max(now_s, todo[0][0])
        while todo and todo[0][0] <= now_s:
            model.submit(todo.pop(0)[1])
        iteration = model.step()
        now_s += iteration.duration_s
        for token in iteration.emitted:
            first.setdefault(token.seq_id, now_s)
        times.update({seq_id: (first[seq_id], now_s) for seq_id in iteration.finished})
    return times


def jumped(arrivals: list[tuple[float, Seq]]) -> tuple[Times, int]:
    """The same by a virtual engine, and how often it was called."""
    engine, todo, calls = VirtualEngine(SPEC), list(arrivals), 0
    first: dict[int, float] = {}
    times: Times = {}
    while todo or engine.due_s is not None:
        if todo and (engine.due_s is None or todo[0][0] < engine.due_s):
            engine.submit(*todo.pop(0))
            continue
        now_s = engine.due_s
        assert now_s is not None
        # What comes at the very moment is there before the next iteration begins.
        while todo and todo[0][0] == now_s:
            engine.submit(*todo.pop(0))
        news = engine.pass_to(now_s)
        calls += 1
        for seq_id in news.first:
            first[seq_id] = now_s
        times.update({seq_id: (first[seq_id], now_s) for seq_id in news.ended})
    return times, calls


@given(ARRIVALS)
def test_its_news_come_when_a_stepped_engine_has_them(sizes: list[tuple[int, int, int]]) -> None:
    # None comes at the very end of an iteration, where rounding would decide which one it gets into.
    arrivals = [
        (steps * 5e-5 + number * 3e-6, Seq(number, prompt, output))
        for number, (steps, prompt, output) in enumerate(sorted(sizes))
    ]
    expected = stepped(arrivals)
    times, _ = jumped(arrivals)
    assert times.keys() == expected.keys() == set(range(len(sizes)))
    for seq_id, (first_s, last_s) in expected.items():
        assert times[seq_id] == pytest.approx((first_s, last_s), abs=1e-6)


def test_a_long_answer_takes_few_calls() -> None:
    _, calls = jumped([(0.0, Seq(1, 20, 60))])
    assert calls <= 4


def test_what_comes_at_the_same_moment_shares_the_iteration() -> None:
    engine = VirtualEngine(SPEC)
    for seq_id in (1, 2):
        engine.submit(1.0, Seq(seq_id, 5, 1))
    assert engine.due_s == 1.0
    engine.pass_to(1.0)
    assert engine.due_s == pytest.approx(1.0105)
    assert engine.sequences == 0  # both are in the iteration at work, with their last token
    assert engine.due_s is not None
    assert engine.pass_to(engine.due_s).ended == (1, 2)
    assert engine.due_s is None


def test_an_aborted_sequence_leaves_with_the_iteration_in_work() -> None:
    engine = VirtualEngine(SPEC)
    engine.submit(0.0, Seq(1, 4, 30))
    engine.submit(0.0, Seq(2, 4, 30))
    for _ in range(2):
        assert engine.due_s is not None
        engine.pass_to(engine.due_s)
    due_s = engine.due_s
    assert due_s is not None
    assert engine.abort(due_s - 0.05, 1)
    assert not engine.abort(due_s - 0.05, 1)
    assert engine.sequences == 1
    assert engine.due_s is not None and engine.due_s < due_s
    ended: list[int] = []
    while engine.due_s is not None:
        ended += engine.pass_to(engine.due_s).ended
    assert ended == [2]
    assert (engine.sequences, engine.kv_usage_ratio) == (0, 0.0)
