"""JSON texts, written in all the ways that JSON allows."""

import json

from hypothesis import strategies as st

space = st.text(" \t\n\r", max_size=3)
char = st.one_of(
    st.sampled_from('ab"\\/{}[]:,u0 \n'), st.characters(exclude_categories=("Cs",)), st.sampled_from("é🚀\ufeff\u2028")
)


@st.composite
def spellings(draw: st.DrawFn, text: str) -> str:
    """One of the many ways to write a string in JSON."""
    pieces = []
    for c in text:
        plain = json.dumps(c, ensure_ascii=False)[1:-1]
        escaped = json.dumps(c, ensure_ascii=True)[1:-1]
        units = c.encode("utf-16-be")
        hexed = "".join(f"\\u{units[i : i + 2].hex()}" for i in range(0, len(units), 2))
        choices = [plain, escaped, hexed, hexed.upper().replace("\\U", "\\u")]
        if c == "/":
            choices.append("\\/")
        pieces.append(draw(st.sampled_from(choices)))
    return '"' + "".join(pieces) + '"'


string_text = st.text(char, max_size=6).flatmap(spellings)
number_text = st.sampled_from(
    ["0", "-0", "1", "12", "1.0", "1e5", "1E+05", "-1.50e-3", "123456789012345678901234567890", "0.1000000000000000055"]
)
scalar_text = st.one_of(string_text, number_text, st.sampled_from(["true", "false", "null", "{}", "[]", "[ ]"]))


def array_text(items: list[tuple[str, str, str]]) -> str:
    return "[" + ",".join(before + item + after for before, item, after in items) + "]"


def object_text(items: list[tuple[str, str, str]]) -> str:
    # Keys by position: nested duplicates are another test's business.
    return "{" + ",".join(f'{before}"{at}"{after}:{item}' for at, (before, item, after) in enumerate(items)) + "}"


value_text = st.recursive(
    scalar_text,
    lambda inner: st.lists(st.tuples(space, inner, space), max_size=4).flatmap(
        lambda items: st.sampled_from([array_text(items), object_text(items)])
    ),
    max_leaves=8,
)
