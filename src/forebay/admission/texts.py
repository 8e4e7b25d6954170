"""What a prompt is made of: the counts that its length in tokens is estimated from.

The counts follow what byte-pair tokenizers cut text into (words with the space before them, digits, runs of
punctuation, lines), and each is one pass of `bytes` in C: no loop over characters.
"""

import msgspec

from forebay.traffic import Prompt

FEATURES = (
    "constant",
    "messages",
    "lower",  # letters a-z
    "upper",  # letters A-Z
    "digits",
    "digit_pairs",  # that letters may stand between
    "blanks",  # spaces and tabs
    "indents",  # four blanks in a row, where there are lines
    "lines",  # newlines and carriage returns
    "marks",  # the rest of ASCII
    "rows",  # four marks in a row, as in a rule or a table
    "words_after_blank",  # a lower-case letter after a blank
    "words_after_mark",
    "words_after_line",
    "han",  # Chinese characters
    "kana",  # Japanese syllables, and the wide punctuation of both
    "two_byte",  # accents, Greek, Cyrillic, Hebrew, Arabic
    "other",  # the rest of Unicode: Hangul, Indic, Thai, symbols, emoji
    "tools_bytes",
    "images",
    "audio_bytes",
    "ids",  # tokens that the client made itself
)
"""Names of the features, in their order."""

_RANGES = (
    (0x61, 0x7A, b"a"),
    (0x41, 0x5A, b"A"),
    (0x30, 0x39, b"0"),
    (0x20, 0x20, b" "),
    (0x09, 0x09, b" "),
    (0x0A, 0x0A, b"n"),
    (0x0D, 0x0D, b"n"),
    (0xC0, 0xDF, b"E"),
    (0xE0, 0xFF, b"M"),
    (0xE3, 0xE3, b"K"),
    (0xE4, 0xE9, b"H"),
    (0xEF, 0xEF, b"K"),
)


def _classes() -> bytes:
    table = bytearray(b"." * 256)
    for first, last, name in _RANGES:
        table[first : last + 1] = name * (last - first + 1)
    return bytes(table)


_CLASSES = _classes()
# Bytes 2-4 of a character in UTF-8: the first one says enough.
_CONTINUATIONS = bytes(range(0x80, 0xC0))
_TEXT = slice(FEATURES.index("lower"), FEATURES.index("tools_bytes"))
_ID_BYTES = b"0123456789,[] \t\r\n"
_as_text = msgspec.json.Decoder(str).decode


def features(prompt: Prompt) -> tuple[float, ...]:
    """Count what a prompt is made of, in the order of FEATURES.

    Counts of sampled text are scaled up to the whole. JSON escapes count as what they stand for: a Chinese
    character is one, whether it came as UTF-8 or as an escape of four hex digits.
    """
    text = prompt.text
    scale = prompt.text_bytes / len(text) if text else 0.0
    if b"\\" in text:
        text = _unescaped(text)
    ascii_only = text.isascii()
    kinds = text.translate(_CLASSES) if ascii_only else text.translate(_CLASSES, _CONTINUATIONS)
    # Most of a text is lower-case letters: without them seven counts cost a third.
    rest = kinds.translate(None, b"a")
    count = rest.count
    upper, digits, blanks, lines, marks = count(b"A"), count(b"0"), count(b" "), count(b"n"), count(b".")
    lower = len(kinds) - len(rest)
    if marks and len(rest) == len(kinds) and not text.translate(None, _ID_BYTES):
        return _of_ids(prompt, text.count(b",") * scale)
    counts = (
        1,
        prompt.messages,
        lower,
        upper,
        digits,
        count(b"00") if digits else 0,
        blanks,
        kinds.count(b"    ") if lines else 0,
        lines,
        marks,
        kinds.count(b"....") if marks else 0,
        kinds.count(b" a"),
        kinds.count(b".a"),
        kinds.count(b"na") if lines else 0,
        0 if ascii_only else count(b"H"),
        0 if ascii_only else count(b"K"),
        0 if ascii_only else count(b"E"),
        0 if ascii_only else count(b"M"),
        prompt.tools_bytes,
        prompt.images,
        prompt.audio_bytes,
        0,
    )
    return counts if scale == 1.0 else _scaled(counts, scale)


def _scaled(counts: tuple[float, ...], scale: float) -> tuple[float, ...]:
    text_counts = [number * scale for number in counts[_TEXT]]
    return (*counts[: _TEXT.start], *text_counts, *counts[_TEXT.stop :])


def _of_ids(prompt: Prompt, commas: float) -> tuple[float, ...]:
    counts = [0.0] * len(FEATURES)
    counts[0] = 1.0
    counts[1] = prompt.messages
    counts[-1] = commas + 1.0
    return tuple(counts)


def _unescaped(text: bytes) -> bytes:
    try:
        return _as_text(b'"%b"' % text).encode()
    except (msgspec.DecodeError, UnicodeError):
        return text
