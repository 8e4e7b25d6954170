"""What Forebay asks engines for beside calls is left alone for a while when it fails."""

from forebay.routing.errands import POLICY, Errands, LeftAlone


def fail(errands: Errands, count: int, now_s: float = 0.0, replica: str = "a") -> None:
    for _ in range(count):
        errands.begin("count", replica, now_s)
        errands.ended("count", replica, False, now_s)


def test_what_fails_is_left_alone_and_nothing_else_is() -> None:
    errands = Errands()
    fail(errands, POLICY.failures - 1)
    assert errands.may("count", "a", 0.0)
    fail(errands, 1)
    assert not errands.may("count", "a", 1.0)
    assert errands.may("telemetry", "a", 1.0) and errands.may("count", "b", 1.0)
    assert list(errands.left_alone(1.0)) == [LeftAlone("count", "a", POLICY.open_s - 1.0)]


def test_it_is_tried_again_one_at_a_time_and_rests_twice_as_long_when_it_fails() -> None:
    errands = Errands()
    fail(errands, POLICY.failures)
    assert errands.may("count", "a", 10.0)
    errands.begin("count", "a", 10.0)
    assert not errands.may("count", "a", 10.0)
    errands.ended("count", "a", False, 10.0)
    assert not errands.may("count", "a", 29.9) and errands.may("count", "a", 30.0)
    errands.begin("count", "a", 30.0)
    errands.ended("count", "a", True, 30.0)
    assert list(errands.left_alone(30.0)) == [] and errands.may("count", "a", 30.0)


def test_one_that_works_now_and_then_is_not_left_alone() -> None:
    errands = Errands()
    for _ in range(10):
        fail(errands, POLICY.failures - 1)
        errands.ended("count", "a", True, 0.0)
    assert errands.may("count", "a", 0.0)


def test_replicas_that_are_gone_are_forgotten() -> None:
    errands = Errands()
    fail(errands, POLICY.failures)
    errands.keep(frozenset(("b",)))
    assert errands.may("count", "a", 0.0)
