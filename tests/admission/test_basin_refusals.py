"""The queues before the fleet: who is refused, when, and what he is told."""

from collections import Counter

from admission.before_gate import (
    KNOWN,
    LATENCY,
    START_S,
    Site,
    at_rest,
    call,
    codes,
    pool,
    tenants,
)

from forebay.domain import Value
from forebay.policy import PROMPT, Admission, Capacity, ClassPolicy

# bounds of the queue


def test_a_full_queue_turns_away_the_least_worth_first() -> None:
    site = Site(pool(room=1, queue=10))
    site.offer(call("a"))
    site.offer(*[call("a", value="low") for _ in range(8)])
    site.offer(*[call("a", value="medium") for _ in range(5)])
    site.offer(*[call("a", value="high") for _ in range(5)])
    assert Counter(one.value for one, _ in site.refused) == {"low": 2, "medium": 2, "high": 4}
    assert codes(site) == {"queue_full": 8}
    assert all(refusal.retry_after_s == 1 for _, refusal in site.refused)
    assert site.gauges()[0] == {"main": 10}
    assert site.gauges()[1]["a"] == 11
    site.run(100.0)
    at_rest(site)


def test_who_has_most_waiting_gives_way_to_a_tenant_with_few() -> None:
    site = Site(pool(room=1, queue=10))
    site.offer(*[call("f", value="high") for _ in range(11)])
    site.offer(call("a", value="high"))
    assert [one.tenant.name for one, _ in site.refused] == ["f"]
    site.offer(*[call("a", value="high") for _ in range(20)])
    granted, refused = tenants(site)
    # Half of the room each, at last.
    assert refused == {"f": 5, "a": 16}
    assert site.queue().tenants() == {"f": 5, "a": 5}
    site.run(100.0)
    at_rest(site)


# early refusal


def test_nobody_is_refused_early_while_the_speed_is_unknown() -> None:
    site = Site(pool(room=1, queue=1000), admission=LATENCY)
    site.offer(*[call("a", 500_000) for _ in range(100)])
    assert not site.refused


def test_with_a_known_speed_what_cannot_come_in_time_is_refused_at_once() -> None:
    site = Site(pool(room=None, queue=1000, capacity=KNOWN), admission=LATENCY)
    # A second and a half is promised: 15,000 tokens, less a tenth of reserve.
    site.offer(*[call("a", 1000) for _ in range(40)])
    assert 10 <= len(site.granted) + site.queue().size <= 15
    assert codes(site) == {"overloaded": 40 - len(site.granted) - site.queue().size}
    assert all(refusal.retry_after_s == 1 for _, refusal in site.refused)


def test_nobody_is_refused_for_its_own_size_alone() -> None:
    site = Site(pool(room=None, queue=1000, capacity=KNOWN), admission=LATENCY)
    site.offer(call("a", 10_000_000))
    assert site.order() == "a"
    other = Site(pool(room=None, queue=1000, capacity=KNOWN), admission=LATENCY)
    other.offer(call("s", 1000), call("l", 1_000_000))
    other.run(5.0)
    assert not other.refused
    assert other.order() == "sl"


def test_the_preset_throughput_never_refuses_early() -> None:
    site = Site(pool(room=None, queue=1000, capacity=KNOWN))
    site.offer(*[call("a", 100_000) for _ in range(20)])
    site.run(300.0)
    assert not site.refused
    at_rest(site)


def test_a_flood_takes_no_place_of_a_tenant_that_asks_for_less_than_its_part() -> None:
    site = Site(pool(room=None, queue=1000, capacity=KNOWN), admission=LATENCY)
    site.every(0.01, 0.0, 30.0, lambda: call("f", 300))
    # A period that falls into step with neither the flood nor the engine.
    site.every(0.3071, 0.003, 30.0, lambda: call("a", 300))
    site.run(60.0)
    granted, refused = tenants(site)
    assert refused["f"] > 1000
    assert refused["a"] <= 1
    assert granted["f"] > 500
    at_rest(site)


def test_retry_after_is_about_the_time_until_the_queue_is_empty() -> None:
    site = Site(pool(room=None, queue=200, capacity=KNOWN))
    site.offer(*[call(f"t{number}", 2000) for number in range(400)])
    waiting_tokens, _ = site.queue().ahead("low", long=True)
    assert codes(site)["queue_full"] > 100
    drain_s = waiting_tokens / 10_000.0
    for one, refusal in site.refused[-20:]:
        assert refusal.retry_after_s is not None
        assert drain_s - 1 <= refusal.retry_after_s <= 1.25 * drain_s + 3, one
    assert len({refusal.retry_after_s for _, refusal in site.refused[-20:]}) > 1, "not all at once"


def test_a_call_that_waited_too_long_is_refused_at_the_head() -> None:
    patient: dict[Value, ClassPolicy] = {
        value: ClassPolicy(rule.target_s, rule.long_target_s, 60.0, 0.3) for value, rule in PROMPT.items()
    }
    admission = Admission("latency", patient, refuses_early=True)
    site = Site(pool(room=1, capacity=KNOWN), admission=admission, answer_s=3.0)
    site.offer(call("a"), call("b"))
    assert not site.refused
    site.run(4.0)
    assert codes(site) == {"overloaded": 1}
    at_rest(site)


# the end of a wait


def test_at_the_end_of_its_wait_high_goes_beyond_the_hold_and_others_are_refused() -> None:
    admission = Admission("latency", PROMPT)
    site = Site(pool(room=3, capacity=Capacity(10_000.0, streams=1)), admission=admission, answer_s=100.0)
    site.offer(call("a"))
    for value in ("high", "medium", "low"):
        site.offer(call("b", value=value))  # type: ignore[arg-type]
    site.run(0.15)
    assert site.order() == "a"
    site.run(0.35)
    assert site.order() == "ab"
    site.run(0.9)
    assert not site.refused
    site.run(1.15)
    assert [(one.value, refusal.code) for one, refusal in site.refused] == [("medium", "queue_timeout")]
    site.run(10.2)
    assert [(one.value, refusal.code) for one, refusal in site.refused][1:] == [("low", "queue_timeout")]
    site.offer(*[call("b", value="high") for _ in range(3)])
    site.run(11.0)
    assert site.order() == "abb", "never beyond the configured limit"
    assert [(one.value, refusal.code) for one, refusal in site.refused][2:] == [("high", "queue_timeout")] * 2
    assert all(refusal.retry_after_s is not None and refusal.retry_after_s >= 1 for _, refusal in site.refused)


def test_nobody_waits_beyond_the_deadline_of_the_call() -> None:
    site = Site(pool(room=1), answer_s=100.0)
    site.offer(call("a"), call("b", deadline_s=START_S + 5.0))
    site.run(4.9)
    assert not site.refused
    site.run(5.2)
    assert codes(site) == {"queue_timeout": 1}
