"""One engine and one gateway for all cases of a module that need no setting of their own."""

from collections.abc import Iterator
from typing import Any

import pytest
from cases.pair import Pair
from gateway_process import document, pool


@pytest.fixture(scope="module")
def module_pair(module_engine: Any, module_gateway: Any) -> Pair:
    engine = module_engine()
    # The cases of a module share the gateway, so no case may leave an open breaker to the next.
    pools = {"main": pool(engine, breaker={"failures": 100_000, "open_s": 1})}
    return Pair(engine, module_gateway(document(engine, pools=pools)))


@pytest.fixture
def pair(module_pair: Pair) -> Iterator[Pair]:
    module_pair.engine.reset()
    yield module_pair
    module_pair.engine.reset()
