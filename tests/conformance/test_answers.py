"""Every endpoint, asked directly and through the gateway: the same answer, member by member.

The engine is asked twice, so that what it does not repeat (ids, times) is found, not listed.
"""

from typing import Any

import pytest
from conformance.cases import CASES, Case
from conformance.compare import answer, differences, header_differences, renamed, varying
from conformance.world import SIM_ALIAS, World

pytestmark = pytest.mark.integration
NAMES = {"llamacpp": ("default", "alias"), "sim": ("sim", SIM_ALIAS)}


def parameters() -> list[Any]:
    marks = {"llamacpp": [pytest.mark.engine], "sim": []}
    return [pytest.param(case, id=case.id, marks=marks[case.engine]) for case in CASES]


@pytest.mark.parametrize("case", parameters())
def test_the_answer_is_the_engines(world: World, case: Case) -> None:
    names = NAMES[case.engine]
    body = {"model": names[0], **case.body}
    if case.status == 200:
        # Fills the engine's prompt cache, whose state shows in the answer.
        world.direct(case.engine, case.target, body)
    first, second = (world.direct(case.engine, case.target, body) for _ in range(2))
    assert second.status == case.status, second.body[:500]
    direct = answer(second)
    loose = varying(answer(first), direct)
    for name in names:
        through = world.through(case.through or case.target, body | {"model": name})
        assert through.status == case.status, through.body[:500]
        assert differences(renamed(direct, name), answer(through), loose) == []
        assert header_differences(second, through) == []
