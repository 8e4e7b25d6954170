"""Whatever dies wherever: what the client has is what it would have had, or there is a reason."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from upstream.continued_engine import PROMPT_IDS, Engine, Run

from forebay.domain import Usage
from forebay.upstream.continuation.reasons import Impossible, Reason
from forebay.upstream.continuation.resume import usage_so_far
from forebay.upstream.continuation.told import Finish

ALPHABET = st.sampled_from(
    ["a", "b", " ", "\n", "é", "e\u0301", "漢", "字", "🐙", "👩\u200d🚀", "\u200d", '"', "\\", "\x01", "ß"]
)
ANSWERS = st.lists(ALPHABET, min_size=1, max_size=25).map("".join)
SIZES = st.lists(st.integers(1, 4), min_size=1, max_size=5).map(tuple)
CUTS = st.lists(st.integers(0, 40), min_size=1, max_size=3)


def through(run: Run, cuts: list[int]) -> None:
    """Let each leg die after so many events, and the last one come through."""
    run.first(cuts[0])
    for cut in [*cuts[1:], None]:
        if run.client.finished:
            return
        run.next(cut)


def check(run: Run) -> None:
    assert run.client.text == run.engine.answer
    assert len(run.client.finished) <= 1
    assert len(run.client.heads) <= 1


@settings(max_examples=300, deadline=None)
@given(answer=ANSWERS, sizes=SIZES, cuts=CUTS, shape=st.sampled_from(["chat", "completions"]))
def test_by_ids_nothing_is_lost_or_doubled(answer: str, sizes: tuple[int, ...], cuts: list[int], shape: str) -> None:
    run = Run(Engine(answer, sizes, shape=shape))  # type: ignore[arg-type]
    through(run, cuts)
    check(run)
    assert run.client.finished == ["stop"]
    tokens = len(run.engine.tokens())
    if run.client.usage is not None:
        assert run.client.usage == Usage(len(PROMPT_IDS), tokens)


@settings(max_examples=300, deadline=None)
@given(answer=ANSWERS, sizes=SIZES, groups=SIZES, cuts=CUTS, shape=st.sampled_from(["chat", "completions"]))
def test_by_ids_of_several_tokens_in_an_event(
    answer: str, sizes: tuple[int, ...], groups: tuple[int, ...], cuts: list[int], shape: str
) -> None:
    run = Run(Engine(answer, sizes, groups, shape=shape))  # type: ignore[arg-type]
    try:
        through(run, cuts)
    except Impossible as impossible:
        # An event without text came behind the last one, or half a character was hidden and nothing else could be done.
        assert impossible.reason in (Reason.DIVERGED, Reason.SPLIT_CHARACTER)
        assert answer.startswith(run.client.text)
        return
    check(run)


@settings(max_examples=300, deadline=None)
@given(
    answer=ANSWERS,
    sizes=SIZES,
    groups=SIZES,
    cuts=CUTS,
    shape=st.sampled_from(["chat", "completions"]),
    engine=st.sampled_from([("llamacpp", False), ("vllm", False), ("vllm", True), ("sglang", True)]),
    temperature=st.sampled_from([0, 1]),
)
def test_by_text_nothing_is_lost_or_doubled(
    answer: str,
    sizes: tuple[int, ...],
    groups: tuple[int, ...],
    cuts: list[int],
    shape: str,
    engine: tuple[str, bool],
    temperature: float,
) -> None:
    kind, strips = engine
    engine_of = Engine(answer, sizes, groups, kind, shape, ids=False, strips=strips and shape == "chat")  # type: ignore[arg-type]
    run = Run(engine_of, temperature=temperature)
    if strips and (answer != answer.lstrip() or shape != "chat"):
        return  # a template that strips the front of the only message makes another conversation of it
    through(run, cuts)
    check(run)
    assert set(run.modes) <= {"words", "text", "restart"}


@pytest.mark.parametrize("shape", ["chat", "completions"])
@pytest.mark.parametrize("ids", [True, False])
def test_every_cut_of_one_answer(shape: str, ids: bool) -> None:
    answer = "Héllo 漢字 🐙 👩\u200d🚀 e\u0301 ende."
    whole = Run(Engine(answer, (1, 3), shape=shape, ids=ids))  # type: ignore[arg-type]
    whole.first()
    events = len(whole.client.events)
    for cut in range(events):
        run = Run(Engine(answer, (1, 3), shape=shape, ids=ids))  # type: ignore[arg-type]
        through(run, [cut])
        check(run)
        assert run.client.finished == ["stop"]
        if ids:
            # Where the usage event itself was lost, the ids still tell.
            assert usage_so_far(run.told()) == Usage(len(PROMPT_IDS), len(run.engine.tokens()))
        if ids and run.client.usage is not None:
            assert run.client.usage == Usage(len(PROMPT_IDS), len(run.engine.tokens()))


@given(answer=ANSWERS, sizes=SIZES, cut=st.integers(0, 30), limit=st.integers(1, 40))
def test_a_limit_holds_over_the_seam(answer: str, sizes: tuple[int, ...], cut: int, limit: int) -> None:
    whole = Run(Engine(answer, sizes), max_tokens=limit)
    whole.first()
    run = Run(Engine(answer, sizes), max_tokens=limit)
    run.first(cut)
    if not run.client.finished:
        end = run.next()
        if isinstance(end, Finish):
            assert end.reason == "length"
    # What the limit left half said is not said again by the next leg.
    assert run.client.text == whole.client.text
    assert run.client.finished == whole.client.finished or run.client.finished == ["length"]


def test_a_beginning_that_is_refused_is_asked_anew() -> None:
    run = Run(Engine("one two three 🐙 four", (2, 1, 3)))
    run.first(8)
    assert run.client.text
    run.next(barred=frozenset(("exact", "words", "text")))
    check(run)
    assert run.modes == ["restart"]
    assert run.client.usage == Usage(len(PROMPT_IDS), len(run.engine.tokens()))


def test_an_answer_that_comes_out_otherwise_is_not_joined() -> None:
    run = Run(Engine("one two three four"))
    run.first(5)
    before = run.client.text
    run.engine = Engine("one too three four")
    with pytest.raises(Impossible) as caught:
        run.next(barred=frozenset(("exact", "words", "text")))
    assert caught.value.reason is Reason.DIVERGED
    assert run.client.text == before


@settings(max_examples=200, deadline=None)
@given(answer=ANSWERS, sizes=SIZES, cut=st.integers(1, 30), shape=st.sampled_from(["chat", "completions"]))
def test_a_leak_of_the_prompt_never_reaches_the_client(
    answer: str, sizes: tuple[int, ...], cut: int, shape: str
) -> None:
    """The engine is given a cut inside a character on purpose."""
    run = Run(Engine(answer, sizes, shape=shape))  # type: ignore[arg-type]
    run.first(cut)
    if run.client.finished:
        return
    told = run.told()
    hidden = len(told.ids) - told.safe
    if not hidden or not told.says:
        return
    before = run.client.text
    forced = told.__class__(**{name: getattr(told, name) for name in told.__struct_fields__} | {"safe": len(told.ids)})
    run.told = lambda: forced  # type: ignore[method-assign]
    with pytest.raises(Impossible) as caught:
        run.next()
    assert caught.value.reason is Reason.PROMPT_LEAK
    assert run.client.text == before
