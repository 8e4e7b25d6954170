"""The text format reader: what it must understand, and that nothing makes it fail."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Gauge, generate_latest

from forebay.engines.prometheus import MAX_PAGE_BYTES, by_label, max_of, read_samples, sum_of

WANTED = frozenset({"m", "a:b_c"})


def values(page: str) -> list[float]:
    return [sample.value for sample in read_samples(page.encode(), WANTED).get("m", [])]


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ("m 1", 1.0),
        ("m 1.5e3", 1500.0),
        ("m\t2.0", 2.0),
        ("m{} 3", 3.0),
        ('m{a="x"} 4 1700000000000', 4.0),
        ('m{a="x",} 5', 5.0),
        ('m { a = "x" , b = "y" } 6'.replace("m {", "m{"), 6.0),
        ("m +Inf", math.inf),
        ("m -Inf", -math.inf),
        ('m{a="x"} 7 # {trace_id="1"} 0.5', 7.0),
        ("m 8\r", 8.0),
    ],
)
def test_values_are_read(line: str, value: float) -> None:
    assert values(f"# HELP m About m.\n# TYPE m gauge\n{line}\n") == [value]


def test_nan_is_kept_as_nan_and_ignored_by_folds() -> None:
    samples = read_samples(b"m NaN\nm 2\n", WANTED)["m"]
    assert math.isnan(samples[0].value)
    assert (sum_of(samples), max_of(samples)) == (2.0, 2.0)
    assert sum_of(samples[:1]) is None
    assert max_of(samples[:1]) is None


def test_nothing_is_no_zero() -> None:
    assert read_samples(b"# HELP m About m.\n# TYPE m gauge\nother 3\nm_total 4\nmm 5\n", WANTED) == {}
    assert sum_of(()) is None


def test_escapes_and_braces_in_label_values() -> None:
    page = 'm{path="C:\\\\x",quote="say \\"hi\\"",nl="a\\nb",brace="{a}, b=\\"c\\"",zh="模型"} 1\n'
    assert read_samples(page.encode(), WANTED)["m"][0].labels == {
        "path": "C:\\x",
        "quote": 'say "hi"',
        "nl": "a\nb",
        "brace": '{a}, b="c"',
        "zh": "模型",
    }


@pytest.mark.parametrize(
    "line", ["m", "m x", 'm{a="x" 1', "m{a=x} 1", 'm{a="x"}', "m{", 'm{a="x"b} 1', "# m 1", "{m} 1"]
)
def test_a_bad_line_loses_only_itself(line: str) -> None:
    assert values(f"m 1\n{line}\nm 2\n") == [1.0, 2.0]


def test_a_page_that_is_cut_off_keeps_its_whole_lines() -> None:
    assert values('m{a="x"} 1\nm{a="y"') == [1.0]


def test_grouping_by_label() -> None:
    samples = read_samples(b'm{r="0"} 1\nm{r="1"} 2\nm{r="0"} 3\nm 4\n', WANTED)["m"]
    assert {k: [s.value for s in v] for k, v in by_label(samples, "r").items()} == {"0": [1, 3], "1": [2], "": [4]}


def test_the_page_is_bounded() -> None:
    line = b"m 1\n"
    assert len(read_samples(line * (MAX_PAGE_BYTES // len(line)), WANTED)["m"]) == MAX_PAGE_BYTES // len(line)
    with pytest.raises(ValueError, match="bytes"):
        read_samples(b"#" * (MAX_PAGE_BYTES + 1), WANTED)


@given(st.binary(max_size=200))
def test_no_bytes_make_it_fail(page: bytes) -> None:
    read_samples(b"m" + page, WANTED)


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.text(max_size=20), min_size=3), st.floats())
def test_it_reads_what_the_official_client_writes(labels: dict[str, str], value: float) -> None:
    registry = CollectorRegistry()
    Gauge("m", "About m.", sorted(labels), registry=registry).labels(**labels).set(value)
    try:
        page = generate_latest(registry)
    except UnicodeEncodeError:  # a lone surrogate cannot be written
        return
    (sample,) = read_samples(page, WANTED)["m"]
    assert sample.labels == labels
    assert sample.value == value or (math.isnan(sample.value) and math.isnan(value))
