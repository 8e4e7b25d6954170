"""The page about metrics is complete, and names follow the conventions."""

import re
from pathlib import Path

import pytest

from forebay.recording.families import FAMILIES, Family

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "metrics.md").read_text(encoding="utf-8")
ROWS = {
    name: (kind, labels) for name, kind, labels in re.findall(r"^\| `(\w+)` \| (\w+) \|([^|]*)\|", PAGE, re.MULTILINE)
}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_is_documented_with_type_and_labels(family: Family) -> None:
    kind, labels = ROWS[family.name]
    assert kind == family.type
    assert tuple(re.findall(r"`(\w+)`", labels)) == family.labels


def test_nothing_is_documented_that_does_not_exist() -> None:
    assert set(ROWS) == {family.name for family in FAMILIES}


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_names_follow_the_conventions(family: Family) -> None:
    assert family.name.startswith(("forebay_", "gen_ai_"))
    assert family.name.endswith("_total") == (family.type == "counter")
    assert bool(family.bounds_s) == (family.type == "histogram")
    assert list(family.bounds_s) == sorted(set(family.bounds_s))
