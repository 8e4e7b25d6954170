"""`forebay tokens`: show how an engine's tokenizer splits a text, beside a normal text of its kind.

Byte-level tokenizers know every text: none has unknown tokens (facts on Qwen and others say the opposite). What
a text costs too much shows in two numbers instead: tokens per character, and the share of tokens that are only
parts of characters.
"""

import json
import sys
import unicodedata
from collections import Counter
from collections.abc import Iterable
from contextlib import closing
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct
from rich.console import Console
from rich.table import Table
from rich.text import Text

from forebay.admission import hygiene

MAX_TEXT_BYTES: Final = 4_194_304
TIMEOUT_S: Final = 30.0
_MAX_ANSWER_BYTES: Final = 268_435_456
_SHOWN_PIECES: Final = 400
_SHOWN_NORMAL: Final = 80
# Fewer say nothing about a ratio.
_MIN_CHARS: Final = 32
_MIN_TOKENS: Final = 16
_MANY_TOKENS: Final = 1.5
_MANY_FRAGMENTS: Final = 0.2
_MAX_RUN_CHARS: Final = 64
_SPACES: Final = "\u2581"
_COLOURS: Final = ("black on bright_cyan", "black on bright_green", "black on bright_yellow", "black on bright_magenta")
_FRAGMENT_COLOUR: Final = "white on red"

NORMAL: Final = {
    "English": (
        "The station was quiet when the first train came in. A few people waited on the platform, reading the news "
        "or talking about the weather. It had rained all night, and the river behind the town was higher than usual. "
        "Nobody seemed to be worried, because the new wall had been finished in the spring. "
    ),
    "Chinese": (
        "第一班列车进站时，车站里很安静。几个人在站台上等车，有的看新闻，有的谈论天气。雨下了一整夜，城后的河水比平时高了不少。"
        "没有人显得担心，因为新的堤坝在春天就已经修好了。孩子们背着书包走过桥头，老人们在公园里打太极。"
    ),
    "code": (
        "def average(values: list[float]) -> float:\n    if not values:\n        raise ValueError('no values')\n"
        "    total = 0.0\n    for value in values:\n        total += value\n    return total / len(values)\n\n"
    ),
}


class Split(Struct, frozen=True):
    """A text as a tokenizer splits it.

    Attributes:
        text: what was split.
        count: of tokens.
        pieces: the bytes of each token; None from an engine that does not tell.
    """

    text: str
    count: int
    pieces: tuple[bytes, ...] | None

    @property
    def tokens_per_char(self) -> float:
        """Tokens for each character (code point)."""
        return self.count / max(1, len(self.text))

    @property
    def bytes_per_token(self) -> float:
        """UTF-8 bytes for each token."""
        return len(self.text.encode()) / max(1, self.count)

    @property
    def fragment_ratio(self) -> float:
        """Part of the tokens that hold no whole characters."""
        return sum(map(self.is_fragment, self.pieces or ())) / max(1, self.count)

    @property
    def longest(self) -> bytes:
        """The token with the most bytes."""
        return max(self.pieces or (b"",), key=len)

    def is_fragment(self, piece: bytes) -> bool:
        """Say whether a token is part of a character: alone it is no UTF-8, or its engine shows U+FFFD for it."""
        try:
            return "\ufffd" in piece.decode() and "\ufffd" not in self.text
        except UnicodeDecodeError:
            return True


class _Token(Struct):
    """One of llama.cpp's tokens: text, or bytes where it is none."""

    id: int
    piece: str | list[int] = ""


class _Answer(Struct):
    """What `/tokenize` says, of vLLM, SGLang (without strings) or llama.cpp."""

    tokens: list[int | _Token]
    token_strs: list[str] | None = None


class TokenizeError(Exception):
    """The engine gave no tokens; the message says why, and never holds the text or the key."""


def read_input(text: str | None, file: Path | None) -> str:
    """Return the text that is meant: the argument, else the file, else standard input.

    Raises:
        ValueError: it is empty or larger than `MAX_TEXT_BYTES`.
        OSError: the file cannot be read.
    """
    if text is None and file is not None:
        with file.open("rb") as source:
            text = source.read(MAX_TEXT_BYTES + 1).decode(errors="replace")
    elif text is None and not sys.stdin.isatty():
        text = sys.stdin.buffer.read(MAX_TEXT_BYTES + 1).decode(errors="replace")
    if not text:
        raise ValueError("there is no text; give one as an argument, with --file, or on standard input")
    if len(text.encode(errors="replace")) > MAX_TEXT_BYTES:
        raise ValueError(f"the text is larger than {MAX_TEXT_BYTES} bytes; a part of it will tell as much")
    return text


def run_tokens(url: str, model: str | None, text: str, key: str | None) -> int:
    """Show how an engine splits a text.

    Args:
        url: of an engine or of Forebay, with or without `/v1`.
        model: as the engine or Forebay names it; None where it has only one.
        text: to be split.
        key: for Forebay; None sends none.

    Returns:
        The exit code: 0 shown, 1 no tokens.
    """
    kind = kind_of(text)
    try:
        split = tokenize(url, model, _without_halves(text), key)
        normal = tokenize(url, model, normal_text(kind, len(text)), key)
    except TokenizeError as error:
        print(f"forebay tokens: {error}", file=sys.stderr)
        return 1
    console = Console(highlight=False)
    console.print(_table(split, normal, kind))
    if split.pieces is None:
        console.print("This engine tells how many tokens there are, not which.")
    else:
        console.print(_coloured("this text", split, _SHOWN_PIECES))
        console.print(_coloured(f"normal {kind}", normal, _SHOWN_NORMAL))
    remarks = [*oddities(text), *suspicions(split, normal, kind)]
    console.print(Text("\n".join(f"- {remark}" for remark in remarks) or "Nothing looks wrong with this text."))
    return 0


def tokenize(url: str, model: str | None, text: str, key: str | None) -> Split:
    """Ask an engine for the tokens of a text.

    Raises:
        TokenizeError: it cannot be reached, refuses, or answers something else.
    """
    base = url.rstrip("/").removesuffix("/v1")
    parts = urlsplit(base)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise TokenizeError("the URL must look like http://127.0.0.1:8000")
    # vLLM and SGLang read the first three, llama.cpp the others; each ignores what it does not know.
    asked = {"prompt": text, "add_special_tokens": False, "return_token_strs": True}
    asked |= {"content": text, "add_special": False, "with_pieces": True}
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    body = json.dumps(asked | ({"model": model} if model else {}))
    # Neither proxies nor redirects: the key goes where it was said to go.
    connect = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    try:
        connection = connect(parts.netloc, timeout=TIMEOUT_S)
        with closing(connection):
            connection.request("POST", f"{parts.path}/tokenize", body, headers)
            answer = connection.getresponse()
            status, said = answer.status, answer.read(_MAX_ANSWER_BYTES)
    except (OSError, HTTPException, ValueError) as error:
        raise TokenizeError(f"{base} cannot be asked: {error or type(error).__name__}") from None
    if status != 200:
        raise TokenizeError(f"{base}/tokenize answers {status}: {_reason(said)}")
    return read_answer(said, text)


def read_answer(body: bytes, text: str) -> Split:
    """Read what `/tokenize` says of a text.

    Raises:
        TokenizeError: it says no tokens.
    """
    try:
        answer = msgspec.json.decode(body, type=_Answer)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise TokenizeError("the answer of /tokenize holds no tokens") from None
    tokens = [token for token in answer.tokens if isinstance(token, _Token)]
    pieces: tuple[bytes, ...] | None = None
    if tokens:
        pieces = tuple(t.piece.encode() if isinstance(t.piece, str) else bytes(t.piece) for t in tokens)
    elif answer.token_strs:
        pieces = pieces_of(answer.token_strs, text)
    return Split(text, len(answer.tokens), pieces)


def pieces_of(strings: list[str], text: str) -> tuple[bytes, ...]:
    """Return the bytes of tokens that are given as strings, by the spelling that gives the text.

    Source: byte-level BPE writes each byte as one printable character (GPT-2); SentencePiece writes a space as
    U+2581 and a byte without a token as `<0xE4>`.
    """
    plain = tuple(string.encode() for string in strings)
    whole = text.encode()
    for pieces in (plain, _byte_level(strings), tuple(map(_sentence_piece, strings))):
        if pieces is not None and b"".join(pieces).removeprefix(b" ") == whole.removeprefix(b" "):
            return pieces
    return plain


def kind_of(text: str) -> str:
    """Say which of the normal texts a text is to be compared with."""
    written = [character for character in text if not character.isspace()]
    if sum("\u3400" <= character <= "\u9fff" for character in written) * 4 > len(written):
        return "Chinese"
    marks = sum(character in "{}[]()<>=;_/\\|&*+#@$%^`" for character in written)
    return "code" if marks * 12 > len(written) else "English"


def normal_text(kind: str, chars: int) -> str:
    """Return a normal text of a kind and a length in characters."""
    sample = NORMAL[kind]
    return (sample * (chars // len(sample) + 1))[: max(1, chars)]


def oddities(text: str) -> list[str]:
    """Return what input hygiene says of a text."""
    seen = hygiene.inspect(json.dumps(text).encode(), "detect")
    return [f"input hygiene: {rule}" for rule in seen.found]


def suspicions(split: Split, normal: Split, kind: str) -> list[str]:
    """Return what the tokens say of a text, compared with a normal one of the same length."""
    remarks: list[str] = []
    if len(split.text) < _MIN_CHARS:
        return remarks
    times = split.tokens_per_char / normal.tokens_per_char
    if times >= _MANY_TOKENS:
        guess = f": {guessed}" if (guessed := _guess(split)) else ""
        remarks.append(f"{times:.1f}x more tokens per character than normal {kind}{guess}")
    fragments, usual = split.fragment_ratio, normal.fragment_ratio
    if fragments >= usual + _MANY_FRAGMENTS:
        remarks.append(f"{fragments:.0%} of the tokens are parts of characters that have no token of their own")
    if usual >= _MANY_FRAGMENTS:
        remarks.append(f"this tokenizer hardly knows {kind}: {usual:.0%} of a normal text are parts of characters")
    if split.pieces:
        piece, count = Counter(split.pieces).most_common(1)[0]
        if count * 2 > split.count >= _MIN_TOKENS:
            remarks.append(f"{count} of {split.count} tokens are the same: {_visible(piece)}")
    return remarks


def _guess(split: Split) -> str:
    """Say what a text that takes too many tokens may be."""
    run = max(split.text.split() or [""], key=len)
    if len(run) < _MAX_RUN_CHARS:
        return "a script, or signs, that this tokenizer has few tokens for" if not split.text.isascii() else ""
    if all(character in "0123456789abcdefABCDEF" for character in run):
        return "hexadecimal data"
    ascii_run = run.isascii() and all(character.isalnum() or character in "+/=-_%." for character in run)
    return "base64 or random data" if ascii_run else ""


def _byte_level(strings: list[str]) -> tuple[bytes, ...] | None:
    bytes_of = _byte_characters()
    try:
        return tuple(bytes([bytes_of[character] for character in string]) for string in strings)
    except KeyError:
        return None


def _byte_characters() -> dict[str, int]:
    """Return the byte that each character of the byte-level alphabet stands for.

    Bytes that print in Latin-1 stand for themselves; the others, in order, are the characters from U+0100 on.
    """
    printing = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (byte for byte in range(256) if byte not in printing)
    return {chr(byte): byte for byte in printing} | {chr(256 + place): byte for place, byte in enumerate(others)}


def _sentence_piece(string: str) -> bytes:
    if len(string) == 6 and string.startswith("<0x") and string.endswith(">"):
        return bytes.fromhex(string[3:5])
    return string.replace(_SPACES, " ").encode()


def _without_halves(text: str) -> str:
    """Return a text that can be sent: no engine takes half a character."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")


def _reason(body: bytes) -> str:
    """Return the words for an error, of an engine or of Forebay."""
    try:
        error = json.loads(body)["error"]
        return str(error["message"] if isinstance(error, dict) else error)[:200]
    except (ValueError, KeyError, TypeError):
        return "without a reason that could be read"


def _table(split: Split, normal: Split, kind: str) -> Table:
    table = Table(box=None, pad_edge=False)
    table.add_column("")
    table.add_column("this text", justify="right")
    table.add_column(f"normal {kind}", justify="right")
    for name, *values in _rows(split, normal):
        table.add_row(name, *map(Text, values))
    return table


def _rows(*splits: Split) -> Iterable[tuple[str, ...]]:
    yield ("characters", *(str(len(split.text)) for split in splits))
    yield ("bytes", *(str(len(split.text.encode())) for split in splits))
    yield ("tokens", *(str(split.count) for split in splits))
    yield ("bytes per token", *(f"{split.bytes_per_token:.2f}" for split in splits))
    yield ("tokens per character", *(f"{split.tokens_per_char:.2f}" for split in splits))
    if all(split.pieces is not None for split in splits):
        yield ("parts of characters", *(f"{split.fragment_ratio:.1%}" for split in splits))
        yield ("longest token", *(_visible(split.longest[:40]) for split in splits))


def _coloured(title: str, split: Split, shown: int) -> Text:
    """Return the tokens, each in a colour of its own, parts of characters in red."""
    line = Text(f"{title}: ", style="bold")
    pieces = split.pieces or ()
    for place, piece in enumerate(pieces[:shown]):
        style = _FRAGMENT_COLOUR if split.is_fragment(piece) else _COLOURS[place % len(_COLOURS)]
        line.append(_visible(piece), style)
        # Colours do not reach a file or a pipe.
        line.append("|", "dim")
    if len(pieces) > shown:
        line.append(f" and {len(pieces) - shown} more tokens")
    return line


def _visible(piece: bytes) -> str:
    """Return a token as it can be seen: controls as their pictures, parts of characters as bytes in hexadecimal."""
    try:
        text = piece.decode()
    except UnicodeDecodeError:
        return f"<{piece.hex(' ')}>"
    return "".join(map(_picture, text))


def _picture(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    if unicodedata.category(character) in ("Cc", "Cf", "Zl", "Zp", "Cn", "Co"):
        return f"<U+{code:04X}>"
    return character
