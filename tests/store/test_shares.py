"""Who gets how much: sums, fairness between nodes, and the way down without a store."""

from hypothesis import given
from hypothesis import strategies as st

from forebay.store.records import Book, Claim, Moments
from forebay.store.shares import Need, claim, even, remains, split, steady, target, without_store

demands = st.dictionaries(st.sampled_from("abcdefgh"), st.integers(0, 2000), min_size=1)


@given(st.integers(0, 100_000), demands)
def test_parts_add_up_and_nobody_is_forgotten(total: int, wanted: dict[str, int]) -> None:
    parts = split(total, wanted)
    assert sum(parts.values()) == total
    assert parts.keys() == wanted.keys()
    assert min(parts.values()) >= total // (20 * len(wanted))


@given(st.integers(0, 100_000), demands)
def test_who_wants_more_gets_no_less(total: int, wanted: dict[str, int]) -> None:
    parts = split(total, wanted)
    order = sorted(wanted, key=lambda node: wanted[node])

    def counted(demand: int) -> int:
        return max(total // (20 * len(wanted)), min(total, demand))

    for less, more in zip(order, order[1:], strict=False):
        assert parts[less] <= parts[more] or counted(wanted[less]) == counted(wanted[more])


@given(st.integers(0, 100_000), demands)
def test_the_order_of_the_records_decides_nothing(total: int, wanted: dict[str, int]) -> None:
    assert split(total, wanted) == split(total, dict(reversed(wanted.items())))


def test_what_is_enough_is_given_and_what_is_not_is_divided_in_proportion() -> None:
    assert split(100, {"a": 60, "b": 10}) == {"a": 75, "b": 25}
    assert split(8, {"a": 7, "b": 1}) == {"a": 7, "b": 1}
    assert split(1, {"a": 0, "b": 1}) == {"a": 0, "b": 1}
    assert split(2, {"a": 1, "b": 0}) == {"a": 1, "b": 1}
    assert split(600, {"a": 600, "b": 0}) == {"a": 585, "b": 15}


def test_calls_at_once_divide_the_limit_and_a_minute_what_is_left_of_it() -> None:
    claims = {"a": Claim(6, used=6, demand=6), "b": Claim(2, used=2, demand=6)}
    assert target("level", 8, "b", claims) == 4
    claims = {"a": Claim(50, used=40, demand=2), "b": Claim(20, used=10, demand=2)}
    assert target("flow", 100, "a", claims) == 40 + 25
    assert target("flow", 100, "a", claims, gone=50) == 40


def test_a_claim_takes_no_more_than_it_sees_free() -> None:
    need = Need(limit=8, ceiling=2, used=1, demand=8)
    others = {"b": (Claim(5, used=5, demand=0), 0.3)}
    assert claim("level", need, "a", others, rising=True).ceiling == 3
    assert claim("level", need, "a", others, rising=False).ceiling == 2
    gone = {"b": (Claim(5, used=5, demand=0), 2.1)}
    assert claim("level", need, "a", gone, rising=True).ceiling == 8
    full = {"b": (Claim(2, used=9, demand=0), 0.0)}
    assert claim("level", need, "a", full, rising=True).ceiling == 0


def test_what_was_used_fades_in_slices_and_never_too_early() -> None:
    used = Claim(10, 10, 0, (4, 6))
    assert [remains(used, age) for age in (2, 10.9, 11.1, 20.9, 21.1)] == [10, 10, 6, 6, 0]
    assert remains(Claim(5, 5), 2.1) == 0


def test_a_pause_of_the_store_begins_a_time_in_which_nothing_rises() -> None:
    def book(now_ms: int, moments: Moments | None) -> Book:
        return Book(now_ms, moments, {})

    assert steady(book(5000, None)) == (Moments(5000, 5000), False)
    assert steady(book(5500, Moments(5000, 5000))) == (Moments(5500, 5000), False)
    assert steady(book(8000, Moments(7500, 5000))) == (Moments(8000, 5000), True)
    assert steady(book(9501, Moments(8000, 5000))) == (Moments(9501, 9501), False)
    assert steady(book(7000, Moments(8000, 5000))) == (Moments(7000, 7000), False), "its clock went back"


def test_even_parts() -> None:
    nodes = ["a", "b", "c"]
    assert [even(8, nodes, node, 3) for node in nodes] == [3, 3, 2]
    assert [even(8, nodes, node, 4) for node in nodes] == [2, 2, 2]
    assert [even(2, nodes, node, 3) for node in nodes] == [1, 1, 1], "passed by one call, not useless"
    assert even(0, nodes, "a", 3) == 0


def test_without_the_store_a_large_part_falls_and_a_small_one_waits() -> None:
    seconds = (1.0, 2.0, 6.0, 10.0, 11.9, 12.0, 72.0, 73.0)
    assert [without_store("level", 7, 4, s) for s in seconds] == [7, 7, 5, 4, 4, 4, 4, 4]
    assert [without_store("level", 1, 4, s) for s in seconds] == [1, 1, 1, 1, 1, 4, 4, 4]
    assert [without_store("flow", 1, 4, s) for s in seconds] == [1, 1, 1, 1, 1, 1, 1, 4]


@given(st.integers(1, 50), st.lists(st.integers(0, 50), min_size=2, max_size=2), st.floats(0, 100))
def test_two_nodes_without_the_store_stay_within_the_limit(limit: int, wanted: list[int], silent_s: float) -> None:
    last = split(limit, {"a": wanted[0], "b": wanted[1]})
    parts = [without_store("level", last[n], even(limit, ["a", "b"], n, 2), silent_s) for n in "ab"]
    assert sum(parts) <= max(limit, 2)
