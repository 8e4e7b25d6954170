"""A new key and its digest belong together, and no two keys are the same."""

import hashlib

import pytest

from forebay.cli.key import new_key, run_key_new


def test_the_digest_is_that_of_the_key() -> None:
    key, digest = new_key()
    assert digest == "sha256:" + hashlib.sha256(key.encode()).hexdigest()
    assert len(key) >= 40
    assert new_key()[0] != key


def test_both_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    run_key_new()
    first, second = capsys.readouterr().out.splitlines()
    key, digest = first.rsplit(" ", 1)[1], second.rsplit(" ", 1)[1]
    assert digest == "sha256:" + hashlib.sha256(key.encode()).hexdigest()
