"""Every endpoint, asked directly and through the gateway: the same answer, member by member.

The engine is asked several times, so that what it does not repeat (ids, times) is found, not listed.
"""

from collections.abc import Callable
from typing import Any

import pytest
from cases.rawhttp import Response
from conformance.cases import CASES, Case
from conformance.compare import Flat, answer, differences, header_differences, renamed, varying
from conformance.world import NAMES, World

pytestmark = pytest.mark.integration
# Two times of an engine can be equal by chance; that they are so five times is out of the question.
MOST_DIRECT_CALLS = 5


class Direct:
    """What an engine answers to one request, and what of it is no constant."""

    def __init__(self, ask: Callable[[], Response]) -> None:
        self._ask = ask
        self.response = ask()
        self._answers = [answer(self.response), answer(ask())]

    def faults(self, found: Flat, name: str, lost: frozenset[str]) -> list[str]:
        """How an answer for another name of the model differs; the engine is asked again before it is believed."""
        while True:
            first, *others = self._answers
            loose = frozenset[str]().union(*(varying(first, other) for other in others))
            kept = {path: leaf for path, leaf in first.items() if path.rpartition(".")[2] not in lost}
            faults = differences(renamed(kept, name), found, loose)
            if not faults or len(self._answers) == MOST_DIRECT_CALLS:
                return faults
            self._answers.append(answer(self._ask()))


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
    direct = Direct(lambda: world.direct(case.engine, case.target, body))
    assert direct.response.status == case.status, direct.response.body[:500]
    for name in names:
        through = world.through(case.through or case.target, body | {"model": name})
        assert through.status == case.status, through.body[:500]
        assert direct.faults(answer(through), name, case.lost) == []
        assert header_differences(direct.response, through) == []
