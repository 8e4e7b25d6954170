"""The gate in the planner is the product's, fed with what it would know."""

import pytest

from forebay.engines.sim.spec import SimSpec
from forebay.plan.gated import _outputs, admission_for, gated
from forebay.plan.report import Slo
from forebay.plan.run import Run
from forebay.plan.traces import Arrival
from forebay.policy import PATIENT, PROMPT


def test_the_medium_class_promises_what_is_judged_and_the_others_keep_their_proportion() -> None:
    admission = admission_for("latency", Slo(short_s=3.0, long_s=30.0, long_prompt_tokens=1000))
    assert admission.classes["medium"].target_s == pytest.approx(3.0)
    assert admission.classes["medium"].long_target_s == pytest.approx(30.0)
    assert admission.classes["high"].target_s == pytest.approx(PROMPT["high"].target_s * 2)
    assert admission.classes["low"].max_wait_s == PROMPT["low"].max_wait_s
    assert (admission.refuses_early, admission.long_prompt_tokens) == (True, 1000)
    patient = admission_for("throughput", Slo())
    assert patient.classes["medium"].max_wait_s == PATIENT["medium"].max_wait_s
    assert not patient.refuses_early


def test_answers_are_foreseen_by_what_is_usual_for_the_tenant() -> None:
    arrivals = [Arrival(0.0, 1, length, "a") for length in range(1, 11)] + [Arrival(0.0, 1, 7, "b")]
    assert _outputs(arrivals) == {"a": (9, 6), "b": (7, 7)}


def test_who_would_be_late_is_refused_with_a_code_when_the_preset_says_so() -> None:
    spec = SimSpec(max_num_seqs=1)
    arrivals = [Arrival(at / 10, 1000, 50, "a") for at in range(100)]
    patient, prompt = (
        Run(arrivals, spec, 1, gated(admission_for(preset, Slo()), arrivals)).rows()
        for preset in ("throughput", "latency")
    )
    assert {row.refused for row in patient} == {""}
    assert {row.refused for row in prompt} > {""}
    assert all(row.queue_s <= 1.2 for row in prompt)


def test_values_are_told_apart() -> None:
    spec = SimSpec(max_num_seqs=1)
    values = ("low", "high")
    arrivals = [Arrival(at / 100, 500, 50, "a", values[at % 2]) for at in range(40)]  # type: ignore[arg-type]
    rows = Run(arrivals, spec, 1, gated(admission_for("throughput", Slo()), arrivals)).rows()
    waits = {value: sum(row.queue_s for row in rows if row.arrival.value == value) for value in values}
    assert waits["high"] < 0.9 * waits["low"]
