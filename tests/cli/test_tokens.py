"""`forebay tokens`: what the tokens say of a text, and what the engines say of the tokens."""

import asyncio
import io
import json
import random
import re
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from notation import reply

from forebay.cli.tokens import (
    MAX_TEXT_BYTES,
    NORMAL,
    Split,
    TokenizeError,
    kind_of,
    normal_text,
    oddities,
    pieces_of,
    read_answer,
    read_input,
    run_tokens,
    suspicions,
    tokenize,
)
from forebay.clock import SystemClock
from forebay.engines import embedded
from forebay.engines.sim import SimSpec, serve

# Random bytes that are the same in every run.
NOISE = b64encode(random.Random(7).randbytes(600)).decode()


def words(text: str) -> Split:
    """As a kind tokenizer splits it: at spaces."""
    pieces = tuple(part.encode() for part in re.findall(r"\s*\S+|\s+", text))
    return Split(text, len(pieces), pieces)


def singles(text: str) -> Split:
    """As a tokenizer splits what it does not know: byte by byte."""
    data = text.encode()
    return Split(text, len(data), tuple(bytes([byte]) for byte in data))


# what a split says


def test_the_measures_of_a_split() -> None:
    split = Split("a 狐狸", 4, (b"a", b" \xe7\x8b", b"\x90", "狸".encode()))
    assert split.tokens_per_char == 1.0
    assert split.bytes_per_token == 2.0
    assert split.fragment_ratio == 0.5
    assert split.longest == b" \xe7\x8b"
    silent = Split("abc", 2, None)
    assert (silent.fragment_ratio, silent.longest) == (0.0, b"")


def test_a_replacement_character_is_a_fragment_only_where_the_text_has_none() -> None:
    assert Split("狐", 1, ("\ufffd".encode(),)).fragment_ratio == 1.0
    assert Split("\ufffd", 1, ("\ufffd".encode(),)).fragment_ratio == 0.0


def test_normal_text_is_not_suspicious() -> None:
    for kind, text in NORMAL.items():
        assert suspicions(words(text), words(normal_text(kind, len(text))), kind) == []
        assert oddities(text) == []


def test_base64_is_recognised() -> None:
    (remark,) = suspicions(singles(NOISE), words(normal_text("English", len(NOISE))), "English")
    assert remark.endswith("x more tokens per character than normal English: base64 or random data")
    assert float(remark.partition("x")[0]) > 3


@pytest.mark.parametrize(
    ("text", "guess"),
    [
        (random.Random(7).randbytes(100).hex(), ": hexadecimal data"),
        ("x1 " * 40, ""),
        ("ᚠᛇᚻ ᛒᛦᚦ ᚠᚱᚩᚠᚢᚱ " * 5, ": a script, or signs, that this tokenizer has few tokens for"),
    ],
)
def test_what_a_costly_text_may_be(text: str, guess: str) -> None:
    remarks = suspicions(singles(text), words(normal_text("English", len(text))), "English")
    assert remarks[0].endswith(f"than normal English{guess}")


def test_parts_of_characters_are_named() -> None:
    text = "狐狸学会钓鱼的故事，" * 5
    normal = Split(text, len(text), tuple(character.encode() for character in text))
    remarks = suspicions(singles(text), normal, "Chinese")
    assert "100% of the tokens are parts of characters that have no token of their own" in remarks
    assert not any("hardly knows" in remark for remark in remarks)


def test_a_tokenizer_that_hardly_knows_a_script_is_named() -> None:
    text = normal_text("Chinese", 60)
    assert suspicions(singles(text), singles(text), "Chinese") == [
        "this tokenizer hardly knows Chinese: 100% of a normal text are parts of characters"
    ]


def test_one_token_over_and_over_is_named() -> None:
    text = "ha" * 40
    split = Split(text, 40, (b"ha",) * 40)
    assert suspicions(split, words(text), "English")[-1] == "40 of 40 tokens are the same: ha"


def test_a_short_text_says_nothing() -> None:
    assert suspicions(singles("Hello!"), words("Hello "), "English") == []


def test_hygiene_is_asked() -> None:
    assert oddities("a\x00b\udcff\u200b") == [
        "input hygiene: lone_surrogate", "input hygiene: control_character", "input hygiene: zero_width",
    ]  # fmt: skip


# what it is compared with


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("The fox, who lived here (once).", "English"),
        ("狐狸学会钓鱼 in a day", "Chinese"),
        ("if (a[i] == b) { return x; }", "code"),
        ("SELECT * FROM t WHERE (a = 1) AND b <> 2;", "code"),
        ("Я могу есть стекло", "English"),
        (" \n", "English"),
    ],
)
def test_the_kind_of_a_text(text: str, kind: str) -> None:
    assert kind_of(text) == kind


@given(st.sampled_from(sorted(NORMAL)), st.integers(1, 5000))
def test_a_normal_text_has_the_length_asked_for(kind: str, chars: int) -> None:
    assert len(normal_text(kind, chars)) == chars


@pytest.mark.parametrize("kind", NORMAL)
def test_a_normal_text_is_of_its_kind(kind: str) -> None:
    assert kind_of(NORMAL[kind]) == kind


# what engines say


def test_llamacpp_pieces_are_texts_or_bytes() -> None:
    answer = {"tokens": [{"id": 1, "piece": "He"}, {"id": 2, "piece": [228, 189]}, {"id": 3, "piece": [160]}]}
    assert read_answer(json.dumps(answer).encode(), "He你").pieces == (b"He", b"\xe4\xbd", b"\xa0")


@pytest.mark.parametrize(
    ("strings", "text", "pieces"),
    [
        (["Hello", "Ġworld", "Ċ"], "Hello world\n", (b"Hello", b" world", b"\n")),
        (["ä½", "ł", "å¥½"], "你好", (b"\xe4\xbd", b"\xa0", "好".encode())),
        (["▁Hello", "▁wor", "ld"], "Hello world", (b" Hello", b" wor", b"ld")),
        (["▁", "<0xE4>", "<0xBD>", "<0xA0>"], "你", (b" ", b"\xe4", b"\xbd", b"\xa0")),
        (["Hel", "lo"], "Hello", (b"Hel", b"lo")),
        (["<s>", "Ġx"], "y", (b"<s>", "Ġx".encode())),
    ],
)
def test_the_spelling_of_token_strings_is_found_out(strings: list[str], text: str, pieces: tuple[bytes, ...]) -> None:
    assert pieces_of(strings, text) == pieces


@given(st.binary(max_size=60))
def test_every_byte_has_its_character_in_the_byte_level_alphabet(data: bytes) -> None:
    # What GPT-2's table says of the bytes that do not print: they follow from U+0100 on, in order.
    hidden = [byte for byte in range(256) if byte < 33 or 127 <= byte <= 160 or byte == 173]
    strings = [chr(256 + hidden.index(byte)) if byte in hidden else chr(byte) for byte in data]
    assert pieces_of(strings, data.decode("latin-1")) in (
        tuple(bytes([byte]) for byte in data),
        tuple(string.encode() for string in strings),
    )
    text = data.decode(errors="ignore")
    spelled = [chr(256 + hidden.index(byte)) if byte in hidden else chr(byte) for byte in text.encode()]
    assert b"".join(pieces_of(spelled, text)) == text.encode()


def test_sglang_tells_a_count_only() -> None:
    assert read_answer(b'{"tokens":[1,2,3],"count":3,"max_model_len":9}', "abc") == Split("abc", 3, None)


@pytest.mark.parametrize("body", [b"", b"{}", b'{"tokens":"x"}', b"<html>", b'{"tokens":["a"]}'])
def test_an_answer_without_tokens(body: bytes) -> None:
    with pytest.raises(TokenizeError, match="no tokens"):
        read_answer(body, "abc")


# input


def test_where_the_text_comes_from(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "text"
    file.write_bytes(b"from a file \xff")
    assert read_input("given", file) == "given"
    assert read_input(None, file) == "from a file \ufffd"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("aus der Röhre".encode())))
    assert read_input(None, None) == "aus der Röhre"


def test_no_text_and_too_much_text() -> None:
    with pytest.raises(ValueError, match="no text"):
        read_input("", None)
    with pytest.raises(ValueError, match="larger than"):
        read_input("x" * (MAX_TEXT_BYTES + 1), None)


# whole runs


class Sim:
    """A simulated engine in a thread of its own."""

    def __init__(self) -> None:
        self.url = ""
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self._thread.start()
        assert self._ready.wait(5)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        server = await serve(SimSpec(models=("m",)), "127.0.0.1", 0, SystemClock())
        self.url = server.base_url
        self._ready.set()
        await self._stop.wait()
        await server.close()

    def stop(self) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(5)


@pytest.fixture(scope="module")
def sim() -> Iterator[Sim]:
    running = Sim()
    yield running
    running.stop()


@pytest.mark.integration
def test_against_the_simulated_engine(sim: Sim, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tokens(f"{sim.url}/v1", "m", "Hello, [bold]world[/bold]!\x07", None) == 0
    shown = capsys.readouterr().out
    assert "Hell|o, [|bold|]wor|ld[/|bold|]!␇|" in shown
    assert "- input hygiene: control_character" in shown
    assert "normal code" in shown


@pytest.mark.integration
def test_half_a_character_is_told_and_not_sent(sim: Sim, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tokens(sim.url, None, "cut \udc80", None) == 0
    assert "input hygiene: lone_surrogate" in capsys.readouterr().out


@pytest.mark.integration
def test_a_text_that_is_clean(sim: Sim, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_tokens(sim.url, "m", NORMAL["English"], None) == 0
    assert "Nothing looks wrong" in capsys.readouterr().out


@pytest.mark.integration
def test_what_is_sent_and_the_key(engine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    scripted = engine()
    scripted.play(reply(200, {"tokens": [1, 2]}), reply(200, {"tokens": [1]}))
    assert run_tokens(scripted.url, "m", "Hi", "key-A") == 0
    first = scripted.posts[0]
    assert first.target == "/tokenize"
    assert first.values("authorization") == ["Bearer key-A"]
    assert {"model": "m", "prompt": "Hi", "content": "Hi"}.items() <= first.json().items()
    shown = capsys.readouterr()
    assert "how many tokens there are, not which" in shown.out
    assert "key-A" not in shown.out + shown.err


@pytest.mark.integration
def test_a_refusal_is_told(engine: Any, capsys: pytest.CaptureFixture[str]) -> None:
    scripted = engine()
    scripted.play(reply(401, {"error": {"message": "the key is not known"}}))
    assert run_tokens(scripted.url, "m", "secret", "key-A") == 1
    error = capsys.readouterr().err
    assert error == f"forebay tokens: {scripted.url}/tokenize answers 401: the key is not known\n"


@pytest.mark.integration
def test_a_redirect_is_not_followed(engine: Any) -> None:
    scripted, elsewhere = engine(), engine()
    scripted.play(reply(307, b"", f"Location: {elsewhere.url}/tokenize"))
    with pytest.raises(TokenizeError, match="answers 307"):
        tokenize(scripted.url, None, "Hi", "key-A")
    assert elsewhere.posts == []


@pytest.mark.parametrize("url", ["127.0.0.1:8000", "ftp://x", "http://", "http://127.0.0.1:x"])
def test_a_url_that_is_none(url: str) -> None:
    with pytest.raises(TokenizeError):
        tokenize(url, None, "Hi", None)


def test_nobody_listens() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(TokenizeError, match="cannot be asked"):
            tokenize(url, None, "Hi", None)


@pytest.fixture(scope="module")
def llamacpp() -> Iterator[str]:
    if embedded.available() is not None:
        pytest.skip("needs the demo extra")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(embedded.command(port), stdin=subprocess.PIPE, stdout=quiet, stderr=quiet) as process:
        try:
            until_healthy(f"http://127.0.0.1:{port}/health", process)
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def until_healthy(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline_s = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(url, timeout=5).close()
            return
        except OSError:
            assert process.poll() is None
            assert time.monotonic() < deadline_s
            time.sleep(0.05)


@pytest.mark.engine
@pytest.mark.integration
def test_a_real_tokenizer(llamacpp: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = "A fox 狐狸 🐙 sleeps near the river."
    split = tokenize(llamacpp, None, text, None)
    assert split.pieces is not None
    assert b"".join(split.pieces) == text.encode()
    assert 0 < split.fragment_ratio < 1
    assert run_tokens(llamacpp, "default", NOISE, None) == 0
    shown = capsys.readouterr().out
    assert "more tokens per character than normal English: base64 or random data" in shown.replace("\n", " ")
