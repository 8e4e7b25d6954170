"""The mixed load: how long its prompts are, when they arrive, and their words."""

import math
from random import Random
from typing import Literal

import msgspec
from msgspec import Struct

Kind = Literal["short", "long"]

LONG_RATIO = 0.15
UTILISATION_RATIO = 0.9
MIN_CONTEXT_TOKENS = 512
MAX_ASKS = 4_000  # of one arm

_WANTED_ASKS = 40  # of one arm; a slow engine gets fewer
_PREFILL_LONG_RATIO, _PREFILL_SHORT_RATIO, _DECODE_RATIO = 0.45, 0.25, 0.3  # of the time of a mean call
_SHORT_TOKENS, _OUTPUT_TOKENS = (12, 512), (6, 64)  # least and most
_LONG_TOKENS = 8192  # most
_LONG_TO_SHORT, _LEAST_LONG_TO_SHORT = 8, 4  # at best; and for an engine that is slow, or has little room
LANE_TOKENS = 2048  # the default of `admission.long_prompt_tokens`
_MARGIN_RATIO = 0.8  # of the context: words are not all one token long
_UNIQUE_WORDS = 6
_POOL_WORDS = 16_384
_CLOSING = "Tell a story about this."

WORDS = (
    "air animal answer area arm art baby back bank base bed bird black blood blue board boat body book box boy bread "
    "bridge brother building bus business car care case cat chair chance change child church city class clock cloud "
    "coat coffee cold color corner country course cow cup daughter day deal death desk dinner doctor dog door dream "
    "dress drink ear earth east egg end evening event eye face fact family farm father field fire fish floor flower "
    "food foot forest form friend front fruit game garden girl glass gold grass green ground group hair hall hand hat "
    "head heart heat hill history home horse hotel hour house ice idea island job king kitchen lake land language "
    "law letter life light line list machine man map market meat member milk mind minute moment money month moon "
    "morning mother mountain mouth music name nature neck news night north nose number ocean office oil page paper "
    "park part party path people person phone picture place plan plant point power price problem queen question rain "
    "reason red result rice river road rock roof room rule salt school science sea season shape ship shirt shoe "
    "shop side sister sky sleep smile snow song sound south space spring star state step stone store storm story "
    "street student summer sun table teacher test thing time town train tree trip truth uncle valley view village "
    "voice wall war watch water way week west wheel wind window winter woman wood word work world year"
).split()


class Speed(Struct, frozen=True):
    """What a few calls showed of an engine.

    Attributes:
        prefill_tokens_per_s: prompt tokens computed per second, one call at a time.
        decode_tokens_per_s: tokens made per second by several calls together.
        tokens_per_word: of our words.
        overhead_tokens: of a prompt without words (the chat template).
    """

    prefill_tokens_per_s: float
    decode_tokens_per_s: float
    tokens_per_word: float = 1.0
    overhead_tokens: int = 0


class Lengths(Struct, frozen=True):
    """Words of the two kinds of prompt, their tokens with the chat template, and the tokens of every answer."""

    short_words: int
    long_words: int
    short_tokens: int
    long_tokens: int
    output_tokens: int

    def words(self, kind: Kind) -> int:
        """Return the words of one kind of prompt."""
        return self.long_words if kind == "long" else self.short_words

    @property
    def lane_tokens(self) -> int:
        """Tokens from which on a prompt must count as long, for the long ones to be so; at most 2,048."""
        return min(LANE_TOKENS, self.long_tokens // 2)


class Ask(Struct, frozen=True):
    """One call of the schedule: when it is sent, in seconds from the start of its arm, and what it is."""

    at_s: float
    kind: Kind
    number: int


def check_context(context_tokens: int | None) -> None:
    """Refuse a context that holds no mix of short and long prompts, whatever the engine's speed.

    Args:
        context_tokens: longest prompt and answer; None when unknown.

    Raises:
        ValueError: it is too small.
    """
    if context_tokens is not None and context_tokens < MIN_CONTEXT_TOKENS:
        raise ValueError(_too_small(context_tokens, MIN_CONTEXT_TOKENS))


def lengths_for(speed: Speed, context_tokens: int | None, arm_s: float) -> Lengths:
    """Choose lengths such that an engine of this speed answers some dozens of calls in one arm.

    A long prompt is at most 8,192 tokens or what the context holds, and eight times a short one if that can be.

    Args:
        speed: of the engine.
        context_tokens: longest prompt and answer; None when unknown, then 4,096 is assumed.
        arm_s: length of one arm.

    Raises:
        ValueError: the context is too small for a long prompt of four times a short one.
    """
    check_context(context_tokens)
    context = 4096 if context_tokens is None else context_tokens
    call_s = arm_s * UTILISATION_RATIO / _WANTED_ASKS
    output = _within(_DECODE_RATIO * call_s * speed.decode_tokens_per_s, *_OUTPUT_TOKENS)
    prefill = speed.prefill_tokens_per_s * call_s
    least_short = speed.overhead_tokens + _SHORT_TOKENS[0]
    least_long = _LEAST_LONG_TO_SHORT * least_short
    most_long = min(_LONG_TOKENS, int(context * _MARGIN_RATIO) - output)
    if most_long < least_long:
        raise ValueError(_too_small(context, math.ceil((least_long + output) / _MARGIN_RATIO)))
    long = _within(_PREFILL_LONG_RATIO * prefill / LONG_RATIO, least_long, most_long)
    most_short = max(least_short, min(_SHORT_TOKENS[1], long // _LONG_TO_SHORT))
    short = _within(_PREFILL_SHORT_RATIO * prefill / (1 - LONG_RATIO), least_short, most_short)
    return Lengths(_words(short, speed), _words(long, speed), short, long, output)


def schedule(seed: str, rate_per_s: float, arm_s: float) -> tuple[Ask, ...]:
    """Draw the arrivals of one arm: Poisson, given their number; 15 % of them are long, as near as it goes.

    Given their number, the arrivals of a Poisson process are independent and uniform; the number is its mean here,
    so that arms differ in no more than the order of things.

    Args:
        seed: the same seed gives the same arrivals.
        rate_per_s: calls per second.
        arm_s: length of the arm.
    """
    random = Random(seed)
    count = max(4, min(MAX_ASKS, round(rate_per_s * arm_s)))
    times_s = sorted(random.uniform(0.0, arm_s) for _ in range(count))
    kinds = kinds_of(count)
    kinds[0] = "short" if "long" in kinds else "long"  # a handful of calls has a long one too
    random.shuffle(kinds)
    return tuple(Ask(at_s, kind, number) for number, (at_s, kind) in enumerate(zip(times_s, kinds, strict=True)))


def kinds_of(count: int) -> list[Kind]:
    """Return the kinds of so many calls, the long ones spread evenly among the short ones."""
    return ["long" if int((n + 1.5) * LONG_RATIO) > int((n + 0.5) * LONG_RATIO) else "short" for n in range(count)]


class Prompts:
    """Makes prompts of real words; no two of them begin alike, so that no prefix cache can help by accident.

    Args:
        seed: the same seed gives the same prompts; each arm needs one of its own.
    """

    def __init__(self, seed: str) -> None:
        self._random = Random(seed)
        self._pool = [self._random.choice(WORDS) for _ in range(_POOL_WORDS)]

    def text(self, words: int) -> str:
        """Return the next prompt: so many words, and a closing sentence."""
        unique = [self._random.choice(WORDS) for _ in range(min(words, _UNIQUE_WORDS))]
        rest = words - len(unique)
        start = self._random.randrange(max(1, _POOL_WORDS - rest))
        return f"{' '.join(unique + self._pool[start : start + rest])}. {_CLOSING}"


class _Message(Struct, frozen=True):
    content: str
    role: str = "user"


class _Body(Struct, frozen=True, omit_defaults=True):
    model: str
    messages: tuple[_Message, ...]
    max_tokens: int
    stream_options: dict[str, bool]
    stream: bool
    ignore_eos: bool = False


def chat_body(model: str, prompt: str, max_tokens: int, *, ignore_eos: bool) -> bytes:
    """Return the JSON body of a streamed chat with one message.

    Args:
        model: as the target calls it.
        prompt: the user's message.
        max_tokens: of the answer.
        ignore_eos: ask for an answer of exactly that length; not every engine knows the field.
    """
    body = _Body(model, (_Message(prompt),), max_tokens, {"include_usage": True}, True, ignore_eos)
    return msgspec.json.encode(body)


def _too_small(context_tokens: int, least_tokens: int) -> str:
    return f"its context of {context_tokens} tokens is too small for a mix of short and long; it takes {least_tokens}"


def _words(tokens: int, speed: Speed) -> int:
    return max(4, round((tokens - speed.overhead_tokens) / max(speed.tokens_per_word, 0.1)))


def _within(value: float, least: int, most: int) -> int:
    return int(min(max(value, least), most))
