from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from forebay.console.token import admin_token


def test_token_is_made_once_and_kept(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    first = admin_token(folder)
    assert len(first) == 43
    assert admin_token(folder) == first
    assert (folder / "admin-token").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in folder.iterdir()] == ["admin-token"]
    assert folder.stat().st_mode & 0o077 == 0


def test_two_folders_have_two_tokens(tmp_path: Path) -> None:
    assert admin_token(tmp_path / "a") != admin_token(tmp_path / "b")


def test_many_starters_get_one_token(tmp_path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(lambda _: admin_token(tmp_path), range(32)))
    assert len(tokens) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["admin-token"]


def test_rights_of_others_are_taken_away(tmp_path: Path) -> None:
    path = tmp_path / "admin-token"
    path.write_text("x" * 40 + "\n")
    path.chmod(0o644)
    assert admin_token(tmp_path) == "x" * 40
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", [b"", b"CANARY\n", b"CANARY space " * 4, "ü".encode() * 40])
def test_a_weak_token_is_refused_with_advice_and_not_shown(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "admin-token").write_bytes(content)
    with pytest.raises(OSError, match=r"no token of at least 32 .*; delete the file.*admin-token") as caught:
        admin_token(tmp_path)
    assert "CANARY" not in str(caught.value)


def test_a_link_in_place_of_the_token_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("x" * 40)
    (tmp_path / "admin-token").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"):
        admin_token(tmp_path)


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="file/data"):
        admin_token(tmp_path / "file" / "data")
