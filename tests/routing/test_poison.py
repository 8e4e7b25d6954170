"""Requests that kill engines: who is judged how, what is remembered, and how many engines die of one request."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from routing.ward import POISON, Ward

from forebay.routing.poison import (
    DEATH_WINDOW_S,
    INNOCENT_TOKENS,
    MAX_FINGERPRINTS,
    MAX_HASHED_BYTES,
    MAX_TTL_S,
    SAME_TOKENS,
    TTL_S,
    Flight,
    Judged,
    Presence,
    Quarantine,
    fingerprint,
    judge,
)

NOTED = Presence("noted")
SUSPECT = Presence("suspect")


def flight(seen: int, decoded: int = 0, started_s: float = 0.0) -> Flight:
    return Flight(f"c{seen}", seen, 8, started_s, decoded, decoded)


def findings(judged: tuple[Judged, ...] | dict[str, Judged]) -> dict[int, str]:
    each = judged.values() if isinstance(judged, dict) else judged
    return {one.flight.fingerprint: one.finding for one in each}


# one judgement


def test_who_decodes_is_innocent_and_who_has_just_begun_is_a_suspect() -> None:
    some = [
        *(flight(1), flight(2, 1, started_s=1.0), flight(3, INNOCENT_TOKENS, started_s=2.0)),
        *(flight(4, INNOCENT_TOKENS + 1), Flight("c5", 5, 7, 0.0, 3, 3)),
    ]
    judged = judge(some, {})
    assert findings(judged) == {1: "suspect", 2: "innocent", 3: "suspect", 4: "innocent", 5: "suspect"}
    assert [one.reason for one in judged] == ["in prefill", "not the newest", "newest", "decoded", "newest"]


def test_a_suspect_of_another_death_is_guilty_and_explains_this_one() -> None:
    judged = judge([flight(1), flight(2), flight(3, 100)], {2: SUSPECT})
    assert findings(judged) == {1: "innocent", 2: "guilty", 3: "innocent"}
    assert {one.reason for one in judged} == {"explained", "second death"}


def test_who_was_noted_at_another_death_is_guilty_if_he_is_the_only_one() -> None:
    assert findings(judge([flight(1), flight(2)], {2: NOTED})) == {1: "innocent", 2: "guilty"}
    assert findings(judge([flight(1), flight(2)], {1: NOTED, 2: NOTED})) == {1: "suspect", 2: "suspect"}
    assert findings(judge([flight(2, 100)], {2: NOTED})) == {2: "innocent"}, "he decodes well here"
    assert findings(judge([flight(2, 100)], {2: SUSPECT})) == {2: "innocent"}, "wherever else he was"


def test_a_request_kills_where_it_killed_before() -> None:
    before = {2: Presence("noted", place_tokens=90)}
    for place_tokens, finding in ((90, "guilty"), (90 + SAME_TOKENS, "guilty"), (91 + SAME_TOKENS, "innocent")):
        assert findings(judge([flight(2, place_tokens)], before)) == {2: finding}
    resumed = Flight("c2", 2, 8, 0.0, 3, 93)
    assert findings(judge([resumed], before)) == {2: "guilty"}, "three tokens behind the seam"
    before = {2: Presence("suspect", place_tokens=0)}
    assert findings(judge([flight(2, 20, 1.0), flight(3, 20)], before)) == {2: "suspect", 3: "innocent"}, "further"


def test_the_third_death_convicts_whatever_was_decoded_and_so_does_a_quarantine() -> None:
    assert findings(judge([flight(1, 500), flight(2)], {1: Presence("noted", deaths=2)})) == {
        1: "guilty",
        2: "innocent",
    }
    assert findings(judge([flight(1, 500), flight(2)], {1: Presence("quarantined")})) == {1: "guilty", 2: "innocent"}


def test_the_surer_evidence_goes_first() -> None:
    before = {1: Presence("noted", deaths=2), 2: SUSPECT, 3: NOTED}
    judged = judge([flight(1, 500), flight(2), flight(3)], before)
    assert findings(judged) == {1: "innocent", 2: "guilty", 3: "innocent"}


@given(
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 80)), max_size=30),
    st.dictionaries(
        st.integers(0, 12),
        st.builds(
            Presence, st.sampled_from(["noted", "suspect", "quarantined"]), st.integers(1, 3), st.integers(0, 40)
        ),
        max_size=8,
    ),
)
def test_of_any_judgement(calls: list[tuple[int, int]], before: dict[int, Presence]) -> None:
    flights = [Flight(f"c{n}", seen, 1, 0.0, decoded, decoded) for n, (seen, decoded) in enumerate(calls)]
    judged = judge(flights, before)
    assert [one.flight for one in judged] == flights
    guilty = {one.flight.fingerprint for one in judged if one.finding == "guilty"}
    assert guilty <= before.keys(), "nobody is guilty at his first death"
    convicted = {f.fingerprint for f in flights if f.fingerprint in before} & {
        seen for seen, presence in before.items() if presence.standing == "quarantined"
    }
    assert guilty == convicted or not convicted
    for one in judged:
        if guilty:
            assert one.finding != "suspect", "a culprit explains it"
        elif one.flight.decoded_tokens > INNOCENT_TOKENS and one.flight.fingerprint not in before:
            assert one.finding == "innocent"
        elif not one.flight.decoded_tokens:
            assert one.finding == "suspect"


# what is remembered


def test_second_death_with_the_same_fingerprint_is_quarantine_for_a_while() -> None:
    quarantine = Quarantine()
    assert quarantine.standing(1, 0.0) == "free" and len(quarantine) == 0
    assert findings(quarantine.died("a", [flight(1)], 10.0)) == {1: "suspect"}
    assert quarantine.standing(1, 11.0) == "suspect"
    assert findings(quarantine.died("b", [flight(1)], 20.0)) == {1: "guilty"}
    assert quarantine.standing(1, 20.0 + TTL_S - 0.1) == "quarantined" and quarantine.convictions == 1
    (entry,) = quarantine.entries(21.0)
    assert (entry.fingerprint, entry.standing, entry.deaths, entry.replica) == (f"{1:016x}", "quarantined", 2, "b")
    assert entry.left_s == TTL_S - 1.0 and entry.reason == "second death"


def test_after_its_time_it_may_be_tried_once_and_then_is_out_for_twice_as_long() -> None:
    quarantine, now_s, lengths = Quarantine(), 0.0, []
    quarantine.died("a", [flight(1)], now_s)
    for _ in range(7):
        now_s += 10.0
        assert findings(quarantine.died("b", [flight(1)], now_s)) == {1: "guilty"}
        lengths.append(quarantine.entries(now_s)[0].left_s)
        now_s += lengths[-1]
        assert quarantine.standing(1, now_s) == "suspect"
    assert lengths == [600.0, 1200.0, 2400.0, 4800.0, 9600.0, MAX_TTL_S, MAX_TTL_S]
    assert quarantine.standing(1, now_s + TTL_S) == "free", "nobody has sent it again"


def test_an_answer_clears_and_survival_ends_the_waiting_only() -> None:
    quarantine = Quarantine()
    quarantine.died("a", [flight(1), flight(2)], 0.0)
    assert not quarantine.survived(1, INNOCENT_TOKENS) and quarantine.standing(1, 4.0) == "suspect"
    assert quarantine.survived(1, INNOCENT_TOKENS + 1) and quarantine.survived(77, 0), "who is not known may go"
    assert quarantine.standing(1, 5.0) == "free" and quarantine.standing(2, 5.0) == "suspect"
    quarantine.answered(2)
    assert findings(quarantine.died("b", [flight(1)], 10.0)) == {1: "guilty"}
    assert findings(quarantine.died("c", [flight(2)], 20.0)) == {2: "suspect"}
    quarantine.answered(1)
    assert quarantine.standing(1, 21.0) == "quarantined"


def test_who_is_never_seen_again_is_accused_for_his_time_only() -> None:
    quarantine = Quarantine()
    quarantine.died("a", [flight(1), flight(2)], 0.0)
    quarantine.died("b", [flight(1)], 10.0)
    assert quarantine.accuses(TTL_S - 1.0)
    # A quarantine that has run out leaves a suspect, for as long again.
    assert quarantine.accuses(TTL_S + 10.0) and quarantine.counts() == (0, 1)
    assert not quarantine.accuses(2 * TTL_S + 10.0) and len(quarantine) == 0


def test_an_operator_removes_one() -> None:
    quarantine = Quarantine()
    for replica in "ab":
        quarantine.died(replica, [flight(1)], 10.0 if replica == "a" else 20.0)
    assert quarantine.remove(int(quarantine.entries(21.0)[0].fingerprint, 16)) and not quarantine.remove(1)
    assert quarantine.standing(1, 21.0) == "free" and quarantine.entries(21.0) == []


def test_when_the_culprit_is_found_the_others_are_free_at_once() -> None:
    quarantine = Quarantine()
    quarantine.died("a", [flight(1), flight(2), flight(3)], 0.0)
    quarantine.died("z", [flight(9)], 1.0)
    assert findings(quarantine.died("b", [flight(2), flight(5)], 10.0)) == {2: "guilty", 5: "innocent"}
    assert [quarantine.standing(seen, 11.0) for seen in (1, 2, 3, 5, 9)] == [
        "free", "quarantined", "free", "free", "suspect",
    ]  # fmt: skip


def test_an_explained_death_is_not_counted_against_the_others() -> None:
    quarantine = Quarantine()
    quarantine.died("a", [flight(1)], 0.0)
    assert findings(quarantine.died("b", [flight(1), flight(5)], 10.0)) == {1: "guilty", 5: "innocent"}
    assert findings(quarantine.died("c", [flight(5)], 20.0)) == {5: "suspect"}, "it is his first one"


def test_calls_that_are_told_of_late_belong_to_the_same_death() -> None:
    quarantine = Quarantine()
    quarantine.died("a", [flight(1)], 0.0)
    assert findings(quarantine.died("a", [flight(1)], DEATH_WINDOW_S)) == {1: "suspect"}
    assert quarantine.entries(DEATH_WINDOW_S)[0].deaths == 1
    assert findings(quarantine.died("a", [flight(1)], 2 * DEATH_WINDOW_S + 0.1)) == {1: "guilty"}, "it came back"


def test_bound_quarantined_ones_stay_the_longest() -> None:
    quarantine = Quarantine()
    quarantine.died("a", [flight(1)], 0.0)
    quarantine.died("b", [flight(1)], 10.0)
    many = [flight(seen, 100 if seen % 2 else 0) for seen in range(10, 10 + 3 * MAX_FINGERPRINTS)]
    quarantine.died("c", many, 20.0)
    assert len(quarantine) == MAX_FINGERPRINTS
    assert quarantine.standing(1, 21.0) == "quarantined"
    shown = quarantine.entries(21.0)
    assert len(shown) == MAX_FINGERPRINTS, "suspects stay longer than innocents"
    for number in range(2):
        suspects = [flight(seen) for seen in range(10**6, 10**6 + 2 * MAX_FINGERPRINTS)]
        quarantine.died(f"d{number}", suspects, 30.0 + 10 * number)
    assert len(quarantine) == MAX_FINGERPRINTS


# the fingerprint


def test_a_fingerprint_forgets_what_changes_between_two_sendings_and_nothing_else() -> None:
    body = {"model": b'"x"', "messages": b"[1]", "user": b'"u"', "seed": b"1"}
    first = fingerprint(b"k" * 16, body)
    assert first == fingerprint(b"k" * 16, {"seed": b"2", "messages": b"[1]", "metadata": b"{}", "model": b'"x"'})
    others = [
        fingerprint(b"j" * 16, body),
        fingerprint(b"k" * 16, {**body, "model": b'"y"'}),
        fingerprint(b"k" * 16, {**body, "messages": b"[2]"}),
        fingerprint(b"k" * 16, {**body, "tools": b"[]"}),
    ]
    assert len({first, *others}) == 5 and all(0 <= one < 2**64 for one in others)


def test_of_a_very_long_member_both_ends_and_the_length_count() -> None:
    long = b"a" * (3 * MAX_HASHED_BYTES)
    texts = [long, b"b" + long[1:], long[:-1] + b"b", long + b"a"]
    assert len({fingerprint(b"k", {"messages": text}) for text in texts}) == 4


@given(st.dictionaries(st.text("ab", max_size=3), st.binary(max_size=4), max_size=4), st.data())
def test_different_bodies_have_different_fingerprints(body: dict[str, bytes], data: st.DataObject) -> None:
    other = data.draw(st.dictionaries(st.text("ab", max_size=3), st.binary(max_size=4), max_size=4))
    assert (fingerprint(b"k", body) == fingerprint(b"k", other)) == (body == other)


# how many engines die


@given(st.integers(0, 10**6), st.floats(0.0, 12.0), st.integers(0, 8))
@settings(max_examples=40, deadline=None)
def test_one_request_takes_two_of_eight_at_the_most(seed: int, arrivals_per_s: float, resent: int) -> None:
    ward, kills_at = Ward(seed, arrivals_per_s=arrivals_per_s), 0
    ward.run(3.0)
    ward.arrive(POISON, kills_at)
    for _ in range(resent):
        # The client, or its SDK, tries again whatever it is told.
        ward.run(2.5)
        ward.arrive(POISON, kills_at)
    ward.run(10.0)
    assert len(ward.dead) == 2
    assert ward.quarantine.standing(POISON, ward.now_s) == "quarantined"
    assert len([call for call in ward.refused if call.kills_at is not None]) == 1 + resent
    assert ward.bystanders_refused() == []
    ward.arrivals_per_s = 0.0
    ward.run(20.0)
    assert ward.answered == ward.sent - 1 - resent, "all others are answered"
    assert ward.trials.waiting() == {}


@given(st.integers(0, 10**6), st.integers(1, 120))
@settings(max_examples=25, deadline=None)
def test_one_that_kills_late_takes_three_at_the_most(seed: int, kills_at: int) -> None:
    ward = Ward(seed)
    ward.run(3.0)
    ward.arrive(POISON, kills_at)
    for _ in range(4):
        ward.run(4.0)
        ward.arrive(POISON, kills_at)
    ward.run(6.0)
    assert len(ward.dead) <= 3
    assert ward.quarantine.standing(POISON, ward.now_s) == "quarantined"
    assert ward.bystanders_refused() == []


@pytest.mark.parametrize("copies", [2, 5])
def test_copies_that_are_sent_at_the_same_time_kill_where_they_are_and_no_further(copies: int) -> None:
    ward = Ward(7)
    ward.run(3.0)
    for _ in range(copies):
        ward.arrive(POISON, 0)
    ward.run(10.0)
    assert len(ward.dead) <= copies and ward.quarantine.standing(POISON, ward.now_s) == "quarantined"


def test_engines_that_die_by_themselves_cost_nobody_his_answer() -> None:
    for seed in range(10):
        ward = Ward(seed)
        ward.run(3.0)
        ward.kill("r0")
        ward.run(4.0)
        ward.kill("r1")
        ward.arrivals_per_s = 0.0
        ward.run(20.0)
        assert ward.refused == [] and ward.answered == ward.sent
