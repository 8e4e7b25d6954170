"""Files that hold a secret: made once, for one user, whole."""

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from forebay.private import secret_in


def test_many_makers_get_one_secret_and_leave_one_file(tmp_path: Path) -> None:
    path, made = tmp_path / "folder" / "secret", iter(range(1000))
    with ThreadPoolExecutor(8) as threads:
        secrets = set(threads.map(lambda _: secret_in(path, lambda: b"secret %d" % next(made), 100), range(32)))
    assert len(secrets) == 1 and [each.name for each in path.parent.iterdir()] == ["secret"]
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)


def test_no_more_than_asked_for_is_read_and_others_lose_their_rights(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"0123456789")
    path.chmod(0o664)
    assert secret_in(path, lambda: b"", 4) == b"0123"
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"x")
    (tmp_path / "secret").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"):
        secret_in(tmp_path / "secret", lambda: b"", 4)
