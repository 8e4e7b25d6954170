"""Every file of `bad/` fails with the faults that its `# expect:` lines name, and with no other."""

import re
from pathlib import Path

import pytest

from forebay.config.load import load
from forebay.errors import ConfigError

BAD = sorted((Path(__file__).parent / "bad").glob("*.yaml"))


def expected_of(path: Path) -> list[str]:
    text = path.read_text(encoding="utf-8")
    found = re.findall(r"^# expect: (.+)$", text, re.MULTILINE)
    assert found and text.startswith("# expect: "), f"{path.name} does not say what to expect"
    return found


@pytest.mark.parametrize("path", BAD, ids=lambda path: path.stem)
def test_a_bad_file_is_refused_with_the_right_words(path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(path, {}, 0.0)
    faults = caught.value.faults
    expected = expected_of(path)
    for text in expected:
        assert [fault for fault in faults if fault.startswith(f"{path}:{text}")], "\n".join([text, "not in:", *faults])
    assert len(faults) == len(expected), "\n".join(faults)
    assert not [fault for fault in faults if "\n" in fault or "CANARY" in fault], faults


def test_there_are_bad_files() -> None:
    assert len(BAD) > 80
