"""What a prompt is made of."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.admission.texts import FEATURES, features
from forebay.traffic import Prompt


def counted(text: bytes, **more: int) -> dict[str, float]:
    """The features of a prompt that are not zero, by name."""
    prompt = Prompt(text=text, **{"text_bytes": len(text), **more})
    return {name: number for name, number in zip(FEATURES, features(prompt), strict=True) if number}


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        (b"", {}),
        (b"Two words", {"upper": 1, "lower": 7, "blanks": 1, "words_after_blank": 1}),
        (b"a 2025-01", {"lower": 1, "blanks": 1, "digits": 6, "digit_pairs": 3, "marks": 1}),
        (b"====.====", {"marks": 9, "rows": 2}),
        (b"f(x)", {"lower": 2, "marks": 2, "words_after_mark": 1}),
        (rb"a\n    b", {"lower": 2, "lines": 1, "blanks": 4, "indents": 1, "words_after_blank": 1}),
        (rb"a\nb", {"lower": 2, "lines": 1, "words_after_line": 1}),
        (rb"\"\\n", {"marks": 2, "lower": 1, "words_after_mark": 1}),
        ("中文。".encode(), {"han": 2, "kana": 1}),
        ("かな é я".encode(), {"kana": 2, "blanks": 2, "two_byte": 2}),
        ("한 → 😀".encode(), {"other": 3, "blanks": 2}),
    ],
)
def test_counts_by_class(text: bytes, counts: dict[str, float]) -> None:
    assert counted(text) == {"constant": 1, "messages": 1, **counts}


@pytest.mark.parametrize("text", ["中文，日本 a1", "😀 x", 'say "no"\n\tor\\n', "é"])
def test_escaped_text_counts_as_what_it_stands_for(text: str) -> None:
    written = (json.dumps(text, ensure_ascii=plain).encode()[1:-1] for plain in (True, False))
    assert len({features(Prompt(text=raw, text_bytes=len(raw))) for raw in written}) == 1


def test_broken_escapes_are_counted_as_they_stand() -> None:
    assert counted(rb"ab\u12")["lower"] == 3


def test_what_is_no_text_is_passed_on() -> None:
    more = {"messages": 3, "tools_bytes": 50, "images": 2, "audio_bytes": 700}
    assert counted(b"", **more) == {"constant": 1, **more}


def test_counts_of_samples_are_scaled_to_the_whole() -> None:
    whole = counted(b"ab 1.", text_bytes=50, messages=2, tools_bytes=7)
    assert whole == {
        **{"constant": 1, "messages": 2, "tools_bytes": 7},
        **{"lower": 20, "blanks": 10, "digits": 10, "marks": 10},
    }


@pytest.mark.parametrize(("text", "ids"), [(b"1,22,333", 3), (b"[1, 2], [3]", 3), (b"7,8", 2)])
def test_token_ids_count_one_each(text: bytes, ids: int) -> None:
    assert counted(text) == {"constant": 1, "messages": 1, "ids": ids}


@given(st.text(max_size=300), st.booleans())
def test_every_character_is_in_one_class(text: str, plain: bool) -> None:
    raw = json.dumps(text.encode(errors="replace").decode(), ensure_ascii=plain).encode()[1:-1]
    found = counted(raw)
    if "ids" in found:
        return
    classes = ("lower", "upper", "digits", "blanks", "lines", "marks", "han", "kana", "two_byte", "other")
    assert sum(found.get(name, 0) for name in classes) == len(text)


@given(st.binary(max_size=300))
def test_no_bytes_are_refused(raw: bytes) -> None:
    assert len(features(Prompt(text=raw, text_bytes=len(raw)))) == len(FEATURES)
