"""Prompts of given lengths, and when they arrive: the same from the same seed."""

import random
from collections.abc import Sequence
from typing import NamedTuple

# Of these, each with the space before it is one token of the packaged model, and of most others.
WORDS = (
    "the of river stone light over under green house walk paper morning travel small great window number music "
    "garden simple water people thing world school state family student group country problem hand part place "
    "case week company system program question work night point home room mother area money story fact month"
).split()
# What the packaged model's chat template and the mark at the beginning add, in tokens.
AROUND_TOKENS = 38


class Lengths(NamedTuple):
    """Smallest and largest number of tokens, both included."""

    low: int
    high: int


class Mix(NamedTuple):
    """Short and long prompts.

    Attributes:
        long_share: part of the calls that are long.
        short, long: prompt tokens, the chat template's included.
        output: tokens of any answer.
    """

    long_share: float
    short: Lengths
    long: Lengths
    output: Lengths


class Item(NamedTuple):
    """One call of a schedule: when it is due, and how long it is."""

    due_s: float
    lane: str
    prompt_tokens: int
    output_tokens: int


def even(lengths: Lengths, count: int) -> list[int]:
    """Return lengths spread evenly over the range, so that every seed offers the same work."""
    width = (lengths.high - lengths.low) / count
    return [round(lengths.low + width * (number + 0.5)) for number in range(count)]


def schedule(mix: Mix, count: int, rate_per_s: float, rng: random.Random) -> list[Item]:
    """Draw the arrivals of `count` calls at a mean rate.

    Arrivals are those of a Poisson process of which the number of calls is known: uniform over the time. Number and
    lengths of the long calls are fixed as well and only their order is drawn, since a run of a hundred calls would else
    offer 75 to 105 % of the load that it is meant to offer.
    """
    longs = round(mix.long_share * count)
    lanes = ["long"] * longs + ["short"] * (count - longs)
    lengths = even(mix.long, longs) + even(mix.short, count - longs)
    outputs = even(mix.output, count)
    rng.shuffle(outputs)
    pairs = list(zip(lanes, lengths, strict=True))
    rng.shuffle(pairs)
    dues = sorted(rng.uniform(0, count / rate_per_s) for _ in range(count))
    return [Item(due, *pair, out) for due, pair, out in zip(dues, pairs, outputs, strict=True)]


def prompt(tokens: int, mark: int, rng: random.Random) -> str:
    """Return a text of about so many tokens with the template, which differs from all others in its first word.

    Args:
        tokens: of the whole prompt as the engine counts it.
        mark: a number below 10**6; two prompts that share it may share a prefix.
        rng: draws the words.
    """
    return f"{mark:06d} " + " ".join(rng.choices(WORDS, k=max(1, tokens - AROUND_TOKENS)))


def text_of_bytes(size: int, mark: int, rng: random.Random) -> str:
    """Return an ASCII text of so many bytes, which differs from all others in its first word.

    Args:
        size: at least 7.
        mark: see `prompt`.
        rng: draws the words.
    """
    text = prompt(AROUND_TOKENS + size // 3, mark, rng)
    return text[: max(7, size)]


def longs_first(items: Sequence[Item], head: int, rng: random.Random) -> list[Item]:
    """Return the items with all long ones among the first `head`, else in any order; due times are meaningless then."""
    longs = [item for item in items if item.lane == "long"]
    shorts = [item for item in items if item.lane != "long"]
    fill = max(0, head - len(longs))
    first = longs + shorts[:fill]
    rng.shuffle(first)
    return first + shorts[fill:]
