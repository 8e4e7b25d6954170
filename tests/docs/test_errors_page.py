"""docs/errors.md lists the closed list of errors, and nothing else."""

import re

import pytest

from forebay.errors import CODES, Code
from tests.docs.pages import REPO, read

ROWS = re.findall(r"^\| `(\w+)` \| (\d+) \| (yes|no) \| (.+) \|$", read(REPO / "docs" / "errors.md"), re.MULTILINE)
LISTED = {code: (int(status), retry == "yes") for code, status, retry, _ in ROWS}


def test_every_code_is_listed_once_and_no_other() -> None:
    assert sorted(code for code, *_ in ROWS) == sorted(CODES)


@pytest.mark.parametrize(("name", "code"), CODES.items(), ids=CODES)
def test_status_and_retry_are_as_documented(name: str, code: Code) -> None:
    assert LISTED[name] == (code.status, code.retry)


def test_settings_that_are_named_there_exist() -> None:
    config = read(REPO / "docs" / "config.md").replace("pools.NAME.", "").replace("tenants[].", "")
    settings = set(re.findall(r"^\| `([\w.]+)` \|", config, re.MULTILINE))
    named = {name for *_, meaning in ROWS for name in re.findall(r"`([a-z_]+\.[a-z_]+|[a-z]+_size)`", meaning)}
    assert named, "no row names a setting"
    assert named - settings == set()
