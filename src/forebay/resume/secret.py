"""The key of a node that the configuration names none for: random, made once, kept in the data folder."""

import logging
import os
import secrets
from contextlib import suppress
from pathlib import Path
from typing import Final

FILE_NAME: Final = "resume-key"
_BYTES: Final = 32
log = logging.getLogger(__name__)


def own_secret(data_dir: Path) -> bytes:
    """Return the secret of a data folder, 32 bytes; make it when it is not there.

    Of several processes that start at once, one makes it and all get the same. Where the folder cannot be used the
    secret is that of this process: it works, until it ends.
    """
    path = data_dir / FILE_NAME
    try:
        if not path.exists():
            _create(path)
        secret = _read(path)
    except OSError as error:
        log.warning("answers cannot be resumed after a restart, %s cannot be used: %s", path, error.strerror)
        return secrets.token_bytes(_BYTES)
    if len(secret) != _BYTES:
        log.warning("answers cannot be resumed after a restart, %s holds no key; delete it and start again", path)
        return secrets.token_bytes(_BYTES)
    return secret


def _create(path: Path) -> None:
    """Write a secret beside the path and link it there, unless another process has been faster."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secrets.token_bytes(_BYTES))
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()


def _read(path: Path) -> bytes:
    """Read a secret; take away the rights that others have on the file."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_mode & 0o077:
            os.fchmod(descriptor, 0o600)
        return file.read(_BYTES + 1)
