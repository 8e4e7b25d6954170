"""What may be tried next: a pure decision from what has been tried, and how it ended."""

from typing import Literal

from msgspec import Struct

from forebay.domain import FailureKind, Outcome
from forebay.traffic import Verdict

# A caller waits for an engine that names its own pause up to this long; beyond, the pause is passed on.
MAX_PAUSE_S = 5.0
MAX_TRIES = 6
_FIRST_PAUSE_S = 0.25
_SLOW_PAUSE_S = 1.0
_LONGEST_PAUSE_S = 3.0

_SILENT = (FailureKind.FIRST_BYTE, FailureKind.CREDENTIAL, FailureKind.LOADING)
# vLLM's and SGLang's words, llama.cpp's type, OpenAI's code.
_CONTEXT_WORDS = (
    b"context_length_exceeded",
    b"maximum context length",
    b"exceed_context_size",
    b"longer than the maximum",
    b"longer than the model's context length",
)
# llama.cpp's words for an input to be embedded that is larger than its batch; it sends them with 500.
_TOO_LARGE = b"too large to process"


class End(Struct, frozen=True):
    """How a try ended.

    Attributes:
        failure: the engine's; None without one.
        counted: the failure is to be held against the engine.
        well: it was answered as it should be.
        decoded_tokens: that came of it.
        place_tokens: where the answer was then, over all tries.
    """

    failure: FailureKind | None
    counted: bool
    well: bool
    decoded_tokens: int
    place_tokens: int


class Tried(Struct, frozen=True):
    """One try of the past."""

    model: str
    replica: str
    failure: FailureKind
    status: int
    retry_after_s: float | None = None


class Step(Struct, frozen=True):
    """What to do now.

    Attributes:
        action: `elsewhere` prefers a replica not tried yet and takes a tried one only after the pause;
            `fallback` goes on to the next model; `stop` gives the client what there is.
        pause_s: to wait before the same replica is asked again.
        excluded: replicas that this call must not get again.
    """

    action: Literal["elsewhere", "fallback", "stop"]
    pause_s: float = 0.0
    excluded: frozenset[str] = frozenset()


_STOP = Step("stop")
_FALLBACK = Step("fallback")


def next_step(tried: tuple[Tried, ...], max_attempts: int, jitter: float) -> Step:
    """Decide what follows a failed try that the client has seen nothing of.

    Args:
        tried: all tries of this call, oldest first, at least one.
        max_attempts: tries on one model, the first included.
        jitter: 0..1, spreads the pauses of many calls.
    """
    last = tried[-1]
    on_model = [t for t in tried if t.model == last.model]
    if len(tried) >= MAX_TRIES or last.failure is FailureKind.TOTAL:
        return _STOP
    if len(on_model) >= max_attempts:
        return _FALLBACK
    excluded = frozenset(t.replica for t in on_model if t.failure in _SILENT)
    return Step("elsewhere", _pause_s(on_model, jitter), excluded)


def _pause_s(on_model: list[Tried], jitter: float) -> float:
    last = on_model[-1]
    if last.retry_after_s is not None:
        return last.retry_after_s + 0.1 * jitter
    if last.failure is FailureKind.RESET:
        return 0.0
    first = _SLOW_PAUSE_S if last.status in (429, 503) else _FIRST_PAUSE_S
    pause_s: float = min(_LONGEST_PAUSE_S, first * 2 ** (len(on_model) - 1))
    return pause_s * (1.0 + 0.5 * jitter)


def failure_of(verdict: Verdict) -> FailureKind | None:
    """Say whether an engine's own answer is its failure, or an answer that the caller must get.

    Overload (429, 503), internal errors (5xx), a refused credential and `loading` are failures of the
    engine; every other 4xx is an answer to this caller, and so is 501 (it has no such endpoint) or an
    input that is too large: no other try can help, and no other caller must suffer.
    """
    if verdict.failure not in (FailureKind.STATUS, FailureKind.IN_BAND) or verdict.answer is None:
        return verdict.failure
    status = verdict.answer.status
    if status in (401, 403):
        return FailureKind.CREDENTIAL
    if status == 503 and b"oading" in verdict.answer.body:
        return FailureKind.LOADING
    if status == 429 or (status >= 500 and status != 501 and _TOO_LARGE not in verdict.answer.body):
        return verdict.failure
    return None


def is_context_overflow(verdict: Verdict) -> bool:
    """Say whether the engine refused the call because it does not fit its context."""
    answer = verdict.answer
    return answer is not None and answer.status in (400, 413) and any(word in answer.body for word in _CONTEXT_WORDS)


def is_roomier(tokens: int | None, other_tokens: int | None) -> bool:
    """Say whether a model may take a prompt that was too long for another one; what is not known may be.

    Args:
        tokens: context of the model that refused it.
        other_tokens: of the other one.
    """
    return tokens is None or other_tokens is None or other_tokens > tokens


def counts_against_replica(failure: FailureKind, verdict: Verdict) -> bool:
    """Say whether a failure is held against the replica.

    Not overload: an engine that answers 429, names the time of its return, or refuses inside a stream with 503, as
    vLLM does beyond its limit, is alive. Not the call's own total deadline.
    """
    if verdict.answer is None:
        status, in_band = verdict.status, False
    else:
        status, in_band = verdict.answer.status, failure is FailureKind.IN_BAND
    overloaded = status == 429 or (status == 503 and (in_band or verdict.retry_after_s is not None))
    return not overloaded and failure is not FailureKind.TOTAL


def may_fall_back(verdict: Verdict) -> bool:
    """Say whether another model may still answer: nothing was sent, and the fault is not the caller's."""
    if verdict.committed or verdict.outcome in (Outcome.OK, Outcome.CLIENT_CLOSED):
        return False
    return failure_of(verdict) not in (None, FailureKind.TOTAL) or is_context_overflow(verdict)


def rank(verdict: Verdict) -> tuple[bool, float]:
    """Order failures by what helps the client most: an engine's own answer, with the shortest wait."""
    return verdict.answer is None, verdict.retry_after_s if verdict.retry_after_s is not None else 1e9
