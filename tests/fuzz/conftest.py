"""The full number of fuzzed streams is run only when it is asked for: `pytest tests/fuzz -m slow`."""

from pathlib import Path

import pytest

HERE = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if "slow" in config.option.markexpr:
        return
    held = [item for item in items if item.path.is_relative_to(HERE) and item.get_closest_marker("slow")]
    if held:
        config.hook.pytest_deselected(items=held)
        items[:] = [item for item in items if item not in held]
