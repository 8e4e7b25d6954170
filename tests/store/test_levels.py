"""Reports of ladders in the store, and levels that people set there."""

from forebay.policy import LevelOverride
from forebay.store.contract import Page
from forebay.store.levels import Report, TimedLevel, fields_of_report, levels_of

NOW_S = 1_800_000_000


def test_a_report_is_readable_by_people_and_leaves_what_they_have_set() -> None:
    report = Report({"main": 2, "small": 0}, 7, 3, "2026-11-30T00:00:00.000Z")
    page = Page(NOW_S * 1000, {"old": b"1", "main": b"1", "override:node": b"2 1800000100", ":at": b"x"})
    assert fields_of_report(report, page) == {
        "old": None,
        "main": b"2",
        "small": b"0",
        ":epoch": b"7",
        ":seq": b"3",
        ":at": b"2026-11-30T00:00:00.000Z",
    }


def test_levels_need_an_end_within_a_week() -> None:
    fields = {
        "override:node": b"2 1800000100",
        "override:pool main": b"0 1800000200",
        "override:tenant a b": b"3 1800000300",
        "override:pool gone": b"1 1799999999",
        "override:pool ever": b"1",
        "override:pool far": b"1 1900000000",
        "override:pool high": b"4 1800000100",
        "override:pool ": b"1 1800000100",
        "override:model m": b"1 1800000100",
        "override:pool text": b"\xff",
        "main": b"1",
    }
    found = list(levels_of(Page(NOW_S * 1000, fields)))
    assert [one for one in found if isinstance(one, TimedLevel)] == [
        TimedLevel(LevelOverride("node", "", 2), 1_800_000_100.0),
        TimedLevel(LevelOverride("pool", "main", 0), 1_800_000_200.0),
        TimedLevel(LevelOverride("tenant", "a b", 3), 1_800_000_300.0),
    ]
    assert {one.removeprefix("override:") for one in found if isinstance(one, str)} == {
        "pool ever", "pool far", "pool high", "pool ", "model m", "pool text",
    }  # fmt: skip
