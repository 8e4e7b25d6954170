"""The measurement of the ladder, short: its bounds hold, and it can see a ladder that does not work."""

import random

import pytest

from bench import ladder
from bench.surge import Load, Stage, arrivals


def test_the_bounds_of_holding_health_and_agreement_hold() -> None:
    findings = [*ladder.held(random.Random(3), 900), ladder.healthy(random.Random(3), 600), ladder.agreement(3, 1800)]
    assert [finding for finding in findings if not finding.passed] == []


def test_a_surge_with_and_without() -> None:
    findings, arms = ladder.surge(3, Load(surge_s=90, after_s=200))
    assert [finding for finding in findings if not finding.passed] == []
    assert arms["with"].degraded > 0.5 and arms["without"].degraded == 0
    assert 0 < arms["with"].moved < arms["with"].degraded


def test_a_quiet_hour_degrades_nobody() -> None:
    load = Load(calls_per_s=1.5, factor=1.0, before_s=10, surge_s=60, after_s=30)
    found = Stage(load, arrivals(load, random.Random(3)), ladder.TERMS).run()
    assert (found.degraded, found.timeouts, found.levels) == (0.0, 0.0, (0,))


@pytest.mark.parametrize(("levels", "most"), [([0, 0], 0), ([1, 1], 1), ([0, 1, 0, 1], 3), ([0, *[1] * 700, 0], 1)])
def test_changes_are_counted_in_any_ten_minutes(levels: list[int], most: int) -> None:
    assert ladder.most_changes(levels) == most
