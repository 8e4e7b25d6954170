"""The order of one tenant's calls and of tenants; how full the queue gets, and what it remembers."""

from collections import Counter
from random import Random

import pytest
from admission.before_gate import call
from admission.before_queue import Line
from hypothesis import given, settings
from hypothesis import strategies as st

from forebay.admission.queue import CREDIT_S, MAX_COUNTERS, Queue, Waiting
from forebay.domain import VALUES, Value
from forebay.policy import PATIENT


def names(served: list[Waiting]) -> str:
    return "".join(one.call.tenant.name for one in served)


# one tenant's calls


def test_calls_alike_go_in_as_they_came() -> None:
    line = Line()
    came = []
    for number in range(30):
        came.append(line.push())
        # Some come in the same moment.
        line.now_s += 0.01 * (number % 3)
    assert line.serve(30) == came


def test_a_small_call_overtakes_a_large_one_but_not_for_ever() -> None:
    line = Line()
    large = line.push(tokens=2000)
    small = line.push(tokens=10)
    assert line.serve(1) == [small]
    line.now_s += 4 * PATIENT["medium"].target_s + 0.01
    for _ in range(20):
        line.push(tokens=10)
    assert line.serve(1) == [large]


def test_what_must_be_answered_soon_goes_first() -> None:
    line = Line()
    line.push()
    urgent = line.push(deadline_s=100.2)
    assert line.serve(1) == [urgent]


# tenants


def test_two_tenants_get_the_same_tokens_whatever_their_sizes() -> None:
    line = Line()
    for _ in range(500):
        line.push("a", 50)
    for _ in range(50):
        line.push("b", 1900)
    line.serve(300)
    assert abs(line.tokens(tenant="a") - line.tokens(tenant="b")) <= 2 * 1900


def test_output_tokens_count_double() -> None:
    line = Line()
    for _ in range(100):
        line.push("a", 100, output=450)
        line.push("b", 100)
    line.serve(110)
    assert Counter(names(line.served)) == {"a": 10, "b": 100}


def test_a_tenant_with_ten_times_the_calls_delays_nobody_else() -> None:
    line = Line()
    for _ in range(500):
        line.push("f")
    line.serve(100)
    for _ in range(5):
        line.push("a")
        line.push("b")
    assert sorted(names(line.serve(15))) == sorted("fab" * 5)


@pytest.mark.parametrize("others_wait", [True, False])
@pytest.mark.parametrize("away_s", [0.0, 3600.0])
def test_who_comes_back_goes_first_for_a_bounded_time(others_wait: bool, away_s: float) -> None:
    line = Line()
    for _ in range(1000):
        line.push("b")
    line.serve(900 if others_wait else 1000)
    line.now_s += away_s
    for _ in range(100):
        line.push("a")
    for _ in range(100):
        line.push("b")
    got = names(line.serve(150))
    # When nobody has waited for a while b has a credit as well.
    credit = 0 if away_s and not others_wait else round(CREDIT_S / line.step_s)
    assert got.index("b") == pytest.approx(credit, abs=2)
    after = got[credit + 2 :]
    assert abs(after.count("a") - after.count("b")) <= 2


def test_credits_do_not_add_up() -> None:
    line = Line()
    for _ in range(1500):
        line.push("f")
    line.serve(500)
    # Each is measured by those before it, who wait with their credit.
    for number in range(30):
        line.push(f"t{number}")
    for _ in range(100):
        line.push("last")
    # Beyond its credit it takes turns with the flood.
    got = [one.call.tenant.name for one in line.serve(90)]
    assert got.count("last") <= (60 + CREDIT_S / line.step_s) / 2 + 2
    assert got.count("f") >= 15


def test_nobody_saves_up_before_it_is_known_how_fast_calls_go_in() -> None:
    line = Line()
    for _ in range(10):
        line.push("b")
    line.push("a")
    assert line.queue._counters["a"] == line.queue._counters["b"] == 0.0


def test_a_light_tenant_does_not_queue_behind_a_flood_when_it_comes_again_and_again() -> None:
    line = Line()
    for _ in range(2000):
        line.push("f")
    line.serve(200)
    for _ in range(50):
        burst = [line.push("a") for _ in range(3)]
        # Three of ten: less than half, so no part of the burst waits for the flood.
        assert line.serve(3) == burst
        line.serve(7)


def test_who_left_and_comes_back_at_once_gains_nothing() -> None:
    line = Line()
    for _ in range(100):
        line.push("b")
    for _ in range(100):
        line.push("a")
        line.serve(1)
    assert abs(names(line.served).count("a") - 50) <= 2


def test_a_correction_moves_a_tenants_turn() -> None:
    line = Line()
    for _ in range(100):
        line.push("a", output=100)
        line.push("b", output=100)
    line.serve(10)
    # It got far less than it was charged for.
    line.queue.settle("a", -600)
    assert names(line.serve(2)) == "aa"
    line.queue.settle("b", 3000)
    assert names(line.serve(10)) == "a" * 10


def test_the_counters_are_bounded() -> None:
    line = Line()
    for number in range(MAX_COUNTERS + 100):
        line.push(f"t{number}")
        line.serve(1)
    assert len(line.queue._counters) <= MAX_COUNTERS
    for number in range(MAX_COUNTERS + 100):
        line.push(f"t{number}")
    assert len(line.queue._counters) <= MAX_COUNTERS
    assert len(line.serve(MAX_COUNTERS + 100)) == MAX_COUNTERS + 100
    assert line.queue.size == 0


# how full


@pytest.mark.parametrize(("value", "ceiling"), [("low", 60), ("medium", 90), ("high", 100)])
def test_the_least_worth_is_turned_away_first(value: Value, ceiling: int) -> None:
    line = Line()
    for _ in range(ceiling - 1):
        line.push()
    assert not line.queue.overfull(value, 100)
    line.push()
    assert line.queue.overfull(value, 100)


def test_the_last_call_of_who_has_the_most_waiting_gives_way() -> None:
    line = Line()
    for _ in range(5):
        line.push("f")
        line.now_s += 0.01
    last = line.push("f")
    low = line.push("f", value="low")
    assert line.queue.evictable("a", "medium") is low
    assert line.queue.evictable("a", "low") is low
    line.queue.remove(low)
    assert line.queue.evictable("a", "medium") is last
    assert line.queue.evictable("a", "low") is None, "no call of a higher class"
    assert line.queue.evictable("f", "high") is None


def test_nobody_gives_way_to_who_has_about_as_many_waiting() -> None:
    line = Line()
    line.push("a")
    line.push("b")
    line.push("b")
    assert line.queue.evictable("a", "high") is None
    assert line.queue.evictable("c", "high") is not None
    assert Line().queue.evictable("a", "high") is None


# what a newcomer waits behind


def test_a_newcomer_waits_behind_its_lane_and_the_classes_above() -> None:
    line = Line()
    line.push(value="high", tokens=100)
    line.push(value="medium", tokens=200)
    line.push(value="low", tokens=400)
    line.push(value="medium", tokens=3000, long=True)
    assert line.queue.ahead("high", long=False) == (100, 1)
    assert line.queue.ahead("medium", long=False) == (300, 2)
    assert line.queue.ahead("low", long=False) == (700, 3)
    assert line.queue.ahead("low", long=True) == (3700, 4)


def test_a_newcomer_of_another_tenant_does_not_wait_behind_all_of_a_flood() -> None:
    line = Line()
    for _ in range(100):
        line.push("f", 100)
    tokens, calls = line.queue.ahead("medium", long=False, call=call("a", 100))
    assert (tokens, calls) == (pytest.approx(100), 1)
    assert line.queue.ahead("medium", long=False, call=call("f", 100)) == (10_000, 100)
    assert line.queue.ahead("low", long=False, call=call("a", 100, value="low")) == (10_000, 100)
    assert line.queue.size == 100


# memory


def test_calls_that_leave_from_deep_inside_are_not_kept() -> None:
    line = Line()
    first = line.push(deadline_s=100.0)
    for _ in range(5000):
        line.queue.remove(line.push())
    heap = line.queue._lanes[0]._heaps["medium"]["a"]
    assert len(heap.calls) <= 2 + 64 + 1
    line.queue.remove(first)
    assert not line.queue._lanes[0]._heaps["medium"]


def test_removing_twice_changes_nothing() -> None:
    line = Line()
    waiting, other = line.push(), line.push()
    line.queue.remove(waiting)
    line.queue.remove(waiting)
    assert line.queue.size == 1
    assert line.serve(2) == [other]


def test_a_call_that_was_never_pushed_is_not_removed() -> None:
    line = Line()
    line.queue.remove(Waiting(call(), "medium", False, PATIENT["medium"], 0.0))
    assert line.queue.size == 0
    assert set(line.queue.depths()) == {((lane, value), 0) for lane in ("short", "long") for value in VALUES}


def test_long_ago_and_far_away_are_no_trouble() -> None:
    line = Line()
    for seconds in (0.0, 1e9):
        line.now_s += seconds
        line.push(tokens=1)
        line.push(tokens=10**8, long=True)
    assert len(line.serve(4)) == 4


@settings(max_examples=100, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(("push", "push", "push", "serve", "leave", "leave", "settle", "wait")),
            st.sampled_from("abc"),
            st.sampled_from(VALUES),
            st.booleans(),
            st.integers(1, 5000),
        ),
        max_size=150,
    )
)
def test_every_call_leaves_exactly_once_and_counts_are_true(
    acts: list[tuple[str, str, Value, bool, int]],
) -> None:
    line = Line()
    inside: list[Waiting] = []
    for act, tenant, value, long, number in acts:
        if act == "push":
            inside.append(line.push(tenant, number, value, long=long, output=number % 50))
        elif act == "serve":
            for one in line.serve(1):
                inside.remove(one)
        elif act == "leave" and inside:
            line.queue.remove(inside.pop(number % len(inside)))
        elif act == "settle":
            line.queue.settle(tenant, 2500.0 - number)
        else:
            line.now_s += number / 100
        check(line.queue, inside)
    while inside:
        (one,) = line.serve(1)
        inside.remove(one)
    check(line.queue, [])
    assert not line.queue.heads()


def check(queue: Queue, inside: list[Waiting]) -> None:
    assert queue.size == len(inside)
    assert queue.tenants() == Counter(one.call.tenant.name for one in inside)
    assert {key: count for key, count in queue.depths() if count} == Counter(
        ("long" if one.long else "short", one.value) for one in inside
    )
    assert {id(one) for one in queue.waiting()} == {id(one) for one in inside}
    tokens, calls = queue.ahead("low", long=True)
    assert (tokens, calls) == (sum(one.call.prompt_tokens for one in inside), len(inside))
    assert all(counter >= 0.0 for counter in queue._counters.values())
    assert len(queue.heads()) == len({one.long for one in inside})


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from(VALUES), st.booleans())
def test_nobody_waits_for_ever(seed: int, value: Value, long: bool) -> None:
    """One call waits while others come without end, as many as go in: it goes in after a bounded number."""
    dice = Random(seed)
    line = Line()
    tokens = dice.randint(1, 500) * (10 if long else 1)
    patient = line.push("p", tokens, value, long=long)
    for _ in range(3000):
        other_long = dice.random() < 0.1
        line.push(
            dice.choice("abcp"), dice.randint(1, 500) * (20 if other_long else 1), dice.choice(VALUES), long=other_long
        )
        if dice.random() < 0.95:
            line.serve(1)
        if not patient.queued:
            return
    pytest.fail(f"{value} {'long' if long else 'short'} call of {tokens} tokens still waits")
