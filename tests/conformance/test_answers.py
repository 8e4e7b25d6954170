"""Every endpoint, asked directly and through the gateway: the same answer, member by member.

The engine is asked several times, so that what it does not repeat (ids, times) is found, not listed.
"""

from typing import Any

import pytest
from cases.rawhttp import Response
from conformance.cases import CASES, Case
from conformance.compare import Flat, Repeated, answer, header_differences
from conformance.world import NAMES, World

pytestmark = pytest.mark.integration


def parameters() -> list[Any]:
    marks = {"llamacpp": [pytest.mark.engine], "sim": []}
    return [pytest.param(case, id=case.id, marks=marks[case.engine]) for case in CASES]


@pytest.mark.parametrize("case", parameters())
def test_the_answer_is_the_engines(world: World, case: Case) -> None:
    names = NAMES[case.engine]
    body = {"model": names[0], **case.body}
    if case.warm:
        # Fills the engine's prompt cache, whose state shows in the answer.
        world.direct(case.engine, case.target, body)
    responses: list[Response] = []

    def ask() -> Flat:
        responses.append(world.direct(case.engine, case.target, body))
        return answer(responses[-1])

    direct = Repeated(ask)
    assert responses[0].status == case.status, responses[0].body[:500]
    for name in names:
        through = world.through(case.through or case.target, body | {"model": name})
        assert through.status == case.status, through.body[:500]
        assert direct.faults(answer(through), name, case.lost) == []
        assert header_differences(responses[0], through) == []
