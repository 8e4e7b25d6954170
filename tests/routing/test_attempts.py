"""What may be tried next, by the list of ways in which engines misbehave."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.domain import FailureKind, Outcome
from forebay.routing.attempts import (
    MAX_PAUSE_S,
    MAX_TRIES,
    Step,
    Tried,
    counts_against_replica,
    failure_of,
    is_context_overflow,
    is_roomier,
    may_fall_back,
    next_step,
)
from forebay.traffic import Answer, Verdict

K = FailureKind


def tries(*failures: Tried) -> tuple[Tried, ...]:
    return failures


def one(
    failure: K, status: int = 0, retry_after_s: float | None = None, replica: str = "r1", model: str = "m"
) -> Tried:
    return Tried(model, replica, failure, status, retry_after_s)


def test_1_an_engine_that_names_its_pause_is_not_asked_before() -> None:
    step = next_step(tries(one(K.STATUS, 429, 2.0)), 3, 0.0)
    assert (step.action, step.excluded) == ("elsewhere", frozenset())
    assert 2.0 <= step.pause_s <= MAX_PAUSE_S
    assert next_step(tries(one(K.STATUS, 429, 2.0)), 3, 1.0).pause_s >= 2.0


def test_1_a_long_pause_is_longer_than_anybody_waits() -> None:
    assert next_step(tries(one(K.STATUS, 503, 60.0)), 3, 0.0).pause_s > MAX_PAUSE_S


def test_2_overload_without_a_pause_is_backed_off_from() -> None:
    first = one(K.STATUS, 429)
    pauses = [next_step(tries(*[first] * n), 9, 0.0).pause_s for n in (1, 2, 3, 4)]
    assert pauses[0] >= 1.0
    assert pauses == sorted(pauses)
    # At most four tries in three seconds, even when they are refused at once.
    assert sum(pauses[:4]) > 3.0
    spread = {next_step(tries(first), 9, jitter / 10).pause_s for jitter in range(11)}
    assert len(spread) == 11


def test_2_all_tries_of_a_call_are_bounded() -> None:
    for count in range(1, MAX_TRIES):
        assert next_step(tries(*[one(K.STATUS, 429)] * count), 99, 0.5).action == "elsewhere"
    assert next_step(tries(*[one(K.STATUS, 429)] * MAX_TRIES), 99, 0.5).action == "stop"
    mixed = [one(K.STATUS, 503, model="a")] * 3 + [one(K.STATUS, 503, model="b")] * 3
    assert next_step(tries(*mixed), 3, 0.5).action == "stop"


def test_3_an_internal_error_is_tried_again_soon() -> None:
    step = next_step(tries(one(K.STATUS, 500)), 3, 0.0)
    assert (step.action, step.excluded) == ("elsewhere", frozenset())
    assert 0 < step.pause_s < 1


def test_4_a_model_that_cannot_serve_falls_back_within_its_budget() -> None:
    assert [next_step(tries(*[one(K.STATUS, 503)] * n), 3, 0.0).action for n in (1, 2, 3)] == [
        "elsewhere",
        "elsewhere",
        "fallback",
    ]
    assert next_step(tries(one(K.STATUS, 503)), 1, 0.0).action == "fallback"


def test_4_the_fallback_has_a_budget_of_its_own() -> None:
    first = [one(K.STATUS, 503, model="a")] * 3
    assert next_step(tries(*first, one(K.STATUS, 503, model="b")), 3, 0.0).action == "elsewhere"


def test_5_a_reset_connection_is_tried_again_at_once() -> None:
    assert next_step(tries(one(K.RESET)), 3, 1.0) == Step("elsewhere", 0.0)


@pytest.mark.parametrize("failure", [K.FIRST_BYTE, K.CREDENTIAL, K.LOADING])
def test_6_7_a_silent_replica_is_not_asked_again(failure: K) -> None:
    step = next_step(tries(one(failure, replica="r1"), one(K.RESET, replica="r2")), 9, 0.0)
    assert (step.action, step.excluded) == ("elsewhere", frozenset({"r1"}))
    # It may serve the fallback model: a replica is silent for one model's pool at a time.
    moved = next_step(tries(one(failure, model="a"), one(K.RESET, model="b", replica="r2")), 9, 0.0)
    assert moved.excluded == frozenset()


def test_the_callers_deadline_ends_everything() -> None:
    assert next_step(tries(one(K.TOTAL)), 9, 0.0).action == "stop"


some_tries = st.lists(
    st.builds(
        Tried,
        st.sampled_from(["a", "b"]),
        st.sampled_from(["r1", "r2", "r3"]),
        st.sampled_from(K),
        st.sampled_from([0, 200, 429, 500, 503]),
        st.none() | st.floats(0, 100),
    ),
    min_size=1,
    max_size=8,
)


@settings(max_examples=200, deadline=None)
@given(some_tries, st.integers(1, 6), st.floats(0, 1))
def test_a_step_is_always_bounded(past: list[Tried], max_attempts: int, jitter: float) -> None:
    step = next_step(tuple(past), max_attempts, jitter)
    assert step.pause_s >= 0
    assert step.excluded <= {tried.replica for tried in past}
    if step.action == "elsewhere":
        assert len(past) < MAX_TRIES
        assert sum(tried.model == past[-1].model for tried in past) < max_attempts
        asked_s = past[-1].retry_after_s
        assert step.pause_s >= asked_s if asked_s is not None else step.pause_s <= MAX_PAUSE_S


# whose fault an answer is


def answered(status: int, body: bytes = b"", failure: K = K.STATUS) -> Verdict:
    return Verdict(False, Outcome.ENGINE_ERROR, failure, status, Answer(status, (), body))


@pytest.mark.parametrize(
    ("status", "body", "failure"),
    [
        (400, b"context_length_exceeded", None),
        (400, b"content_policy_violation", None),
        (404, b"", None),
        (408, b"", None),
        (413, b"", None),
        (422, b"", None),
        (401, b"", K.CREDENTIAL),
        (403, b"", K.CREDENTIAL),
        (429, b"", K.STATUS),
        (500, b"", K.STATUS),
        (502, b"", K.STATUS),
        (503, b"", K.STATUS),
        (503, b'{"error":{"message":"Loading model","code":503}}', K.LOADING),
        (503, b'{"error":{"message":"loading model"}}', K.LOADING),
        (500, b"Loading", K.STATUS),
        (529, b"", K.STATUS),
        (500, b'{"error":{"message":"input (601 tokens) is too large to process"}}', None),
        (501, b"", None),
        (302, b"", None),
    ],
)
def test_12_13_a_4xx_is_an_answer_to_the_caller(status: int, body: bytes, failure: K | None) -> None:
    assert failure_of(answered(status, body)) is failure
    in_band = failure_of(answered(status, body, K.IN_BAND))
    assert in_band is (K.IN_BAND if failure is K.STATUS else failure)


@pytest.mark.parametrize("failure", [k for k in K if k not in (K.STATUS, K.IN_BAND)])
def test_any_other_failure_is_what_it_is(failure: K) -> None:
    assert failure_of(Verdict(False, Outcome.ENGINE_ERROR, failure)) is failure


def test_no_failure_is_none() -> None:
    assert failure_of(Verdict(True, Outcome.OK)) is None
    assert failure_of(Verdict(True, Outcome.CLIENT_CLOSED)) is None
    assert failure_of(Verdict(True, Outcome.ENGINE_ERROR, K.IN_BAND)) is K.IN_BAND


@pytest.mark.parametrize(
    ("status", "body", "overflow"),
    [
        (400, b'{"error":{"code":"context_length_exceeded"}}', True),
        (400, b"This model's maximum context length is 8192 tokens", True),
        (400, b'{"error":{"type":"exceed_context_size_error"}}', True),
        (413, b"prompt is longer than the maximum", True),
        (400, b"content_policy_violation", False),
        (500, b"maximum context length", False),
        (400, b"", False),
    ],
)
def test_12_a_prompt_that_does_not_fit(status: int, body: bytes, overflow: bool) -> None:
    assert is_context_overflow(answered(status, body)) is overflow
    assert not is_context_overflow(Verdict(False, Outcome.ENGINE_ERROR, K.RESET))


@pytest.mark.parametrize("failure", K)
def test_what_counts_against_a_replica(failure: K) -> None:
    for status in (0, 200, 500, 503):
        verdict = Verdict(False, Outcome.ENGINE_ERROR, failure, status)
        assert counts_against_replica(failure, verdict) is (failure is not K.TOTAL)


@pytest.mark.parametrize(("status", "retry_after_s"), [(429, None), (429, 2.0), (503, 2.0), (503, 0.0)])
def test_overload_is_not_held_against_a_replica(status: int, retry_after_s: float | None) -> None:
    verdict = Verdict(False, Outcome.ENGINE_ERROR, K.STATUS, status, retry_after_s=retry_after_s)
    assert not counts_against_replica(K.STATUS, verdict)


@pytest.mark.parametrize(("status", "counts"), [(429, False), (503, False), (500, True)])
def test_overload_inside_a_stream_is_not_held_against_a_replica_either(status: int, counts: bool) -> None:
    verdict = Verdict(False, Outcome.ENGINE_ERROR, K.IN_BAND, 200, Answer(status, (), b""))
    assert counts_against_replica(K.IN_BAND, verdict) is counts


WORDS = (
    (400, "This model's maximum context length is 100 tokens. However, you requested 20 output tokens", "vLLM"),
    (400, "The input (101 tokens) is longer than the model's context length (100 tokens).", "SGLang"),
    (400, 'the request exceeds the available context size","type":"exceed_context_size_error', "llama.cpp"),
    (400, 'too long","code":"context_length_exceeded', "OpenAI"),
)


@pytest.mark.parametrize(("status", "message", "engine"), WORDS, ids=[engine for _, _, engine in WORDS])
def test_every_engines_words_for_a_prompt_that_is_too_long(status: int, message: str, engine: str) -> None:
    answer = Answer(status, (), b'{"error":{"message":"%b"}}' % message.encode())
    verdict = Verdict(False, Outcome.ENGINE_ERROR, FailureKind.STATUS, status, answer)
    assert is_context_overflow(verdict) and may_fall_back(verdict)
    assert failure_of(verdict) is None, "no failure of the engine"


def test_only_a_larger_context_may_help() -> None:
    assert is_roomier(100, 101) and not is_roomier(100, 100)
    assert is_roomier(None, 1) and is_roomier(100, None)
