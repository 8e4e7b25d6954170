"""YAML text to values and lines; nothing that is written there may end the process or come back in a fault."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from forebay.config.faults import Faults, path_of
from forebay.config.source import read_yaml
from forebay.errors import ConfigError


def read(text: str) -> tuple[Any, Faults]:
    faults = Faults("f.yaml")
    return read_yaml(text.encode(), faults), faults


def test_values_and_lines() -> None:
    text = "a: 1\nb:\n  - x\n  - {c: yes,\n     d: ~}\ne: 2026-11-30\nf: !!str 5\n3: 0x10\n'on': 1.5\n"
    value, faults = read(text)
    assert value == {"a": 1, "b": ["x", {"c": True, "d": None}], "e": "2026-11-30", "f": "5", "3": 16, "on": 1.5}
    lines = {("a",): 1, ("b",): 2, ("b", 0): 3, ("b", 1): 4, ("b", 1, "d"): 5, ("e",): 6, ("on",): 9}
    assert {loc: faults.line_of(loc) for loc in lines} == lines
    assert faults.line_of(("b", 1, "not there", 3)) == 4
    faults.raise_if_any()


def test_a_value_after_an_anchor_has_the_line_of_the_key() -> None:
    _, faults = read("a: &x\n  b: 1\nc: *x\n")
    assert faults.line_of(("c",)) == 3


@pytest.mark.parametrize(
    ("loc", "path"),
    [
        ((), "file"),
        (("timeouts", "stall_s"), "timeouts.stall_s"),
        (("pools", "main", "replicas", 0, "url"), "pools.main.replicas[0].url"),
        (("models", "qwen2.5", "pool"), 'models["qwen2.5"].pool'),
        (("models", "模型"), 'models["模型"]'),
        (("models", "a\nb"), 'models["a\\nb"]'),
        (("models", "m-7_b", "pool"), "models.m-7_b.pool"),
        (("tenants", 0, "api_key:sk-1"), "tenants[0].(a key that is not shown)"),
        (("sk-1",), "(a key that is not shown)"),
    ],
)
def test_paths(loc: tuple[str | int, ...], path: str) -> None:
    assert path_of(loc) == path


# PyYAML's own writer loses the rarer line ends.
TEXT = st.characters(codec="utf-8", exclude_characters="\x85\u2028\u2029")
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(TEXT, max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(TEXT, max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(values)
def test_what_yaml_writes_is_read_back(value: Any) -> None:
    found, faults = read(yaml.safe_dump({"v": value}, allow_unicode=True))
    assert found == {"v": value}
    faults.raise_if_any()


@given(st.text(alphabet="ab:-[]{},&*!|>'\"%@`#? \n\t~<=1.", max_size=40))
def test_any_text_is_read_or_is_a_fault_of_one_line(text: str) -> None:
    value, faults = read(text)
    if value is None:
        with pytest.raises(ConfigError) as caught:
            faults.raise_if_any()
        assert all(fault.startswith("f.yaml:") and "\n" not in fault for fault in caught.value.faults)


@given(
    st.sampled_from(["*", "&", "!", "%", "@", "`", "'", '"', "[", "{", "|", ">", "? ", "- ", ": ", ""]),
    st.text("ab:,]} ", max_size=6),
)
def test_no_fault_repeats_a_value(sign: str, rest: str) -> None:
    _, faults = read(f"keys: {sign}CANARY-1{rest}\nb: {sign}CANARY-1\n")
    try:
        faults.raise_if_any()
    except ConfigError as error:
        assert "CANARY" not in str(error)
