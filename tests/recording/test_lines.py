"""The page about the journal's fields is complete, and the contract's fields are there."""

import re
from pathlib import Path

import msgspec
import pytest

from forebay.domain import FailureKind, Outcome
from forebay.recording.lines import Attempt, CloseLine, OpenLine

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "records.md").read_text(encoding="utf-8")
CONTRACT = (
    "call_id request_id tenant model endpoint pool replica status outcome input_length output_length total_tokens "
    "cached_tokens usage_estimated queue_ms ttft_ms prefill_time_ms decode_time_ms total_ms kv_cache_hit "
    "block_table_size prompt_template_id client_address hygiene attempts"
).split()


def documented(heading: str) -> set[str]:
    """The fields in the table under a heading."""
    section = PAGE.split(f"\n## {heading}\n", 1)[1].split("\n## ", 1)[0]
    rows = re.findall(r"^\| (`[^|]+) \|", section, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`(\w+)`", row)}


@pytest.mark.parametrize(("heading", "line"), [("close", CloseLine), ("open", OpenLine), ("attempts", Attempt)])
def test_every_field_is_documented_and_nothing_else(heading: str, line: type[msgspec.Struct]) -> None:
    tag = {"kind"} if line.__struct_config__.tag else set()
    assert documented(heading) == {*line.__struct_fields__} | tag


@pytest.mark.parametrize("value", [*Outcome, *FailureKind])
def test_every_outcome_and_failure_is_documented(value: str) -> None:
    assert f"`{value}`" in PAGE


def test_the_contract_is_kept() -> None:
    assert set(CONTRACT) - set(CloseLine.__struct_fields__) == set()


def test_an_open_line_cannot_be_taken_for_a_close_line() -> None:
    assert "outcome" not in OpenLine.__struct_fields__
