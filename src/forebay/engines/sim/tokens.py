"""Numbered tokens: what a simulated engine says is known before it says it.

Token i of every answer is `t0`, ` t1`, ` t2`, … or, in the unicode vocabulary, one half of a character: as in
a byte-level BPE, the first half carries no text and the second the whole character. Any other text is cut
into pieces of up to 4 UTF-8 bytes. Ids and texts map to each other exactly, both ways.

An answer is continued, not begun anew, when the prompt ends with the ids of its first tokens or when its
last assistant message, or the end of the prompt of plain completions, is a beginning of it.
"""

from collections.abc import Callable, Sequence

from msgspec import Struct

from forebay.engines.sim.spec import VocabularyName

TEXT_BASE = 1 << 40
ASCII_BASE = 1 << 20
UNICODE_BASE = 1 << 24
VOCABULARY_SIZE = 1 << 22

_PIECE_BYTES = 4
_DIGITS = 257  # 256 byte values and the end
_CJK_FIRST, _CJK_COUNT = 0x4E00, 20_000
_EMOJI_FIRST, _EMOJI_COUNT = 0x1F300, 256


class Continuation(Struct, frozen=True):
    """Where an answer goes on.

    Attributes:
        start: number of the first token to generate.
        skip_chars: characters of its text that the prompt has already.
        leads_with_prompt: the prompt ends inside a character, so the engine's detokenizer repeats the whole
            prompt before the first text, as vLLM does since pull request 34217.
    """

    start: int = 0
    skip_chars: int = 0
    leads_with_prompt: bool = False


class Vocabulary(Struct, frozen=True):
    """The tokens of answers: number to text and id."""

    name: VocabularyName
    base: int
    text: Callable[[int], str]

    def ids(self, start: int, stop: int) -> list[int]:
        """Return the ids of tokens start..stop-1."""
        return list(range(self.base + start, self.base + stop))

    def texts(self, start: int, stop: int) -> str:
        """Return the text of tokens start..stop-1."""
        return "".join(map(self.text, range(start, stop)))

    def continued_ids(self, prompt: Sequence[int]) -> Continuation:
        """Find how much of the answer a prompt ends with, by its ids."""
        count = prompt[-1] - self.base + 1 if prompt else 0
        if not 0 < count <= len(prompt) or list(prompt[-count:]) != self.ids(0, count):
            return Continuation()
        return Continuation(count, leads_with_prompt=bool(self.name == "unicode" and count % 2))

    def continued_text(self, text: str) -> Continuation:
        """Find how much of the answer a text is; a text that is no beginning of it counts for nothing."""
        number = length = 0
        while length < len(text):
            piece = self.text(number)
            rest = len(text) - length
            if not text.startswith(piece[:rest], length):
                return Continuation()
            if len(piece) > rest:
                return Continuation(number, rest)
            length += len(piece)
            number += 1
        return Continuation(number)

    def continued_end(self, text: str) -> Continuation:
        """Find how much of the answer a text ends with, as the prompt of plain completions does that go on."""
        beginning = self.text(0) or self.text(1)
        at = text.rfind(beginning)
        while at >= 0:
            found = self.continued_text(text[at:])
            if found.start:
                return found
            at = text.rfind(beginning, 0, at)
        return Continuation()


def _ascii_text(number: int) -> str:
    return f" t{number}" if number else "t0"


def _unicode_text(number: int) -> str:
    place, half = divmod(number, 2)
    if not half:
        return ""
    if place % 4 == 3:
        return chr(_EMOJI_FIRST + place // 4 % _EMOJI_COUNT)
    return chr(_CJK_FIRST + place % _CJK_COUNT)


VOCABULARIES: dict[str, Vocabulary] = {
    "ascii": Vocabulary("ascii", ASCII_BASE, _ascii_text),
    "unicode": Vocabulary("unicode", UNICODE_BASE, _unicode_text),
}


def count(text: str) -> int:
    """Return the number of tokens of a prompt: one per 4 bytes, at least 1."""
    return max(1, -(-len(text.encode()) // _PIECE_BYTES))


def encode(text: str) -> list[int]:
    """Return the ids of a prompt's text, `count(text)` of them."""
    data = text.encode()
    pieces = (data[at : at + _PIECE_BYTES] for at in range(0, max(1, len(data)), _PIECE_BYTES))
    return [TEXT_BASE + _number(piece) for piece in pieces]


def encode_said(text: str) -> list[int]:
    """Return the ids of a text, which are those of an answer where it is the beginning of one."""
    for vocabulary in VOCABULARIES.values():
        found = vocabulary.continued_text(text)
        if found.start and not found.skip_chars:
            return vocabulary.ids(0, found.start)
    return encode(text)


def decode(ids: Sequence[int]) -> str:
    """Return the text of ids of any kind; half a character at the end is left out.

    Raises:
        ValueError: an id is in no vocabulary.
    """
    return b"".join(map(_bytes_of, ids)).decode(errors="replace")


def _number(piece: bytes) -> int:
    value = 0
    for byte in reversed(piece):
        value = value * _DIGITS + byte + 1
    return value


def _bytes_of(token_id: int) -> bytes:
    for vocabulary in VOCABULARIES.values():
        if vocabulary.base <= token_id < vocabulary.base + VOCABULARY_SIZE:
            return vocabulary.text(token_id - vocabulary.base).encode()
    value = token_id - TEXT_BASE
    if not 0 <= value < _DIGITS**_PIECE_BYTES:
        raise ValueError(f"token id {token_id} is in no vocabulary")
    piece = bytearray()
    while value:
        value, digit = divmod(value, _DIGITS)
        if not digit:
            raise ValueError(f"token id {token_id} is in no vocabulary")
        piece.append(digit - 1)
    return bytes(piece)
