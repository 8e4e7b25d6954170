"""What is odd about a body is named; what is repaired is exactly that, and all else stays byte for byte."""

import asyncio
import json
import re
import unicodedata
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from forebay.admission.hygiene import CLEAN, LARGE_BYTES, RULES, inspect, inspect_sliced, refusal
from forebay.errors import CODES
from forebay.wire.members import InvalidJson, read_members

SEPARATORS = "\x0b\x0c\x85"
CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
KEPT = re.compile("([\uf900-\ufaff\U0002f800-\U0002fa1f])")

# Everything that has gone wrong somewhere, beside ordinary text.
PIECES = st.sampled_from(
    [
        "a", "e", "u0301", "\\", '"', "/", "\n", "\t", "\r", " ", "<", "\u0338", "\ud83d", "\ude00", "\x00", "\x07",
        "\b", "\f", "\x0b", "\x1f", "\x7f", "\x80", "\x85", "\x9f", "\u0301", "\u0323", "\u00e9", "\u212b", "\uf900",
        "\U0002f800", "豈", "か", "\u3099", "\u1112", "\u1161", "\u11ab", "한", "👩\u200d👧", "🚀", "\u0915\u093c",
        "\u200f", "مرحبا", "\u200b", "\ufeff", "\u202e", "\ufffd", "\u00ad", "\U00011131", "\U00011127", "\u2028",
    ]
)  # fmt: skip
TEXTS = st.lists(PIECES, max_size=8).map("".join)
PLAIN_TEXTS = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20).map(lambda t: compose(t))
DOCUMENTS = st.dictionaries(
    st.sampled_from(["messages", "prompt", "k\x00", "ke\u0301", "k\ud83d", "n"]),
    st.recursive(TEXTS | st.none() | st.integers(), lambda inner: st.lists(inner, max_size=3), max_leaves=6)
    | st.dictionaries(TEXTS, TEXTS, max_size=2),
    max_size=3,
)


def compose(text: str) -> str:
    """NFC, but with compatibility ideographs as they are."""
    return "".join(part if KEPT.match(part) else unicodedata.normalize("NFC", part) for part in KEPT.split(text))


def joined(text: str) -> str:
    """The text with halves that belong together made whole."""
    return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "surrogatepass")


def expected(value: Any) -> Any:
    """What a repair should leave of a decoded document, by the words of docs/hygiene.md."""
    if isinstance(value, dict):
        return {key: expected(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [expected(inner) for inner in value]
    if not isinstance(value, str):
        return value
    if len(value) > 1 or not CONTROL.match(value):
        value = CONTROL.sub(lambda found: "\n" if found[0] in SEPARATORS else "", value)
    return compose(re.sub("[\ud800-\udfff]", "\ufffd", value))


def texts_of(value: Any) -> list[str]:
    """All strings of a document, keys too."""
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in texts_of(part)]
    if isinstance(value, list):
        return [text for inner in value for text in texts_of(inner)]
    return [value] if isinstance(value, str) else []


class Writer:
    """Writes JSON with each character in one of the ways in which it may be written."""

    def __init__(self, ways: list[int], spaces: str) -> None:
        self.ways = ways
        self.spaces = spaces
        self.count = 0

    def way(self) -> int:
        self.count += 1
        return self.ways[self.count % len(self.ways)]

    def character(self, one: str) -> str:
        way = self.way()
        raw = not ("\ud800" <= one <= "\udfff" or one < " " or one in '"\\')
        if raw and way % 3 == 0:
            return one
        short = {'"': '\\"', "\\": "\\\\", "/": "\\/", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
        if one in short and way % 3 == 1:
            return short[one]
        units = one.encode("utf-16-be", "surrogatepass")
        form = "\\u%04x" if way % 2 else "\\u%04X"
        return "".join(form % int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))

    def write(self, value: Any) -> str:
        space = self.spaces
        if isinstance(value, str):
            return '"' + "".join(map(self.character, value)) + '"'
        if isinstance(value, list):
            return "[" + space + ("," + space).join(map(self.write, value)) + space + "]"
        if isinstance(value, dict):
            members = (f"{self.write(key)}{space}:{space}{self.write(inner)}" for key, inner in value.items())
            return "{" + space + ("," + space).join(members) + "}"
        return json.dumps(value)


WAYS = st.lists(st.integers(0, 5), min_size=1, max_size=5)


@settings(max_examples=400, deadline=None)
@given(DOCUMENTS, WAYS, st.sampled_from(["", " ", "\n\t"]))
@example({"messages": "e\x00\u0301"}, [0], "")
@example({"stop": ["\x03", '"\x03']}, [1], "")
@example({"k\x00": "\ud83d", "n": {"e\u0301\x00": "\u0301"}}, [0, 1, 2], " ")
def test_a_repair_changes_what_the_page_says_and_nothing_else(document: Any, ways: list[int], spaces: str) -> None:
    body = Writer(ways, spaces).write(document).encode()
    document = json.loads(body)  # two halves that meet are one character
    seen = inspect(body, "repair")
    after = body if seen.repaired is None else seen.repaired
    assert json.loads(after) == expected(document)
    assert (seen.repaired is None) == (expected(document) == document) == (seen.fault == "")
    again = inspect(after, "repair")
    assert again.repaired is None, "a repair leaves nothing to repair"
    plain = inspect(body, "detect")
    assert plain.repaired is None
    assert set(plain.found) <= set(seen.found), "what composes once a control character is gone is seen on the way"
    assert plain.fault == seen.fault
    assert plain == inspect(body, "reject")


@settings(max_examples=300, deadline=None)
@given(DOCUMENTS, WAYS)
def test_each_rule_is_found_where_it_is_broken(document: Any, ways: list[int]) -> None:
    body = Writer(ways, "").write(document).encode()
    texts = texts_of(json.loads(body))
    broken = {
        "lone_surrogate": any(re.search("[\ud800-\udfff]", text) for text in texts),
        "control_character": any(CONTROL.search(text) for text in texts),
        "not_nfc": any(compose(text) != text for text in texts),
        "replacement_character": any("\ufffd" in text for text in texts),
        "bom": any("\ufeff" in text for text in texts),
        "zero_width": any(re.search("[\u200b\u2060]", text) for text in texts),
        "bidi_control": any(re.search("[\u202a-\u202e\u2066-\u2069]", text) for text in texts),
    }
    assert inspect(body, "detect").found == tuple(rule for rule in RULES if broken[rule])


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(PLAIN_TEXTS, st.lists(PLAIN_TEXTS, max_size=3), max_size=3), WAYS)
def test_a_clean_body_is_left_alone(document: Any, ways: list[int]) -> None:
    seen = inspect(Writer(ways, "").write(document).encode(), "repair")
    assert seen.repaired is None
    assert set(seen.found) <= {"replacement_character", "bom", "zero_width", "bidi_control"}


@settings(max_examples=60, deadline=None)
@given(TEXTS, TEXTS, WAYS, st.integers(16_000, 40_000), st.integers(0, 40))
@example("", "a\u0301", [5], 40_000, 3)
def test_where_a_body_is_cut_makes_no_difference(
    start: str, again: str, ways: list[int], size_bytes: int, shift: int
) -> None:
    writer = Writer(ways, "")
    again_written = writer.write(again + " ")[1:-1]
    text = "x" * shift + writer.write(start)[1:-1] + again_written * (size_bytes // len(again_written))
    body = f'{{"k":{{"{again_written}":["{text}"]}}}}'.encode()
    document = json.loads(body)
    seen = inspect(body, "repair")
    after = body if seen.repaired is None else seen.repaired
    assert json.loads(after) == expected(document)
    assert inspect(body, "detect").fault == seen.fault


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.sampled_from([b"\\", b"u", b"b", b"d83d", b"\xff", b"\xcc\x81", b'"', b"\x7f", b"e", b":"]), max_size=12
    )
)
def test_what_is_no_json_does_no_harm(pieces: list[bytes]) -> None:
    inspect(b"".join(pieces), "repair")


LEGITIMATE = (
    "👩\u200d👩\u200d👧 👍🏽 🏴\U000e0067\U000e0062\U000e0065\U000e006e\U000e0067\U000e007f ❤\ufe0f",  # emoji
    "مرحبا \u200fبالعالم\u200e می\u200cخواهم שָׁלוֹם",  # right to left, with marks and joiners
    "豈 神 \ufa19 \U0002f800 ﷺ ﬁ ① ｶﾞ",  # compatibility characters
    "मैं काँच खा सकता हूँ ฉันกินกระจกได้ 한국어 Tiếng Việt",
    'tab\tline\r\nend \\ " / \\u0000 \\ud83d soft\u00adhyphen',  # escapes that stand for text
)


@pytest.mark.parametrize("text", LEGITIMATE, ids=range(len(LEGITIMATE)))
@pytest.mark.parametrize("escaped", [True, False])
def test_legitimate_text_survives(text: str, escaped: bool) -> None:
    body = json.dumps({"prompt": compose(text)}, ensure_ascii=escaped).encode()
    assert inspect(body, "repair") == CLEAN


def test_what_stands_beside_a_repair_keeps_its_bytes() -> None:
    body = rb'{ "temperature" : 1.00, "a":"\u003cb\u003E \/ \ud83d \uD83D\uDE80 \u00E9 e\u0301", "x":[1e3,{"k":null}] }'
    repaired = inspect(body, "repair").repaired
    assert repaired == body.replace(rb"\ud83d ", rb"\ufffd ").replace(rb"e\u0301", rb"\u00e9")


def test_two_keys_never_become_equal() -> None:
    body = b'{"messages":[],"tools":[{"name":"a","name\\u0000":"b\\u0000"}]}'
    assert inspect(body, "repair").repaired == b'{"messages":[],"tools":[{"name":"a","name\\u0000":"b"}]}'
    only_key = b'{"tools":[{"name\\u0000":"b"}]}'
    seen = inspect(only_key, "repair")
    assert (seen.found, seen.repaired, seen.fault) == (("control_character",), None, "")


def test_a_separator_stays() -> None:
    body = rb'{"stop":["\u001c","\f"],"prompt":"a\u001cb\fc"}'
    assert inspect(body, "repair").repaired == rb'{"stop":["\u001c","\f"],"prompt":"ab\nc"}'


# large bodies


async def turns_of(body: bytes) -> tuple[Any, int]:
    """What `inspect_sliced` says, and how many turns others had meanwhile."""
    turns = 0
    task = asyncio.ensure_future(inspect_sliced(body, "repair"))
    while not task.done():
        await asyncio.sleep(0)
        turns += 1
    return task.result(), turns


@pytest.mark.parametrize(
    ("text", "turns"),
    [
        ("QUJD" * 500_000, 7),
        ("狐狸学会钓鱼。" * 40_000, 12),
        ("e\u0301" * 200_000, 30),
        ("\b" * 100_000, 10),
        ("\\" * 99, 0),
    ],
    ids=["base64", "chinese", "nfd", "controls", "small"],
)
@pytest.mark.parametrize("escaped", [True, False])
def test_a_large_body_gives_the_loop_its_turns(text: str, turns: int, escaped: bool) -> None:
    body = json.dumps({"prompt": "x" + text}, ensure_ascii=escaped).encode()
    seen, had = asyncio.run(turns_of(body))
    assert had >= turns
    assert seen == inspect(body, "repair")
    assert json.loads(seen.repaired or body) == expected(json.loads(body))


def test_megabytes_without_a_place_to_cut_lose_nothing() -> None:
    for unit in ("\\\\", "\\n", r"\ud83d\ude80", "🚀", "0", r"\u3042"):
        body = f'{{"a":"{unit * (3 * LARGE_BYTES // len(unit))}"}}'.encode()
        assert inspect(body, "repair") == CLEAN


# refusals


@pytest.mark.parametrize(
    ("body", "rule", "member"),
    [
        (rb'{"model":"m","messages":[{"content":"secret \u0000"}]}', "control_character", "messages"),
        (b'{"messages":[],"user":"secret \x7f" }', "control_character", "user"),
        ('{"prompt" : "secret e\u0301"}'.encode(), "not_nfc", "prompt"),
    ],
)
def test_a_refusal_names_rule_and_member_and_no_text(body: bytes, rule: str, member: str) -> None:
    refused = refusal(inspect(body, "reject"), read_members(body))
    assert refused is not None
    assert (refused.code, refused.param) == ("hygiene_rejected", member)
    assert CODES[refused.code].status == 400
    assert f"(rule {rule})" in refused.message
    assert refused.message.startswith(f"{member} holds ")
    assert "secret" not in refused.message


def test_halves_of_characters_are_refused_though_no_member_can_be_read() -> None:
    body = rb'{"messages":[{"content":"secret \ud83d"}]}'
    with pytest.raises(InvalidJson):
        read_members(body)
    refused = refusal(inspect(body, "reject"), None)
    assert refused is not None
    assert refused.message.startswith("the body holds half a character")
    assert (refused.param, "secret" in refused.message) == (None, False)
    repaired = inspect(body, "repair").repaired
    assert repaired is not None
    assert "messages" in read_members(repaired).values


@pytest.mark.parametrize("text", ["plain", "\\u200b\\ufeff\\ufffd\\u202e", "é"])
def test_what_no_repair_would_change_is_not_refused(text: str) -> None:
    body = f'{{"prompt":"{text}"}}'.encode()
    assert refusal(inspect(body, "reject"), read_members(body)) is None
