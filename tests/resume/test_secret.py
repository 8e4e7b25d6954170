"""A node's own key: made once, for its user alone, and never in the way of a start."""

import logging
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from forebay.resume.secret import FILE_NAME, own_secret


def test_it_is_made_once(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    secret = own_secret(folder)
    assert own_secret(folder) == secret and len(secret) == 32
    assert (folder / FILE_NAME).stat().st_mode & 0o777 == 0o600
    assert [path.name for path in folder.iterdir()] == [FILE_NAME]


def test_processes_that_start_at_once_get_the_same(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(own_secret, [tmp_path] * 32))) == 1


def test_others_lose_their_rights(tmp_path: Path) -> None:
    own_secret(tmp_path)
    (tmp_path / FILE_NAME).chmod(0o644)
    own_secret(tmp_path)
    assert (tmp_path / FILE_NAME).stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("trouble", ["short", "folder", "link", "parent"])
def test_what_cannot_be_used_is_said_and_does_not_stop_the_start(
    tmp_path: Path, trouble: str, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path
    if trouble == "short":
        (tmp_path / FILE_NAME).write_bytes(b"short")
    elif trouble == "folder":
        (tmp_path / FILE_NAME).mkdir()
    elif trouble == "link":
        (tmp_path / "real").write_bytes(b"x" * 32)
        (tmp_path / FILE_NAME).symlink_to(tmp_path / "real")
    else:
        folder = tmp_path / "file"
        folder.write_text("")
    with caplog.at_level(logging.WARNING):
        first, second = own_secret(folder), own_secret(folder)
    assert len(first) == len(second) == 32 and first != second
    assert "after a restart" in caplog.text
