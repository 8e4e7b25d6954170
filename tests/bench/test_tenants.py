"""The measurement of one bad tenant, short: it sees him moved and back, and a pool without degrading."""

from bench import tenants
from bench.callers import BAD, Plan, Way, arrivals
from bench.crowd import Stage

SHORT = Plan(tenants=20, engines=1, calls_per_s=0.6, before_s=40.0, bad_s=90.0, after_s=600.0, ttl_s=60.0)


def test_one_whose_calls_fail_is_moved_comes_back_and_nobody_else_is() -> None:
    seen = Stage(SHORT, "errors", 3).run()
    assert 0.0 < seen.moved_s < SHORT.bad_s
    assert 0.0 <= seen.returned_s < SHORT.after_s
    assert (seen.strangers, seen.errors) == (0, 0.0)
    assert 0.0 < seen.bad_errors < 1.0


def test_with_all_well_nobody_is_moved_and_no_call_is_lost() -> None:
    seen = Stage(SHORT, "well", 3).run()
    assert (seen.moves, seen.strangers, seen.errors, seen.bad_errors) == (0, 0, 0.0, 0.0)


def test_the_others_send_the_same_whatever_he_does() -> None:
    def others(way: Way) -> list[tuple[float, int, int]]:
        return [(job.at_s, job.prompt, job.output) for job in arrivals(SHORT, way, 3) if job.tenant != BAD]

    assert all(others(way) == others("well") for way in tenants.WAYS)


def test_a_flood_is_seen() -> None:
    well, flood = (Stage(SHORT, way, 3).run() for way in tenants.WAYS if way in ("well", "flood"))
    assert flood.bad_calls > 5 * well.bad_calls
    assert flood.p99_s > 1.01 * well.p99_s


def test_the_median_is_judged() -> None:
    assert tenants.Finding("flood", "x", (0.0, 0.5, 9.0), "%", 1.0).passed
    assert not tenants.Finding("flood", "x", (0.0, 1.5, 9.0), "%", 1.0).passed
