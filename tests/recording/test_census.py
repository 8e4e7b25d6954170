"""Counting a traffic: sums that add up, percentiles within their buckets, bounded whatever comes."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay.domain import Outcome
from forebay.recording.census import OTHERS, Lengths, Traffic
from forebay.recording.lines import Attempt, CloseLine


def call(ts: float = 0.0, **fields: object) -> CloseLine:
    line = CloseLine(ts, "c", "r", "chat", "x", tenant="a", model="m", outcome=Outcome.OK, usage_estimated=False)
    for name, value in fields.items():
        setattr(line, name, value)
    return line


def counted(*lines: CloseLine) -> Traffic:
    traffic = Traffic()
    for line in lines:
        traffic.add(line)
    return traffic


@given(st.lists(st.integers(0, 1_000_000), min_size=1, max_size=100), st.floats(0.01, 1.0))
def test_a_percentile_is_the_bound_of_the_right_bucket(values: list[int], ratio: float) -> None:
    lengths = Lengths()
    for value in values:
        lengths.add(value)
    true = sorted(values)[max(0, math.ceil(ratio * len(values) - 1e-9) - 1)]
    found = lengths.percentile(ratio)
    assert found is not None and true <= found <= max(0, 2 * true - 1)
    assert (lengths.calls, lengths.tokens, sum(lengths.buckets)) == (len(values), sum(values), len(values))


def test_lengths_beyond_the_last_bucket_stay_in_it() -> None:
    lengths = Lengths()
    lengths.add(1 << 40)
    assert lengths.buckets[-1] == 1
    assert Lengths().percentile(0.5) is None


def test_long_inputs_and_their_tokens() -> None:
    traffic = counted(*(call(input_length=n) for n in (100, 2_048, 2_049, 9_000, 20_000)), call(input_length=None))
    assert [(a.threshold_tokens, a.calls, a.tokens) for a in traffic.above] == [
        (2_048, 3, 31_049),
        (8_192, 2, 29_000),
        (16_384, 1, 20_000),
    ]
    assert (traffic.calls, traffic.input.calls) == (6, 5)


def test_groups_templates_hours_and_outcomes() -> None:
    traffic = counted(
        call(3_600.0 * 25, input_length=10, output_length=2, prompt_template_id="t"),
        call(3_600.0 * 2 - 0.1, input_length=30, tenant="b", prompt_template_id="t"),
        call(5.0, tenant=None, model=None, outcome=Outcome.REFUSED, error_code="queue_full", usage_estimated=True),
    )
    assert {(g.tenant, g.model): (g.calls, g.input.tokens, g.output.tokens) for g in traffic.groups.values()} == {
        ("a", "m"): (1, 10, 2),
        ("b", "m"): (1, 30, 0),
        ("-", "-"): (1, 0, 0),
    }
    assert [(t.name, t.calls, t.input_tokens, t.output_tokens) for t in traffic.templates.values()] == [("t", 2, 40, 2)]
    assert [(h.hour, h.calls, h.tokens) for h in traffic.hours if h.calls] == [(0, 1, 0), (1, 2, 42)]
    assert (traffic.outcomes["ok"], traffic.outcomes["refused"], traffic.codes) == (2, 1, {"queue_full": 1})
    assert (traffic.first_s, traffic.last_s, traffic.estimated) == (5.0, 90_000.0, 1)


def test_reuse_counts_only_calls_that_report_it() -> None:
    traffic = counted(
        call(input_length=100, cached_tokens=40),
        call(input_length=900, cached_tokens=None),
        call(input_length=50, cached_tokens=0),
        call(input_length=70, cached_tokens=70, usage_estimated=True),
    )
    assert (traffic.cache_calls, traffic.cache_input_tokens, traffic.cached_tokens) == (2, 150, 40)


def test_retries_of_both_kinds() -> None:
    tries = (Attempt("p", "a"), Attempt("p", "b"))
    traffic = counted(call(retry_count=2), call(attempts=tries, continued=1), call(attempts=tries[:1]))
    assert (traffic.retried, traffic.tried_again, traffic.continued) == (1, 1, 1)


def test_the_rest_of_an_answer_tells_no_length() -> None:
    rest = call(input_length=0, output_length=3, resumed_from="c0", input_estimate_tokens=90, output_estimate_tokens=9)
    traffic = counted(call(input_length=100, output_length=10), rest)
    assert (traffic.calls, traffic.input.calls, traffic.output.calls) == (2, 1, 1)
    assert (traffic.output_guesses.calls, traffic.hours[0].tokens + traffic.hours[1].tokens) == (0, 113)
    assert sum(group.calls for group in traffic.groups.values()) == 2


def test_estimates_are_held_against_counts_alone() -> None:
    traffic = counted(
        call(input_length=100, input_estimate_tokens=120, output_length=10, output_estimate_tokens=100),
        call(input_length=100, input_estimate_tokens=121),
        call(input_length=100, input_estimate_tokens=100, usage_estimated=True),
        call(input_length=100),
    )
    seen = traffic.input_guesses
    assert (seen.calls, seen.estimated_tokens, seen.counted_tokens, seen.near) == (2, 241, 200, 1)
    assert (traffic.output_guesses.calls, traffic.output_guesses.near) == (1, 0)


@pytest.mark.parametrize(
    ("field", "kept", "bound"),
    [("tenant", "groups", 201), ("prompt_template_id", "templates", 1_001), ("error_code", "codes", 101)],
)
def test_every_list_is_bounded(field: str, kept: str, bound: int) -> None:
    traffic = counted(*(call(**{field: f"n{number}"}) for number in range(1_200)))
    found = getattr(traffic, kept)
    assert len(found) == bound
    assert OTHERS in found
    assert sum(one if isinstance(one, int) else one.calls for one in found.values()) == 1_200


def test_it_comes_back_from_json() -> None:
    traffic = counted(call(input_length=5, output_length=3, prompt_template_id="t"))
    assert msgspec.json.decode(msgspec.json.encode(traffic), type=Traffic) == traffic
