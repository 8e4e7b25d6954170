"""The hold, speeds and caches, what a call may expect, and replicas kept for short prompts."""

import pytest
from routing.before_pool import KNOWN, SPEED, Bench, call, learned

from forebay.policy import Admission, Capacity
from forebay.routing.outlook import UNKNOWN

# the hold


def test_the_hold_keeps_calls_here_and_a_second_try_passes_it() -> None:
    bench = Bench("a", capacity=KNOWN)
    assert bench.held(2000) is not None
    assert bench.held(1000) is None, "two tenths of a second are enough for an engine"
    assert bench.take(1000) is not None
    bench.clock.advance(10.0)
    # A tenth of what is under way is left until first tokens say otherwise.
    assert bench.held(1000) is not None


def test_a_replica_without_calls_takes_any() -> None:
    bench = Bench("a", capacity=Capacity(1.0, 100, 1))
    assert bench.held(1_000_000) is not None
    assert bench.held(1) is None


def test_the_hold_obeys_the_configured_limit_like_everybody() -> None:
    bench = Bench("a", max_in_flight=1)
    assert bench.held() is not None
    assert bench.held() is None
    assert bench.take() is None


# speeds and caches


def test_a_slower_replica_gets_less() -> None:
    bench = Bench("a", "b")
    learned(bench, "a", 8000.0)
    learned(bench, "b", 2000.0)
    bench.fleet.tick()
    got = [bench.taken(100) for _ in range(9)]
    assert (got.count("a"), got.count("b")) == (6, 3)


@pytest.mark.parametrize("factor", [1.0, 1.2])
def test_replicas_of_about_the_same_speed_take_turns(factor: float) -> None:
    bench = Bench("a", "b")
    learned(bench, "a", 8000.0)
    learned(bench, "b", 8000.0 * factor)
    bench.fleet.tick()
    assert sorted(bench.taken(100) or "" for _ in range(10)) == ["a"] * 5 + ["b"] * 5


def test_a_replica_whose_speed_is_unknown_gets_its_part_and_is_learned() -> None:
    bench = Bench("a", "b")
    learned(bench, "a", 8000.0)
    bench.fleet.tick()
    assert sorted(bench.taken(100) or "" for _ in range(10)) == ["a"] * 5 + ["b"] * 5


def test_a_replica_that_has_the_beginning_cached_has_less_to_do() -> None:
    bench = Bench("a", "b")
    blocks = (1, 2, 3)
    first = bench.held(2000, blocks=blocks)
    assert first is not None
    assert first.replica.name == "a"
    first.report(None, answered=True, cached_tokens=0)
    bench.into("b", 10).report(None, answered=True)
    bench.into("a", 10).report(None, answered=True)
    # It is a's turn no more, but half of the blocks' tokens are believed to be there.
    lease = bench.held(2000, blocks=blocks)
    assert lease is not None
    assert lease.replica.name == "a"
    assert bench.state("a").unprefilled_tokens == 2000 - 768


def test_a_prompt_is_long_by_what_no_replica_has_cached() -> None:
    bench = Bench("a", "b")
    blocks = tuple(range(8))
    assert not bench.fleet.is_long("main", call(2047, blocks=blocks))
    assert bench.fleet.is_long("main", call(4096, blocks=blocks))
    assert bench.fleet.is_long("other", call(4096, blocks=blocks))
    bench.state("b").prefixes.add(blocks)
    bench.state("b").prefixes.trust_ratio = 0.9
    assert not bench.fleet.is_long("main", call(4096, blocks=blocks))


def test_on_slow_engines_shorter_prompts_are_long() -> None:
    bench = Bench("a", "b")
    assert bench.fleet.long_tokens("main") == bench.fleet.long_tokens("other") == 2048
    bench.fleet.tick()
    assert not bench.fleet.is_long("main", call(1500)), "nothing is known of them"
    learned(bench, "a", 500.0)
    learned(bench, "b", 1000.0)
    bench.fleet.tick()
    # Half a second of the faster one.
    assert bench.fleet.long_tokens("main") == pytest.approx(500, rel=0.05)
    assert [bench.fleet.is_long("main", call(tokens)) for tokens in (450, 550)] == [False, True]
    bench.into("a", 600)
    assert bench.fleet.take("main", call(600), frozenset("b")) is None, "one long prompt at a time"
    assert bench.fleet.take("main", call(10), frozenset("b")) is None, "and the hold is full of it"
    bench.follow("a", "b")
    assert bench.fleet.long_tokens("main") == pytest.approx(500, rel=0.05), "a reload changes nothing"
    assert bench.fleet.long_tokens("other") == 2048


def test_the_lane_starts_no_later_than_configured() -> None:
    bench = Bench("a", capacity=Capacity(prefill_tokens_per_s=1000.0))
    bench.admission = Admission(long_prompt_tokens=100)
    bench.follow("a", capacity=Capacity(prefill_tokens_per_s=1000.0))
    bench.fleet.tick()
    assert bench.fleet.long_tokens("main") == 100
    bench.admission = Admission(long_prompt_tokens=1_000_000)
    bench.follow("a", capacity=Capacity(prefill_tokens_per_s=100_000.0))
    bench.fleet.tick()
    assert bench.fleet.long_tokens("main") == 50_000


# what a call may expect


def test_nothing_is_foreseen_until_all_speeds_are_known() -> None:
    bench = Bench("a", "b")
    assert bench.fleet.outlook("main", 100, 0.0, 0) is UNKNOWN
    learned(bench, "a", 8000.0)
    assert bench.fleet.outlook("main", 100, 0.0, 0) is UNKNOWN
    learned(bench, "b", 8000.0)
    assert bench.fleet.outlook("main", 800, 0.0, 0).first_token_s == pytest.approx(0.1, rel=0.05)
    assert bench.fleet.outlook("other", 100, 0.0, 0) is UNKNOWN


def test_a_first_token_comes_after_the_queue_the_backlog_and_the_call_itself() -> None:
    bench = Bench("a", "b", capacity=KNOWN)
    assert bench.fleet.outlook("main", 1000, 0.0, 0).first_token_s == pytest.approx(0.1)
    seen = bench.fleet.outlook("main", 1000, 40_000.0, 9)
    assert (seen.first_token_s, seen.alone_s, seen.drain_s) == pytest.approx((2.1, 0.1, 2.0))
    bench.into("a", 5000)
    bench.into("b", 2000)
    assert bench.fleet.outlook("main", 1000, 40_000.0, 9).first_token_s == pytest.approx(2.3)
    bench.follow("a", "b", capacity=KNOWN, drained=frozenset("b"))
    assert bench.fleet.outlook("main", 1000, 40_000.0, 9).first_token_s == pytest.approx(4.6)


def test_where_slots_have_a_number_a_call_waits_for_one() -> None:
    bench = Bench("a", capacity=Capacity(SPEED, streams=2))
    for _ in range(10):
        lease = bench.into("a", 10)
        bench.clock.advance(4.0)
        lease.report(None, answered=True)
    assert bench.fleet.outlook("main", 10, 0.0, 0).drain_s == 0.0
    leases = [bench.into("a", 1) for _ in range(2)]
    for lease in leases:
        lease.first_token()
    # Each slot is free every 4 s, so one of the two every 2 s.
    assert bench.fleet.outlook("main", 10, 10.0, 0).drain_s == pytest.approx(2.0, rel=0.01)
    assert bench.fleet.outlook("main", 10, 10.0, 9).drain_s == pytest.approx(20.0, rel=0.01)


# replicas for short prompts


def test_the_replicas_with_the_fewest_long_prompts_are_kept_for_short_ones() -> None:
    bench = Bench("a", "b", "c")
    bench.into("a", 5000)
    bench.into("c", 5000)
    bench.fleet.reserve("main", 1)
    assert [state.reserved for state in bench.fleet.states("main")] == [False, True, False]
    bench.into("b", 5000)
    bench.fleet.reserve("main", 1)
    assert bench.state("b").reserved, "it does not wander"
    assert bench.fleet.take("main", call(5000), frozenset("ac")) is None
    assert bench.fleet.take("main", call(500), frozenset("ac")) is not None
    bench.fleet.reserve("main", 0)
    assert not any(state.reserved for state in bench.fleet.states("main"))


def test_one_usable_replica_at_least_takes_long_prompts() -> None:
    bench = Bench("a", "b", "c", drained=frozenset("bc"))
    bench.fleet.reserve("main", 3)
    assert not bench.state("a").reserved
    bench.follow("a", "b", "c")
    bench.fleet.reserve("main", 3)
    assert [state.reserved for state in bench.fleet.states("main")].count(False) == 1
    bench.fleet.reserve("unheard-of", 3)


# whole answers, whose first token nobody sees


def test_prompts_of_whole_answers_count_as_computed_when_their_time_is_over() -> None:
    bench = Bench("a", capacity=KNOWN)
    leases = [bench.held(1000, stream=False) for _ in range(2)]
    assert None not in leases
    state = bench.state("a")
    bench.clock.advance(0.15)
    bench.fleet.tick()
    assert state.unprefilled_tokens == 1000
    assert state.backlog_tokens(bench.clock.now_s()) == 1000, "the progress so far was the first one's"
    bench.clock.advance(0.1)
    bench.fleet.tick()
    assert (state.unprefilled_tokens, state.in_flight) == (0, 2)
    for lease in leases:
        assert lease is not None
        lease.report(None, answered=True)
    assert not state.unseen
    assert state.speed.samples == 0, "nothing was seen, so nothing is learned"


def test_while_the_speed_is_unknown_a_whole_answers_prompt_counts_for_five_seconds() -> None:
    bench = Bench("a")
    assert bench.held(5000, stream=False) is not None
    for seconds, tokens in ((4.9, 5000), (0.2, 0)):
        bench.clock.advance(seconds)
        bench.fleet.tick()
        assert bench.state("a").unprefilled_tokens == tokens
    assert bench.state("a").long_in_flight == 1
    assert bench.state("a").long_prefills == 0


@pytest.mark.parametrize(
    ("replicas", "ids"),
    [
        ([(True, True), (True, True)], True),
        ([(True, True), (True, False)], False),
        ([(True, True), (None, False)], False),
        ([(True, True), (False, False)], True),
        ([(False, True), (False, False)], True),
        ([(False, False), (False, False)], False),
        ([(None, False), (None, False)], False),
    ],
    ids=["all", "one_cannot", "one_unknown", "one_never_up", "all_down", "none_ever_up", "at_start"],
)
def test_token_ids_are_asked_for_where_all_that_are_up_send_them(
    replicas: list[tuple[bool | None, bool]], ids: bool
) -> None:
    bench = Bench("a", "b")
    for name, (up, able) in zip("ab", replicas, strict=True):
        state = bench.state(name)
        state.up, state.token_ids = up, able
    assert bench.fleet.token_ids("main") is ids
