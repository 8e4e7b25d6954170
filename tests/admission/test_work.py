"""How much work a call is: estimates, what they learn from, and their error with a real tokenizer."""

import asyncio
import json
from collections.abc import Iterator
from random import Random
from statistics import median

import pytest
from admission.corpora import KINDS, Sample, chats
from cases.rawhttp import Address
from conformance.world import embedded_engine, post, running

from forebay.admission.outputs import ENOUGH_SAMPLES
from forebay.admission.work import (
    BLOCK_BYTES,
    MAX_BLOCKS,
    SAMPLED_BLOCKS,
    Estimator,
    Kind,
    blocks_of,
)
from forebay.domain import Usage
from forebay.edge.body import read
from forebay.edge.prompt import HEAD_BYTES, prompt_of
from forebay.engines import embedded
from forebay.traffic import Prompt
from forebay.wire.endpoints import BY_PATH

KIND = Kind("tenant", "m", "", 0)
LESSONS = 200
HELD_OUT = 160
MAX_ERROR_RATIO = 0.05


def plain(text: bytes, **more: int) -> Prompt:
    return Prompt(text=text, **{"text_bytes": len(text), **more})


@pytest.mark.parametrize(("cap", "output"), [(None, 256), (10, 10), (0, 0), (10**9, 256)])
def test_outputs_are_capped(cap: int | None, output: int) -> None:
    work = Estimator().estimate(KIND, plain(b"hello"), cap)
    assert (work.output_tokens, work.likely_output_tokens) == (output, output)
    assert work.prompt_tokens == 1
    assert bool(work.kin) is (cap != 0)


def test_it_learns_prompt_and_output() -> None:
    estimator, prompt = Estimator(), plain(b"hello there")
    for _ in range(60):
        work = estimator.estimate(KIND, prompt, None)
        estimator.learn(work, Usage(prompt_tokens=70, completion_tokens=33), complete=True)
    work = estimator.estimate(KIND, prompt, None)
    assert work.prompt_tokens == pytest.approx(70, abs=1)
    assert (work.output_tokens, work.likely_output_tokens) == (33, 33)
    assert estimator.estimate(KIND, prompt, 5).output_tokens == 5
    ((model, _, samples),) = estimator.report()
    assert (model, samples) == ("m", 60)


@pytest.mark.parametrize("flags", [1, 0])
def test_kinds_are_told_apart_and_help_each_other(flags: int) -> None:
    estimator, prompt = Estimator(), plain(b"hello there")
    for _ in range(ENOUGH_SAMPLES):
        work = estimator.estimate(KIND, prompt, None)
        estimator.learn(work, Usage(work.prompt_tokens, 40), complete=True)
        work = estimator.estimate(Kind("tenant", "m", "", 1), prompt, None)
        estimator.learn(work, Usage(work.prompt_tokens, 80), complete=True)
    assert estimator.estimate(Kind("tenant", "m", "", flags), prompt, None).output_tokens == 40 * (1 + flags)
    assert estimator.estimate(Kind("other", "m", "", flags), prompt, None).likely_output_tokens == 60
    assert estimator.estimate(Kind("other", "n", "", flags), prompt, None).likely_output_tokens == 256


def test_an_incomplete_answer_teaches_the_prompt_alone_and_an_estimate_nothing() -> None:
    estimator, prompt = Estimator(), plain(b"hello there")
    for _ in range(2 * ENOUGH_SAMPLES):
        work = estimator.estimate(KIND, prompt, None)
        estimator.learn(work, Usage(70, 5), complete=False)
        estimator.learn(work, Usage(9999, 9999, estimated=True), complete=True)
    work = estimator.estimate(KIND, prompt, None)
    assert work.prompt_tokens == pytest.approx(70, abs=1)
    assert work.output_tokens == 256


def test_blocks_are_equal_while_prompts_are() -> None:
    text = bytes(Random(1).choices(b"abcdef ", k=5 * BLOCK_BYTES + 7))
    blocks = blocks_of(plain(text), "m")
    assert len(set(blocks)) == 5
    assert blocks_of(plain(text[: 3 * BLOCK_BYTES + 100]), "m") == blocks[:3]
    other = text[: 2 * BLOCK_BYTES] + b"X" + text[2 * BLOCK_BYTES + 1 :]
    changed = blocks_of(plain(other), "m")
    assert changed[:2] == blocks[:2]
    assert not set(changed[2:]) & set(blocks)


def test_blocks_of_another_model_or_with_other_tools_are_others() -> None:
    text = b"x" * BLOCK_BYTES
    seen = {blocks_of(plain(text), "m"), blocks_of(plain(text), "n"), blocks_of(plain(text, tools_bytes=9), "m")}
    assert len(seen) == 3


def test_a_short_prompt_has_no_block_and_a_long_one_not_too_many() -> None:
    estimator = Estimator()
    assert estimator.estimate(KIND, plain(b"x" * (BLOCK_BYTES - 1)), None).blocks == ()
    assert len(estimator.estimate(KIND, plain(b"x" * 1_000_000), None).blocks) == MAX_BLOCKS


def test_of_samples_only_the_head_has_blocks() -> None:
    words = " ".join(str(number) for number in range(60_000))
    body = {"model": "m", "messages": [{"role": "user", "content": words}]}
    prompt = prompt_of(asyncio.run(read(json.dumps(body).encode(), BY_PATH["/v1/chat/completions"], 128)))
    assert prompt.text_bytes == len(words) > len(prompt.text)
    blocks = Estimator().estimate(KIND, prompt, None).blocks
    assert len(blocks) == SAMPLED_BLOCKS
    assert SAMPLED_BLOCKS * BLOCK_BYTES <= HEAD_BYTES - 64
    assert blocks == blocks_of(plain(words.encode()), "m")[:SAMPLED_BLOCKS]


class Tokenizer:
    """The embedded engine's tokenizer and template."""

    def __init__(self, address: Address) -> None:
        self._address = address

    def count(self, messages: list[dict[str, str]]) -> int:
        """Tokens of a chat."""
        prompt = self._ask("/apply-template", {"messages": messages})["prompt"]
        return len(self._ask("/tokenize", {"content": prompt, "add_special": True, "parse_special": True})["tokens"])

    def usage(self, messages: list[dict[str, str]]) -> int:
        """What the engine itself counts when it answers."""
        answer = self._ask("/v1/chat/completions", {"messages": messages, "max_tokens": 1})
        return int(answer["usage"]["prompt_tokens"])

    def _ask(self, path: str, payload: object) -> dict[str, dict[str, int]]:
        answer = post(self._address, path, payload, key=None)
        assert answer.status == 200
        parsed: dict[str, dict[str, int]] = json.loads(answer.body)
        return parsed


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[Tokenizer]:
    if embedded.available() is not None:
        pytest.skip("needs the demo extra: xllamacpp and the packaged model")
    with running(*embedded_engine()) as address:
        yield Tokenizer(address)


def prompt_of_chat(sample: Sample, ascii_only: bool) -> Prompt:
    body = json.dumps({"model": "m", "messages": sample.messages}, ensure_ascii=ascii_only).encode()
    return prompt_of(asyncio.run(read(body, BY_PATH["/v1/chat/completions"], 128)))


@pytest.mark.integration
@pytest.mark.engine
def test_the_error_with_a_real_tokenizer(tokenizer: Tokenizer, capsys: pytest.CaptureFixture[str]) -> None:
    estimator = Estimator()
    lessons = chats(Random(11))
    for number in range(LESSONS):
        sample = next(lessons)
        work = estimator.estimate(KIND, prompt_of_chat(sample, number % 3 == 0), None)
        estimator.learn(work, Usage(prompt_tokens=tokenizer.count(sample.messages)), complete=False)
    errors: dict[str, list[float]] = {kind: [] for kind in KINDS}
    before: dict[str, list[float]] = {kind: [] for kind in KINDS}
    fresh = chats(Random(12))
    for number in range(HELD_OUT):
        sample = next(fresh)
        prompt, tokens = prompt_of_chat(sample, number % 3 == 0), tokenizer.count(sample.messages)
        errors[sample.kind].append(abs(estimator.estimate(KIND, prompt, None).prompt_tokens / tokens - 1))
        before[sample.kind].append(abs(Estimator().estimate(KIND, prompt, None).prompt_tokens / tokens - 1))
    with capsys.disabled():
        shown = ", ".join(f"{kind} {median(before[kind]):.1%} -> {median(errors[kind]):.1%}" for kind in KINDS)
        print(f"\nmedian error of prompt tokens, before and after {LESSONS} calls: {shown}")
    assert {kind: median(found) for kind, found in errors.items() if median(found) > MAX_ERROR_RATIO} == {}
    assert min(len(found) for found in errors.values()) == HELD_OUT // len(KINDS)


@pytest.mark.integration
@pytest.mark.engine
def test_the_tokenizer_counts_as_the_engine_does(tokenizer: Tokenizer) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi 中文 1234"}]
    assert tokenizer.count(messages) == tokenizer.usage(messages)
