"""How much work a call is, before it is sent: learned from what engines say that calls of its like were."""

from collections.abc import Iterable

from msgspec import Struct

from forebay.admission.outputs import MAX_OUTPUT_TOKENS, Key, Outputs
from forebay.admission.texts import features
from forebay.admission.tokens import PromptTokens
from forebay.domain import Usage
from forebay.traffic import Prompt, Work

BLOCK_BYTES = 2048
MAX_BLOCKS = 128
# A long prompt comes as samples, of which the first ends a little short of 128 KiB: what follows is not its sequel.
SAMPLED_BLOCKS = 63


class Kind(Struct, frozen=True):
    """What calls are told apart by, besides the size of their prompts, to learn how long their answers are.

    Attributes:
        tenant: name.
        model: as configured.
        template: of the prompt, where one is known, else empty.
        flags: bits for what shapes an answer: stream, tools, JSON.
    """

    tenant: str
    model: str
    template: str
    flags: int


class Estimator:
    """Estimates the work of calls, and learns from their usage."""

    def __init__(self) -> None:
        self._tokens = PromptTokens()
        self._outputs = Outputs()

    def estimate(self, kind: Kind, prompt: Prompt, cap_tokens: int | None) -> Work:
        """Estimate a call.

        Args:
            kind: what it is like.
            prompt: what the model is to read.
            cap_tokens: longest output of the call, all choices together; None when nothing caps it, 0 when
                nothing is generated.
        """
        model = kind.model
        counts = features(prompt)
        prompt_tokens = self._tokens.estimate(model, counts, prompt.text_bytes + prompt.tools_bytes)
        blocks = blocks_of(prompt, model) if len(prompt.text) >= BLOCK_BYTES else ()
        if cap_tokens == 0:
            return Work(prompt_tokens, 0, 0, model, counts, (), blocks)
        kin = _kin(kind, prompt_tokens)
        likely, reserved = self._outputs.likely(kin)
        cap = MAX_OUTPUT_TOKENS if cap_tokens is None else cap_tokens
        return Work(prompt_tokens, min(reserved, cap), min(likely, cap), model, counts, kin, blocks)

    def learn(self, work: Work, usage: Usage, *, complete: bool) -> None:
        """Learn from what an engine counted.

        Args:
            work: as it was estimated.
            usage: of the call; an estimated one teaches nothing.
            complete: whether the answer came to its end; else only the prompt is learned from.
        """
        if usage.estimated:
            return
        if work.features:
            self._tokens.learn(work.model, work.features, work.prompt_tokens, usage.prompt_tokens)
        if complete and work.kin:
            self._outputs.learn(work.kin, usage.completion_tokens)

    def report(self) -> Iterable[tuple[str, float, int]]:
        """Yield each model's name, the median relative error of its last prompt estimates, and its samples."""
        return self._tokens.report()


def blocks_of(prompt: Prompt, model: str) -> tuple[int, ...]:
    """Hash the leading blocks of a prompt, each hash over all before it too.

    Equal hashes mean equal beginnings, which an engine may have in its cache. The hash is Python's own, keyed
    anew at each start, with one key for all workers of a gate, so that nobody can guess one (T48); tools stand
    before the messages in most templates, so prompts with other tools share nothing.

    Returns:
        One number for each whole block of BLOCK_BYTES, at most MAX_BLOCKS of them.
    """
    text = prompt.text
    most = MAX_BLOCKS if prompt.text_bytes <= len(text) else SAMPLED_BLOCKS
    so_far = hash((model, prompt.tools_bytes))
    blocks = []
    for start in range(0, min(len(text) // BLOCK_BYTES, most) * BLOCK_BYTES, BLOCK_BYTES):
        so_far = hash((so_far, text[start : start + BLOCK_BYTES]))
        blocks.append(so_far)
    return tuple(blocks)


def _kin(kind: Kind, prompt_tokens: int) -> tuple[Key, ...]:
    tenant, model = kind.tenant, kind.model
    return (tenant, model, kind.template, prompt_tokens.bit_length(), kind.flags), (tenant, model), (model,)
