"""The queues before the fleet: who goes in, and that nobody waits for ever."""

from random import Random

import pytest
from admission.before_gate import KNOWN, LATENCY, LONG_TOKENS, START_S, Site, at_rest, call, pool, tenants

from forebay.admission.gate import LocalPermit
from forebay.admission.queue import Waiting
from forebay.domain import VALUES, FailureKind, Spend
from forebay.errors import Refused
from forebay.policy import BreakerPolicy, Capacity
from forebay.traffic import Work, changed

# order on engines


def test_a_flood_of_ten_times_the_calls_does_not_delay_the_others() -> None:
    waits = []
    for flood in (False, True):
        site = Site(pool(room=None, queue=10_000, capacity=KNOWN))
        # 2,000 tokens a second of two tenants; the third alone asks for twice what the engine can do.
        for name in "ab":
            site.every(0.3, 0.0, 20.0, lambda name=name: call(name, 300))
        if flood:
            site.every(0.015, 0.0, 20.0, lambda: call("f", 300))
        site.run(20.0)
        waits.append([at_s - START_S for at_s, one in site.granted if one.tenant.name in "ab"])
    alone, flooded = waits
    assert len(alone) == len(flooded)
    assert max(later - at_s for at_s, later in zip(alone, flooded, strict=True)) < 0.3


def test_high_is_not_kept_out_by_a_burst_of_medium() -> None:
    site = Site(pool(room=None, queue=10_000, capacity=KNOWN))
    site.every(0.04, 0.0, 40.0, lambda: call("h", 500, value="high"))
    site.at(30.0, lambda: site.offer(*[call("m", 500) for _ in range(200)]))
    site.run(40.0)
    high = [at_s for at_s, one in site.granted if one.value == "high" and at_s >= START_S + 30.0]
    assert max(later - at_s for at_s, later in zip(high, high[1:], strict=False)) < 0.5
    assert any(one.value == "medium" for _, one in site.granted)


@pytest.mark.parametrize("capacity", [KNOWN, Capacity(), Capacity(10_000.0, kv_tokens=10_000)])
def test_long_prompts_get_in_while_short_ones_keep_an_engine_busy(capacity: Capacity) -> None:
    site = Site(pool(room=None, queue=100_000, capacity=capacity))
    dice = Random(1)
    # Twelve tenths of what the engine can do, in short prompts alone.
    site.every(0.01, 0.0, 60.0, lambda: call("s", dice.choice((40, 80, 160, 200))))
    for _ in range(20):
        site.offer(call("l", LONG_TOKENS))
    site.run(60.0)
    tokens = {name: sum(c.prompt_tokens for _, c in site.granted if c.tenant.name == name) for name in "sl"}
    assert tokens["l"] / (tokens["s"] + tokens["l"]) == pytest.approx(0.1, abs=0.04)
    assert site.most_long_prefills == 1


def test_long_prompts_go_in_one_at_a_time_and_short_ones_pass() -> None:
    site = Site(pool(room=None, replicas=2, capacity=KNOWN))
    site.offer(*[call("l", LONG_TOKENS) for _ in range(4)])
    site.offer(*[call("s", 100) for _ in range(2)])
    assert site.order() == "ll"
    site.run(10.0)
    assert site.most_long_prefills == 1
    at_rest(site)


def test_a_blocked_long_prompt_hides_no_short_one() -> None:
    site = Site(pool(room=None, queue=100))
    # Speed is unknown: only the long prompt that is being computed keeps the other one out.
    site.offer(*[call("l", LONG_TOKENS) for _ in range(2)])
    site.offer(*[call("s", 100) for _ in range(5)])
    assert site.order() == "lsssss"


def test_long_prompts_leave_a_slot_to_short_ones() -> None:
    for limits in ({"room": None, "capacity": Capacity(streams=3)}, {"room": 3}):
        site = Site(pool(queue=100, **limits), answer_s=1000.0)  # type: ignore[arg-type]
        site.offer(*[call("l", LONG_TOKENS) for _ in range(5)])
        site.run(20.0)
        assert site.order() == "ll"
        site.offer(call("s"))
        assert site.order() == "lls"


def test_a_long_prompt_that_is_cached_is_short() -> None:
    site = Site(pool(room=None))
    blocks = tuple(range(16))
    cached = changed(call("c", LONG_TOKENS), work=Work(LONG_TOKENS, 0, 0, blocks=blocks))
    assert site.fleet.is_long("main", cached)
    site.offer(cached)
    site.run(10.0)
    for state in site.fleet.states():
        state.prefixes.trust_ratio = 1.0
    assert not site.fleet.is_long("main", cached)


# starvation


@pytest.mark.parametrize("seed", [1, 3, 5])
@pytest.mark.parametrize(("room", "capacity"), [(None, Capacity()), (None, Capacity(kv_tokens=12_000)), (4, KNOWN)])
def test_everybody_gets_in_when_calls_keep_ending(seed: int, room: int | None, capacity: Capacity) -> None:
    """Forty others wait at any time, of three tenants and all classes; three calls go in before 10,000 of them."""
    dice = Random(seed)
    site = Site(pool(room=room, queue=100, replicas=dice.randint(1, 2), capacity=capacity))

    def refill() -> None:
        while site.queue().size < 40:
            tokens = dice.choice((20, 100, 400)) if dice.random() < 0.98 else 5000
            site.offer(call(dice.choice("abc"), tokens, dice.randint(0, 100), dice.choice(VALUES)))

    refill()
    marked = [call("p", dice.choice((20, 1500, 9000)), 50, dice.choice(VALUES)) for _ in range(3)]
    site.offer(*marked)
    for step in range(5000):
        site.run(0.1 * step)
        refill()
        if tenants(site)[0]["p"] == 3 or len(site.granted) > 10_000:
            break
    assert tenants(site)[0]["p"] == 3
    assert not site.refused
    site.run(2000.0)
    at_rest(site)


# replicas that come and go


def test_whoever_waits_goes_in_when_a_replica_comes_back() -> None:
    replica = pool(room=1, replicas=2, breaker=BreakerPolicy(failures=1, open_s=5.0))
    site = Site(replica, answer_s=1000.0)
    permits: list[LocalPermit] = []
    refusals: list[Refused] = []

    def offer() -> Waiting | None:
        return site.gate.offer(call("a"), "main", permits.append, refusals.append)

    for _ in range(3):
        offer()
    assert len(permits) == 2
    lease, permits[0].lease = permits[0].lease, None
    assert lease is not None
    lease.report(FailureKind.RESET, answered=False)
    permits[0].release(None)
    site.run(4.9)
    assert len(permits) == 2, "its breaker is open"
    site.run(5.2)
    assert len(permits) == 3
    assert not refusals


def test_with_no_replica_left_nobody_waits() -> None:
    site = Site(pool(room=1), answer_s=1000.0)
    permits: list[LocalPermit] = []
    for _ in range(3):
        site.gate.offer(call("a"), "main", permits.append, pytest.fail)
    assert len(permits) == 1
    site.follow(pool(room=1, drained=1))
    assert [permit.lease is None for permit in permits] == [False, True, True]
    site.gate.offer(call("a"), "main", permits.append, pytest.fail)
    assert len(permits) == 4
    for permit in permits:
        permit.release(Spend(0))
    assert site.gauges() == ({"main": 0}, {"a": 0})


def test_a_pool_that_is_gone_leaves_nothing_behind() -> None:
    site = Site(pool(room=1), pool("other"))
    permits: list[LocalPermit] = []
    for _ in range(3):
        site.gate.offer(call("a"), "main", permits.append, pytest.fail)
    site.follow(pool("other"))
    assert len(permits) == 3
    assert [name for name, _ in site.gate.basin.queues()] == ["other"]
    for permit in permits:
        permit.release(None)
    assert site.gauges() == ({"other": 0}, {"a": 0})


def test_a_pool_can_be_served_from_within_the_grant_of_another() -> None:
    site = Site(pool(room=1), pool("other", room=1))
    others: list[LocalPermit] = []
    for _ in range(2):
        site.gate.offer(call("b"), "other", others.append, pytest.fail)
    first: list[LocalPermit] = []
    site.gate.offer(call("a"), "main", first.append, pytest.fail)
    site.gate.offer(call("a"), "main", lambda _: others[0].release(None), pytest.fail)
    first[0].release(None)
    assert len(others) == 2


def test_a_grant_that_frees_its_room_at_once_lets_the_next_in_without_nesting() -> None:
    site = Site(pool(room=1, queue=5000))
    ends: list[int] = []
    site.gate.offer(call("a"), "main", (first := []).append, pytest.fail)
    for number in range(3000):
        site.gate.offer(call("a"), "main", lambda permit, n=number: (ends.append(n), permit.release(None)), pytest.fail)
    first[0].release(None)
    assert ends == list(range(3000))
    assert site.load() == [(0,) * 6]


# replicas kept for short prompts


def late_site() -> Site:
    """A site whose short calls are late, on two replicas."""
    site = Site(pool(room=None, queue=10_000, replicas=2, capacity=KNOWN), admission=LATENCY)
    site.every(0.01, 0.0, 30.0, lambda: call("s", 300, value="low"))
    return site


def test_replicas_are_kept_for_short_prompts_while_those_are_late_and_lent_out_again() -> None:
    site = late_site()
    site.run(20.0)
    assert [state.reserved for state in site.fleet.states()].count(True) == 1
    site.run(90.0)
    assert not any(state.reserved for state in site.fleet.states())
    at_rest(site)


def test_a_policy_without_the_reserve_gives_the_replicas_back() -> None:
    site = late_site()
    site.run(20.0)
    site.follow(pool(room=None, queue=10_000, replicas=2, capacity=KNOWN))
    assert not any(state.reserved for state in site.fleet.states())


def test_the_last_replica_is_never_kept_from_long_prompts() -> None:
    site = late_site()
    site.run(20.0)
    for drained in (0, 1):
        site.follow(pool(room=None, queue=10_000, replicas=2, capacity=KNOWN, drained=drained), admission=LATENCY)
        site.run(21.0 + drained)
        takers = [s for s in site.fleet.states() if not s.reserved and not s.drained]
        assert len(takers) == 1


# charges


def test_what_a_call_used_less_than_foreseen_comes_back_but_no_more() -> None:
    site = Site(pool(room=1))
    permits: list[LocalPermit] = []
    for name in "abc":
        site.gate.offer(call(name, 100, 50), "main", permits.append, pytest.fail)
    counters = site.queue()._counters
    permits[0].release(None)
    assert counters["b"] == 200
    permits[1].release(Spend(120))
    assert counters["b"] == pytest.approx(140)
    permits[2].release(Spend(0))
    assert counters["c"] == 0
    before = dict(counters)
    permits[0].release(Spend(9999))
    permits[1].release(Spend(9999))
    assert counters == before


def test_breaking_off_calls_gains_a_tenant_no_more_than_what_they_did_not_use() -> None:
    site = Site(pool(room=1, queue=1000))
    permits: list[LocalPermit] = []
    used = {"a": 0, "b": 0}
    for number in range(100):
        for name in "ab":
            site.gate.offer(call(name, 1000, 10), "main", permits.append, pytest.fail)
        tenant = permits[-1]._call.tenant.name
        tokens = 0 if tenant == "a" and number % 2 else 1010
        used[tenant] += tokens
        permits[-1].release(Spend(tokens))
    assert len(permits) > 100
    assert abs(used["a"] - used["b"]) <= 2 * 1020


def test_only_short_calls_that_went_in_tell_of_an_engine_that_ran_dry() -> None:
    site = Site(pool(room=1, capacity=KNOWN))
    told = []
    pump = site.gate.basin.pump

    def listen(name: str) -> bool:
        told.append(pump(name))
        return told[-1]

    site.fleet.on_room = listen
    site.offer(*[call("l", LONG_TOKENS) for _ in range(3)])
    site.run(10.0)
    assert site.order() == "lll"
    assert told and not any(told), "a long prompt waits for the one before it, not for the hold"
    site.offer(call("s"), call("s"))
    site.run(20.0)
    assert any(told)
    at_rest(site)
