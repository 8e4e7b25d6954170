"""The file of a calibration."""

from pathlib import Path

import pytest

from forebay.cli.calibrated import read_spec
from forebay.engines.sim import SimSpec


def test_a_part_of_it_is_enough(tmp_path: Path) -> None:
    file = tmp_path / "engine.json"
    file.write_text('{"spec": {"iteration_base_ms": 30, "max_num_seqs": 4}, "errors": {}}')
    assert read_spec(file) == SimSpec(iteration_base_ms=30, max_num_seqs=4)


def test_without_a_file_it_is_that_of_the_study() -> None:
    assert read_spec(None) == SimSpec()


SEVERAL = '{"spec": {"max_num_seqs": "several"}}'
NONE = '{"spec": {"max_num_seqs": 0}}'


@pytest.mark.parametrize("text", ["", "[]", "{}", SEVERAL, NONE])
def test_another_file_is_refused_by_name(tmp_path: Path, text: str) -> None:
    file = tmp_path / "engine.json"
    file.write_text(text)
    with pytest.raises(ValueError, match=r"engine\.json is no JSON of `forebay plan calibrate`"):
        read_spec(file)
