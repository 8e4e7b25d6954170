"""Files that hold a secret of this node: made once, kept in the data folder, for this user alone.

`serve` and the control plane use it too: it stays free of libraries.
"""

import os
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path


def secret_in(path: Path, make: Callable[[], bytes], max_bytes: int) -> bytes:
    """Return what the file of a secret holds; make it, and its folder, when it is not there.

    Of several processes that start at once, one makes it and all get the same. Rights that others have on the file are
    taken away.

    Args:
        path: of the file; nothing is followed that is a link.
        make: a new secret.
        max_bytes: that are read at most.

    Raises:
        OSError: the file cannot be read or written.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists():
        _create(path, make())
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    with os.fdopen(descriptor, "rb") as file:
        if os.fstat(descriptor).st_mode & 0o077:
            os.fchmod(descriptor, 0o600)
        return file.read(max_bytes)


def _create(path: Path, secret: bytes) -> None:
    """Write a secret beside the path and link it there, unless another process has been faster."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(secret)
            file.flush()
            os.fsync(file.fileno())
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
